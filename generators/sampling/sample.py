"""A random case from a seed and an index: a bare attention, or a whole module around an attention."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from generators.errors import CaseError
from generators.program.attention_stub import AttentionCall, emit_attention_stub, list_calls
from generators.program.case import Case
from generators.program.portability import find_obstacle
from generators.sampling.attention import attend
from generators.sampling.blocks import block_module
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families import FAMILIES
from generators.sampling.heads import draw_qkv, merge_heads, restore_axes
from generators.sampling.mutations import SHARES, Share, mutate
from generators.sampling.steps import AttentionExtras, draw_extras, draw_many_extras, insert_noop


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


_EMPTY = {"S": 3.0, "T": 3.0, "B": 2.0}
_FORMS = 200  # how often dtype, sizes and options are drawn for a program, 50 us each
_ATTEMPTS = 60  # how many programs are written, 2 ms each, before the limits are ignored


@dataclass(frozen=True, slots=True)
class Profile:
    """The weights of the programs of a kind of campaign."""

    name: str
    families: Mapping[str, float]
    shares: Mapping[str, Share]  # of mutations
    dims: Callable[[Choices], dict[str, int]] = draw_dims
    dtypes: Mapping[str, float] = field(default_factory=lambda: {"float32": 5.0, "bfloat16": 2.5, "float16": 2.5})
    extras: Callable[[Choices], AttentionExtras] = draw_extras
    modules: Mapping[str, float] = field(default_factory=lambda: {"bare": 80.0, "block": 20.0})
    """A bare attention, judged twice as fast, or a whole module."""
    deviations: Mapping[float, float] = field(default_factory=lambda: {0.02: 2.0, 0.08: 5.0, 0.2: 2.0, 0.5: 1.0})
    preferences: Mapping[str, Mapping[object, float]] = field(default_factory=dict)
    """Outcomes that a program prefers, by the name of the decision, where its family has no preference."""
    overrides: Mapping[str, Mapping[object, float]] = field(default_factory=dict)
    """The same, but before the preferences of its family. None: no outcome."""
    training: float = 0.25
    dynamic: float = 0.02  # with dynamic shapes, which take ten times as long to compile
    empty: float = 0.0  # with a dimension of 0
    heads_inner: float = 0.0  # of cases with q, k, v in [B, S, H, D]: the contract keeps it


MODULE_PROFILE = Profile("", {name: row.weight for name, row in FAMILIES.items()}, SHARES, empty=0.006)
FUNCTION_PROFILE = Profile(
    "contracted",
    {name: row.weight for name, row in FAMILIES.items() if row.write is None},
    {"states": 0.3},
    draw_tiled_dims,
    extras=draw_many_extras,
    modules={"bare": 1.0},
    deviations={0.02: 5.0, 0.08: 4.0, 0.2: 1.0},
    # A kernel does not see how steps are spelled, so these choices vary beyond most families' preferences.
    preferences={
        "heads.group": {"none": 7.0, "group": 2.0, "one": 1.0},
        "values": {"normal": 7.0, "outliers": 1.0, "integers": 1.0, "one_row": 1.0},
        "scale.value": {None: 7.0, 0.5: 1.0, 0.3: 1.0, -0.5: 1.0, 4.0: 0.5},
        "softmax.upcast": {"none": 1.0},
    },
    # Kernels take no finite fill, so a row without a key can't be compared with one.
    overrides={"mask.fill": {float("-inf"): 6.0, None: 4.0}},
    training=0.5,
    dynamic=0.0,
    heads_inner=0.25,
)
"""Bare attentions, for functions that compute attention alone."""
PORTABLE_PROFILE = Profile(
    "portable",
    {name: row.weight if row.portable is None else row.portable for name, row in FAMILIES.items()},
    {"forms": 0.94, "regions": SHARES["regions"], "sizes": 0.15},
    draw_coinciding_dims,
    {"float32": 8.0, "float16": 1.0, "bfloat16": 1.0},
    training=0.0,
    dynamic=0.001,
)
"""Programs for compilers of inference programs."""


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
    profile = PORTABLE_PROFILE if abilities is not None else FUNCTION_PROFILE if attention_only else MODULE_PROFILE
    given = {"dtype": dtype, "device": device}
    given |= {"family": "" if attention_only else family, "mode": "" if abilities is not None else mode}
    for attempt in itertools.count():
        within = limits if attempt < _ATTEMPTS else NO_LIMITS

        def accepts(case: Case, within: Limits = within) -> bool:
            if abilities is not None:
                return not find_obstacle(case, abilities)
            return not attention_only or (
                bool(case.contracts)
                and all(map(within.accepts, list_calls(case)))
                and emit_attention_stub(case) is not None
            )

        name = ":".join(filter(None, (f"{seed}:{index}", profile.name, str(attempt or ""))))
        case = draw(Choices(name), Choices(f"{name}:extras"), profile, limits=within, **given)
        if accepts(case):
            return mutate(case, partial(_choose, name), profile.shares, accepts)
    raise AssertionError


def _choose(name: str, mutation: str) -> Choices:
    return Choices(f"{name}:{mutation}")


def draw(
    c: Choices,
    rare: Choices,
    profile: Profile = MODULE_PROFILE,
    *,
    limits: Limits = NO_LIMITS,
    family: str = "",
    dtype: str = "",
    mode: str = "",
    device: str = "cpu",
) -> Case:
    """The case that these choices decide, without mutations. `rare` decides rare features, so that the rest does not
    depend on them. A few tries keep its attention within the limits."""
    row = FAMILIES[family or c.draw(profile.families)]
    preferred, before = (
        {name: c.draw(options) for name, options in drawn.items()} for drawn in (profile.preferences, profile.overrides)
    )
    before = {name: outcome for name, outcome in before.items() if outcome is not None}
    c.preferences = {**preferred, **row.preferences, **before}
    c.deviation = c.draw(profile.deviations)
    for _ in range(_FORMS):
        drawn_dtype, dims = c.draw(profile.dtypes), profile.dims(c)
        drawn_mode = "training" if c.chance(profile.training) else "inference"
        extras = profile.extras(rare)
        if extras.causal == "bottom_right" and dims["T"] < dims["S"] and rare.chance(0.7):
            # The first queries would see no key.
            dims["S"], dims["T"] = dims["T"], dims["S"]
        if limits.head_dims:
            dims["D"] = c.pick(limits.head_dims)
            dims["V"] = dims["D"] if c.chance(0.8) else c.pick(limits.head_dims)
        shapes = tuple((dims["B"], dims["H"], dims[length], dims[dim]) for length, dim in ("SD", "TD", "TV"))
        if limits.accepts(
            AttentionCall(dtype or drawn_dtype, shapes, extras.options, (mode or drawn_mode) == "training")
        ):
            break
    if rare.chance(profile.empty):
        dims[rare.draw(_EMPTY)] = 0

    def write() -> Case:
        b = Builder({**dims}, dtype or drawn_dtype, mode or drawn_mode, device)
        if row.write is not None:
            returns = row.write(b, c)
        elif c.choose("module", profile.modules) == "bare":
            returns = _bare(b, c, extras, profile.heads_inner)
        else:
            returns = block_module(b, c, extras)
        return b.case(returns, dynamic=c.chance(profile.dynamic))

    try:
        return write()
    except CaseError:
        if all(dims.values()):
            raise
        # A program that can't have a size of 0: an index, a size of -1.
        dims = {name: size or 1 for name, size in dims.items()}
        return write()


def _bare(b: Builder, c: Choices, extras: AttentionExtras, heads_inner: float) -> list[str]:
    keeps_axes = heads_inner > 0 and c.chance(heads_inner)
    qkv = draw_qkv(b, c)
    output, intermediates = attend(b, c, qkv, extras)
    if keeps_axes and (back := restore_axes(b, c, qkv, output)) != output:
        output = back
    elif c.chance(0.3):
        output = merge_heads(b, c, output)
    output = insert_noop(b, c, output)
    returns = c.choose("returns", {"output": 7.0, "keys": 1.5, "some": 1.5})
    if returns == "keys":
        return [output, *intermediates[-2:]]
    return [output, *(c.subset(intermediates, 0.5) if returns == "some" else [])]
