"""The questions: inputs of a call, and what each possible answer gives, in float64."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

APART = 0.05
"""The least difference between the results of two answers to a question."""
NONE = "none of these"


@dataclass(frozen=True)
class Question:
    """A question about a call of attention, whose result tells the answer."""

    text: str
    call: Mapping[str, Any]
    """q, k, v, `scale` (None: the default) and options as in docs/kernels.md; `causal` is True."""
    answers: Mapping[str, Tensor]
    """The result that each answer gives, in float64, in the shape of the result."""
    result: str = "out"  # or "logsumexp", natural, [batch, heads, seq_len]
    said: Mapping[str, str] = field(default_factory=dict)
    """What documentation says, word for word, by the name of an implementation."""

    def answer(self, result: Tensor) -> str:
        """The answer that gives `result`, or `NONE`."""
        for answer, expected in self.answers.items():
            if result.shape == expected.shape and _is_close(result.double(), expected):
                return answer
        return NONE


def _is_close(result: Tensor, expected: Tensor) -> bool:
    # A relative part for answers such as the lowest number of float32.
    return torch.allclose(result, expected, rtol=1e-5, atol=APART / 4, equal_nan=True)


def are_apart(first: Tensor, second: Tensor) -> bool:
    """Whether no result is near both of two answers."""
    near = torch.isclose(first, second, rtol=1e-4, atol=APART, equal_nan=True)
    return first.shape != second.shape or not bool(near.all())


def _zeros(length: int, dim: int = 4) -> Tensor:
    return torch.zeros(1, 1, length, dim)


def _eye(length: int, dim: int = 4) -> Tensor:
    """Values by which a row of the result is its row of the weights."""
    return torch.eye(length, dim)[None, None]


def _rows(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)[None, None]


def _weigh(*rows: list[float]) -> Tensor:
    """The weights of rows of scores."""
    return _rows(*rows).softmax(-1)


def _keep(*rows: str) -> Tensor:
    """Equal weights for the keys that rows such as "x.xx" keep, and zeros in a row without one."""
    kept = torch.tensor([[character == "x" for character in row] for row in rows], dtype=torch.float64)
    return (kept / kept.sum(-1, keepdim=True).clamp(min=1))[None, None]


def _bool(*rows: str) -> Tensor:
    return torch.tensor([[character == "x" for character in row] for row in rows])


_UNIFORM: dict[str, Any] = {"k": _zeros(4), "v": _eye(4), "scale": 1.0}
_TWO = {"q": _zeros(2), **_UNIFORM}
_NAN, _INF = math.nan, math.inf
_EMPTY = {"zeros": _keep("....", "x..."), "mean": _keep("xxxx", "x..."), "NaN": _rows([_NAN] * 4, [1.0, 0.0, 0.0, 0.0])}
_LOWEST = torch.finfo(torch.float32).min


def _replace(tensor: Tensor, index: tuple[int, ...], value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


def _list_rows() -> list[Question]:
    below = torch.tensor([[_LOWEST] * 4, [0.0, _LOWEST, _LOWEST, _LOWEST]])
    return [
        Question(
            "a row that keeps no key, boolean mask",
            {**_TWO, "mask": _bool("....", "x...")},
            _EMPTY,
            said={"ONNX 24": "produces a zero output row, not `NaN`"},
        ),
        Question(
            "a row that keeps no key, bias of -inf", {**_TWO, "bias": below.masked_fill(below < 0, -_INF)}, _EMPTY
        ),
        Question("a row that keeps no key, bias of the lowest float32", {**_TWO, "bias": below}, _EMPTY),
        Question(
            "no keys at all",
            {"q": _zeros(2), "k": _zeros(0), "v": _zeros(0), "scale": 1.0},
            {"zeros": _zeros(2).double(), "NaN": _zeros(2).double() + _NAN},
        ),
        Question(
            "a mask that keeps no key, beside a sink",
            {**_TWO, "mask": _bool("....", "x..."), "sinks": torch.zeros(1)},
            {
                "zeros": _rows([0.0] * 4, [0.5, 0.0, 0.0, 0.0]),
                "mean": _rows([0.25] * 4, [0.5, 0.0, 0.0, 0.0]),
                "NaN": _rows([_NAN] * 4, [0.5, 0.0, 0.0, 0.0]),
            },
        ),
    ]


def _list_masks() -> list[Question]:
    kept = _keep("xx..", "xxx.")
    of_key = {"stays out": kept, "spreads": kept + _NAN, "rows of 0": 0 * kept}
    return [
        Question(
            "True in a boolean mask",
            {**_TWO, "mask": _bool("x...", "xx..")},
            {"keeps": _keep("x...", "xx.."), "drops": _keep(".xxx", "..xx")},
            said={
                "SDPA math": "a value of True indicates that the element *should* take part in attention",
                "JAX": "where `True` indicates the element should take part in attention",
                "Keras": "where `True` indicates the element should take part in attention",
                "ONNX 24": "where a value of `True` indicates that the element should take part in attention",
            },
        ),
        Question(
            "causal, 2 queries and 4 keys",
            {**_TWO, "causal": True},
            {
                "top left": _keep("x...", "xx.."),
                "bottom right": _keep("xxx.", "xxxx"),
                "ignored": _keep("xxxx", "xxxx"),
            },
            said={
                "SDPA math": "The attention masking has the form of the upper left causal bias",
                "MLX": "uses lower-right alignment where the last query aligns with the last key",
                "ONNX 24": "When `offset = 0` this reduces to the lower-triangular (top-left) mask",
            },
        ),
        Question(
            "causal, 4 queries and 2 keys",
            {"q": _zeros(4), "k": _zeros(2), "v": _eye(2), "scale": 1.0, "causal": True},
            {
                "top left": _pad(_keep("x.", "xx", "xx", "xx")),
                "bottom right, zeros": _pad(_keep("..", "..", "x.", "xx")),
                "bottom right, mean": _pad(_keep("xx", "xx", "x.", "xx")),
                "bottom right, NaN": _pad(_rows([_NAN] * 2, [_NAN] * 2, [1.0, 0.0], [0.5, 0.5]), _NAN),
            },
        ),
        Question(
            "causal beside a boolean mask",
            {"q": _zeros(4), **_UNIFORM, "causal": True, "mask": _bool("xxxx", "x.xx", "x.xx", ".xxx")},
            {
                "both": _keep("x...", "x...", "x.x.", ".xxx"),
                "mask alone": _keep("xxxx", "x.xx", "x.xx", ".xxx"),
                "causal alone": _keep("x...", "xx..", "xxx.", "xxxx"),
            },
            said={"SDPA math": "An error is thrown if both attn_mask and is_causal are set"},
        ),
        Question(
            "causal beside a bias",
            {"q": _zeros(4), **_UNIFORM, "causal": True, "bias": -9.0 * torch.eye(4).roll(1, 0)},
            {
                "both": _weigh([0, -_INF, -_INF, -_INF], [-9, 0, -_INF, -_INF], [0, -9, 0, -_INF], [0, 0, -9, 0]),
                "bias alone": _weigh([0, 0, 0, -9], [-9, 0, 0, 0], [0, -9, 0, 0], [0, 0, -9, 0]),
                "causal alone": _keep("x...", "xx..", "xxx.", "xxxx"),
            },
        ),
        Question(
            "a mask of shape [2, 1]",
            {**_TWO, "mask": torch.ones(2, 1, dtype=torch.bool)},
            {"broadcast": _keep("xxxx", "xxxx"), "padded with False": _keep("x...", "x...")},
            said={
                "ONNX 23": "Shape must be broadcastable to 4D tensor",
                "ONNX 24": "will be padded to `total_sequence_length` with negative infinity",
            },
        ),
        Question(
            "a mask of shape [4]",
            {**_TWO, "mask": _bool("x.xx")[0]},
            {"broadcast": _keep("x.xx", "x.xx"), "ignored": _keep("xxxx", "xxxx")},
        ),
        Question(
            "a mask of shape [1, 4] beside causal",
            {**_TWO, "mask": _bool("xxxx"), "causal": True},
            {
                "both, top left": _keep("x...", "xx.."),
                "both, bottom right": _keep("xxx.", "xxxx"),
                "row 0 for all rows": _keep("x...", "x..."),
                "mask alone": _keep("xxxx", "xxxx"),
            },
        ),
        Question(
            "a mask of shape [4] beside causal",
            {**_TWO, "mask": _bool("x.xx")[0], "causal": True},
            {
                "both, top left": _keep("x...", "x..."),
                "both, bottom right": _keep("x.x.", "x.xx"),
                "mask alone": _keep("x.xx", "x.xx"),
            },
        ),
        Question(
            "keys in the window (1, 0)",
            {"q": _zeros(4), **_UNIFORM, "window": (1, 0)},
            {"2": _keep("x...", "xx..", ".xx.", "..xx"), "1": _keep("x...", ".x..", "..x.", "...x")},
            said={"JAX": "if local_window_size == (3, 2) and the sequence is [0, 1, 2, 3, 4, 5, c, 7, 8, 9]"},
        ),
        Question(
            "window (1, 1) without causal, 2 queries and 4 keys",
            {**_TWO, "window": (1, 1)},
            {
                "top left": _keep("xx..", "xxx."),
                "bottom right": _keep(".xxx", "..xx"),
                "causal too": _keep("x...", "xx.."),
            },
        ),
        Question(
            "NaN in a value that the mask drops",
            {**_TWO, "mask": _bool("xx..", "xxx."), "v": _replace(_eye(4), (0, 0, 3, 0), _NAN)},
            {
                "stays out": kept,
                "spreads": kept + torch.tensor([_NAN, 0, 0, 0]),
                "counts as 0": kept * torch.tensor([0, 1, 1, 1]),
            },
        ),
        Question(
            "NaN in a key that the mask drops",
            {**_TWO, "mask": _bool("xx..", "xxx."), "k": _replace(_zeros(4), (0, 0, 3, 0), _NAN)},
            of_key,
        ),
        Question(
            "NaN in a key beside a bias of -inf",
            {
                **_TWO,
                "bias": torch.tensor([[0.0, 0.0, -_INF, -_INF], [0.0, 0.0, 0.0, -_INF]]),
                "k": _replace(_zeros(4), (0, 0, 3, 0), _NAN),
            },
            of_key,
        ),
    ]


def _pad(weights: Tensor, value: float = 0.0) -> Tensor:
    """Weights of 2 keys as results of 4 features; a row of NaN is NaN in all features."""
    padded = torch.nn.functional.pad(weights, (0, 2))
    return padded.masked_fill(weights.isnan().any(-1, keepdim=True), value)


def _list_scores() -> list[Question]:
    one = {"q": _replace(_zeros(1), (0, 0, 0, 0), 2.0), "v": _eye(2)}
    pair = {**one, "k": _replace(_zeros(2), (0, 0, 0, 0), 2.0)}  # scores 4 and 0 before the scale

    def weigh(first: float, second: float = 0.0) -> Tensor:
        return _pad(_weigh([first, second]))

    four_heads = {"q": torch.zeros(1, 4, 1, 4), "k": torch.zeros(1, 2, 2, 4), "scale": 1.0}
    by_group = torch.stack([torch.ones(2, 4), 2 * torch.ones(2, 4)])[None]
    large = 300.0 * torch.ones(1, 1, 4, 64, dtype=torch.float16)
    large[0, 0, 3] *= -1
    return [
        Question(
            "the default scale, head_dim 4", {**pair, "scale": None}, {"head_dim ** -0.5": weigh(2), "1": weigh(4)}
        ),
        Question(
            "a scale of 0", {**pair, "scale": 0.0}, {"taken": weigh(0), "the default": weigh(2), "NaN": weigh(0) + _NAN}
        ),
        Question(
            "a scale of -0.5",
            {**pair, "scale": -0.5},
            {"taken": weigh(-2), "its size taken": weigh(2), "NaN": weigh(0) + _NAN},
        ),
        Question(
            "softcap 2 beside a scale of 0.5",
            {**pair, "scale": 0.5, "softcap": 2.0},
            {"scale first": weigh(2 * math.tanh(1)), "softcap first": weigh(math.tanh(2)), "ignored": weigh(2)},
        ),
        Question(
            "softcap 2 beside a bias of -10",
            {**pair, "scale": 0.5, "softcap": 2.0, "bias": torch.tensor([[-10.0, 0.0]])},
            {"softcap first": weigh(2 * math.tanh(1) - 10), "bias first": weigh(2 * math.tanh(-4))},
            said={
                "ONNX 24": "softcap (if provided) | | | at_mask---Add",
                "torch.onnx": "at_mask---Add | | | softcap (if provided)",
            },
        ),
        Question(
            "a sink of ln 16 beside a scale of 0.5",
            {**_TWO, "scale": 0.5, "sinks": torch.full((1,), math.log(16))},
            {
                "adds exp(sink)": 4 / 20 * _keep("xxxx", "xxxx"),
                "adds exp(scale * sink)": 4 / 8 * _keep("xxxx", "xxxx"),
                "ignored": _keep("xxxx", "xxxx"),
            },
        ),
        Question(
            "4 query heads, 2 key heads: key heads read",
            {**four_heads, "v": by_group},
            {
                "0, 0, 1, 1": by_group[:, [0, 0, 1, 1], :1].double(),
                "0, 1, 0, 1": by_group[:, [0, 1, 0, 1], :1].double(),
            },
        ),
        Question(
            "products of 6e6 in float16, scaled by 1/8",
            {"q": large[:, :, :1], "k": large, "v": _eye(4, 64).half(), "scale": 0.125},
            {
                "fit": torch.nn.functional.pad(_keep("xxx."), (0, 60)),
                "NaN": torch.full((1, 1, 1, 64), _NAN, dtype=torch.float64),
            },
            said={"MLX": "The softmax operation is performed in ``float32`` regardless of the input precision"},
        ),
        Question(
            "scores 257 and 256 in bfloat16",
            {
                "q": torch.tensor([[[[16.0, 1.0]]]], dtype=torch.bfloat16),
                "k": torch.tensor([[[[16.0, 1.0], [16.0, 0.0]]]], dtype=torch.bfloat16),
                "v": torch.eye(2, dtype=torch.bfloat16)[None, None],
                "scale": 1.0,
            },
            {"kept apart": _weigh([1, 0]), "rounded": _weigh([0, 0])},
        ),
        Question(
            "scores 2^25 and 2^25 + 1 in float64",
            {
                "q": torch.tensor([[[[2.0**13, 1.0]]]], dtype=torch.float64),
                "k": torch.tensor([[[[2.0**12, 1.0], [2.0**12, 0.0]]]], dtype=torch.float64),
                "v": torch.eye(2, dtype=torch.float64)[None, None],
                "scale": 1.0,
            },
            {"kept apart": _weigh([1, 0]), "rounded to float32": _weigh([0, 0])},
        ),
    ]


def _list_logsumexp() -> list[Question]:
    large = {"q": 100 * torch.ones(1, 1, 1, 1), "k": torch.ones(1, 1, 4, 1), "v": torch.ones(1, 1, 4, 1), "scale": 1.0}
    low = {name: x.bfloat16() if isinstance(x, Tensor) else x for name, x in large.items()}
    exact = torch.full((1, 1, 1), 100 + math.log(4), dtype=torch.float64)

    def first(value: float) -> Tensor:
        return torch.tensor([[[value, 0.0]]], dtype=torch.float64)

    return [
        Question(
            "logsumexp, base of the logarithm",
            large,
            {"e": exact, "2": exact / math.log(2), "scores alone": exact - math.log(4)},
            "logsumexp",
        ),
        Question(
            "logsumexp of bfloat16 inputs", low, {"float32": exact, "bfloat16": exact.bfloat16().double()}, "logsumexp"
        ),
        Question(
            "logsumexp of a row that keeps no key",
            {**_TWO, "mask": _bool("....", "x...")},
            {
                "-inf": first(-_INF),
                "0": first(0),
                "inf": first(_INF),
                "NaN": first(_NAN),
                "-0.7 of the largest float32": first(0.7 * _LOWEST),
            },
            "logsumexp",
        ),
    ]


QUESTIONS = [*_list_rows(), *_list_masks(), *_list_scores(), *_list_logsumexp()]
