"""Regions: consecutive operations in a function of their own, which torch traces or calls specially.

Examples are a custom operation, a branch of `torch.cond`, and the body of a scan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from generators.errors import add_place, require, require_word
from generators.program.autograd_functions import FUNCTION_OPTIONS, is_transformable
from generators.program.case import AUTOCAST, Case, Input, Op, Region, TensorType
from generators.program.changes import is_layer
from generators.program.loops import check_carries, check_loop, list_rows
from generators.program.ops import OPS, find_probability
from generators.program.references import list_dims
from generators.program.sizes import Size
from generators.program.values import COMPLEX, category
from generators.program.writes import find_owners, find_target, is_in_place
from generators.reasons import Reason

Infer = Callable[[Op, Mapping[str, TensorType], Mapping[str, int], str | None], TensorType]


@dataclass(frozen=True, slots=True)
class RegionKind:
    """A row of the table of regions."""

    effect: str  # in words
    weight: float = 1.0  # how often it is drawn
    loops: bool = False  # the function takes a row of its arguments along a dimension
    is_custom: bool = False  # the function is a custom operation or an autograd.Function, outside of the module
    writes: bool = False  # it may write into its arguments, in inference
    is_transform: bool = False  # without it, the region would compute something else
    floats_only: bool = False  # only floating values are arguments; the function reads all others as they are
    nonempty: bool = False  # its arguments have elements
    single: bool = False  # the function has one result
    like_first: bool = False  # its result is a gradient, and takes the place of a value of that type
    in_training: float = 1.0  # how often it is drawn in training, relative to inference
    apart: bool = False  # torch refuses arguments that share memory, and says so
    captures: bool = False  # Dynamo captures scalars, without which torch can't compile the loop
    carries: bool = False  # a step may hand values to the next, and the last row may be the first
    is_python: bool = False  # the same Python in both texts
    is_block: bool = False  # a `with` block, and no function
    options: tuple[str, ...] = ("",)  # the variants of the kind, simplest first
    refuses: frozenset[str] = frozenset()  # the kinds of regions that torch does not take in such a region


_UNCAPTURED = frozenset({"compile_region", "functionalize"})
"""Dynamo captures no call that makes one of these, and captures control flow and regions as a whole or not at all."""
_NOT_TRANSFORMED = frozenset({"custom_op", "cond", "map", "map_uncaptured", "scan", "while_loop", "checkpoint"})

SHARED = ("closure", "layer", "layer_in_layer")
"""Options of a `compile_region`. Regions that are alike have one function or class, and a number in which they differ:
functions that one function makes; layers of one class; layers of one class, each in a layer that is a region too."""

REGIONS: dict[str, RegionKind] = {
    "autograd_function": RegionKind(
        "an autograd.Function with a rule of its own",
        is_custom=True,
        is_transform=True,
        single=True,
        like_first=True,
        in_training=8.0,
        options=FUNCTION_OPTIONS,
        refuses=frozenset({"compile_region"}),
    ),
    "custom_op": RegionKind("a custom operation", 4.0, is_custom=True, writes=True),
    "cond": RegionKind("a branch of torch.cond", 2.0, floats_only=True, nonempty=True, apart=True, refuses=_UNCAPTURED),
    "map": RegionKind("the body of a map over rows", loops=True, apart=True, captures=True, refuses=_UNCAPTURED),
    "scan": RegionKind(
        "the body of a scan over rows", loops=True, apart=True, captures=True, carries=True, refuses=_UNCAPTURED
    ),
    "while_loop": RegionKind(
        "the body of a while_loop over rows", loops=True, single=True, apart=True, in_training=0.1, refuses=_UNCAPTURED
    ),
    "vmap": RegionKind(
        "a function under vmap", 2.0, loops=True, refuses=frozenset({"map", "map_uncaptured", "while_loop"})
    ),
    **{
        kind: RegionKind(
            effect, weight, is_transform=True, floats_only=True, single=True, like_first=True, refuses=_NOT_TRANSFORMED
        )
        for kind, effect, weight in (
            ("grad", "a function under torch.func.grad", 1.0),
            ("vjp", "a function under torch.func.vjp", 0.5),
            ("jacrev", "a function under torch.func.jacrev", 0.5),
            ("grad_of_grad", "a function under torch.func.grad, twice", 0.5),
        )
    },
    "jvp": RegionKind(
        "a function under torch.func.jvp",
        is_transform=True,
        floats_only=True,
        nonempty=True,
        single=True,
        refuses=_NOT_TRANSFORMED - {"custom_op"},
    ),
    # torch 2.13.0 and 2.15.0: "NYI: Functionalize rule for custom_function_call"; twice, an internal assertion.
    "functionalize": RegionKind(
        "a function under torch.func.functionalize",
        0.3,
        writes=True,
        options=("", "views"),
        refuses=frozenset({"functionalize", "autograd_function"}),
    ),
    "compile_region": RegionKind(
        "a nested_compile_region", 2.0, apart=True, options=("", *SHARED), refuses=_UNCAPTURED
    ),
    "checkpoint": RegionKind("a checkpointed function", 0.5),
    "autocast": RegionKind("an autocast", 2.0, is_python=True, is_block=True, options=("off", *AUTOCAST)),
    "map_uncaptured": RegionKind(
        "the body of a map, where Dynamo captures no scalars", 0.05, loops=True, apart=True, refuses=_UNCAPTURED
    ),
    "loop": RegionKind("the body of a Python loop over rows", 0.3, loops=True, carries=True, is_python=True),
}
"""By name, in the order in which attribution looks for the region at fault."""
FUNCTION = "autograd_function"
GRADIENT = "grad"
"""The simplest kind whose result is a gradient."""
_NOT_INSIDE = frozenset({"flex_attention"})
_ONCE = frozenset({"sdpa", "multihead_attention", "transformer_encoder_layer"})
"""Operations that torch differentiates once."""


def ops_of(case: Case, region: Region) -> list[Op]:
    return [op for op in case.ops if op.name in region.ops]


def list_autocasts(case: Case) -> dict[str, str | None]:
    """The dtype of the autocast around each operation, by name: of the innermost; None where it is off."""
    casts = {op.name: case.outer_autocast for op in case.ops}
    for region in case.regions:
        if region.kind == "autocast":
            dtype = region.option if region.option in AUTOCAST else None
            casts.update((name, dtype) for name in region.ops)
    return casts


def stands_outside(region: Region) -> bool:
    """Whether the function is outside of the module, so that all that it reads are arguments."""
    return REGIONS[region.kind].is_custom or region.option in SHARED


def list_alike(case: Case, region: Region, types: Mapping[str, TensorType]) -> list[Region]:
    """The regions that share the function or class of a region, itself among them, in their order in the case."""

    def describe(one: Region) -> object:
        arguments, results = list_operands(case, one), list_results(case, one)
        places = {name: place for place, name in enumerate((*arguments, *one.ops))}
        loops = [other.over for other in list_around(case.regions, one) if other.over]
        ops = ops_of(case, one)
        wires = [[places[find_target(case, arg)] for arg in op.args] for op in ops]
        given, shapes = [types[name] for name in arguments], [types[name].shape for name in one.ops]
        written = [OPS[op.kind].writes for op in ops]
        return one.option, loops, given, shapes, written, wires, [places[name] for name in results]

    if region.option not in SHARED or list_within(case.regions, region):
        return [region]
    alone = [one for one in case.regions if one.option in SHARED and not list_within(case.regions, one)]
    return [one for one in alone if one == region or describe(one) == describe(region)]


def list_around(regions: Sequence[Region], region: Region) -> list[Region]:
    """The regions that contain a region: they come before it."""
    return [other for other in regions[: regions.index(region)] if {*region.ops} <= {*other.ops}]


def list_within(regions: Sequence[Region], region: Region) -> list[Region]:
    return [other for other in regions[regions.index(region) + 1 :] if {*other.ops} <= {*region.ops}]


def list_operands(case: Case, region: Region) -> list[str]:
    """The values that a region reads and does not define, in the order of first use, after those that its first step
    reads. Writes go by their targets."""
    starts = [carry.start for carry in region.carries]
    read = dict.fromkeys([*starts, *(find_target(case, arg) for op in ops_of(case, region) for arg in op.args)])
    return [name for name in read if name not in region.ops]


def list_results(case: Case, region: Region) -> list[str]:
    """The values that a region defines and that are read elsewhere. The result of a write is its target."""
    outside = [arg for op in case.ops if op.name not in region.ops for arg in op.args]
    used = {find_target(case, name) for name in (*outside, *case.returns) if name in region.ops}
    return [name for name in region.ops if name in used]


def list_arguments(case: Case, region: Region, types: Mapping[str, TensorType]) -> list[str]:
    """The operands that are arguments of the region's function, which reads all others as they are."""
    row, operands = REGIONS[region.kind], list_operands(case, region)
    parameters = {item.name for item in case.inputs if item.parameter}
    if stands_outside(region):
        return operands
    if row.loops:
        return [*(carry.start for carry in region.carries), *list_rows(region, operands, types)]
    given = [name for name in operands if name not in parameters]
    return [name for name in given if category(types[name].dtype) == 2] if row.floats_only else given


