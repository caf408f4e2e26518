"""BART without a mask: q scaled before, heads folded into the batch, bmm, softmax and bmm, all in three axes."""

from generators.sampling.families.family import Family

FAMILY = Family(
    weight=4.0,
    habits={
        "order": "bsd",
        "scale.place": "none",
        "mask.kind": "none",
        "scores.product": "flat",
        "scores.transpose": "positive",
        "softmax.upcast": "none",
    },
)
