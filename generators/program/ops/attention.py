"""torch's own attention: scaled_dot_product_attention, flex_attention, nn.MultiheadAttention and
nn.TransformerEncoderLayer.

Parameters of a layer are drawn from its `seed`. `fast_path: false` switches the fast path of torch.backends.mha off for
the whole case. `masks` names the tensors that follow the first arguments. With `causal` the text makes the causal mask
itself and passes the hint that the mask is causal.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from generators.errors import require
from generators.program.case import TensorType
from generators.program.ops.rules import common_float
from generators.program.ops.spec import Attribute, Kind, Line, Memory, Operands, OpSpec, first_dtype, flag, word
from generators.program.sizes import Size, show
from generators.program.values import FLOATS, LOW_PRECISION, category, promote

FLEX_NAMES = ("flex_attention", "create_block_mask", "score_mod", "mask_mod")
"""The names that the text of flex_attention defines or imports."""

_TENSORS = {"alibi": "slopes", "relative": "table"}
"""The modifications of scores that read a tensor: slopes [heads], or a table by distance [heads, seq_len + kv_len - 1].
"""
_DOCUMENTS = "documents"  # the mask that reads a tensor, the number of each position's document: [batch, seq_len]
_SCORES = {
    "causal": 'torch.where(q_idx >= kv_idx, score, -float("inf"))',
    "alibi": "score + {given}[h] * (kv_idx - q_idx)",
    "relative": "score + {given}[h, q_idx - kv_idx + {keys} - 1]",
    "softcap": "{cap} * torch.tanh(score / {cap})",
}
_BLOCKS = (128, 256, 512)
"""Queries and keys in a block of a block mask, the default first; on CUDA float32 takes no smaller blocks."""
FLEX_MASKS = {
    "causal": "(q_idx >= kv_idx)",
    "window": "((q_idx - kv_idx).abs() <= {window})",
    "odd_heads": "((h % 2 == 0) | (q_idx <= kv_idx))",  # every second head sees no earlier keys
    _DOCUMENTS: "({documents}[b, q_idx] == {documents}[b, kv_idx])",
}
"""Two names joined by "+" are a mask too, under which a key has to fulfil both."""


def _check_groups(call: Operands, heads: Size, kv_heads: Size, *, enable_gqa: bool) -> None:
    queries, keys = call.numbers((heads, kv_heads))
    fits = keys > 0 and queries % keys == 0 if enable_gqa else queries == keys
    require(fits, f"{queries} heads do not go with {keys} key heads")


def _check_mask(call: Operands, name: str, mask: TensorType, query: TensorType) -> None:
    alike = category(mask.dtype) == 2 and common_float(call, (query, mask)) == common_float(call, (query,))
    require(mask.dtype == "bool" or alike, f"{name} must be boolean or have the dtype of the query, got {mask.dtype}")


def _heads_dtype(call: Operands) -> str:
    return common_float(call, call.args[:3])


def _sdpa(call: Operands) -> tuple[Size, ...]:
    q, k, v, *masks = call.args
    require(3 <= q.rank == k.rank == v.rank, "needs q, k, v of one rank, at least 3")
    call.must_equal(q.shape[-1], k.shape[-1], "head_dim of q and k")
    call.must_equal(k.shape[-2], v.shape[-2], "seq_len of k and v")
    if call.attrs["enable_gqa"]:
        call.must_equal(k.shape[-3], v.shape[-3], "heads of k and v")
        _check_groups(call, q.shape[-3], k.shape[-3], enable_gqa=True)
        lead = (*call.broadcast(q.shape[:-3], k.shape[:-3], v.shape[:-3]), q.shape[-3])
    else:
        lead = call.broadcast(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    for mask in masks:
        require(not call.attrs["is_causal"], "takes a mask or is_causal, not both")
        _check_mask(call, "the mask", mask, q)
        require(mask.rank >= 2, "needs a mask of at least two axes")
        call.must_broadcast(mask.shape, (*lead, q.shape[-2], k.shape[-2]), "mask")
    return (*lead, q.shape[-2], v.shape[-1])


def _sdpa_text(line: Line) -> str:
    parts = [f"attn_mask={line.args[3]}"] if len(line.args) == 4 else []
    if line.attrs["dropout_p"]:
        parts.append(f"dropout_p={line.text('dropout_p')} if self.training else 0.0")
    parts += line.options("is_causal", "scale", "enable_gqa")
    return f"F.scaled_dot_product_attention({', '.join([*line.args[:3], *parts])})"


def _list_tensors(attrs: Mapping[str, Any]) -> Sequence[str]:
    masks = [_DOCUMENTS] if _DOCUMENTS in attrs["mask"] else []
    return [*([_TENSORS[attrs["score"]]] if attrs["score"] in _TENSORS else []), *masks]


def _flex(call: Operands) -> tuple[Size, ...]:
    q, k, v, *tensors = call.args
    require(all(kind.rank == 4 for kind in (q, k, v)), "needs q, k and v of four axes")
    for axis in (0, 1, 2):
        call.must_equal(k.shape[axis], v.shape[axis], f"axis {axis} of k and v")
    call.must_equal(q.shape[0], k.shape[0], "batches of q and k")
    call.must_equal(q.shape[3], k.shape[3], "head_dim of q and k")
    _check_groups(call, q.shape[1], k.shape[1], enable_gqa=call.attrs["enable_gqa"])
    require(all(math.prod(kind.sizes(call.dims)) for kind in (q, k, v)), "needs q, k and v with elements")
    cap, window, block = (call.attrs[name] for name in ("cap", "window", "block"))
    require(cap is not None and 0 < cap < math.inf, f"cap is {cap}, expected a positive number")
    require(window is not None and window >= 0, "window is negative")
    require(block in _BLOCKS, f"block is {block}, expected one of {_BLOCKS}")
    shapes = {"slopes": (q.shape[1],), "table": (q.shape[1], q.shape[2] + k.shape[2] - 1)}
    if _DOCUMENTS in call.attrs["mask"]:
        call.must_equal(q.shape[2], k.shape[2], "lengths under a mask of documents")
        shapes[_DOCUMENTS] = (k.shape[0], k.shape[2])
    for name, kind in zip(_list_tensors(call.attrs), tensors, strict=True):
        wanted = 1 if name == _DOCUMENTS else 2
        fits = kind.sizes(call.dims) == call.numbers(shapes[name]) and category(kind.dtype) == wanted
        require(fits, f"{name} is {kind.dtype} {show(kind.shape)}, expected {show(shapes[name])}")
    return (*q.shape[:3], v.shape[3])


def _define_modifications(line: Line) -> list[str]:
    """The lines that define the functions passed to flex_attention."""
    score, mask = line.attrs["score"], line.attrs["mask"]
    lines = []
    if score != "none":
        given = "".join(line.args[3:4])
        text = _SCORES[score].format(given=given, keys=f"{line.args[1]}.size(2)", cap=line.text("cap"))
        lines += ["", "def score_mod(score, b, h, q_idx, kv_idx):", f"    return {text}", ""]
    if mask != "none":
        words = {"window": line.attrs["window"], _DOCUMENTS: line.args[-1]}
        parts = [FLEX_MASKS[name].format(**words) for name in mask.split("+")]
        text = " & ".join(parts) if len(parts) > 1 else parts[0][1:-1]
        lines += [*([] if lines else [""]), "def mask_mod(b, h, q_idx, kv_idx):", f"    return {text}", ""]
    return lines


def _flex_text(line: Line) -> str:
    q, k, v = line.args[:3]
    words = [q, k, v]
    if line.attrs["score"] != "none":
        words.append("score_mod")
    if line.attrs["mask"] != "none":
        # Blocks are made from one head or row of the batch alone where the mask is the same in all.
        per_head = line.attrs["per_head"] or "odd_heads" in line.attrs["mask"]
        per_row = line.attrs["per_row"] or _DOCUMENTS in line.attrs["mask"]
        over = f"{f'{q}.size(0)' if per_row else None}, {f'{q}.size(1)' if per_head else None}"
        lengths = f"{over}, {q}.size(2), {k}.size(2)"
        block = "" if line.attrs["block"] == _BLOCKS[0] else f", BLOCK_SIZE={line.attrs['block']}"
        words.append(f"block_mask=create_block_mask(mask_mod, {lengths}, device={line.device}{block})")
    return f"flex_attention({', '.join(words + line.options('scale', 'enable_gqa'))})"


def _list_masks(attrs: Mapping[str, Any]) -> Sequence[str]:
    return () if attrs["masks"] == "none" else attrs["masks"].split("+")


def _lengths(call: Operands, x: TensorType) -> tuple[Size, Size]:
    require(x.rank == 3, f"needs arguments of three axes, got {show(x.shape)}")
    return (x.shape[0], x.shape[1]) if call.attrs["batch_first"] else (x.shape[1], x.shape[0])


def _layer(call: Operands) -> tuple[Size, ...]:
    names = _list_masks(call.attrs)
    inputs, masks = call.args[: len(call.args) - len(names)], call.args[len(call.args) - len(names) :]
    dtype, own = common_float(call, inputs), call.attrs["dtype"]
    require(bool(dtype == own or call.autocast), f"needs arguments of the layer's dtype, {own}, got {dtype}")
    (batch, length), (_, keys) = _lengths(call, inputs[0]), _lengths(call, inputs[-1])
    embed, heads = inputs[0].shape[-1], call.attrs["heads"]
    width, number = call.numbers((embed, heads))
    fits = number >= 1 and width >= 1 and width % number == 0
    require(fits, f"{embed} = {width} is not a positive multiple of {heads} = {number} heads")
    require("feedforward" not in call.attrs or call.value("feedforward") >= 1, "feedforward has to be positive")
    call.check_probability("dropout")
    for other in inputs[1:]:
        call.must_equal(embed, other.shape[-1], "widths of the arguments")
        call.must_equal(batch, _lengths(call, other)[0], "batches")
        call.must_equal(_lengths(call, other)[1], keys, "lengths of key and value")
    if call.attrs["causal"]:
        taken = next((name for name in names if not name.endswith("key_padding_mask")), "")
        require(not taken, f"takes {taken} or causal, not both")
        call.must_equal(length, keys, "lengths under a causal mask")
    for name, mask in zip(names, masks, strict=True):
        _check_mask(call, name, mask, inputs[0])
        shapes: list[tuple[Size, ...]] = [(batch, keys)]
        if not name.endswith("key_padding_mask"):
            shapes = [(length, keys), (batch * heads, length, keys)]
        fits = mask.sizes(call.dims) in map(call.numbers, shapes)
        require(fits, f"{name} has shape {show(mask.shape)}, expected {' or '.join(map(show, shapes))}")
    return call.shape


def _transformer_dtype(call: Operands) -> str:
    own = call.attrs["dtype"]
    # A sum of both low dtypes is in float32, which a norm of parameters in a low dtype does not take.
    fits = not call.autocast or own not in LOW_PRECISION or own == call.autocast
    require(fits, f"under autocast to {call.autocast} the layer can't be in {own}")
    # Under autocast the sums are in the lower dtype.
    return promote((dtype, 3) for dtype in (first_dtype(call), call.autocast) if dtype)


def _construct(line: Line) -> str:
    """The expression that makes the layer, with random parameters."""
    attrs = line.attrs
    words = [str(line.types[0].shape[-1]), str(attrs["heads"])]
    words += [str(attrs["feedforward"])] if "feedforward" in attrs else []
    if attrs["dropout"] or "feedforward" in attrs:  # torch's default is 0.1 for nn.TransformerEncoderLayer
        words.append(f"dropout={line.text('dropout')}")
    words += line.options("activation", "norm_first", "bias", "batch_first", "dtype")
    return f"set_weights(nn.{_LAYERS[line.kind][0]}({', '.join(words)}), {attrs['seed']})"


def _define_causal_mask(line: Line) -> list[str]:
    if not line.attrs["causal"]:
        return []
    x = line.args[0]
    length = f"{x}.size({int(line.attrs['batch_first'])})"
    made = f"nn.Transformer.generate_square_subsequent_mask({length}, device={x}.device, dtype={x}.dtype)"
    return [f"causal_mask = {made}"]


def _call_layer(line: Line) -> str:
    _, arguments, causal_mask = _LAYERS[line.kind]
    words = [*line.args[:arguments]]
    words += [f"{name}={mask}" for name, mask in zip(_list_masks(line.attrs), line.args[arguments:], strict=True)]
    if line.attrs["causal"]:
        words += [f"{causal_mask}=causal_mask", "is_causal=True"]
    words += line.options("need_weights")
    return f"self.{line.name}({', '.join(words)}){'[0]' * (line.kind == 'multihead_attention')}"


_NUMBER, _SIZE, _OFF, _ON = Attribute(Kind.NUMBER), Attribute(Kind.SIZE, required=True), flag(), flag(default=True)
_NO_DROPOUT, _ZERO = Attribute(Kind.NUMBER, 0.0), Attribute(Kind.INT, 0)
_SDPA = {"is_causal": _OFF, "scale": _NUMBER, "dropout_p": _NO_DROPOUT, "enable_gqa": _OFF}
_FLEX = {
    "score": word("none", "causal", "softcap", "alibi", "relative"),
    "mask": word("none", *FLEX_MASKS, *map("+".join, combinations(FLEX_MASKS, 2))),
    "per_head": _OFF,
    "per_row": _OFF,
    "cap": Attribute(Kind.NUMBER, 1.0),
    "window": _ZERO,
    "block": Attribute(Kind.INT, _BLOCKS[0]),
    "scale": _NUMBER,
    "enable_gqa": _OFF,
}
_LAYER = {
    "heads": _SIZE,
    "batch_first": _OFF,
    "bias": _ON,
    "causal": _OFF,
    "dropout": _NO_DROPOUT,
    "dtype": word(*FLOATS[:3]),
    "fast_path": _ON,
    "seed": _ZERO,
}
_MULTIHEAD = {
    **_LAYER,
    "masks": word("none", "attn_mask", "key_padding_mask", "attn_mask+key_padding_mask"),
    "need_weights": _ON,
}
_TRANSFORMER = {
    **_LAYER,
    "feedforward": _SIZE,
    "activation": word("relu", "gelu"),
    "norm_first": _OFF,
    "masks": word("none", "src_mask", "src_key_padding_mask", "src_mask+src_key_padding_mask"),
}
_LAYERS = {
    "multihead_attention": ("MultiheadAttention", 3, "attn_mask"),
    "transformer_encoder_layer": ("TransformerEncoderLayer", 1, "src_mask"),
}
"""The class, the number of arguments before the masks, and the mask that `causal` sets."""

_layer_row = partial(
    OpSpec,
    shape=_layer,
    text=_call_layer,
    memory=Memory.UNKNOWN,
    before=_define_causal_mask,
    optional=_list_masks,
    init=_construct,
    random=True,
)

OPS = [
    OpSpec("sdpa", _sdpa, _heads_dtype, text=_sdpa_text, attributes=_SDPA, arity=(3, 4), random=True, cost=3),
    OpSpec(
        "flex_attention",
        _flex,
        _heads_dtype,
        text=_flex_text,
        attributes=_FLEX,
        arity=(3, 5),
        before=_define_modifications,
        optional=_list_tensors,
        cost=4,
    ),
    _layer_row("multihead_attention", dtype=_heads_dtype, attributes=_MULTIHEAD, arity=(3, 5), cost=4),
    _layer_row("transformer_encoder_layer", dtype=_transformer_dtype, attributes=_TRANSFORMER, arity=(1, 3), cost=5),
]
