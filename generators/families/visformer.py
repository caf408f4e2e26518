"""Visformer: head sizes before lengths, and scores multiplied by the scale."""

from generators.families.family import Family

FAMILY = Family(
    weight=4.0,
    habits={
        "order": "bhds",
        "scale.place": "scores",
        "scale.divide": "mul",
        "mask.kind": "none",
    },
)
