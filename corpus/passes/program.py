"""Simpler programs: fewer calls, operations, options and sizes, plainer inputs, numbers and names."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import reduce
from typing import Any, TypeVar

from generators.errors import CaseError
from generators.program import edits
from generators.program.calls import CALL_WORDS, at_call, keep_sharing
from generators.program.case import AROUND, Attr, Case, Input, Op, SharedSlice, Values
from generators.program.kept_places import list_simpler
from generators.program.numbers import set_numbers
from generators.program.ops import OPS, make_op
from generators.program.references import rename
from generators.program.regions import REGIONS
from generators.program.roles import HEADS, find_attentions, plain_names, trace
from generators.program.sizes import ONE, Size
from generators.program.type_check import attributes, types_of
from generators.program.values import COMPLEX, DISTRIBUTIONS, FLOATS, LATER, category

T = TypeVar("T")


def simplify_before(case: Case) -> Iterator[Case]:
    """Drop an earlier case, but not all; run it less often; put the case itself in its place; reduce a size in all."""
    for at, earlier in enumerate(case.before):
        fewer = (replace(earlier, times=times) for times in (1, earlier.times // 2, earlier.times - 1))
        same = replace(earlier, case=replace(case, before=()))
        for others in (*[()] * (len(case.before) > 1), *((one,) for one in fewer), (same,)):
            yield replace(case, before=edits.swap(case.before, at, *others))
    sizes = {size for one in (case, *(e.case for e in case.before)) for size in one.sizes.values() if case.before}
    for size in sorted(sizes, reverse=True):
        yield from (_resize_all(case, size, smaller) for smaller in (1, 2, 3, size // 2) if smaller < size)


def _resize_all(case: Case, old: int, new: int) -> Case:
    """The case and its earlier cases with another size in place of `old`. Programs that need `old` keep it."""
    sizes = {name: new if size == old else size for name, size in case.dims}
    before = (replace(one, case=_resize_all(one.case, old, new)) for one in case.before)
    return replace(edits.resize(case, sizes) or case, before=tuple(before))


def drop(field: str) -> Callable[[Case], Iterator[Case]]:
    """The pass that proposes a field without items, with one item alone, and without one item."""

    def drop_items(case: Case) -> Iterator[Case]:
        fewer: list[Any] = _fewer(getattr(case, field))
        yield from (replace(case, **{field: kept}) for kept in fewer)

    return drop_items


def _fewer(items: tuple[T, ...]) -> list[tuple[T, ...]]:
    fewer = ((), *((item,) for item in items), *(edits.swap(items, at) for at in range(len(items))))
    return [kept for kept in dict.fromkeys(fewer) if kept != items]


def drop_calls(case: Case) -> Iterator[Case]:
    """Keep a single call (the first call, then each later call); then drop calls, of which the first may be one."""
    for place in range(len(case.calls) + 1) if case.calls else ():
        yield at_call(case, place)
    yield from drop("calls")(case)
    for at in range(len(case.calls) if len(case.calls) > 1 else 0):
        yield replace(at_call(case, at + 1), calls=edits.swap(case.calls, at), checkpoint=case.checkpoint)
    yield replace(case, checkpoint="")


def drop_differences(case: Case) -> Iterator[Case]:
    """Drop a difference between a later call and the first call, or simplify it."""
    for at, call in enumerate(case.calls):
        changes: list[dict[str, Any]] = [{field.name: field.default} for field in fields(call)]
        changes += [{name: kept} for name in ("sizes", "changes", "numbers") for kept in _fewer(getattr(call, name))]
        for place, (name, value) in enumerate(call.numbers):
            changes += [{"numbers": edits.swap(call.numbers, place, (name, plain))} for plain in _plainer(value)]
        changes += [{name: word} for name, words in CALL_WORDS.items() for word in words]
        for number, (name, size) in enumerate(call.sizes):
            for smaller in (case.sizes[name] + 1, 1, 2, size // 2, size - 1):
                changes.append({"sizes": edits.swap(call.sizes, number, (name, smaller))})
        for change in changes:
            yield replace(case, calls=edits.swap(case.calls, at, replace(call, **change)))


def drop_writes(case: Case) -> Iterator[Case]:
    """Drop all writes, then the last half, then each. Later reads get the value before the write."""
    writes = [op for op in case.ops if OPS[op.kind].writes]
    chosen = [writes, writes[len(writes) // 2 :], *([op] for op in writes)] if writes else []
    for gone in chosen:
        yield reduce(edits.skip_op, reversed(gone), case)  # the target of a write may be the result of an earlier write


def simplify_regions(case: Case) -> Iterator[Case]:
    """Leave out operations at an end of a region, half of them or one, or take a simpler option, fewer carries, or
    forward order."""
    for at, region in enumerate(case.regions):
        options = REGIONS[region.kind].options
        plain = [
            replace(region, ops=ops)
            for count in (len(region.ops) // 2, 1)
            for ops in (region.ops[count:], region.ops[:-count])
        ]
        plain += [replace(region, option=option) for option in options[: options.index(region.option)]]
        plain += [replace(region, carries=kept) for kept in _fewer(region.carries)]
        yield from (
            replace(case, regions=edits.swap(case.regions, at, one)) for one in (*plain, replace(region, reverse=False))
        )


def simplify_numbers(case: Case) -> Iterator[Case]:
    """Drop a use of a number that forward takes, or compute a formula before."""
    for at, number in enumerate(case.numbers):
        for uses in _fewer(number.uses):
            yield replace(case, numbers=edits.swap(case.numbers, at, replace(number, uses=uses)))
    for formula in {use.formula: None for number in case.numbers for use in number.uses if use.formula}:
        yield edits.compute_before(case, formula)


def return_later(case: Case) -> Iterator[Case]:
    """Return the value halfway, or ever later values.

    The pass goes on at the candidate that was accepted, so the last values one by one would take a probe for each.
    """
    floats = _list_earlier(case)
    yield from (replace(case, returns=(floats[-(len(floats) >> n)],)) for n in range(1, len(floats).bit_length()))


def return_earlier(case: Case) -> Iterator[Case]:
    """Return an earlier value, halving the distance."""
    floats = _list_earlier(case)
    step = len(floats)
    while step:
        for at in range(step - 1, len(floats), max(1, step)):
            yield replace(case, returns=(floats[at],))
        step //= 2


def _list_earlier(case: Case) -> list[str]:
    """The computed floating values that the case does not return."""
    types = types_of(case)
    return [op.name for op in case.ops if category(types[op.name].dtype) == 2 and op.name not in case.returns]


def return_all(case: Case) -> Case | None:
    """The case that returns all its values; None if it can't."""
    types = types_of(case)
    return edits.prune_if_valid(
        replace(case, returns=tuple(op.name for op in case.ops if types[op.name].dtype != COMPLEX))
    )