def list_written_operands(case: Case, region: Region) -> list[str]:
    """The operands whose memory a region writes into."""
    owners = find_owners(case)
    written = {owners[op.name] for op in ops_of(case, region) if OPS[op.kind].writes}
    return [name for name in list_operands(case, region) if owners[name] in written]


def check_regions(case: Case, types: Mapping[str, TensorType], infer: Infer) -> None:
    """Raises CaseError if a region is no run of operations that its kind takes. `infer`: of type_check."""
    places = {op.name: place for place, op in enumerate(case.ops)}
    named = [name for region in case.regions for name in region.ops]
    with add_place("regions"):
        plain = not (case.contracts or case.checkpoint)
        require(not named or plain, "regions are not allowed beside contracts and checkpoint", Reason.REGION_BESIDE)
        require(
            not (case.checkpoint and list_indirect(case)), "a scan is not allowed beside checkpoint", Reason.SCANNED
        )
        for at, region in enumerate(case.regions):
            require_word(region, "kind", REGIONS, Reason.MALFORMED)
            missing = next((name for name in region.ops if name not in places), None)
            require(missing is None, f"{missing!r} is no operation", Reason.MALFORMED)
            found = [places[name] for name in region.ops]
            _check_around(case.regions[:at], region)
            row = REGIONS[region.kind]
            known = case.sizes.get(region.over, 0) > 0 if row.loops else not region.over
            require(
                known,
                f"{region.kind}: over is {region.over!r}, expected a dimension of size 1 or more",
                Reason.MALFORMED,
            )
            require(region.option in row.options, f"{region.kind}: option is {region.option!r}", Reason.MALFORMED)
            together = bool(found) and found == [*range(found[0], found[0] + len(found))]
            require(together, "a region is a run of operations, in their order", Reason.RUN)
            require(
                row.carries or not (region.carries or region.reverse),
                f"{region.kind} has no carries and no direction",
                Reason.MALFORMED,
            )
            check_carries(region, {*types}.difference(op.name for op in case.ops[found[0] :]))
            _check_region(case, region, types)
            if row.loops:
                operands, results = list_operands(case, region), list_results(case, region)
                check_loop(case, region, operands, results, types, partial(_infer_rows, case, region, types, infer))


