"""The sizes of a case's dimensions: small, odd, 1, around powers of two, and equal where it matters."""

from collections.abc import Mapping, Sequence

from generators.sampling.choices import Choices


def _sizes(by_weight: Mapping[float, Sequence[int]]) -> dict[int, float]:
    """The weight of each size, smallest size first."""
    return dict(sorted((size, weight) for weight, sizes in by_weight.items() for size in sizes))


_SEQ = _sizes(
    {6: (4, 8), 4: (2, 3, 7, 16, 17), 3: (5, 64), 2: (1, 9, 32, 33, 63, 65), 1: (15, 31), 0.5: (127, 128, 130)}
)
_HEAD_DIM = _sizes({8: (8, 16), 6: (4,), 4: (32, 64), 3: (2,), 1: (1, 3, 5, 7, 17, 24, 40), 0.5: (33, 80, 128)})
_BATCH = {1: 5, 2: 8, 3: 3, 4: 3, 5: 1, 8: 1}
_HEADS = {1: 3, 2: 6, 3: 3, 4: 6, 5: 1, 6: 1, 8: 2}
_GROUP = {1: 1, 2: 4, 3: 2, 4: 2}

COINCIDENCES = ("ST", "SH", "SD", "BH", "BS", "HD", "TD", "STD", "STH", "BHST", "BHSTD", "STHD")
"""Equal sizes that turn a crash into a silently wrong result: rewrites that ignore an axis still fit the shapes."""


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
    """Dimensions as in `draw_dims`, with lengths beside and on the edges of the tiles that kernels work in.

    An interpreter of kernels takes its time for every tile of the scores, so that long sequences have few heads.
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
