"""GPT-2 with an attention mask: `where` under a causal buffer, then a mask added."""

from generators.sampling.families.family import Family

FAMILY = Family(
    weight=6.0,
    habits={
        "order": "bhsd",
        "scale.place": "scores",
        "scale.divide": "div",
        "scale.carrier": "full",
        "mask.kind": "where_and_add",
        "mask.fill": "min",
        "mask.low": "full",
        "scores.transpose": "permute",
        "dropout": "dropout",
    },
)
