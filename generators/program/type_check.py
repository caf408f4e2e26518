"""Checks that a case is a well-typed program, the type of each value, and pruning."""

import keyword
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from generators.errors import CaseError, accepts, add_place, require, require_of, require_word
from generators.program.calls import at_call, check_calls, keep_sharing, list_arounds, list_variable
from generators.program.case import AROUND, AUTOCAST, MODES, Attr, Case, Input, Op, SharedSlice, TensorType, Values
from generators.program.changes import keep_changes
from generators.program.contracts import check_contract
from generators.program.given import check_given
from generators.program.indices import check_indices
from generators.program.kept_places import is_added
from generators.program.loops import find_carried
from generators.program.numbers import check_numbers, check_texts, keep_numbers
from generators.program.ops import FUNCTIONS, OPS, complete_attributes
from generators.program.ops.attention import FLEX_NAMES
from generators.program.ops.network import EQUATION
from generators.program.ops.spec import Attribute, Kind, Operands
from generators.program.references import list_dims, map_references
from generators.program.regions import check_regions, list_autocasts
from generators.program.settings import check_settings
from generators.program.sizes import Size, show
from generators.program.values import COMPLEX, DISTRIBUTIONS, DTYPES, LAYOUTS, category
from generators.program.writes import check_memory, find_owners, list_written
from generators.reasons import Reason
from generators.records import NameOf

VALUE_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
DIM_NAME = re.compile(r"[A-Z][A-Za-z0-9]{0,7}")
_OWN_NAMES = (
    "torch",
    "nn",
    "rng",
    "inputs",
    "self",
    "F",
    "Module",
    "attend",
    "set_weights",
    "causal_mask",
    "read_values",
)
_OF_CALLS = ("calls", "first", "given", "module", "optimizer", "optimizer2", "checkpoint", "compute")
_OF_CLASS = ("loss", "without_gradient", "backward_autocast", "shards")
RESERVED = frozenset({*_OWN_NAMES, *_OF_CLASS, *FLEX_NAMES, *FUNCTIONS, *keyword.kwlist})

MAX_DIM = 1 << 20
MAX_ELEMENTS = 1 << 26
"""The most elements of a value: 256 MiB in float32, 512 MiB in the float64 reference. A case is meant to be small."""
MAX_LINES = 2000
MAX_RANK = 8
_WORDS = {"mode": MODES, "autocast": (None, *AUTOCAST), "around": ("", *AROUND[1:-1])}
MOST_TIMES = 100
"""How often an earlier case may run in a row."""


def attributes(op: Op) -> dict[str, Any]:
    """All attributes of an operation, defaults filled in. Raises CaseError on an unknown operation or attribute."""
    require_of(op.name, op.kind in OPS, f"unknown operation {op.kind!r}")
    known, given = OPS[op.kind].attributes, dict(op.attrs)
    for name in (name for name in given if name not in known):
        require_of(op.name, False, f"{op.kind} has no attribute {name!r}; it has: {', '.join(known) or 'none'}")
    for name in (name for name, row in known.items() if row.required and name not in given):
        require_of(op.name, False, f"{op.kind} needs the attribute {name!r}, {known[name].kind.value}")
    return complete_attributes(op)


def infer(
    op: Op,
    types: Mapping[str, TensorType],
    dims: Mapping[str, int],
    autocast: str | None = None,
    equations: list[tuple[Size, Size]] | None = None,
) -> TensorType:
    """The type of an operation's result, under autocast the type on the CPU. Raises CaseError naming the operation.

    equations: gets the pairs of sizes that the operation needs equal
    """
    attrs, spec = attributes(op), OPS[op.kind]
    with add_place("ops", op.name, f"op {op.name!r} ({op.kind})"):
        for name, value in attrs.items():
            _check_attribute(name, spec.attributes[name], value)
        least, most = spec.arity
        if spec.optional is not None:
            least = most = least + len(spec.optional(attrs))
        wanted = least if least == most else f"{least} to {most}"
        require(least <= len(op.args) <= most, f"takes {wanted} arguments, got {len(op.args)}")
        missing = next((name for name in op.args if name not in types), None)
        require(missing is None, f"{missing!r} is not defined before it")
        args = tuple(types[name] for name in op.args)
        result = spec.infer(Operands(args, attrs, dims, autocast, [] if equations is None else equations))
        _check_shape(result, result.sizes(dims))
    return result


