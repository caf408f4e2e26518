"""Which numbers the dimensions of a case are: small, odd, 1, around powers of two, and equal where it matters."""

from generators.sampling.choices import Choices

_SEQ = {
    1: 2,
    2: 4,
    3: 4,
    4: 6,
    5: 3,
    7: 4,
    8: 6,
    9: 2,
    15: 1,
    16: 4,
    17: 4,
    31: 1,
    32: 2,
    33: 2,
    63: 2,
    64: 3,
    65: 2,
    127: 0.5,
    128: 0.5,
    130: 0.5,
}
_HEAD_DIM = {
    1: 1,
    2: 3,
    3: 1,
    4: 6,
    5: 1,
    7: 1,
    8: 8,
    16: 8,
    17: 1,
    24: 1,
    32: 4,
    33: 0.5,
    40: 1,
    64: 4,
    80: 0.5,
    128: 0.5,
}
_BATCH = {1: 5, 2: 8, 3: 3, 4: 3, 5: 1, 8: 1}
_HEADS = {1: 3, 2: 6, 3: 3, 4: 6, 5: 1, 6: 1, 8: 2}
_GROUP = {1: 1, 2: 4, 3: 2, 4: 2}

COINCIDENCES = (
    ("S", "T"),
    ("S", "H"),
    ("S", "D"),
    ("B", "H"),
    ("B", "S"),
    ("H", "D"),
    ("T", "D"),
    ("S", "T", "D"),
    ("S", "T", "H"),
    ("B", "H", "S", "T"),
    ("B", "H", "S", "T", "D"),
    ("S", "T", "H", "D"),
)
"""Equal sizes that turn a crash into a silently wrong result: rewrites that ignore an axis still fit the shapes."""


def draw_dims(c: Choices) -> dict[str, int]:
    """B batch, H query heads = G key heads * R queries a group, S query length, T key length, D and V head_dim."""
    dims = {
        "B": c.weighted(_BATCH),
        "H": c.weighted(_HEADS),
        "S": c.weighted(_SEQ),
        "T": c.weighted(_SEQ),
        "D": c.weighted(_HEAD_DIM),
        "G": c.weighted(_HEADS),
        "R": c.weighted(_GROUP),
    }
    if c.chance(0.7):
        dims["T"] = dims["S"]
    if c.chance(0.4):
        names = c.pick(COINCIDENCES)
        common = dims[c.pick(names)] if c.chance(0.5) else c.pick((2, 3, 4, 8, 16))
        # A batch or head count as long as a sequence would make the case slow for no gain.
        common = min(common, 8) if {"B", "H"} & set(names) else common
        dims.update(dict.fromkeys(names, common))
    dims["V"] = dims["D"] if c.chance(0.85) else c.weighted(_HEAD_DIM)
    return dims


_TILED_SEQ = {
    1: 2,
    2: 1,
    3: 1,
    5: 1,
    8: 2,
    15: 1,
    16: 2,
    17: 2,
    31: 1,
    32: 2,
    33: 2,
    48: 1,
    63: 4,
    64: 6,
    65: 5,
    100: 1,
    127: 4,
    128: 5,
    129: 4,
    130: 3,
    191: 0.5,
    192: 1,
    200: 0.5,
    256: 1,
    257: 1,
}
_TILED_DIM = {
    1: 0.5,
    2: 1,
    3: 1,
    4: 2,
    7: 1,
    8: 3,
    15: 1,
    16: 8,
    17: 2,
    24: 2,
    31: 1,
    32: 8,
    33: 1,
    40: 2,
    48: 2,
    63: 1,
    64: 8,
    65: 1,
    72: 1,
    80: 2,
    96: 2,
    128: 2,
}
_FEW = {1: 5, 2: 6, 3: 3, 4: 2}
_TILE = 64
_MAX_TILES = 64


def draw_tiled_dims(c: Choices) -> dict[str, int]:
    """Dimensions as in `draw_dims`, with lengths beside and on the edges of the tiles that kernels work in.

    An interpreter of kernels takes its time for every tile of the scores, so that long sequences have few heads.
    """
    dims = {
        "B": c.weighted(_FEW),
        "H": c.weighted(_FEW),
        "S": c.weighted(_TILED_SEQ),
        "T": c.weighted(_TILED_SEQ),
        "D": c.weighted(_TILED_DIM),
        "G": c.weighted({1: 4, 2: 5, 3: 1}),
        "R": c.weighted({2: 5, 3: 2, 4: 1}),
    }
    if c.chance(0.5):
        dims["T"] = dims["S"]
    dims["V"] = dims["D"] if c.chance(0.8) else c.weighted(_TILED_DIM)
    tiles = -(-dims["S"] // _TILE) * -(-dims["T"] // _TILE)
    for name in ("B", "H", "R"):
        while dims[name] > 1 and dims["B"] * max(dims["H"], dims["G"] * dims["R"]) * tiles > _MAX_TILES:
            dims[name] -= 1
    return dims
