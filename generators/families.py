"""How models in the wild spell attention. A family lists only the decisions it is known by; the rest are anyone's.

Each is written from how the model's public code computes its scores; the names of decisions are those the generator
passes to `Choices.structure` and `Choices.detail`.
"""

from collections.abc import Mapping

from generators.choices import Habits

FAMILIES: Mapping[str, tuple[float, Habits]] = {
    "anyone": (40.0, {}),
    "bert": (10.0, {
        "order": "bshd", "scale.place": "scores", "scale.divide": "div", "mask.kind": "add", "mask.shape": "keys",
        "dropout": "dropout",
    }),
    "distilbert": (12.0, {
        "order": "bshd", "scale.divide": "div", "mask.kind": "equal_0", "mask.expand": "expand_as",
        "mask.fill": float("-inf"), "dropout": "dropout",
    }),
    "gpt2": (12.0, {
        "order": "bshd", "scale.place": "scores", "scale.divide": "div", "scale.carrier": "full", "mask.kind": "where",
        "mask.fill": "min", "mask.low": "full", "scores.transpose": "permute", "dropout": "dropout", "returns": "keys",
    }),
    "gpt2_masked": (6.0, {
        "order": "bhsd", "scale.place": "scores", "scale.divide": "div", "scale.carrier": "full",
        "mask.kind": "where_and_add", "mask.fill": "min", "mask.low": "full", "scores.transpose": "permute",
        "dropout": "dropout",
    }),
    "t5": (10.0, {
        "order": "bshd", "scale.place": "none", "mask.kind": "add", "softmax.upcast": "float", "softmax.back": "type_as",
        "scores.transpose": "permute", "dropout": "dropout",
    }),
    "mbart": (6.0, {
        "order": "bhsd", "scale.place": "none", "mask.kind": "add", "scores.product": "flat", "dropout": "none",
    }),
    "visformer": (4.0, {"order": "bhds", "scale.place": "scores", "scale.divide": "mul", "mask.kind": "none"}),
    "fused": (5.0, {"fused": "sdpa"}),
}
"""Name: (weight, habits)."""