def _check_shape(result: TensorType, sizes: tuple[int, ...]) -> None:
    if min(sizes, default=0) < 0:
        raise CaseError(f"{show(result.shape)} has a negative size", reason=Reason.TYPES)
    few = result.rank <= MAX_RANK and math.prod(sizes) <= MAX_ELEMENTS
    require(
        few, f"{math.prod(sizes)} elements in {result.rank} axes; at most {MAX_ELEMENTS} in {MAX_RANK}", Reason.SIZE
    )


_FITS: dict[Kind, Callable[[Attr, Attribute], bool]] = {
    Kind.AXIS: lambda value, _: type(value) is int,
    Kind.INT: lambda value, _: type(value) is int,
    Kind.NUMBER: lambda value, a: type(value) in (int, float) or value in a.words,
    Kind.SIZE: lambda value, _: isinstance(value, Size),
    Kind.BOUND: lambda value, _: isinstance(value, Size | float),
    Kind.SIZES: lambda value, _: isinstance(value, tuple) and all(isinstance(v, Size) for v in value),
    Kind.AXES: lambda value, _: isinstance(value, tuple) and all(type(v) is int for v in value),
    Kind.FLAG: lambda value, _: isinstance(value, bool),
    Kind.WORD: lambda value, a: isinstance(value, str) and value in a.words,
    Kind.EQUATION: lambda value, _: isinstance(value, str) and EQUATION.fullmatch(value) is not None,
}


def _check_attribute(name: str, attribute: Attribute, value: Attr) -> None:
    left_out = value is None and attribute.default is None and not attribute.required
    if not (left_out or _FITS[attribute.kind](value, attribute)):
        wanted = f"one of {', '.join(attribute.words)}" if attribute.kind is Kind.WORD else attribute.kind.value
        raise CaseError(f"{name} is {value!r}, expected {wanted}")


def types_of(case: Case) -> dict[str, TensorType]:
    """The type of every input and value. Raises CaseError if the program is not well typed."""
    types, sizes, casts = {i.name: i.type for i in case.inputs}, case.sizes, list_autocasts(case)
    for op in case.ops:
        types[op.name] = infer(op, types, sizes, casts[op.name])
    return types


def _check_before(case: Case) -> None:
    for number, earlier in enumerate(case.before, 1):
        require(
            0 < earlier.times <= MOST_TIMES,
            f"before: times is {earlier.times}, expected 1 to {MOST_TIMES}",
            Reason.SIZE,
        )
        require(not earlier.case.before, f"before: case {number} has earlier cases of its own", Reason.EARLIER)
        with add_place("before", said=f"before: case {number}"):
            check(earlier.case)


def check(case: Case) -> dict[str, TensorType]:
    """The types of a case's values. Raises CaseError, a single line, on anything that is not a valid case."""
    with add_place("dims"):
        _check_dims(case)
    for field, words in _WORDS.items():
        with add_place(field):
            require_word(case, field, words)
    with add_place("around_backward"):
        needed = not case.around_backward or (case.has_around and case.may_train)
        require(needed, "around_backward: no call under autocast trains", Reason.MALFORMED)
    with add_place("ops"):
        lines = len(case.inputs) + len(case.ops)
        require(lines <= MAX_LINES, f"{lines} inputs and operations; at most {MAX_LINES}", Reason.SIZE)
        # On the CPU it has no gradients, so a case that runs there trains in no call.
        is_flex = any(op.kind == "flex_attention" for op in case.ops)
        require(
            not is_flex or case.training == case.may_train,
            "flex_attention trains in the first call or in none",
            Reason.FLEX_TRAINS,
        )
    seen: set[str] = set()
    for field, name in list_own_names(case):
        with add_place(field, name):
            free = VALUE_NAME.fullmatch(name) is not None and name not in RESERVED
            require(free, f"name {name!r}: expected a lower-case identifier that Python and torch leave free")
            require(name not in seen, f"name {name!r} is defined twice")
        seen.add(name)
    for item in case.inputs:
        with add_place("inputs", item.name, f"{'parameter' if item.parameter else 'input'} {item.name!r}"):
            _check_input(item, case.sizes)
        with add_place("inputs", item.name):
            if item.part is not None:
                _check_part(case, item, item.part)
    with add_place("inputs"):
        require(bool(case.arguments), "a case needs at least one input that is not a parameter", Reason.ARGUMENTLESS)
    types = types_of(case)
    check_numbers(case, types)
    check_indices(case, types)
    with add_place("returns"):
        require(bool(case.returns), "nothing is returned")
        for name in case.returns:
            require(name in types, f"returns: {name!r} is not defined")
            require(types[name].dtype != COMPLEX, f"returns: {name!r} is complex", Reason.COMPLEX)
    check_memory(case, types)
    check_regions(case, types, infer)
    check_calls(case)
    _check_casts(case)
    check_settings(case)
    for place, _ in enumerate(case.calls, 1):
        with add_place("calls"):
            check_texts(case, types, called := at_call(case, place), check(called))
    with add_place("before"):
        _check_before(case)
    with add_place("contracts"):
        require(
            case.outer_autocast is None or not case.contracts,
            "contracts are not allowed under autocast",
            Reason.CONTRACTED,
        )
        for contract in case.contracts:
            check_contract(contract, case, types)
    return types


