"""DistilBERT: the query divided first, and scores filled with -inf where the mask of 0 and 1, expanded to their shape, is 0."""

from generators.sampling.families.family import Family

FAMILY = Family(
    weight=12.0,
    habits={
        "order": "bshd",
        "scale.divide": "div",
        "mask.kind": "equal_0",
        "mask.expand": "expand_as",
        "mask.fill": float("-inf"),
        "dropout": "dropout",
    },
)
