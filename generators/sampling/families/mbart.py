"""mBART: heads folded into the batch, and products by bmm."""

from generators.sampling.families.family import Family

FAMILY = Family(
    weight=6.0,
    habits={
        "order": "bhsd",
        "scale.place": "none",
        "mask.kind": "add",
        "scores.product": "flat",
        "scores.fold": "before",
        "scores.again": "flat",
        "scores.transpose": "positive",
        "dropout": "none",
    },
)
