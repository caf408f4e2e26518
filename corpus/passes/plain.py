"""An attention and nothing else, in the plainest lines for each thing that its contract says."""

import math
from dataclasses import dataclass

from corpus.passes.names import renamed_values
from generators.errors import CaseError
from generators.program.case import Case, Contract, Input
from generators.program.ops.shaping import quotient
from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.position_masks import Pattern, offset, places


@dataclass(frozen=True, slots=True)
class Plain:
    """The inputs of an attention, q, k and v of [batch, heads, length, dim], and the rest of what a contract says.

    `keeps` is whether True in the mask keeps a key. `fused` is whether one call of F.scaled_dot_product_attention says
    it all.
    """

    dims: tuple[tuple[str, int], ...]
    q: Input
    k: Input
    v: Input
    scale: float = 1.0
    softcap: float | None = None
    alibi: Input | None = None
    mask: Input | None = None
    keeps: bool = True
    bias: Input | None = None
    causal: str | None = None
    window: tuple[int, int] | None = None
    sinks: Input | None = None
    dropout: float = 0.0
    mode: str = "inference"
    dynamic: bool = False
    fused: bool = False


def usual_scale(plain: Plain) -> float:
    """The scale that the fused call has by itself."""
    return 1 / math.sqrt(max(1, plain.q.shape[-1].value(dict(plain.dims))))


def spelled(plain: Plain) -> Case | None:
    """The case, its contract beside it and its output alone returned; None where the sizes do not go together."""
    b = Builder(dict(plain.dims), plain.q.dtype, plain.mode)
    try:
        b.contracts.append(_by_sdpa(b, plain) if plain.fused else _in_steps(b, plain))
        case = b.case([b.contracts[0].output], dynamic=plain.dynamic)
    except CaseError:
        return None
    return next(renamed_values(case))


def _given(b: Builder, item: Input) -> str:
    """The input; one that is there already serves again."""
    if any(i.name == item.name for i in b.inputs):
        return item.name
    return b.input(item.name, item.shape, item.values, item.dtype, item.layout)


def _by_sdpa(b: Builder, plain: Plain) -> Contract:
    q, k, v = (_given(b, item) for item in (plain.q, plain.k, plain.v))
    added = plain.mask or plain.bias
    names = [q, k, v, *([_given(b, added)] if added else [])]
    grouped = b.size(b.shape(q)[1]) != b.size(b.shape(k)[1])
    output = b.op(
        "sdpa",
        *names,
        to="out",
        is_causal=plain.causal is not None,
        dropout_p=plain.dropout,
        scale=None if plain.scale == usual_scale(plain) else plain.scale,
        enable_gqa=grouped,
    )
    mask, bias = (names[-1] if item else None for item in (plain.mask, plain.bias))
    return Contract(
        q, k, v, output, scale=plain.scale, mask=mask, bias=bias, causal=plain.causal, dropout=plain.dropout
    )


def _in_steps(b: Builder, plain: Plain) -> Contract:
    q, k, v = (_given(b, item) for item in (plain.q, plain.k, plain.v))
    heads, kv_heads = b.shape(q)[1], b.shape(k)[1]
    keys, values = k, v
    if b.size(kv_heads) not in (1, b.size(heads)):
        group = quotient(heads, kv_heads, b.size(heads) // max(1, b.size(kv_heads)))
        keys, values = (b.op("repeat_interleave", x, dim=1, repeats=group) for x in (k, v))
    scores = b.op("matmul", q, b.op("transpose", keys, to="kt"), to="scores")
    if plain.scale != 1:
        scores = b.op("mul", scores, other=plain.scale)
    if plain.softcap is not None:
        scores = _capped(b, scores, plain.softcap)
    pattern = Pattern(plain.causal, plain.window)
    alibi, mask, bias, sinks = None, None, None, None
    if plain.alibi is not None:
        alibi = _constant(b, plain.alibi)
        scores = _sloped(b, scores, alibi, pattern)
    if plain.mask is not None:
        mask = _given(b, plain.mask)
        scores = (
            b.op("where", mask, scores, to="scores", other=-math.inf)
            if plain.keeps
            else b.op("masked_fill", scores, mask)
        )
    if plain.bias is not None:
        bias = _given(b, plain.bias)
        scores = b.op("add", scores, bias)
    scores = _placed(b, scores, pattern)
    if plain.sinks is not None:
        sinks = _constant(b, plain.sinks)
        scores = _with_column(b, scores, sinks)
    probs = b.op("softmax", scores, to="probs")
    if plain.sinks is not None:
        probs = b.op("narrow", probs, stop=b.shape(k)[-2])
    if b.dtype_of(probs) != b.dtype_of(v):
        probs = b.op("cast", probs, dtype=b.dtype_of(v))
    if plain.dropout:
        active = "mode" if plain.mode == "training" else "always"
        probs = b.op("dropout", probs, to="weights", p=plain.dropout, active=active)
    output = b.op("matmul", probs, values, to="out")
    return Contract(
        q,
        k,
        v,
        output,
        "bhsd",
        plain.scale,
        plain.softcap,
        alibi,
        mask,
        "keep" if mask is None or plain.keeps else "drop",
        -math.inf,
        bias,
        plain.causal,
        plain.window,
        sinks,
        plain.dropout,
    )


def _constant(b: Builder, item: Input) -> str:
    """An input that a contract asks no gradient of."""
    given = _given(b, item)
    return b.op("detach", given) if b.mode == "training" else given


def _capped(b: Builder, scores: str, cap: float) -> str:
    if cap == 1:
        return b.op("tanh", scores)
    return b.op("mul", b.op("tanh", b.op("div", scores, other=cap)), other=cap)


def _sloped(b: Builder, scores: str, slopes: str, pattern: Pattern) -> str:
    """The scores less a slope a head times the distances."""
    query, key = b.shape(scores)[-2:]
    rows, columns = places(b, query, key, offset(pattern, query, key))
    distance = b.op("abs", b.op("sub", rows, columns, to="distance"))
    column = b.op("view", slopes, to="column", sizes=(*b.shape(slopes), 1, 1))
    return b.op("sub", scores, b.op("mul", column, distance, to="alibi"))


def _placed(b: Builder, scores: str, pattern: Pattern) -> str:
    """The scores with -inf for what a causal mask or a window does not see: below or above one line, or off a band."""
    query, key = b.shape(scores)[-2:]
    start = offset(pattern, query, key)
    left, right = pattern.window or (-1, -1)
    right = 0 if pattern.causal else right
    if left < 0 and right < 0:
        return scores
    ones = b.op("ones", to="ones", sizes=(query, key))
    if left < 0:
        return b.op("masked_fill", scores, b.op("triu", ones, to="drop", diagonal=start + right + 1))
    if right < 0:
        return b.op("masked_fill", scores, b.op("tril", ones, to="drop", diagonal=start - left - 1))
    band = b.op("triu", b.op("tril", ones, to="keep", diagonal=start + right), to="keep", diagonal=start - left)
    return b.op("where", band, scores, to="scores", other=-math.inf)


def _with_column(b: Builder, scores: str, sinks: str) -> str:
    """The scores with one more column, a number a head."""
    column = b.op("view", sinks, to="column", sizes=(*b.shape(sinks), 1, 1))
    column = b.op("expand", column, sizes=(*b.shape(scores)[:-1], Size.of(1)))
    if b.dtype_of(column) != b.dtype_of(scores):
        column = b.op("cast", column, dtype=b.dtype_of(scores))
    return b.op("cat", scores, column, to="joined", dim=-1)