def _check_casts(case: Case) -> None:
    is_cached = any(around and "uncached" not in around for around in list_arounds(case))
    is_cached = is_cached or any(list_autocasts(replace(case, around="")).values())
    weights = {item.name for item in case.inputs if item.parameter and not item.is_buffer}
    written = weights.intersection(list_written(case)) if is_cached else ()
    require(not written, f"writes into {', '.join(written)}, whose cast autocast caches", Reason.CAST_KEPT)


def list_own_names(case: Case) -> list[tuple[str, str]]:
    """The field and the name of each input, operation and number."""
    named = [*(("inputs", item.name) for item in case.inputs), *(("ops", op.name) for op in case.ops)]
    return [*named, *(("numbers", number.name) for number in case.numbers)]


def is_valid(case: Case) -> bool:
    return accepts(check, case)


def _check_dims(case: Case) -> None:
    require(len(case.sizes) == len(case.dims), "dims: a name is given twice")
    for name, size in case.dims:
        if not DIM_NAME.fullmatch(name) or name in RESERVED:
            raise CaseError(f"dims: {name!r} is not a capitalised name of at most 8 letters and digits")
        require(0 <= size <= MAX_DIM, f"dims: {name} is {size}, expected 0 to {MAX_DIM}", Reason.SIZE)


def _check_input(item: Input, dims: Mapping[str, int]) -> None:
    require(item.parameter or not item.buffer, "a buffer has parameter: true")
    require(item.dtype in DTYPES, f"dtype {item.dtype!r}, expected one of {', '.join(DTYPES)}")
    sizes = item.type.sizes(dims)
    few = min(sizes, default=0) >= 0 and len(sizes) <= MAX_RANK and math.prod(sizes) <= MAX_ELEMENTS
    require(few, f"shape {list(sizes)} is not one of at most {MAX_ELEMENTS} elements", Reason.SIZE)
    values, layout = item.values, item.layout
    if values.given is not None:
        check_given(values.given, sizes, item.dtype)
    known = [kind.name for kind in DISTRIBUTIONS.values() if item.dtype in kind.dtypes]
    simple = ", ".join(name for name in known if "+" not in name)
    require(values.kind in known, f"values {values.kind!r} of {item.dtype}, expected one of {simple}, or masks joined")
    infinite = not math.isfinite(values.scale) and not (is_added(values.kind) and values.scale < 0)
    require(not infinite, f"scale {values.scale} is not finite; only masks may have -inf")
    require(0 <= values.seed < 1 << 31, f"seed {values.seed} is outside 0 to 2^31")
    require(layout in LAYOUTS, f"layout {layout!r}, expected one of {', '.join(LAYOUTS)}")
    for shard in item.shards:
        require(shard is None or 0 <= shard < len(sizes), f"shard {shard} is no axis of it")
    for field, name, row in (("values", values.kind, DISTRIBUTIONS[values.kind]), ("layout", layout, LAYOUTS[layout])):
        require(len(sizes) >= row.min_rank, f"{field} {name!r} needs at least {row.min_rank} axes")
    kind = DISTRIBUTIONS[values.kind]
    require(math.prod(sizes) > 0 or not kind.chooses_place, f"values {values.kind!r} need at least one element")
    fits = values.param.is_integer() or (0 < values.param < 1 and "{kept}" in kind.template)
    require(fits and abs(values.param) < 1 << 31, f"param {values.param} of values {values.kind!r} is no integer")
    require(bool(kind.param) or not values.param, f"values {values.kind!r} have no param")


