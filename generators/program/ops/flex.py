"""flex_attention: attention whose scores and mask are functions of the positions of a query and a key."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from generators.errors import CaseError, require
from generators.program.case import TensorType
from generators.program.dtypes import category
from generators.program.ops.spec import Attribute, Call, Kind, Line, OpSpec, flag, must_equal, one_float, show, word

NAMES = ("flex_attention", "create_block_mask", "score_mod", "mask_mod")
"""What the text of a call defines or imports."""

_GIVEN = {"alibi": "slopes", "relative": "table"}
"""The modifications of scores that read a tensor, and which: slopes [heads], a table of numbers by distance
[heads, seq_len + kv_len - 1]."""
_SCORES = {
    "causal": 'torch.where(q_idx >= kv_idx, score, -float("inf"))',
    "alibi": "score + {given}[h] * (kv_idx - q_idx)",
    "relative": "score + {given}[h, q_idx - kv_idx + {keys} - 1]",
    "softcap": "{cap} * torch.tanh(score / {cap})",
}
_BLOCKS = (128, 256, 512)
"""Queries and keys in a block of a block mask, the default first; on CUDA float32 takes no smaller ones."""
_MASKS = {"causal": "q_idx >= kv_idx", "window": "(q_idx - kv_idx).abs() <= {window}"}


def _list_options(attrs: Mapping[str, Any]) -> Sequence[str]:
    return [_GIVEN[attrs["score"]]] if attrs["score"] in _GIVEN else []


def _flex(call: Call) -> TensorType:
    q, k, v, *given = call.args
    dtype = one_float(call, (q, k, v))
    require(all(kind.rank == 4 for kind in (q, k, v)), "needs q, k and v of four axes")
    for axis in (0, 1, 2):
        must_equal(k.shape[axis], v.shape[axis], call.dims, f"axis {axis} of k and v")
    must_equal(q.shape[0], k.shape[0], call.dims, "batches of q and k")
    must_equal(q.shape[3], k.shape[3], call.dims, "head_dim of q and k")
    heads, kv_heads = q.shape[1].value(call.dims), k.shape[1].value(call.dims)
    if heads != kv_heads and not (call.attrs["enable_gqa"] and kv_heads and heads % kv_heads == 0):
        raise CaseError(f"{heads} heads do not go with {kv_heads} key heads")
    require(all(math.prod(kind.sizes(call.dims)) for kind in (q, k, v)), "needs q, k and v with elements")
    cap, window = call.attrs["cap"], call.attrs["window"]
    require(cap is not None and 0 < cap < math.inf, f"cap is {cap}, expected a positive number")
    require(window is not None and window >= 0, "window is negative")
    require(call.attrs["block"] in _BLOCKS, f"block is {call.attrs['block']}, expected one of {_BLOCKS}")
    shapes = {"slopes": (q.shape[1],), "table": (q.shape[1], q.shape[2] + k.shape[2] - 1)}
    for name, kind in zip(_list_options(call.attrs), given, strict=True):
        wanted = tuple(size.value(call.dims) for size in shapes[name])
        if kind.sizes(call.dims) != wanted or category(kind.dtype) != 2:
            raise CaseError(f"{name} is {kind.dtype} {show(kind.shape)}, expected {show(shapes[name])}")
    return TensorType((*q.shape[:3], v.shape[3]), dtype)


def _before(line: Line) -> list[str]:
    """The functions a call is given."""
    score, mask = line.attrs["score"], line.attrs["mask"]
    lines = []
    if score != "none":
        given = "".join(line.args[3:])
        text = _SCORES[score].format(given=given, keys=f"{line.args[1]}.size(2)", cap=line.text("cap"))
        lines += ["", "def score_mod(score, b, h, q_idx, kv_idx):", f"    return {text}", ""]
    if mask != "none":
        text = _MASKS[mask].format(window=line.attrs["window"])
        lines += [*([] if lines else [""]), "def mask_mod(b, h, q_idx, kv_idx):", f"    return {text}", ""]
    return lines


def _text(line: Line) -> str:
    q, k, v = line.args[:3]
    words = [q, k, v]
    if line.attrs["score"] != "none":
        words.append("score_mod")
    if line.attrs["mask"] != "none":
        lengths = f"{q}.size(2), {k}.size(2)"
        block = "" if line.attrs["block"] == _BLOCKS[0] else f", BLOCK_SIZE={line.attrs['block']}"
        words.append(f"block_mask=create_block_mask(mask_mod, None, None, {lengths}, device={line.device}{block})")
    words += line.options("scale", "enable_gqa")
    return f"flex_attention({', '.join(words)})"


_ATTRIBUTES = {
    "score": word("none", "causal", "softcap", "alibi", "relative"),
    "mask": word("none", "causal", "window"),
    "cap": Attribute(Kind.NUMBER, 1.0),
    "window": Attribute(Kind.INT, 0),
    "block": Attribute(Kind.INT, _BLOCKS[0]),
    "scale": Attribute(Kind.NUMBER),
    "enable_gqa": flag(),
}

OPS = [OpSpec("flex_attention", (3, 4), _flex, _text, _ATTRIBUTES, before=_before, optional=_list_options, cost=4)]
