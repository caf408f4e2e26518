"""Models in half precision that take the softmax in float32 and go back for the product with the values."""

from generators.sampling.families.family import Family

FAMILY = Family(
    weight=5.0,
    habits={
        "order": "bshd",
        "scale.divide": "div",
        "mask.kind": "none",
        "softmax.upcast": "float",
        "softmax.back": "to",
    },
)
