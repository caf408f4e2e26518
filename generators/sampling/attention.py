"""Attention in a random spelling."""

import math
from collections.abc import Callable

from generators.program.case import Attr, Values
from generators.program.sizes import Size
from generators.sampling import steps
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Qkv, permute_axes
from generators.sampling.masks import additive_input, apply_mask, boolean_input, draw_shape
from generators.sampling.steps import SCORE_STEPS, AttentionExtras, insert_noop

NO_EXTRAS = AttentionExtras()


def attend(
    b: Builder, c: Choices, qkv: Qkv, extras: AttentionExtras = NO_EXTRAS, bias: str = ""
) -> tuple[str, tuple[str, ...]]:
    """Write an attention over q, k and v. Notes its contract, if a contract can express the spelling.

    Returns the output, [B, H, S, V] or [B, S, V], and intermediates worth returning, keys and values last. `bias` names
    a floating value that is added to the scores before any mask, such as a bias of positions.
    """
    fused = c.choose("fused", {"no": 95.0, "sdpa": 5.0}) == "sdpa" and extras == NO_EXTRAS and not bias
    if fused and len({b.dtype_of(value) for value in qkv.values}) == 1:
        return _attend_fused(b, c, qkv)
    place, rescale = _draw_scale(b, c, qkv)
    q = insert_noop(b, c, qkv.q.value)
    grouped = qkv.group != Size.of(1)
    how = c.draw({"repeat_interleave": 3.0, "expand": 3.0, "broadcast": 3.0}) if grouped else ""
    if how == "broadcast" and b.size(b.shape(qkv.k.value)[1]) != 1:
        how = "expand"
    k = repeat_heads(b, c, qkv.k.value, qkv.group, how)
    v = repeat_heads(b, c, qkv.v.value, qkv.group, how)
    direct = k == qkv.k.value and c.deviates()
    left, right = insert_noop(b, c, q), insert_noop(b, c, k)
    if place in ("q", "both"):
        left = rescale(left)
    if place in ("k", "both"):
        right, direct = rescale(right), False
    scores = _multiply_query_key(b, c, qkv, left, right, direct=direct)
    scores = insert_noop(b, c, rescale(scores) if place == "scores" else scores)
    scores, masked = _change_scores(b, c, scores, q, extras, bias)
    # Scores that came from a product over [B * H, S, T] may go back to that form for the softmax, as in BART.
    flat = any(op.kind == "bmm" for op in b.ops) and b.rank(scores) == 4 and how != "broadcast"
    if flat and c.choose("scores.again", {"flat": 6.0, "not": 4.0}) == "flat":
        scores = _flat(b, scores)
    probs = steps.spell_softmax(b, c, scores, v)
    seen = b.op("narrow", probs, to="probs", stop=b.shape(v)[-2]) if "sinks" in extras.steps else probs
    weights = _dropout(b, c, insert_noop(b, c, seen))
    output = _weight_values(b, c, weights, insert_noop(b, c, v))
    b.end_attention(*qkv.values, output, bias=bias)
    return output, (weights, masked, k, v)


def _change_scores(
    b: Builder, c: Choices, scores: str, query: str, extras: AttentionExtras, bias: str
) -> tuple[str, str]:
    """The scores after bias, extras and mask, ready for the softmax; and as the mask leaves them."""
    further = [SCORE_STEPS[name] for name in extras.steps]
    before, after = ([step for step in further if step.after_mask is late] for late in (False, True))
    if bias:
        scores = b.op("add", scores, bias, to="scores")
        b.drop_contract_unless(not before)
    visibility = steps.draw_visibility(b, c, extras, *b.shape(scores)[-2:])
    for step in before:
        scores = step.spell(b, c, scores, step.draw(b, c, scores), visibility)
    masked = apply_mask(b, c, scores, visibility)
    if "alibi" in extras.steps:
        # ALiBi's distances are counted from the corner of the contract's `causal`.
        b.drop_contract_unless((visibility.causal == "bottom_right") == (b.contract_field("causal") == "bottom_right"))
    scores = insert_noop(b, c, masked)
    if b.dtype_of(scores) != b.dtype_of(query) and c.choose("scores.back", {"stay": 9.0, "type_as": 1.0}) == "type_as":
        scores = b.op("type_as", scores, query)
    for step in after:
        scores = step.spell(b, c, scores, step.draw(b, c, scores), visibility)
    return scores, masked


_SCALES = {1.0: 2.0, 0.5: 5.0, 0.125: 5.0, 0.3: 4.0, 1e-3: 2.0, 4.0: 3.0, 12.5: 1.5, -0.5: 5.0}