def _check_around(others: Sequence[Region], region: Region) -> None:
    """Raises CaseError unless a region is apart from all others, or within a region that takes it."""
    around = [other for other in others if not set(other.ops).isdisjoint(region.ops)]
    require(all(set(other.ops).issuperset(region.ops) for other in around), "two regions overlap", Reason.RUN)
    for row in (REGIONS[other.kind] for other in around):
        # Dynamo captures a function that is made a region outside of forward. In training, eager's scan takes none.
        refused = row.refuses - _UNCAPTURED if region.option in SHARED and row is not REGIONS["scan"] else row.refuses
        fits = row is not REGIONS["custom_op"] or REGIONS[region.kind].is_block
        require(fits and region.kind not in refused, f"{row.effect} takes no {region.kind}", Reason.NESTED)
    reads_module = region.option in SHARED and any(map(stands_outside, around))
    require(
        not reads_module,
        f"{region.option} is an attribute of the module, which a function outside does not read",
        Reason.REGION_STATE,
    )
    if region.kind == FUNCTION:
        for other in around:
            require(
                is_transformable(region.option, other.kind), f"{other.kind} takes no {region.option}", Reason.NESTED
            )


def _check_region(case: Case, region: Region, types: Mapping[str, TensorType]) -> None:
    """Raises CaseError unless the kind takes these operations, arguments and results."""
    if REGIONS[region.kind].is_block:
        return
    _check_operations(case, region)
    row, name, written = REGIONS[region.kind], region.kind, list_written_operands(case, region)
    results, arguments = list_results(case, region), list_arguments(case, region, types)
    require(
        not written or (row.writes and not case.may_train),
        f"{name} does not write into {written[:1]}",
        Reason.REGION_WRITES,
    )
    require(bool(results or written), f"{name} has no result", Reason.RUN)
    require(len(arguments) > len(region.carries), f"{name} has no argument", Reason.REGION_ARGUMENT)
    # torch.func.functionalize wraps its arguments alone, each by itself.
    owners = find_owners(case)
    is_apart = len({owners[value] for value in written}) == len(written)
    wrapped = row.is_custom or (is_apart and {*arguments}.issuperset(written))
    require(wrapped, f"{name} does not write into {written[:1]}, which is no argument of its own", Reason.REGION_WRITES)
    require(not row.single or len(results) == 1, f"{name} has a single result", Reason.RUN)
    _check_memory(case, region, arguments, results, types)
    _check_types(case, region, arguments, results, types)


