"""Products with factors on every side, and attention under every mask, on a value of a program.

`forms.py` draws them. Each function adds operations and returns the name of the last; it raises CaseError for a value
that it can't take.
"""

from collections.abc import Sequence
from typing import Any

from generators.errors import require
from generators.program.case import Values
from generators.program.sizes import ONE, Size, product
from generators.reasons import Reason
from generators.sampling.attention import repeat_heads
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.masks import NEG_INF

_FACTORS: tuple[float | int, ...] = (2.0, 0.5, -1.0, -0.3, 3, 1.0, 0.0, 0.125)
_DIVISORS: tuple[float | int, ...] = (2.0, 8, -0.5, 1.0, 0.3)
_STEPS = {"mul": 5.0, "div": 3.0, "add": 3.0, "sub": 1.0}
_COUNTS = {0: 5.0, 1: 4.0, 2: 2.0}
_KINDS = {"matmul": 5.0, "linear": 2.0, "baddbmm": 2.0, "addmm": 2.0, "bmm": 1.0, "einsum": 1.0}
_MOST_ELEMENTS = 1 << 14
"""Of scores and products: exporters take longer for larger ones and are as often wrong about smaller ones."""
_KEPT = {"random": 4.0, "empty_row": 3.0, "padding": 1.0, "zeros": 1.5, "causal": 1.0, "empty_rows": 1.5, "ones": 0.5}
_ADDED = {"random_mask": 3.0, "empty_row_mask": 3.0, "causal_mask": 1.0, "normal": 3.0, "zeros_mask": 1.0}
_LOW = {NEG_INF: 5.0, -3e4: 2.0, -1.0: 1.0}
_POISON = {"float32": 1e30, "bfloat16": 1e30, "float16": 3e4, "float64": 1e30}
"""Large numbers for values that no query sees: times a weight of 0 they are 0. NaN would stay NaN in eager too."""
UNSEEN = "unseen"
"""The names of values with such numbers begin so. Nothing but the attention reads them."""
_KEY_POISON = 1e4
"""For keys that no query sees: their scores stay finite until the mask hides them."""


def draw_broadcast_shape(c: Choices, full: Sequence[Size], least: int = 0) -> tuple[Size, ...]:
    """A shape of at least `least` axes that broadcasts to `full`: each axis is 1 or whole, leading ones may be gone."""
    shape = tuple(c.pick((size, ONE)) for size in full)
    return shape[c.below(len(shape) + 1 - least) :]