def _draw_scale(b: Builder, c: Choices, qkv: Qkv) -> tuple[str, Callable[[str], str]]:
    """Where the scale is applied, and the function that applies it to a value."""
    place = c.choose("scale.place", {"none": 16.0, "scores": 58.0, "q": 14.0, "k": 6.0, "both": 6.0})
    head_dim = max(1, b.size(b.shape(qkv.q.value)[-1]))
    usual = 1 / math.sqrt(head_dim)
    value: float | int = c.choose_default({usual: 60.0, **_SCALES, -usual: 3.0}, "scale.value")
    divide = place in ("scores", "q") and c.choose("scale.divide", {"div": 5.0, "mul": 5.0}) == "div"
    if divide:
        value = 1 / value
    if c.deviates():
        value = c.pick((2, 4, 8, 3, -2)) if divide else c.pick((2, 1, -1))
    if place == "both":
        value, divide = abs(value), False
    if place == "none":
        value, divide = 1.0, False
    carrier = c.choose_default(
        {"number": 82.0, "scalar": 7.0, "full": 5.0, "learned": 4.0, "input": 2.0}, "scale.carrier"
    )
    carrier = "number" if place == "none" else carrier
    b.note_contract(scale=1.0 / value if divide else float(value))
    b.drop_contract_unless(carrier not in ("learned", "input"))
    number = math.sqrt(value) if place == "both" else value
    return place, lambda scaled: _apply_scale(b, c, scaled, number, "div" if divide else "mul", carrier)


def _apply_scale(b: Builder, c: Choices, value: str, number: float, kind: str, carrier: str) -> str:
    form = c.choose_default({"operator": 6.0, "method": 3.0, "function": 1.0, "in_place": 2.0 * b.may_overwrite(value)})
    if carrier == "number":
        reverse = kind == "mul" and c.deviates()
        return b.op(kind, value, other=number, reverse=reverse, form="operator" if reverse else form)
    if carrier == "scalar":
        factor = b.op("scalar", to="scale", value=float(number), dtype=c.pick((b.dtype_of(value), "float32")))
    elif carrier == "full":
        factor = b.op("full", to="scale", sizes=(), value=float(number), dtype=b.dtype_of(value))
    else:
        # A caller's or a learned scale: a single number, or a number for each head.
        shape = c.draw({(): 3.0, (1,): 1.0, (b.shape(value)[-3], 1, 1): 2.0})
        factor = b.input("scale", shape, Values("constant", scale=float(number)), parameter=carrier == "learned")
    return b.op(kind, value, factor, form=form)


def _multiply_query_key(b: Builder, c: Choices, qkv: Qkv, q: str, k: str, *, direct: bool) -> str:
    rank = b.rank(q)
    product = c.choose_default({"matmul": 76.0, "einsum": 8.0, "flat": 10.0}, "scores.product")
    if product == "einsum" and b.size(b.shape(k)[-3]) == b.size(b.shape(q)[-3]):
        equation = "bhqd,bhkd->bhqk" if rank == 4 else "bqd,bkd->bqk"
        return b.op("einsum", q, k, to="scores", equation=equation)
    folds = product == "flat" and rank == 4 and b.size(b.shape(k)[-3]) == b.size(b.shape(q)[-3])
    folded = folds and c.choose("scores.fold", {"before": 1.0, "after": 1.0}) == "before"
    if folded:
        # BART and CLIP transpose k after folding it to three axes.
        kt = _transpose_key(b, c, _flat(b, k))
    elif direct and rank == 4 and len(qkv.k.order) == 4:
        kt = permute_axes(b, c, qkv.k.source, qkv.k.order, "bhds", "kt")
    else:
        kt = _transpose_key(b, c, k)
    if folded or (product == "flat" and b.size(b.shape(kt)[-3]) == b.size(b.shape(q)[-3])):
        return _multiply_flat(b, q, kt, "scores")
    return b.op("matmul", q, kt, to="scores", form=c.draw({"operator": 6.0, "function": 4.0, "method": 1.0}))


def _transpose_key(b: Builder, c: Choices, k: str) -> str:
    rank = b.rank(k)
    form = c.choose("scores.transpose", {"transpose": 60.0, "positive": 12.0, "permute": 20.0, "mT": 6.0})
    if form == "mT":
        return b.op("mT", k, to="kt")
    if form == "permute":
        return b.op("permute", k, to="kt", dims=(*range(rank - 2), rank - 1, rank - 2))
    if form == "positive":
        return b.op("transpose", k, to="kt", dim0=rank - 2, dim1=rank - 1)
    return b.op("transpose", k, to="kt", **({} if c.chance(0.8) else {"dim0": -1, "dim1": -2}))


def _flat(b: Builder, value: str) -> str:
    if b.rank(value) == 3:
        return value
    batch, heads, *rest = b.shape(value)
    return b.op("reshape", value, sizes=(batch * heads, *rest))