def _check_operations(case: Case, region: Region) -> None:
    row, name = REGIONS[region.kind], region.kind
    refused = _NOT_INSIDE | (_ONCE if name == "grad_of_grad" or (row.like_first and case.may_train) else frozenset())
    for op in ops_of(case, region):
        require(op.kind not in refused and not find_probability(op), f"{name} takes no {op.kind}", Reason.REGION_RANDOM)
        inside = not is_in_place(op) or op.args[0] in region.ops
        require(inside, f"{name} overwrites an operand in {op.name!r}", Reason.REGION_WRITES)
        reads_module = OPS[op.kind].random or is_layer(op)
        require(not (reads_module and stands_outside(region)), f"{row.effect} takes no {op.kind}", Reason.REGION_STATE)
        scans = op.attr("form") == "scan" and (row.is_custom or row.is_transform)
        require(not scans, f"{name} takes no scan", Reason.SCANNED)


def _check_memory(
    case: Case, region: Region, arguments: Sequence[str], results: Sequence[str], types: Mapping[str, TensorType]
) -> None:
    row, name, owners = REGIONS[region.kind], region.kind, find_owners(case)
    numbers = all(types[value].dtype != COMPLEX for value in (*list_operands(case, region), *results))
    require(numbers, f"{name} takes and gives no complex numbers", Reason.COMPLEX)
    carried = [carry.next for carry in region.carries]  # a loop returns copies of these
    own = [owners[value] for value in results if value not in carried]
    given = [owners[value] for value in arguments]
    require(
        {*region.ops}.issuperset(own) and len({*own}) == len(own),
        f"{name} returns memory of another value",
        Reason.REGION_ALIAS,
    )
    require(not row.apart or len({*given}) == len(given), f"{name}: arguments share memory", Reason.REGION_SHARED)