def write_product(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001 - as other forms
    """A product of the value and a new matrix, with factors on both, on the result, and on a softmax of it."""
    require(b.is_float(value) and b.rank(value) >= 2, "needs matrices")
    left, kind = _scale(b, c, value), c.draw(_KINDS)
    if kind in ("baddbmm", "addmm", "bmm"):
        left = b.op("reshape", left, to="flat", sizes=_fold(b.shape(left), 2 if kind == "addmm" else 3))
    lead, inner, columns = b.shape(left)[:-2], b.shape(left)[-1], _draw_size(b, c, value)
    require(b.size(product((*b.shape(left)[:-1], columns))) <= _MOST_ELEMENTS, "the product is too large", Reason.SIZE)
    dtype = b.dtype_of(left)
    if kind == "linear":
        weights = [b.input("weight", (columns, inner), dtype=dtype, parameter=True)]
        weights += [b.input("bias", (columns,), dtype=dtype, parameter=True)] if c.chance(0.5) else []
        made = b.op(kind, left, *weights, to="wide")
        return _scale(b, c, made)
    axes = lead if kind != "matmul" else draw_broadcast_shape(c, lead)
    if c.chance(0.5):
        right = b.input("right", (*axes, inner, columns), dtype=dtype, parameter=c.chance(0.3))
    else:
        right = b.op("mT", b.input("right", (*axes, columns, inner), dtype=dtype, parameter=c.chance(0.3)))
    right = _scale(b, c, right)
    if kind in ("baddbmm", "addmm"):
        shape = draw_broadcast_shape(c, (*b.shape(left)[:-1], columns), len(lead) + 2 if kind == "baddbmm" else 0)
        bias = b.input("bias", shape, dtype=dtype, parameter=c.chance(0.3))
        made = b.op(kind, bias, left, right, to="sum", alpha=_draw_factor(c), beta=_draw_factor(c))
    elif kind == "einsum":
        letters = "abcdef"[: len(lead)]
        made = b.op(kind, left, right, to="product", equation=f"{letters}qk,{letters}kn->{letters}qn")
    else:
        made = b.op(kind, left, right, to="product")
    made = _scale(b, c, made)
    if c.chance(0.3):
        made = _scale(b, c, b.op("softmax", made, to="probs", dim=c.pick((-1, -1, -2))))
    return made


def _fold(shape: tuple[Size, ...], rank: int) -> tuple[Size, ...]:
    """The shape with its leading axes as one, or with one more, to have `rank` axes."""
    kept = shape[len(shape) - rank + 1 :]
    return (product(shape[: len(shape) - rank + 1]), *kept) if len(shape) >= rank else (ONE, *shape)


def _draw_size(b: Builder, c: Choices, value: str) -> Size:
    """A size of the value or of the program, so that sizes coincide, or 1."""
    return c.pick([*b.shape(value), *map(Size.of, b.dims), ONE])


def _draw_factor(c: Choices) -> float | int:
    return 1 if c.chance(0.3) else c.pick(_FACTORS)


def _scale(b: Builder, c: Choices, value: str) -> str:
    """The value times, divided by, plus or minus numbers and tensors of broadcast shapes, none to two of them."""
    for _ in range(c.draw(_COUNTS)):
        kind, is_number = c.draw(_STEPS), c.chance(0.5)
        options: dict[str, Any] = {"alpha": _draw_factor(c)} if kind in ("add", "sub") else {}
        number = c.pick(_DIVISORS if kind == "div" else _FACTORS)
        if is_number:
            value = b.op(kind, value, to="scaled", other=number, **options)
            continue
        shape = draw_broadcast_shape(c, b.shape(value))
        values = Values("constant", scale=float(number)) if kind == "div" or c.chance(0.3) else Values()
        factor = b.input("factor", shape, values, b.dtype_of(value), parameter=c.chance(0.5))
        value = b.op(kind, *((value, factor) if kind == "div" or c.chance(0.8) else (factor, value)), **options)
    return value


def write_masked_attention(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001
    """Attention of the value, as queries, over new keys: fused or written, under a mask of any broadcast shape.

    With a third of the boolean masks of keys alone, keys and values that no query sees hold large numbers.
    """
    require(b.is_float(value) and 2 <= b.rank(value) <= 4, "needs queries")
    # Most exporters know heads, so few values stay without.
    adds_heads = b.rank(value) == 2 or (b.rank(value) == 3 and c.chance(0.7))
    q = b.op("unsqueeze", value, to="q") if adds_heads else value
    *lead, query, head_dim = b.shape(q)
    keys, value_dim = _draw_size(b, c, q), c.pick((head_dim, head_dim, _draw_size(b, c, q)))
    scores = (*lead, query, keys)
    require(b.size(product(scores)) <= _MOST_ELEMENTS, "too many scores", Reason.SIZE)
    grouped = len(lead) == 2 and b.size(lead[-1]) > 1 and c.chance(0.3)
    kv_lead = (*lead[:-1], ONE) if grouped else tuple(lead)
    k = b.input("k", (*kv_lead, keys, head_dim), dtype=b.dtype_of(q))
    v = b.input("v", (*kv_lead, keys, value_dim), dtype=b.dtype_of(q))
    kind = c.draw({"none": 2.0, "causal": 3.0, "bool": 5.0, "added": 4.0})
    fused = c.chance(0.5)
    native = fused and grouped and c.chance(0.5)
    mask = ""
    if kind == "bool" and c.chance(1 / 3):
        mask, k, v = _poison(b, c, k, v, scores)
    elif kind == "bool":
        shape = draw_broadcast_shape(c, scores, 2)
        mask = b.input("keep", shape, Values(c.draw(_KEPT), scale=0.5), "bool")
    elif kind == "added":
        added = c.draw(_ADDED)
        values = Values(added) if added == "normal" else Values(added, scale=c.draw(_LOW))
        mask = b.input("bias", draw_broadcast_shape(c, scores, 2), values, b.dtype_of(q))
    if grouped and not native and c.chance(0.7):
        k, v = (repeat_heads(b, c, name, lead[-1], c.pick(("repeat_interleave", "expand"))) for name in (k, v))
    if fused:
        options: dict[str, Any] = {"is_causal": kind == "causal", "enable_gqa": native}
        # Eager's causal mask times a scale of 0 is NaN.
        options |= {"scale": c.draw({None: 4.0, 0.5: 1.0, 1.0: 1.0, -0.5: 1.0, 0.0: 0.5 * (kind != "causal")})}
        return b.op("sdpa", q, k, v, *filter(None, [mask]), to="out", **options)
    return _write_attention(b, c, q, k, v, kind, mask)


def _poison(b: Builder, c: Choices, k: str, v: str, scores: tuple[Size, ...]) -> tuple[str, str, str]:
    """A mask of keys, and k and v with large numbers at the keys that it hides from every query."""
    batch, keys = scores[0], scores[-1]
    kept = b.input(
        "kept", (c.pick((batch, ONE)), keys), Values(c.draw({"random": 3.0, "padding": 1.0}), scale=0.6), "bool"
    )
    wide = (b.shape(kept)[0], *(ONE,) * (len(scores) - 3))
    drop = b.op("view", b.op("logical_not", kept, to="drop"), sizes=(*wide, keys, ONE))
    k = b.op("masked_fill", k, drop, to="k", value=_KEY_POISON) if c.chance(0.5) else k
    v = b.op("masked_fill", v, drop, to=UNSEEN, value=_POISON[b.dtype_of(v)])
    return b.op("view", kept, to="keep", sizes=(*wide, ONE, keys)), k, v


def _write_attention(b: Builder, c: Choices, q: str, k: str, v: str, kind: str, mask: str) -> str:
    scores = b.op("matmul", q, b.op("mT", k, to="kt"), to="scores")
    if c.chance(0.6):
        scores = b.op(c.pick(("mul", "div")), scores, to="scores", other=c.pick(_DIVISORS))
    if c.chance(0.3):
        cap = c.pick((1.0, 5.0, 30.0))
        scores = b.op("mul", b.op("tanh", b.op("div", scores, other=cap)), to="capped", other=cap)
    hides = kind in ("bool", "causal")
    if kind == "causal":
        mask = b.op("tril", b.op("ones", sizes=b.shape(scores)[-2:], dtype="bool"), to="keep")
    if hides and c.chance(0.5):
        scores = b.op("masked_fill", scores, b.op("logical_not", mask, to="drop"), to="scores", value=NEG_INF)
    elif hides:
        scores = b.op("where", mask, scores, to="scores", other=NEG_INF)
    elif mask:
        scores = b.op("add", scores, mask, to="scores", alpha=c.draw({1: 4.0, 2: 1.0, 0.5: 1.0}))
    weights = b.op("softmax", scores, to="weights", dim=-1)
    if mask and c.chance(0.4):
        weights = b.op("nan_to_num", weights)
    return b.op("matmul", weights, v, to="out")