def end_at(case: Case, name: str) -> Iterator[Case]:
    """Return this value alone: of its operation on inputs, as `start_later`, then of all that it needs."""
    ended = edits.prune_if_valid(replace(case, returns=(name,)))
    if ended is not None:
        yield from start_later(ended)
        yield ended


def start_later(case: Case) -> Iterator[Case]:
    """Keep the last operations: 1, 2, 3, 4, 6, 8, 12 and so on. Values that they read become inputs."""
    types = types_of(case)
    counts = sorted({1, *(2**n for n in range(1, 10)), *(3 * 2**n for n in range(9))})
    for count in itertools.takewhile(lambda count: count < len(case.ops), counts):
        gone, kept = case.ops[:-count], case.ops[-count:]
        read = {arg for op in kept for arg in op.args} | {*case.returns}
        cut = [op.name for op in gone if op.name in read]
        if any(types[name].dtype == COMPLEX for name in cut):
            continue
        inputs = [edits.input_like(name, types[name], len(case.inputs) + at) for at, name in enumerate(cut)]
        contracts = edits.list_unaffected(case, [op.name for op in gone])
        yield replace(case, ops=kept, inputs=(*case.inputs, *inputs), contracts=contracts)


def cut_to_inputs(case: Case) -> Iterator[Case]:
    """Make a computed value an input, without the operations before it; the cut that removes most comes first."""
    types = types_of(case)
    cuts = []
    for op in case.ops:
        if (op.name in case.returns and len(case.returns) == 1) or types[op.name].dtype == COMPLEX:
            continue
        rest = tuple(o for o in case.ops if o is not op)
        item = edits.input_like(op.name, types[op.name], len(case.inputs))
        contracts = edits.list_unaffected(case, [op.name])
        is_sharded = any(other.shards != (None, None) for other in case.inputs)
        axes = (None, *range(len(item.shape) if is_sharded else 0))
        for shard, second in itertools.product(axes, axes if case.has_mesh else (None,)):
            inputs = (*case.inputs, replace(item, shard=shard, second_shard=second))
            smaller = edits.prune_if_valid(replace(case, ops=rest, inputs=inputs, contracts=contracts))
            if smaller is not None and len(smaller.ops) < len(case.ops):
                cuts.append(smaller)
    yield from sorted(cuts, key=lambda c: len(c.ops))