def _check_types(
    case: Case, region: Region, arguments: Sequence[str], results: Sequence[str], types: Mapping[str, TensorType]
) -> None:
    row, name = REGIONS[region.kind], region.kind
    floats = all(category(types[result].dtype) == 2 for result in results)
    require(floats or not (row.floats_only or row.like_first), f"{name} has floating results", Reason.REGION_FLOATS)
    empty = any(0 in types[value].sizes(case.sizes) for value in arguments)
    require(not (row.nonempty and empty), f"{name} of an empty value", Reason.REGION_EMPTY)
    if row.like_first:
        first, result = arguments[0], results[0]
        same = types[first].sizes(case.sizes) == types[result].sizes(case.sizes)
        same = same and types[first].dtype == types[result].dtype
        require(same, f"{name}: {first!r} and {result!r} have different types", Reason.UNLIKE_FIRST)
    # Gradients reach it outside of autocast, where it computes again to differentiate.
    cast = any(list_autocasts(case)[op] for op in region.ops)
    require(
        not (name == "custom_op" and case.may_train and cast),
        "under autocast a custom operation does not train",
        Reason.REGION_BESIDE,
    )
    named = stands_outside(region) and case.varies and list_dims(tuple(ops_of(case, region)))
    require(not named, f"{row.effect} has constant sizes", Reason.REGION_SIZES)


def _infer_rows(
    case: Case, region: Region, types: Mapping[str, TensorType], infer: Infer, sizes: Mapping[str, int]
) -> Mapping[str, TensorType]:
    inner, casts = dict(types), list_autocasts(case)
    for op in ops_of(case, region):
        inner[op.name] = infer(op, inner, sizes, casts[op.name])
    return inner


def list_indirect(case: Case) -> list[str]:
    """The kinds of regions, in the order of `REGIONS`, and the forms of operations that a Python call or loop can
    replace."""
    kinds = {region.kind for region in case.regions if not REGIONS[region.kind].is_python}
    forms = (form for op in case.ops if OPS[op.kind].plain and isinstance(form := op.attr("form"), str))
    return [*(kind for kind in REGIONS if kind in kinds), *dict.fromkeys(forms)]


def call_directly(case: Case, kind: str) -> Case:
    """The case with Python calls and loops in place of regions of a kind, and of operations of a form."""
    regions = (
        region if region.kind != kind else replace(region, kind="loop")
        for region in case.regions
        if region.kind != kind or region.carries
    )
    ops = (
        replace(op, attrs=tuple(pair for pair in op.attrs if pair != ("form", kind))) if OPS[op.kind].plain else op
        for op in case.ops
    )
    return replace(case, ops=tuple(ops), regions=tuple(regions))


def separate_functions(case: Case) -> Case:
    """The case in which no regions share a function: each has one of its own, or where torch takes none, none."""
    kept = list[Region]()
    for region in case.regions:
        refused = any(region.kind in REGIONS[other.kind].refuses for other in list_around(case.regions, region))
        if region.option not in SHARED or not refused:
            kept.append(replace(region, option="") if region.option in SHARED else region)
    return replace(case, regions=tuple(kept))


def only_region(case: Case, kind: str) -> Case:
    """The simplest program with a region of a kind, in the mode of the case: a sine of two elements."""
    option = next((region.option for region in case.regions if region.kind == kind), REGIONS[kind].options[0])
    region = Region(kind, ("out",), "N" if REGIONS[kind].loops else "", option)
    given, op = Input("x", (Size.of("N"),), "float32"), Op("out", "sin", ("x",))
    dims, settings = (("N", 2),), case.settings
    return Case(dims, (given,), (op,), ("out",), case.mode, case.dynamic, settings=settings, regions=(region,))
