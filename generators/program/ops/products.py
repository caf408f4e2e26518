"""Matrix products and attention: matmul and its relatives, linear layers, scaled_dot_product_attention."""

import re
from dataclasses import replace
from functools import partial

from generators.errors import CaseError, require
from generators.program.case import TensorType
from generators.program.dtypes import category
from generators.program.ops import spec
from generators.program.ops.spec import (
    Attribute,
    Call,
    Kind,
    Line,
    OpSpec,
    broadcast,
    flag,
    must_broadcast,
    must_equal,
    one_float,
    show,
)
from generators.program.sizes import Size

EQUATION = re.compile(r"[a-z]{1,6},[a-z]{1,6}->[a-z]{1,6}")


def _matmul(call: Call) -> TensorType:
    a, b = call.args
    require(a.rank >= 2 and b.rank >= 2, "needs at least two axes on both sides")
    must_equal(a.shape[-1], b.shape[-2], call.dims, "inner sizes of the product")
    batch = broadcast(a.shape[:-2], b.shape[:-2], call.dims)
    return TensorType((*batch, a.shape[-2], b.shape[-1]), one_float(call, call.args))


def _flat_product(call: Call, rank: int) -> TensorType:
    """Without broadcasting: bmm for three axes, mm for two."""
    a, b = call.args
    require(a.rank == b.rank == rank, f"needs {rank} axes on both sides")
    require(a.sizes(call.dims)[:-2] == b.sizes(call.dims)[:-2], "needs equal batches on both sides")
    return _matmul(call)


def _add_product(call: Call) -> TensorType:
    result = _flat_product(replace(call, args=call.args[1:]), rank=2)
    one_float(call, call.args)
    must_broadcast(call.args[0].shape, result.shape, call.dims, "bias")
    return result


def _einsum(call: Call) -> TensorType:
    equation = call.attrs["equation"]
    terms, out = equation.split("->")
    sizes: dict[str, Size] = {}
    for letters, arg in zip(terms.split(","), call.args, strict=True):
        if len(letters) != arg.rank or len(set(letters)) != len(letters):
            raise CaseError(f"{letters!r} of {equation!r} does not fit {show(arg.shape)}")
        for letter, size in zip(letters, arg.shape, strict=True):
            if letter in sizes:
                must_equal(sizes[letter], size, call.dims, f"axis {letter!r} of {equation!r}")
            sizes.setdefault(letter, size)
    if len(set(out)) != len(out) or any(letter not in sizes for letter in out):
        raise CaseError(f"{equation!r} has an output axis that no input has, or one twice")
    return TensorType(tuple(sizes[letter] for letter in out), one_float(call, call.args))


def _linear(call: Call) -> TensorType:
    x, weight, *bias = call.args
    require(weight.rank == 2 and x.rank >= 1, "needs a weight of two axes")
    must_equal(x.shape[-1], weight.shape[1], call.dims, "in_features of linear")
    if bias:
        require(bias[0].rank == 1, "needs a bias of one axis")
        must_equal(bias[0].shape[0], weight.shape[0], call.dims, "bias of linear")
    return TensorType((*x.shape[:-1], weight.shape[0]), one_float(call, call.args))


def _sdpa(call: Call) -> TensorType:
    q, k, v, *mask = call.args
    dtype = one_float(call, (q, k, v))
    require(3 <= q.rank == k.rank == v.rank, "needs q, k, v of one rank, at least 3")
    must_equal(q.shape[-1], k.shape[-1], call.dims, "head_dim of q and k")
    must_equal(k.shape[-2], v.shape[-2], call.dims, "seq_len of k and v")
    batch = q.shape[:-2]
    if call.attrs["enable_gqa"]:
        heads, kv_heads = q.shape[-3].value(call.dims), k.shape[-3].value(call.dims)
        must_equal(k.shape[-3], v.shape[-3], call.dims, "heads of k and v")
        require(kv_heads > 0 and heads % kv_heads == 0, f"{heads} heads are not a multiple of {kv_heads} key heads")
    else:
        leads = {tensor.sizes(call.dims)[:-2] for tensor in (q, k, v)}
        require(len(leads) == 1, "needs equal batch and head axes without enable_gqa")
    if mask:
        require(not call.attrs["is_causal"], "takes a mask or is_causal, not both")
        if mask[0].dtype != "bool" and (category(mask[0].dtype) != 2 or one_float(call, (q, mask[0])) != dtype):
            raise CaseError(f"needs a boolean or {dtype} mask")
        require(mask[0].rank >= 2, "needs a mask of at least two axes")
        must_broadcast(mask[0].shape, (*batch, q.shape[-2], k.shape[-2]), call.dims, "mask")
    return TensorType((*batch, q.shape[-2], v.shape[-1]), dtype)


def _sdpa_text(line: Line) -> str:
    parts = [f"attn_mask={line.args[3]}"] if len(line.args) == 4 else []
    if line.attrs["dropout_p"]:
        parts.append(f"dropout_p={line.text('dropout_p')} if self.training else 0.0")
    parts += line.options("is_causal", "scale", "enable_gqa")
    return f"F.scaled_dot_product_attention({', '.join([*line.args[:3], *parts])})"


_MATMUL = {"operator": "{0} @ {1}", "function": "torch.matmul({0}, {1})", "method": "{0}.matmul({1})"}
_EQUATION = {"equation": Attribute(Kind.EQUATION, required=True)}
_SDPA = {
    "is_causal": flag(),
    "scale": Attribute(Kind.NUMBER),
    "dropout_p": Attribute(Kind.NUMBER, 0.0),
    "enable_gqa": flag(),
}

OPS = [
    spec.forms("matmul", (2, 2), _matmul, "form", _MATMUL),
    spec.function("torch.bmm", (2, 2), partial(_flat_product, rank=3), cost=2),
    OpSpec("addmm", (3, 3), _add_product, "torch.addmm({args})", cost=3),
    OpSpec("einsum", (2, 2), _einsum, 'torch.einsum("{equation}", {args})', _EQUATION, cost=3),
    spec.function("F.linear", (2, 3), _linear, cost=2),
    OpSpec("sdpa", (3, 4), _sdpa, _sdpa_text, _SDPA, random=True, cost=3),
]
