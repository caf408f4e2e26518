"""A random case from a seed and an index: a bare attention, or a whole module around an attention."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from generators.errors import CaseError
from generators.program.attention_stub import AttentionCall, emit_attention_stub, list_calls
from generators.program.case import Case
from generators.program.portability import TAKEN_REGIONS, find_obstacle
from generators.program.type_check import is_valid
from generators.program.writes import is_written
from generators.sampling.attention import attend
from generators.sampling.blocks import block_module
from generators.sampling.builder import Builder
from generators.sampling.calls import add_around, add_calls, add_sizes
from generators.sampling.changes import add_changes
from generators.sampling.choices import Choices
from generators.sampling.dropout import show_dropouts
from generators.sampling.dtypes import add_dtypes
from generators.sampling.families import FAMILIES, Family
from generators.sampling.forms import add_forms
from generators.sampling.heads import draw_qkv, merge_heads, restore_axes
from generators.sampling.integers import add_integers
from generators.sampling.memory import add_memory
from generators.sampling.numbers import NUMBERS_SHARE, add_numbers
from generators.sampling.operations import add_operations
from generators.sampling.regions import add_regions
from generators.sampling.scans import add_carries
from generators.sampling.states import add_states
from generators.sampling.steps import AttentionExtras, draw_extras, draw_many_extras, insert_noop
from generators.sampling.writes import add_read_by_strides, insert_writes


def _sizes(by_weight: Mapping[float, Sequence[int]]) -> dict[int, float]:
    return dict(sorted((size, weight) for weight, sizes in by_weight.items() for size in sizes))


_SEQ = _sizes(
    {6: (4, 8), 4: (2, 3, 7, 16, 17), 3: (5, 64), 2: (1, 9, 32, 33, 63, 65), 1: (15, 31), 0.5: (127, 128, 130)}
)
_HEAD_DIM = _sizes({8: (8, 16), 6: (4,), 4: (32, 64), 3: (2,), 1: (1, 3, 5, 7, 17, 24, 40), 0.5: (33, 80, 128)})
_BATCH = {1: 5, 2: 8, 3: 3, 4: 3, 5: 1, 8: 1}
_HEADS = {1: 3, 2: 6, 3: 3, 4: 6, 5: 1, 6: 1, 8: 2}
_GROUP = {1: 1, 2: 4, 3: 2, 4: 2}

COINCIDENCES = ("ST", "SH", "SD", "BH", "BS", "HD", "TD", "STD", "STH", "BHST", "BHSTD", "STHD")
"""Groups of dimensions that get equal sizes, so that a rewrite that confuses axes gives wrong results, not an error."""


def _draw(c: Choices, **weights: Mapping[int, float]) -> dict[str, int]:
    return {name: c.draw(sizes) for name, sizes in weights.items()}


def draw_dims(c: Choices) -> dict[str, int]:
    """B batch, H query heads = G key heads * R queries a group, S query length, T key length, D and V head_dim."""
    dims = _draw(c, B=_BATCH, H=_HEADS, S=_SEQ, T=_SEQ, D=_HEAD_DIM, G=_HEADS, R=_GROUP)
    if c.chance(0.7):
        dims["T"] = dims["S"]
    if c.chance(0.4):
        names = c.pick(COINCIDENCES)
        common = dims[c.pick(names)] if c.chance(0.5) else c.pick((2, 3, 4, 8, 16))
        # A batch or head count as long as a sequence would make the case slow for no gain.
        common = min(common, 8) if {"B", "H"} & set(names) else common
        dims.update(dict.fromkeys(names, common))
    dims["V"] = dims["D"] if c.chance(0.85) else c.draw(_HEAD_DIM)
    return dims


def draw_coinciding_dims(c: Choices) -> dict[str, int]:
    """Dimensions as in `draw_dims`, with two of any kind equal in most, and more sizes of 0 and 1."""
    dims = draw_dims(c)
    if c.chance(0.6):
        one = c.pick("BHSTDV")
        other = c.pick([name for name in "BHSTDV" if name != one])
        dims[other] = dims[one] = min(dims[one], 8 if {one, other} & {"B", "H"} else dims[one])
    if c.chance(0.2):
        dims[c.pick("BHSTDV")] = c.draw({1: 5.0, 0: 1.0})
    return dims


_TILED_SEQ = _sizes(
    {
        6: (64,),
        5: (65, 128),
        4: (63, 127, 129),
        3: (130,),
        2: (1, 8, 16, 17, 32, 33),
        1: (2, 3, 5, 15, 31, 48, 100, 192, 256, 257),
        0.5: (191, 200),
    }
)
_TILED_DIM = _sizes(
    {8: (16, 32, 64), 3: (8,), 2: (4, 17, 24, 40, 48, 80, 96, 128), 1: (2, 3, 7, 15, 31, 33, 63, 65, 72), 0.5: (1,)}
)
_FEW = {1: 5, 2: 6, 3: 3, 4: 2}
_FEW_GROUPS = {1: 4, 2: 5, 3: 1}
_FEW_SHARED = {2: 5, 3: 2, 4: 1}
_TILE = 64
_MAX_TILES = 64


def draw_tiled_dims(c: Choices) -> dict[str, int]:
    """Dimensions as in `draw_dims`, with lengths on and beside the edges of the tiles that kernels work in.

    Triton's interpreter is slow for each tile of the scores, so long sequences get few heads.
    """
    dims = _draw(c, B=_FEW, H=_FEW, S=_TILED_SEQ, T=_TILED_SEQ, D=_TILED_DIM, G=_FEW_GROUPS, R=_FEW_SHARED)
    if c.chance(0.5):
        dims["T"] = dims["S"]
    dims["V"] = dims["D"] if c.chance(0.8) else c.draw(_TILED_DIM)
    tiles = -(-dims["S"] // _TILE) * -(-dims["T"] // _TILE)
    for name in ("B", "H", "R"):
        while dims[name] > 1 and dims["B"] * max(dims["H"], dims["G"] * dims["R"]) * tiles > _MAX_TILES:
            dims[name] -= 1
    return dims


_MODULES = {"bare": 80.0, "block": 20.0}  # a bare attention, judged twice as fast, or a whole module
TRAINING_SHARE = 0.25
DYNAMIC_SHARE = 0.02  # the share of cases with dynamic shapes, which take ten times as long to compile
LINEAR_SHARE = 0.015  # the share of cases with linear attention
EMPTY_SHARE = 0.006  # the share of cases in which a dimension is 0
CALLED_SHARE = 0.08  # the share of cases with several calls of the module, which take several times as long
WRITTEN_CALLED_SHARE = 0.3  # the share of cases with writes that get several calls: a buffer keeps written values
_EMPTY = {"S": 3.0, "T": 3.0, "B": 2.0}
HEADS_INNER_SHARE = 0.25  # for kernels: the share of cases with q, k, v in [B, S, H, D] whose contract keeps it
AUTOCAST_SHARE = 0.03  # the share of cases under autocast, of those that stay well typed
AROUND_SHARE = 0.03  # the share of cases with autocasts around their calls
STATES_SHARE = 0.15  # the share of cases whose call is in another state, doubled for kernels
INTEGERS_SHARE = 0.03  # the share of cases with integers beyond 2^31, or that wrap around
DTYPES_SHARE = 0.03  # the share of cases with narrow integers, complex numbers, or places in other orders of memory
STRIDED_SHARE = 0.02  # the share of cases with a read by strides, which depends on how a value lies in memory
MEMORY_SHARE = 0.03  # the share of cases with arguments that share memory, or writes through odd views
MASKS_SHARE = 0.3  # the share of random cases that get more dropout, and show its masks
OPERATIONS_SHARE = 0.08  # the share of cases with operations of the whole table
REGIONS_SHARE = 0.08  # the share of cases with regions
CARRIES_SHARE = 0.02  # the share of cases with loops whose steps hand on values
CHANGED_SHARE = 0.5  # the share of cases with several calls whose module changes between them
CHANGED_BEFORE_SHARE = 0.01  # the share of cases with a single call whose module changes before it
RETURNED_TWICE_SHARE = 0.01  # the share of cases that return a value again
WRITES_SHARE = 0.06  # the share of cases that get in-place writes
ALONE_SHARE = 0.6  # the share of portable cases whose forms have the arguments in place of the case's operations
FORMS_SHARE = 0.85  # the share of other portable cases that get forms around their attention
PORTABLE_REGIONS_SHARE = 0.02
SIZES_SHARE = 0.15  # the share of portable cases whose later calls have other sizes, for compilers that take these
_PORTABLE_DTYPES = {"float32": 8.0, "float16": 1.0, "bfloat16": 1.0}
_DTYPES = {"float32": 5.0, "bfloat16": 2.5, "float16": 2.5}
_FORMS = 200  # how often dtype, sizes and options are drawn for a program, 50 us each
_ATTEMPTS = 60  # how many programs are written, 2 ms each, before the limits are ignored


@dataclass(frozen=True, slots=True)
class Limits:
    """Which attention calls a case may make."""

    accepts: Callable[[AttentionCall], bool] = lambda call: True
    """Asked before a program is written, about a call without mask, bias and dropout, and again about its calls. If it
    refuses a call, it must refuse the call with more options too."""
    head_dims: tuple[int, ...] = ()  # head_dim and value_dim are drawn from these numbers, if any


NO_LIMITS = Limits()


def sample(
    seed: int,
    index: int,
    *,
    attention_only: bool = False,
    limits: Limits = NO_LIMITS,
    family: str = "",
    dtype: str = "",
    mode: str = "",
    device: str = "cpu",
    abilities: Collection[str] | None = None,
) -> Case:
    """Case number `index` of the campaign with this seed: the same on every machine.

    With `attention_only` the case is a bare attention that a call of a kernel can replace. Its sizes lie around the
    edges of tiles, and soft caps, windows, ALiBi and sinks are more frequent. It is within `limits`, unless
    `_ATTEMPTS` programs find no such case. An empty `family`, `dtype` or `mode` is drawn.

    With `abilities`, those of a compiler of inference programs, the case is one without `find_obstacle`, and mostly has
    forms that such compilers get wrong (`generators/sampling/forms.py`).
    """
    if abilities is not None:
        drawn = (
            _sample_portable(f"{seed}:{index}:portable:{n}", abilities, family=family, dtype=dtype, device=device)
            for n in itertools.count()
        )
        return next(case for case in drawn if not find_obstacle(case, abilities))
    if attention_only:
        all_limits = itertools.chain(itertools.repeat(limits, _ATTEMPTS), itertools.repeat(NO_LIMITS))
        cases = (_for_kernels(f"{seed}:{index}:contracted:{n}", within) for n, within in enumerate(all_limits))
        case = next(case for case in cases if case is not None and emit_attention_stub(case) is not None)
        changed = add_states(case, Choices(f"{seed}:{index}:states"), 2 * STATES_SHARE)
        is_taken = emit_attention_stub(changed) is not None and all(map(limits.accepts, list_calls(changed)))
        return changed if is_taken else case
    if not family and Choices(f"{seed}:{index}:linear").chance(LINEAR_SHARE):
        family = "linear_attention"
    case = _sample_module(seed, index, family=family, dtype=dtype, mode=mode, device=device)
    operations = Choices(f"{seed}:{index}:operations")
    if operations.chance(OPERATIONS_SHARE):
        case = add_operations(case, operations)
    changes = Choices(f"{seed}:{index}:changes")
    if changes.chance(CHANGED_SHARE if case.calls else CHANGED_BEFORE_SHARE):
        case = add_changes(case, changes)
    regions = Choices(f"{seed}:{index}:regions")
    if regions.chance(REGIONS_SHARE):
        case = add_regions(case, regions)
    carries = Choices(f"{seed}:{index}:carries")
    if carries.chance(CARRIES_SHARE):
        case = add_carries(case, carries)
    case = show_dropouts(case, Choices(f"{seed}:{index}:masks"), MASKS_SHARE)
    case = add_integers(case, Choices(f"{seed}:{index}:integers"), INTEGERS_SHARE)
    case = add_dtypes(case, Choices(f"{seed}:{index}:dtypes"), DTYPES_SHARE)
    case = add_read_by_strides(case, Choices(f"{seed}:{index}:strided"), STRIDED_SHARE)
    case = add_memory(case, Choices(f"{seed}:{index}:memory"), MEMORY_SHARE)
    numbers = Choices(f"{seed}:{index}:numbers")
    if numbers.chance(NUMBERS_SHARE):
        case = add_numbers(case, numbers)
    around = Choices(f"{seed}:{index}:around")
    if around.chance(AROUND_SHARE):
        case = add_around(case, around)
    again = Choices(f"{seed}:{index}:again")
    if again.chance(RETURNED_TWICE_SHARE):
        case = replace(case, returns=(*case.returns, again.pick(case.returns)))
    return add_states(case, Choices(f"{seed}:{index}:states"), STATES_SHARE)


def _sample_module(seed: int, index: int, *, family: str, dtype: str, mode: str, device: str) -> Case:
    calls = Choices(f"{seed}:{index}:calls")
    if calls.chance(CALLED_SHARE):
        mode = mode or calls.draw({"": 7.0, "training": 3.0})
        return add_calls(draw(*_choices(seed, index), family=family, dtype=dtype, mode=mode, device=device), calls)
    drawn = partial(draw, family=family, dtype=dtype, mode=mode, device=device)
    empty = Choices(f"{seed}:{index}:empty")
    if empty.chance(EMPTY_SHARE):
        # A program that can't have a size of 0 (an index, a size of -1) is drawn again without it.
        with suppress(CaseError):
            return drawn(*_choices(seed, index), sizes={empty.draw(_EMPTY): 0})
    case = drawn(*_choices(seed, index))
    return add_calls(case, calls) if is_written(case) and calls.chance(WRITTEN_CALLED_SHARE) else case


def _sample_portable(seed: str, abilities: Collection[str], *, family: str, dtype: str, device: str) -> Case:
    c = Choices(seed)
    family = family or c.draw({name: one.portable or one.weight for name, one in FAMILIES.items()})
    dtype, sizes, rare = dtype or c.draw(_PORTABLE_DTYPES), draw_coinciding_dims(c), Choices(f"{seed}:extras")
    try:
        case = draw(c, rare, family=family, dtype=dtype, mode="inference", sizes=sizes, device=device)
    except CaseError:  # a program that can't have a size of 0
        case = draw(c, rare, family=family, dtype=dtype, mode="inference", device=device)
    if find_obstacle(case, abilities):
        return case
    is_alone = c.chance(ALONE_SHARE)
    if is_alone or c.chance(FORMS_SHARE):
        case = add_forms(replace(case, dynamic=False), c, alone=is_alone)
    if c.chance(PORTABLE_REGIONS_SHARE):
        case = add_regions(case, c, sorted(TAKEN_REGIONS))
    if "dynamic" in abilities and c.chance(SIZES_SHARE):
        case = add_sizes(case, c)
    return case


def _choices(seed: int, index: int) -> tuple[Choices, Choices]:
    # Rare features have choices of their own, so that the rest of a case does not depend on them.
    return Choices(f"{seed}:{index}"), Choices(f"{seed}:{index}:extras")


def draw(
    c: Choices,
    rare: Choices,
    *,
    family: str = "",
    dtype: str = "",
    mode: str = "",
    sizes: Mapping[str, int] | None = None,
    device: str = "cpu",
) -> Case:
    """The case that these choices decide. `rare` decides rare features. `sizes` fixes some dimensions."""
    drawn = FAMILIES[family] if family else _family(c, FAMILIES)
    c.preferences = drawn.preferences
    c.deviation = c.draw({0.02: 2.0, 0.08: 5.0, 0.2: 2.0, 0.5: 1.0})
    drawn_dtype, dims = c.draw(_DTYPES), draw_dims(c)
    drawn_mode = "training" if c.chance(TRAINING_SHARE) else "inference"
    b = Builder({**dims, **(sizes or {})}, dtype or drawn_dtype, mode or drawn_mode, device)
    extras = draw_extras(rare)
    if drawn.write is not None:
        returns = drawn.write(b, c)
    else:
        returns = (_bare if c.choose("module", _MODULES) == "bare" else block_module)(b, c, extras)
    case = b.case(returns, dynamic=c.chance(DYNAMIC_SHARE))
    if rare.chance(AUTOCAST_SHARE):
        cast = replace(case, autocast=rare.draw({"bfloat16": 3.0, "float16": 1.0}), contracts=())
        case = cast if is_valid(cast) else case
    return insert_writes(case, rare) if rare.chance(WRITES_SHARE) and case.autocast is None else case


def _family(c: Choices, families: Mapping[str, Family]) -> Family:
    return families[c.draw({name: family.weight for name, family in families.items()})]


def _for_kernels(seed: str, limits: Limits) -> Case | None:
    """A case whose attention a kernel can compute; None if it has no contract or is outside of the limits."""
    c = Choices(seed)
    family = _family(c, {name: family for name, family in FAMILIES.items() if family.write is None})
    # A kernel does not see how steps are spelled, so these choices vary beyond most families' preferences.
    c.preferences = {
        "heads.group": c.draw({"none": 7.0, "group": 2.0, "one": 1.0}),
        "values": c.draw({"normal": 7.0, "outliers": 1.0, "integers": 1.0, "one_row": 1.0}),
        "scale.value": c.draw({None: 7.0, 0.5: 1.0, 0.3: 1.0, -0.5: 1.0, 4.0: 0.5}),
        "softmax.upcast": "none",
    } | dict(family.preferences)
    if c.chance(0.6):
        # Kernels take no finite fill, so a row without a key can't be compared with one.
        c.preferences = {**c.preferences, "mask.fill": float("-inf")}
    c.deviation = c.draw({0.02: 5.0, 0.08: 4.0, 0.2: 1.0})
    for _ in range(_FORMS):
        dims, extras = draw_tiled_dims(c), draw_many_extras(c)
        if extras.causal == "bottom_right" and dims["T"] < dims["S"] and c.chance(0.7):
            # The first queries would see no key.
            dims["S"], dims["T"] = dims["T"], dims["S"]
        if limits.head_dims:
            dims["D"] = c.pick(limits.head_dims)
            dims["V"] = dims["D"] if c.chance(0.8) else c.pick(limits.head_dims)
        dtype, training = c.draw(_DTYPES), c.chance(0.5)
        shapes = tuple((dims["B"], dims["H"], dims[length], dims[dim]) for length, dim in ("SD", "TD", "TV"))
        if limits.accepts(AttentionCall(dtype, shapes, extras.options, training)):
            break
    else:
        return None
    b = Builder(dims, dtype, "training" if training else "inference")
    returns = _bare(b, c, extras, heads_inner=c.chance(HEADS_INNER_SHARE))
    case = b.case(returns, dynamic=False)
    return case if case.contracts and all(map(limits.accepts, list_calls(case))) else None


def _bare(b: Builder, c: Choices, extras: AttentionExtras, *, heads_inner: bool = False) -> list[str]:
    qkv = draw_qkv(b, c)
    output, intermediates = attend(b, c, qkv, extras)
    if heads_inner and (back := restore_axes(b, c, qkv, output)) != output:
        output = back
    elif c.chance(0.3):
        output = merge_heads(b, c, output)
    output = insert_noop(b, c, output)
    returns = c.choose("returns", {"output": 7.0, "keys": 1.5, "some": 1.5})
    if returns == "keys":
        return [output, *intermediates[-2:]]
    return [output, *(c.subset(intermediates, 0.5) if returns == "some" else [])]
