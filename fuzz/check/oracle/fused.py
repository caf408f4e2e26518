"""The fused attention operations of aten in float64, from their definition: F.scaled_dot_product_attention on its MATH
backend. Their own kernels are no reference: they make the same mistakes in float64."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_FORWARD = frozenset(
    [
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    ]
)
_BACKWARD = frozenset(f"{name}_backward" for name in _FORWARD)


def is_fused(func: Any) -> bool:
    """Whether `func` is a fused attention operation, forward or backward."""
    return func.overloadpacket.__name__ in _FORWARD | _BACKWARD


def definition(func: Any) -> Callable[..., tuple[Tensor, ...]]:
    """What takes the arguments of such an operation and gives its first results: (out, logsumexp), or (dq, dk, dv).

    That raises `NotImplementedError` for active dropout.
    """
    names = [argument.name for argument in func._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        given = dict(zip(names, args, strict=False)) | kwargs
        if given.get("dropout_p"):
            raise NotImplementedError("dropout")
        q, k, v = given["query"], given["key"], given["value"]
        scale = given.get("scale")
        scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
        mask = given.get("attn_mask", given.get("attn_bias"))
        group = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = _scores(q, k, mask, scale, causal=given.get("is_causal", False))
        if func.overloadpacket.__name__ in _FORWARD:
            return _forward(scores, v)
        do = given["grad_out" if "grad_out" in given else "grad_out_"]
        # Some kernels pad the statistics of a head, or give them a last axis.
        lse = given["logsumexp"].reshape(*q.shape[:2], -1)[..., : q.size(2)].unsqueeze(-1)
        return _backward(scores, do, q, k, v, given["out"], lse, scale, group)

    return run


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, scale: float, *, causal: bool) -> Tensor:
    scores = scale * (q @ k.mT)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
    return scores


def _forward(scores: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The output, 0 in rows that see no key, and the logarithm of each row's sum, -inf there."""
    empty = (scores == -math.inf).all(-1, keepdim=True)
    weights = scores.softmax(-1).masked_fill(empty, 0.0)
    return weights @ v, scores.logsumexp(-1)


def _backward(
    scores: Tensor, do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, group: int
) -> tuple[Tensor, Tensor, Tensor]:
    weights = (scores - lse).exp().masked_fill(scores == -math.inf, 0.0)
    dscores = weights * (do @ v.mT - (out * do).sum(-1, keepdim=True))
    dk, dv = scale * (dscores.mT @ q), weights.mT @ do
    return scale * (dscores @ k), _sum_groups(dk, group), _sum_groups(dv, group)


def _sum_groups(value: Tensor, group: int) -> Tensor:
    return value.unflatten(1, (-1, group)).sum(2)