def _multiply_flat(b: Builder, left: str, right: str, to: str) -> str:
    product, whole = b.op("bmm", _flat(b, left), _flat(b, right), to=to), max(left, right, key=b.rank)
    return product if b.rank(whole) == 3 else b.op("view", product, sizes=(*b.shape(whole)[:2], *b.shape(product)[1:]))


def repeat_heads(b: Builder, c: Choices, value: str, group: Size, how: str) -> str:
    """Repeats key or value heads for grouped queries, unless broadcasting does it."""
    if how in ("", "broadcast"):
        return value
    if how == "repeat_interleave":
        return b.op("repeat_interleave", value, dim=1, repeats=group)
    batch, heads, *rest = b.shape(value)
    if b.size(heads) == 1 and c.chance(0.7):
        minus = Size.of(-1)
        return b.op("expand", value, sizes=(minus, group, minus, minus) if c.chance(0.6) else (batch, group, *rest))
    wide = b.op("unsqueeze", value, dim=2)
    wide = b.op("expand", wide, sizes=(batch, heads, group, *rest))
    return b.op("reshape", wide, sizes=(batch, heads * group, *rest))


def _dropout(b: Builder, c: Choices, probs: str) -> str:
    if c.choose("dropout", {"none": 6.0, "dropout": 4.0}) == "none":
        return probs
    p = c.draw({0.0: 6.0, 0.1: 3.0, 0.5: 1.0, 1.0: 0.2})
    form = c.draw({"module": 4.0, "functional": 5.0, "torch": 1.0})
    active = "mode" if form == "module" else c.draw({"mode": 8.0, "always": 0.6, "never": 1.0})
    b.note_contract(dropout=p if active == "always" or (active == "mode" and b.mode == "training") else 0.0)
    return b.op("dropout", probs, to="weights", p=p, form=form, active=active)


def _weight_values(b: Builder, c: Choices, weights: str, v: str) -> str:
    rank = b.rank(weights)
    product = c.choose_default({"matmul": 82.0, "einsum": 8.0, "flat": 10.0}, "scores.product")
    if rank < b.rank(v):
        product = "flat"
    elif b.shape(weights)[:-2] != b.shape(v)[:-2]:
        product = "matmul"
    if product == "flat":
        return _multiply_flat(b, weights, v, "out")
    if product == "einsum":
        return b.op("einsum", weights, v, to="out", equation="bhqk,bhkd->bhqd" if rank == 4 else "bqk,bkd->bqd")
    return b.op("matmul", weights, v, to="out", form=c.draw({"operator": 6.0, "function": 4.0, "method": 2.0}))


def _attend_fused(b: Builder, c: Choices, qkv: Qkv) -> tuple[str, tuple[str, ...]]:
    q, k, v = qkv.values
    grouped = qkv.group != Size.of(1)
    native = grouped and b.size(b.shape(k)[1]) > 1 and c.chance(0.5)
    if grouped and not native:
        how = c.pick(("repeat_interleave", "expand"))
        k, v = repeat_heads(b, c, k, qkv.group, how), repeat_heads(b, c, v, qkv.group, how)
    output = _call_sdpa(b, c, q, k, v, enable_gqa=native)
    b.end_attention(*qkv.values, output)
    return output, (k, v)


def _call_sdpa(b: Builder, c: Choices, q: str, k: str, v: str, *, enable_gqa: bool) -> str:
    """The fused call with its own mask, scale and dropout. Notes them for the contract."""
    masking = c.choose("sdpa.mask", {"causal": 30.0, "mask": 35.0, "none": 35.0})
    masks = []
    if masking == "mask":
        full = (*b.shape(q)[:-1], b.shape(k)[-2])
        shape = draw_shape(c, full, least=2)
        if c.chance(0.5):
            masks.append(boolean_input(b, c, shape))
            b.note_contract(mask=masks[0])
        else:
            masks.append(additive_input(b, c, shape, b.dtype_of(q)))
    dropout = c.draw({0.0: 8.0, 0.1: 1.0, 0.5: 1.0})
    options: dict[str, Attr] = {
        "is_causal": masking == "causal",
        "scale": c.draw({None: 6.0, 1.0: 1.0, 0.5: 1.0, 0.125: 1.0, -0.5: 0.5, 0.0: 0.3}),
        "dropout_p": dropout,
        "enable_gqa": enable_gqa,
    }
    scale = 1 / math.sqrt(max(1, b.size(b.shape(q)[-1]))) if options["scale"] is None else options["scale"]
    b.note_contract(scale=scale, dropout=dropout if b.mode == "training" else 0.0)
    b.note_contract(causal="top_left" if masking == "causal" else None)
    return b.op("sdpa", q, k, v, *masks, to="out", **options)