def bypass(case: Case) -> Iterator[Case]:
    """Replace an operation's result by one of its arguments, if the types allow it."""
    inputs = {item.name for item in case.inputs}
    for op in reversed(case.ops):
        for arg in op.args:
            if not {arg, *case.returns} - {op.name} <= inputs:
                yield edits.substitute(case, {op.name: arg})


def share(case: Case) -> Iterator[Case]:
    """Replace the second of two equal operations by the first."""
    first: dict[tuple[object, ...], str] = {}
    for op in case.ops:
        same = first.setdefault((op.kind, op.args, op.attrs), op.name)
        if same != op.name:
            names = {op.name: same}
            yield replace(edits.substitute(case, names), contracts=rename(case.contracts, names))


def drop_attributes(case: Case) -> Iterator[Case]:
    """Set an attribute to its default or to a simpler word, and drop the arguments that only its old value needs."""
    for op in case.ops:
        given = dict(op.attrs)
        for name, value in given.items():
            attribute = OPS[op.kind].attributes[name]
            options: list[Attr] = [] if attribute.required else [attribute.default]
            if value in attribute.words:
                options += attribute.words[: attribute.words.index(str(value))]
            for option in options:
                yield edits.replace_op(case, op, _with_attributes(op, {**given, name: option}))


def _with_attributes(op: Op, attrs: Mapping[str, Attr]) -> Op:
    """The operation with other attributes, and with the arguments that they need."""
    new = make_op(op.name, op.kind, op.args, attrs)
    optional = OPS[op.kind].optional
    if optional is None:
        return new
    least = OPS[op.kind].arity[0]
    before, now = optional(attributes(op)), optional(attributes(new))
    kept = [arg for name, arg in zip(before, op.args[least:], strict=True) if name in now]
    return replace(new, args=(*op.args[:least], *kept))


def respell_operations(case: Case) -> Iterator[Case]:
    """Use a simpler operation: matmul for a product, view for a change of shape, transpose for a swap of the last two
    axes, a linear layer without bias."""
    types = types_of(case)
    for op in case.ops:
        rank = types[op.name].rank
        if op.kind in ("bmm", "einsum"):
            yield edits.replace_op(case, op, make_op(op.name, "matmul", op.args, {}))
        if op.kind == "reshape":
            yield edits.replace_op(case, op, make_op(op.name, "view", op.args, {"sizes": types[op.name].shape}))
        if op.kind == "mT" or op.attr("dims") == (*range(rank - 2), rank - 1, rank - 2):
            yield edits.replace_op(case, op, make_op(op.name, "transpose", op.args, {}))
        if op.kind == "linear" and len(op.args) == 3:
            yield edits.replace_op(case, op, make_op(op.name, "linear", op.args[:2], {}))


