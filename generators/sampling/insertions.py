"""Adds to a drawn program: in-place writes into its values, regions, later calls of its module, states of its call."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from generators.errors import CaseError, require
from generators.program.case import Case, LaterCall, Op, Region, Values
from generators.program.edits import map_inputs, redirect_reads
from generators.program.emit import find_rate, is_random
from generators.program.regions import REGIONS
from generators.program.sizes import ONE, Size, product
from generators.program.state import list_variable
from generators.program.type_check import check, is_valid, prune, types_of
from generators.program.values import FLOATS, LAYOUTS
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.variants import add_dropout, reshape_views

_TRIES = 6
_TARGETS = {"value": 5.0, "clone": 3.0, "buffer": 3.0}
_VIEWS = {"narrow": 3.0, "select": 2.0, "transpose": 2.0, "unsqueeze": 1.0}
_ELEMENTWISE = {"copy_": 3.0, "add_": 2.0, "mul_": 2.0, "lerp_": 1.0, "masked_scatter_": 1.0, "masked_fill_": 1.0}
WRITES = {**_ELEMENTWISE, "set_slice": 3.0, "set_select": 2.0, "index_put_": 3.0, "index_copy_": 2.0, "index_add_": 1.5}


def insert_writes(case: Case, c: Choices) -> Case:
    """The case with one to three writes, each if a few tries find a valid place."""
    for _ in range(c.draw({1: 5.0, 2: 3.0, 3: 1.0})):
        case = draw_valid(case, partial(_insert, c=c), _TRIES)
    return case


def draw_valid(case: Case, draw: Callable[[Case], Case], tries: int = 1) -> Case:
    """The first valid case in `tries` draws, else the unchanged case. `draw` may raise CaseError."""
    for _ in range(tries):
        with suppress(CaseError):
            changed = draw(case)
            check(changed)
            return changed
    return case


def _insert(case: Case, c: Choices) -> Case:
    """The case with a write into a value that is read before or after it. Raises CaseError."""
    place = c.below(len(case.ops) + 1)
    b = reopen(case, place)
    names = [*(item.name for item in case.inputs), *(op.name for op in b.ops)]
    floats = [name for name in names if b.is_float(name) and b.rank(name)]
    require(bool(floats), "there is nothing to write into")
    old, later, returns = c.pick(floats), case.ops[place:], [*case.returns]
    new, how = old, c.draw(_TARGETS)
    if how == "buffer":
        new = b.input("state", b.shape(old), dtype=b.dtype_of(old), buffer=True)
    elif how == "clone":
        new = b.op("clone", old)
    if c.chance(0.3):
        returns.append(b.op("clone", new, to="before"))
    target = new
    for _ in range(c.draw({0: 3.0, 1: 4.0, 2: 2.0})):
        target = _view(b, c, target)
    written = _write(b, c, target, floats)
    if c.chance(0.4):
        returns.append(c.pick((new, target, written)))
    if c.chance(0.6):
        later = tuple(redirect_reads(op, {old: new}) for op in later)
    changed = close(replace(case, contracts=()), b, returns, later)
    require(any(op.name == written for op in changed.ops), "no later read or result sees the write")
    return changed


def reopen(case: Case, place: int | None = None) -> Builder:
    """A builder with the inputs of the case, and its operations before `place`."""
    b = Builder(dict(case.dims), "", case.mode)
    b.inputs, b.types, b.ops = list(case.inputs), types_of(case), list(case.ops[:place])
    return b


def close(case: Case, b: Builder, returns: Iterable[str], later: Sequence[Op] = ()) -> Case:
    """The case with the inputs and operations of the builder, then `later`, as far as these results need them."""
    results = tuple(dict.fromkeys(returns))
    return prune(replace(case, inputs=tuple(b.inputs), ops=(*b.ops, *later), returns=results))


def list_floats(case: Case, b: Builder) -> list[str]:
    """The floating arguments and results that have an axis."""
    named = [*(item.name for item in case.arguments), *(op.name for op in b.ops)]
    return [name for name in named if b.is_float(name) and b.rank(name)]


def _draw_slice(b: Builder, c: Choices, value: str) -> dict[str, Any]:
    axis = c.below(b.rank(value))
    size = b.shape(value)[axis]
    start = c.below(max(1, b.size(size)))
    stop = size - c.below(max(1, b.size(size) - start))
    return {"dim": axis, "start": start, "stop": stop, "step": c.draw({1: 6.0, 2: 1.0})}


def _view(b: Builder, c: Choices, value: str) -> str:
    kind, rank = c.draw(_VIEWS), b.rank(value)
    require(rank > 0, "a view needs an axis")
    part = _draw_slice(b, c, value)
    if kind == "narrow":
        return b.op(kind, value, to="part", **part)
    if kind == "transpose":
        return b.op(kind, value, to="transposed", dim0=part["dim"], dim1=c.below(rank))
    options = {"index": part["start"]} if kind == "select" else {}
    return b.op(kind, value, to="row", dim=part["dim"], **options)


def _write(b: Builder, c: Choices, target: str, floats: list[str]) -> str:
    """Writes into the target: a value of its type, the target negated, or a number."""
    rank = b.rank(target)
    kind = c.draw(WRITES if rank else _ELEMENTWISE)
    alike = [name for name in floats if b.types[name].sizes(b.dims) == b.types[target].sizes(b.dims)]
    alike = [name for name in alike if b.dtype_of(name) == b.dtype_of(target) and name != target]
    values = c.pick(alike) if alike and c.chance(0.8) else b.op("neg", target, to="values")
    number = c.pick((0.5, -1.0, 0.0, 2.0))
    if kind.startswith("masked"):
        mask = b.input("mask", b.shape(target), Values("random", scale=0.5), "bool")
        return b.op(kind, target, mask, value=number) if kind == "masked_fill_" else b.op(kind, target, mask, values)
    if kind.startswith("set"):
        part = _draw_slice(b, c, target)
        part = part if kind == "set_slice" else {"dim": part["dim"], "index": part["start"]}
        given = [] if c.chance(0.2) else [b.op("narrow" if "stop" in part else "select", values, to="part", **part)]
        return b.op(kind, target, *given, other=None if given else number, **part)
    if kind in ("add_", "mul_"):
        given = [] if c.chance(0.3) else [values]
        form = c.pick(("method", "operator"))
        return b.op(kind, target, *given, other=None if given else number, form=form)
    if kind in _ELEMENTWISE:
        return b.op(kind, target, values)
    return _write_indexed(b, c, kind, target, values)


def _write_indexed(b: Builder, c: Choices, kind: str, target: str, values: str) -> str:
    """Write the values to distinct places along an axis."""
    shape, axis = b.shape(target), c.below(b.rank(target))
    count = shape[axis] - c.below(min(3, max(1, b.size(shape[axis]))))
    if count != shape[axis]:
        values = b.op("narrow", values, to="part", dim=axis, stop=count)
    places = b.input("places", (count,), Values("permutation"), "int64")
    accumulate = kind == "index_put_" and axis == 0 and c.chance(0.4)
    options: dict[str, Any] = {"form": "method", "accumulate": True} if accumulate else {}
    return b.op(kind, target, places, values, dim=axis, **options)


_REGION_COUNTS = {1: 5.0, 2: 2.0, 3: 1.0}
_REGION_LENGTHS = {1: 3.0, 2: 3.0, 3: 2.0, 5: 2.0, 8: 2.0, 13: 1.0}
_REGION_TRIES = 12
_NESTED_SHARE = 0.5  # the share of further regions that are drawn inside of a region


def add_regions(case: Case, c: Choices, kinds: Collection[str] = REGIONS) -> Case:
    """The case with one to three regions of these kinds, each if a few tries find operations that its kind takes."""
    if case.autocast or case.checkpoint:
        return case
    base = replace(case, contracts=())
    weights = {name: REGIONS[name].weight * (REGIONS[name].in_training if case.training else 1.0) for name in kinds}
    for _ in range(c.draw(_REGION_COUNTS)):
        base = draw_valid(base, partial(_add_region, c=c, kind=c.draw(weights)), _REGION_TRIES if base.ops else 0)
    return base if base.regions else case


def _add_region(case: Case, c: Choices, kind: str) -> Case:
    around = c.pick(case.regions).ops if case.regions and c.chance(_NESTED_SHARE) else ()
    within = around or [op.name for op in case.ops]
    start, length = c.below(len(within)), c.draw(_REGION_LENGTHS)
    names = [str(item.shape[0]) for item in case.inputs if item.shape and item.shape[0].is_name]
    over = c.pick(names) if names and REGIONS[kind].loops else ""
    return replace(case, regions=(*case.regions, Region(kind, tuple(within[start : start + length]), over)))


_RATES = (0.1, 0.5, 0.9)


def show_dropouts(case: Case, c: Choices, share: float) -> Case:
    """For this share of random cases, the case with one or two more dropouts, which returns the argument and the result
    of every dropout: its masks."""
    if not (c.chance(share) and is_random(case)) or case.calls:
        return case
    b = reopen(case)
    floats = list_floats(case, b)
    for name in [c.pick(floats) for _ in range(c.draw({1: 2.0, 2: 1.0}))] if floats else []:
        b.op("dropout", name, to="dropped", p=c.pick(_RATES), form=c.pick(("module", "functional")))
    drawn = [
        name for op in b.ops if op.kind == "dropout" and 0 < find_rate(case, op) < 1 for name in (op.args[0], op.name)
    ]
    shown = close(case, b, (*case.returns, *drawn))
    return shown if is_valid(shown) else case


_NUMBERS = {"int64": (3, 256, 2**31 - 3, 10**10), "int32": (3, 256, 10**5, 2**31 - 3), "uint8": (3, 50, 200, 255)}
"""Factors and terms that lead beyond 2^31, or around: arithmetic of `uint8` and `int32` wraps."""
_FAR_STEPS = {"mul": 3.0, "add": 2.0, "sub": 1.0}
_STEPS = {**_FAR_STEPS, "cast": 2.0, "neg": 1.0, "remainder": 1.0, "floor_divide": 1.0}
_ENDS = {"lt": 2.0, "ge": 2.0, "cast": 3.0, "": 2.0}
_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")
_ALONE_SHARE = 0.75
"""How often such a case has an argument in place of its other operations: then fewer compile and have to shrink."""


def add_integers(case: Case, c: Choices, share: float) -> Case:
    """For this share of cases, the case that also returns an integer of its positions, or a value that it decides."""
    is_alone = c.chance(_ALONE_SHARE)
    place = 0 if is_alone else len(case.ops)
    b = reopen(case, place)
    lengths = {name: b.size(b.shape(name)[-1]) for name in list_floats(case, b)}
    floats = [name for name, length in lengths.items() if 0 < length < 256]  # so that uint8 holds them
    if not (c.chance(share) and floats) or case.autocast or case.dynamic:
        return case
    target, dtype = c.pick(floats), c.draw({"int64": 3.0, "int32": 1.0, "uint8": 2.0})
    length = b.shape(target)[-1]
    with suppress(CaseError):
        if c.chance(0.2):
            places = b.input("places", b.shape(target), Values("tokens", scale=float(b.size(length))), "int64")
            values = b.op("neg", target, to="values")
            options: dict[str, Any] = {"dim": -1, "reduce": c.pick(_REDUCTIONS), "include_self": c.chance(0.5)}
            made = b.op("scatter_reduce", target, places, values, to="reduced", **options)
        else:
            count = b.input("count", (length,), Values("small_counts"), dtype) if c.chance(0.3) else ""
            made = count or b.op("arange", to="count", stop=length, dtype=dtype)
            steps = c.draw({1: 3.0, 2: 3.0, 3: 2.0})
            leads_far = c.below(steps)
            for step in range(steps):
                made = _compute(b, c, made, is_far=step == leads_far)
            how = c.draw(_ENDS)
            if how == "cast":
                made = b.op("mul", target, b.op("cast", made, to="scale", dtype="float32"), to="scaled")
            elif how:
                keep = b.op(how, made, to="keep", other=c.pick((0, 5, 100)))
                made = b.op("masked_fill", target, keep, to="kept", value=0.0)
        kept = () if is_alone and b.is_float(made) else case.returns
        found = close(case, b, (*kept, made), case.ops[place:])
        return found if is_valid(found) else case
    return case


def _compute(b: Builder, c: Choices, value: str, *, is_far: bool) -> str:
    """A step of arithmetic. is_far: it leads beyond 2^31, or around, from nearly all positions."""
    kind, dtype = c.draw(_FAR_STEPS if is_far else _STEPS), b.dtype_of(value)
    if kind == "neg":
        return b.op(kind, value)
    if kind == "cast":
        return b.op(kind, value, dtype=c.pick([*_NUMBERS]))
    return b.op(kind, value, other=_NUMBERS[dtype][-1] if is_far else c.pick(_NUMBERS[dtype]))


_BEFORE_STRIDES = {"": 2.0, "clone": 2.0, "contiguous": 1.0, "linear": 1.0, "expand": 1.0, "neg": 1.0, "write": 1.0}


def add_read_by_strides(case: Case, c: Choices, share: float) -> Case:
    """For this share of cases, the case that also returns a value read by strides, `as_strided`."""
    if not c.chance(share) or case.regions:
        return case
    return draw_valid(case, partial(_draw_read_by_strides, c=c), _TRIES)


def _draw_read_by_strides(case: Case, c: Choices) -> Case:
    """The case with a strided read of a value, of a transposed value, or of the result of a further step."""
    place = c.below(len(case.ops) + 1)
    b = reopen(case, place)
    floats = list_floats(case, b)
    require(bool(floats), "there is nothing to read")
    value, step = c.pick(floats), c.draw(_BEFORE_STRIDES)
    if b.rank(value) > 1 and c.chance(0.6):
        value = b.op("transpose", value, to="turned", dim0=c.below(b.rank(value)), dim1=-1)
    if step == "linear":
        weight = b.input("weight", (b.shape(value)[-1],) * 2, dtype=b.dtype_of(value), parameter=True)
        value = b.op(step, value, weight, to="wide")
    elif step == "expand":
        value = b.op(step, b.op("unsqueeze", value, to="wide"), to="wide", sizes=(2, *b.shape(value)))
    elif step == "write":
        value = _write(b, c, b.op("clone", value, to="new"), [])
    elif step:
        value = b.op(step, value, to="new")
    if c.chance(0.3):
        value = _view(b, c, value)
    shape = b.shape(value)[step == "expand" :]
    strides, whole = [product(shape[axis + 1 :]) for axis in range(len(shape))], product(shape)
    reads = [(shape, strides), (shape[::-1], strides[::-1]), ((whole,), [ONE]), ((whole - 2, Size.of(3)), [ONE, ONE])]
    sizes, steps = c.pick(reads)
    offset = c.draw({None: 6.0, 0: 2.0})
    made = b.op("as_strided", value, to="read", sizes=tuple(sizes), strides=tuple(steps), offset=offset)
    made = b.op("neg", made, to="read") if c.chance(0.7) else made
    return close(replace(case, contracts=()), b, (*case.returns, made), case.ops[place:])


_COUNTS = {1: 5.0, 2: 4.0, 3: 1.0}
_DIFFERENCES = {0: 1.0, 1: 6.0, 2: 3.0}
"""How many differences a call has from the first. A call without differences tests state."""
_KINDS = {"sizes": 5.0, "layouts": 2.5, "under": 3.0, "values": 3.0, "dtype": 1.5, "reseeds": 1.0, "step": 3.0}
_SIZES = (1, 2, 3, 5, 8, 9, 16, 17, 33)
_CHECKPOINTED_SHARE = 0.25  # the share of cases in training whose operations are recomputed in the backward pass
_DROPOUT_SHARE = 0.6
"""The share of recomputed cases without dropout that get it: recomputed dropout must draw the same numbers."""
_CALL_TRIES = 8


def add_calls(case: Case, c: Choices) -> Case:
    """The case with later calls of its module, or unchanged if no drawn call is valid."""
    base = replace(case, contracts=(), dynamic=False)
    if case.training and c.chance(_CHECKPOINTED_SHARE):
        dropped = base if is_random(base) or c.chance(1 - _DROPOUT_SHARE) else add_dropout(base)
        again = replace(dropped, checkpoint="full")
        base = again if is_valid(again) else base
    step = c.pick(("sgd", "adamw"))

    def add_call(called: Case) -> Case:
        return replace(called, calls=(*called.calls, _draw_call(base, c, step)))

    called = base
    for _ in range(c.draw(_COUNTS)):
        called = draw_valid(called, add_call, _CALL_TRIES)
    return called if called.calls and is_valid(called) else case


def _draw_call(case: Case, c: Choices, step: str) -> LaterCall:
    call = LaterCall()
    for _ in range(c.draw(_DIFFERENCES)):
        change = dict(_change(case, c, c.draw(_KINDS), step))
        call = replace(call, **change)
    if call.sizes or call.layouts or call.dtype:
        call = replace(call, values="equal" if call.values == "same" else call.values)
    return call


def _change(case: Case, c: Choices, kind: str, step: str) -> Iterator[tuple[str, Any]]:
    """Fields of a later call; none if this difference makes no sense for the case."""
    floats = [item for item in case.arguments if item.dtype in FLOATS]
    if kind == "sizes":
        variable = sorted(list_variable(case))
        names = sorted({c.pick(variable) for _ in range(c.draw({1: 3.0, 2: 1.0}))}) if variable else []
        found = [(name, c.pick((*_SIZES, case.sizes[name] + 1, 2 * case.sizes[name]))) for name in names]
        yield "sizes", tuple((name, size) for name, size in found if size != case.sizes[name])
    elif kind == "layouts":
        item = c.pick(case.arguments)
        fitting = [name for name, layout in LAYOUTS.items() if len(item.shape) >= max(1, layout.min_rank)]
        yield "layouts", ((item.name, c.pick(fitting)),) if fitting else ()
    elif kind == "dtype" and floats:
        yield "dtype", c.pick([name for name in FLOATS[:3] if name != floats[0].dtype])
    elif kind == "under":
        other = "inference" if case.training else "training"
        yield "under", c.draw({other: 4.0, "inference_mode": 1.0, "no_grad": 1.0 if case.training else 0.0})
    elif kind == "values":
        yield "values", c.draw({"same": 1.0, "other": 1.0})
    elif kind == "reseeds" and is_random(case):
        yield "reseeds", True
    elif kind == "step" and case.training and any(item.parameter and item.dtype in FLOATS for item in case.inputs):
        yield "step", step


_STATES = {"mode": 3.0, "constants": 3.0, "expanded": 2.0, "large": 2.0}


def add_states(case: Case, c: Choices, share: float) -> Case:
    """For this share of cases, the case with its call in one or two other states, each if that is valid:

    - mode: torch's inference mode, or the gradient of a sum
    - constants: some inputs need no gradient
    - expanded: some arguments have stride 0 along the first axis
    - large: an argument has large numbers; mostly another has small numbers, so that their product keeps its size
    """
    fitting = {name: weight for name, weight in _STATES.items() if case.training or name != "constants"}
    count = c.draw({1: 3.0, 2: 1.0}) if c.chance(share) else 0
    for state in dict.fromkeys(c.draw(fitting) for _ in range(count)):
        case = draw_valid(case, partial(_change_state, c=c, state=state))
    return case


def _change_state(case: Case, c: Choices, state: str) -> Case:
    floats = [item for item in case.arguments if item.dtype in FLOATS]
    if state == "mode":
        other = "inference_mode" if not (case.dynamic or case.calls) else case.mode
        return replace(case, mode="training_on_sum" if case.training else other)
    if state == "constants":
        names = [item.name for item in case.inputs if item.is_differentiated]
        chosen = (c.subset(names, 0.5) or names[:1])[: len(names) - 1]
        return map_inputs(case, lambda item: replace(item, requires_grad=item.name not in chosen))
    if state == "expanded":
        long = [item.name for item in floats if len(item.shape) > 1 and item.shape[0].value(case.sizes) > 1]
        expanded = dict.fromkeys(c.subset(long, 0.5) or long[-1:], "expanded")
        return reshape_views(map_inputs(case, lambda item: replace(item, layout=expanded.get(item.name, item.layout))))
    normal = [item for item in floats if item.values.kind == "normal" and item.values.given is None]
    if not normal:
        return case
    large, small, factor = c.pick(normal), c.pick(normal), c.pick((256.0, 1000.0))
    factors = {**({small: 1 / factor} if c.chance(0.7) else {}), large: factor}
    scaled = {item: replace(item.values, scale=item.values.scale * by) for item, by in factors.items()}
    return map_inputs(case, lambda item: replace(item, values=scaled.get(item, item.values)))
