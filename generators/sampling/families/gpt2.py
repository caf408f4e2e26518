"""GPT-2: scores divided by a tensor made for it, `where` with the lowest number under a causal buffer, keys and values returned."""

from generators.sampling.families.family import Family

FAMILY = Family(
    weight=12.0,
    habits={
        "order": "bshd",
        "scale.place": "scores",
        "scale.divide": "div",
        "scale.carrier": "full",
        "mask.kind": "where",
        "mask.fill": "min",
        "mask.low": "full",
        "scores.transpose": "permute",
        "dropout": "dropout",
        "returns": "keys",
    },
)