def simplify_mode(case: Case) -> Iterator[Case]:
    """Use static shapes, no autocast, inference."""
    drops = any(op.attr("active") == "always" for op in case.ops)  # in inference too
    contracts = tuple(replace(c, dropout=0.0) for c in case.contracts if not (drops and c.dropout))
    inference = replace(case, mode="inference", contracts=contracts) if case.mode != "inference" else case
    simpler = [replace(inference, dynamic=False), replace(case, dynamic=False), replace(case, autocast=None)]
    simpler += [replace(case, around_backward=False)]
    simpler += [replace(case, around=around, around_backward=False) for around in ("", *AROUND[1:3]) if case.around]
    simpler += [replace(case, mode="training")] if case.mode == "training_on_sum" else []
    yield from (one for one in (*simpler, inference) if one != case)


def use_float32(case: Case) -> Iterator[Case]:
    """Replace all other floating dtypes by float32, then each of them."""
    used = {i.dtype for i in case.inputs} | {str(op.attr("dtype")) for op in case.ops}
    others = [d for d in FLOATS if d in used and d != "float32"]
    for chosen in ([others] if len(others) > 1 else []) + [[d] for d in others]:
        yield edits.change_dtype(case, chosen, "float32")


def round_numbers(case: Case) -> Iterator[Case]:
    """Use a shorter number as an argument of forward, in an attribute or as the scale of an input."""
    for number in case.numbers:
        for plain in _plainer(number.value):
            with suppress(CaseError):
                yield set_numbers(case, {number.name: plain})
    for op in case.ops:
        for name, value in op.attrs:
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield from (edits.change_attribute(case, op, name, plain) for plain in _plainer(value))
    for item in (item for item in case.inputs if item.values.given is None):
        for plain in _plainer(item.values.scale):
            yield edits.replace_inputs(case, {item: replace(item, values=replace(item.values, scale=float(plain)))})


def _plainer(value: float) -> Iterator[float]:
    if isinstance(value, bool) or not math.isfinite(value):
        return
    options: list[float] = [1.0, 2.0, 0.5, -1.0, float(round(value)), round(value, 1), float(f"{value:.1g}")]
    if isinstance(value, int):
        options = [1, 2, -1]
    yield from dict.fromkeys(o for o in options if o != value)


def rename_values(case: Case) -> Iterator[Case]:
    yield rename(case, plain_names(case))


def shrink_dims(case: Case) -> Iterator[Case]:
    """Shrink all dimensions together to 1, 2, 3 or 4; then equal dimensions together, then each alone.

    The last two try 1 to 4, then 1/2, 3/4, 7/8 of the size, and so on to the size less 1. So a threshold among long
    lengths is found in few steps.
    """
    yield from filter(None, (edits.resize(case, {n: min(size, v) for n, v in case.dims}) for size in (1, 2, 3, 4)))
    groups = [[name for name, v in case.dims if v == value] for value in sorted({v for _, v in case.dims})]
    for names in [*(group for group in groups if len(group) > 1), *([name] for name, _ in case.dims)]:
        value = case.sizes[names[0]]
        sizes = dict.fromkeys((1, 2, 3, 4, *(value - (value >> n) for n in range(1, value.bit_length()))))
        smaller = (dict.fromkeys(names, size) for size in sizes if size < value)
        yield from filter(None, (edits.resize(case, {**case.sizes, **changed}) for changed in smaller))


def merge_dims(case: Case) -> Iterator[Case]:
    """Merge two dimensions of equal size in a computed attribute, such as `T - S`, which becomes 0."""
    sizes = [value for op in case.ops for _, value in op.attrs if isinstance(value, Size)]
    for size in dict.fromkeys(sizes):
        for keep, drop in itertools.combinations(sorted(size.names()), 2):
            if case.sizes[keep] == case.sizes[drop]:
                merged = rename(case, {drop: keep})
                # Drops attributes that have become the default.
                yield edits.map_attributes(merged, lambda _, value: value)