def _check_part(case: Case, item: Input, part: SharedSlice) -> None:
    """Raises CaseError unless the argument is a slice of another input, of the same floating dtype."""
    owners = {other.name: other for other in case.inputs if other.part is None and other is not item}
    require(part.of in owners, f"part of {part.of!r}, expected another input that is no part")
    owner, is_axis = owners[part.of], not item.parameter and 0 <= part.dim < len(item.shape)
    require(is_axis, f"dim {part.dim} is no axis of an argument")
    require(category(item.dtype) == 2 and item.dtype == owner.dtype, "a part has its owner's floating dtype")
    is_plain = (item.values, item.layout) == (Values(), "contiguous")
    require(is_plain, "a part has no values and no layout of its own")
    whole, sizes = owner.type.sizes(case.sizes), item.type.sizes(case.sizes)
    stop = part.start.value(case.sizes) + sizes[part.dim]
    fits = len(whole) == len(sizes) and part.start.value(case.sizes) >= 0 and stop <= whole[part.dim]
    fits &= sizes == (*whole[: part.dim], sizes[part.dim], *whole[part.dim + 1 :])
    require(fits, f"sizes {list(sizes)} from {part.start} along axis {part.dim} are no slice of {list(whole)}")
    # The gradient of a slice of a parameter is that of the parameter.
    leaves = (item,) if owner.parameter else (item, owner)
    kept = not any(one.is_differentiated for one in leaves) if case.training else not case.may_train
    require(kept, "arguments that share memory have requires_grad: false from the first call on, if a call trains")
    is_whole = (*item.shards, *owner.shards) == (None,) * 4
    require(is_whole, "arguments that share memory are not split over ranks")
    require(not case.contracts, "contracts are not allowed beside arguments that share memory")


def prune(case: Case) -> Case:
    """The case without operations, inputs, dimensions and contracts that no returned value depends on.

    Keeps writes into inputs, and writes that a later read may see.
    """
    owners = find_owners(case)
    needed, before = set(case.returns), -1
    while len(needed) > before:
        before = len(needed)
        seen = {owners.get(name) for name in (*case.returns, *(item.name for item in case.inputs))}
        for op in reversed(case.ops):
            if op.name in needed or (OPS[op.kind].writes and owners[op.name] in seen):
                needed.update((op.name, *op.args))
                seen.update(owners.get(name) for name in op.args)
        needed.update(find_carried(case, needed))
    ops = tuple(o for o in case.ops if o.name in needed)
    needed.update(i.part.of for i in case.inputs if i.part and i.name in needed)
    inputs = tuple(i for i in case.inputs if i.name in needed)
    if all(i.parameter for i in inputs):
        # A module needs an argument; the first argument also decides the device.
        inputs = (*case.arguments[:1], *inputs)
    named = list_dims((inputs, ops))
    return _drop_unknown(replace(case, dims=tuple(d for d in case.dims if d[0] in named), inputs=inputs, ops=ops))


def _drop_unknown(case: Case) -> Case:
    """The case whose contracts, regions and calls name only what it has, with the changes that make sense."""
    results = {op.name for op in case.ops}
    known = {
        NameOf.VALUE: results.union(item.name for item in case.inputs),
        NameOf.RESULT: results,
        NameOf.ARGUMENT: {item.name for item in case.arguments},
        NameOf.VARYING: list_variable(case),
    }
    case = keep_numbers(case)
    known[NameOf.NUMBER] = {number.name for number in case.numbers}
    contracts, regions, calls = map_references(
        (case.contracts, case.regions, case.calls),
        name=lambda ref, name: name if name in known.get(ref, (name,)) else None,
    )
    kept = keep_sharing(replace(case, contracts=contracts, regions=regions, calls=calls))
    return keep_changes(kept) if case.calls or case.setup else kept
