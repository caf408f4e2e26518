"""T5: no scale at all, a bias of positions added, softmax in float32 and back."""

from generators.sampling.families.family import Family

FAMILY = Family(
    weight=10.0,
    habits={
        "order": "bshd",
        "scale.place": "none",
        "mask.kind": "add",
        "scores.back": "type_as",
        "softmax.upcast": "float",
        "softmax.back": "type_as",
        "scores.transpose": "permute",
        "dropout": "dropout",
    },
)
