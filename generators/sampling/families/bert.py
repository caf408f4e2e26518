"""BERT: scores divided by the root of the head size, a mask over keys added, dropout on the weights."""

from generators.sampling.families.family import Family

FAMILY = Family(
    weight=10.0,
    habits={
        "order": "bshd",
        "scale.place": "scores",
        "scale.divide": "div",
        "mask.kind": "add",
        "mask.shape": "keys",
        "dropout": "dropout",
    },
)