def simplify_inputs(case: Case) -> Iterator[Case]:
    """Make inputs arguments of their own, contiguous, whole, with gradients, low seeds and simpler distributions."""
    yield edits.map_inputs(case, edits.describe_values)
    own = edits.map_inputs(case, lambda item: replace(item, parameter=False, buffer=False, requires_grad=True))
    yield edits.make_contiguous(own)
    numbered = tuple(i if i.part else replace(i, values=replace(i.values, seed=n)) for n, i in enumerate(case.inputs))
    yield replace(case, inputs=numbered)
    for item, argument in zip(case.inputs, own.inputs, strict=True):
        changes: list[dict[str, Any]] = [{"shard": None}, {"second_shard": None}, {"layout": "contiguous"}]
        changes += [{"requires_grad": True}, *({"part": part} for part in _list_looser(item.part))]
        changes += [{"values": values} for values in _list_simpler_values(item)]
        options = (replace(argument, requires_grad=item.requires_grad), *(replace(item, **one) for one in changes))
        yield from (keep_sharing(edits.replace_inputs(case, {item: one})) for one in options if one != item)


def _list_looser(part: SharedSlice | None) -> list[SharedSlice | None]:
    """Memory of its own, shared from the first call on, or from the start of the other argument."""
    return [None, replace(part, copied=False), *(replace(part, start=Size.of(n)) for n in (0, 1))] if part else []


def _list_simpler_values(item: Input) -> Iterator[Values]:
    values, is_given = item.values, item.values.given is not None
    yield replace(values, given=None)
    if not is_given:
        yield from (replace(values, kind=name) for name in list_simpler(values.kind))
    rank = LATER if is_given else min(LATER, DISTRIBUTIONS[values.kind].rank)
    simpler = (d for d in DISTRIBUTIONS.values() if item.dtype in d.dtypes and d.rank < rank)
    for kind in sorted(simpler, key=lambda d: d.rank):
        yield Values(kind.name, values.seed, 0.5 if kind.name == "random" else 1.0)
    if not is_given:
        yield from (replace(values, scale=1.0), replace(values, param=0.0))


_PARTS = 32
"""More parts of 256 numbers take minutes to try. Shrunk sizes leave fewer numbers."""


def simplify_given(case: Case) -> Iterator[Case]:
    """Put 0 or 1 in place of given integers: of all, of each half, and so on to a 32nd of them."""
    for item in case.inputs:
        given = item.values.given
        if given is None or not given.numbers:
            continue
        length = len(given.numbers)
        while length >= max(1, len(given.numbers) // _PARTS):
            for start, plain in itertools.product(range(0, len(given.numbers), length), (0, 1)):
                stop = min(start + length, len(given.numbers))
                numbers = (*given.numbers[:start], *[plain] * (stop - start), *given.numbers[stop:])
                values = replace(item.values, given=replace(given, numbers=numbers))
                yield edits.replace_inputs(case, {item: replace(item, values=values)})
            length //= 2


def drop_axes(case: Case) -> Iterator[Case]:
    """Drop the leading axis of an input (of q, k and v together), or set one of its sizes to 1."""
    places = [(found, role) for found in find_attentions(case) for role in HEADS if role in found.reads]
    heads = {trace(case, found.reads[role])[-1] for found, role in places}
    together = [[i for i in case.inputs if i.name in heads], *([i] for i in case.inputs if i.name not in heads)]
    for items in together:
        rank = max((len(item.shape) for item in items), default=0)
        long = (item for item in items if len(item.shape) == rank > 1)
        yield edits.replace_inputs(case, {item: edits.drop_first_axis(item) for item in long})
    for item in case.inputs:
        for at, size in enumerate(item.shape):
            if size.value(case.sizes) != 1:
                yield edits.replace_inputs(case, {item: replace(item, shape=edits.swap(item.shape, at, ONE))})
