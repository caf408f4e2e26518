"""One call of an attention function with what it gives, beside eager implementations of the same call and the exact
result."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tests.kernels.reference import math_attention

Outcome = dict[str, Tensor]
"""What one run gave, by name: out and, with an incoming gradient, dq, dk, dv and dbias."""


@dataclass(frozen=True)
class Problem:
    """The arguments of one call (docs/kernels.md), and `dout`, the gradient that came back; None for the forward pass
    alone. A bias that requires a gradient has one taken.

    `kept` is the dropout mask eager implementations are given, bool [batch, heads, seq_len, kv_len].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: Mapping[str, Any]
    dout: Tensor | None = None
    kept: Tensor | None = None

    def run(self, function: Callable[..., Tensor]) -> Outcome:
        """What an attention function gives on it."""
        return self._differentiated(lambda q, k, v, options: function(q, k, v, **options))

    @cached_property
    def exact(self) -> Outcome:
        """The result in float64: PyTorch's MATH there."""
        return self._cast(torch.float64).math

    @cached_property
    def math(self) -> Outcome:
        """PyTorch's MATH backend: float16 and bfloat16 are computed in float32."""
        return self._differentiated(self._math)

    @cached_property
    def single(self) -> Outcome:
        """Computed in float32 and rounded to the inputs' dtype."""
        return {name: value.to(self.q.dtype) for name, value in self._cast(torch.float32).naive.items()}

    @cached_property
    def naive(self) -> Outcome:
        """Every step in the inputs' dtype, as code in plain torch computes it: scale after the product, softmax,
        product."""
        return self._differentiated(lambda q, k, v, options: self._naive(q, k, v, options, first=False))

    @cached_property
    def scale_first(self) -> Outcome:
        """As `naive`, with the scale on k: `attention_ref(upcast=False, reorder_ops=True)` of FlashAttention's
        tests."""
        return self._differentiated(lambda q, k, v, options: self._naive(q, k, v, options, first=True))

    @cached_property
    def flex(self) -> Outcome:
        """Flex attention in eager mode: scores in float32, weights and gradients of scores rounded to the inputs'
        dtype. torch/_higher_order_ops/flex_attention.py, `math_attention` and `sdpa_dense_backward`."""
        return self._differentiated(self._flex)

    @property
    def dropout(self) -> float:
        """The probability of being dropped."""
        return float((self.options.get("dropout") or (0.0, 0))[0])

    def reference_options(self) -> dict[str, Any]:
        """The keywords of `math_attention`."""
        options = {name: value for name, value in self.options.items() if name != "dropout"}
        return {**options, "dropout_p": self.dropout, "dropout_mask": self.kept}

    def with_mask_of(self, function: Callable[..., Tensor]) -> "Problem":
        """This problem with the dropout mask that `function` draws: what it keeps of equal weights for one-hot
        values."""
        if not self.dropout:
            return self
        with torch.no_grad():
            return replace(self, kept=self._weights(function, self.options) != 0)

    def kept_share(self) -> float:
        """The share of the weights that could be kept that was."""
        assert self.kept is not None
        options = {name: value for name, value in self.options.items() if name != "dropout"}
        with torch.no_grad():
            live = self._weights(math_attention, options) != 0
        return float((self.kept & live).sum() / live.sum())

    def _weights(self, function: Callable[..., Tensor], options: Mapping[str, Any]) -> Tensor:
        columns = self.k.size(2)
        one_hot = torch.eye(columns, dtype=self.q.dtype, device=self.q.device).expand(
            *self.k.shape[:2], columns, columns
        )
        return function(torch.zeros_like(self.q), torch.zeros_like(self.k), one_hot.contiguous(), **options)

    def _cast(self, dtype: torch.dtype) -> "Problem":
        options = {
            name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for name, value in self.options.items()
        }
        dout = None if self.dout is None else self.dout.to(dtype)
        return replace(self, q=self.q.to(dtype), k=self.k.to(dtype), v=self.v.to(dtype), options=options, dout=dout)

    def _differentiated(self, call: Callable[..., Tensor]) -> Outcome:
        if self.dout is None:
            with torch.no_grad():
                return {"out": call(self.q, self.k, self.v, self.options)}
        leaves = {"dq": self.q, "dk": self.k, "dv": self.v}
        bias = self.options.get("bias")
        if bias is not None and bias.requires_grad:
            leaves["dbias"] = bias
        # Leaves of their own with the same strides, and no history.
        leaves = {name: value.detach().requires_grad_() for name, value in leaves.items()}
        options = {**self.options, "bias": leaves["dbias"]} if "dbias" in leaves else self.options
        with torch.enable_grad():
            out = call(leaves["dq"], leaves["dk"], leaves["dv"], options)
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            out, list(leaves.values()), self.dout.to(out.dtype), allow_unused=True
        )
        gradients = {
            name: torch.zeros_like(leaves[name]) if grad is None else grad
            for name, grad in zip(leaves, found, strict=True)
        }
        return {"out": out.detach(), **gradients}

    def _math(self, q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> Tensor:
        return math_attention(q, k, v, **{**self.reference_options(), "bias": options.get("bias")})

    def _naive(self, q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any], *, first: bool) -> Tensor:
        k, v = _repeated(k, q), _repeated(v, q)
        scale = options["scale"]
        scores = q @ (k * scale).mT if first else (q @ k.mT) * scale
        weights = self._softmax(scores, options).to(v.dtype)
        if self.kept is not None:
            weights, v = weights.masked_fill(~self.kept, 0.0), v * (1 / (1 - self.dropout))
        return weights @ v

    def _flex(self, q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> Tensor:
        k, v = _repeated(k, q), _repeated(v, q)
        scores = (q.float() @ k.float().mT) * options["scale"]
        if scores.requires_grad:
            scores.register_hook(lambda grad: grad.to(q.dtype).float())
        return self._softmax(scores, options).to(q.dtype) @ v

    def _softmax(self, s: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Softmax of scaled scores in their own dtype. Rows without a key are 0, with gradients 0."""
        softcap, alibi, bias, sinks = (options.get(name) for name in ("softcap", "alibi", "bias", "sinks"))
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        rows, columns = s.shape[-2:]
        causal = options.get("causal")
        offset = columns - rows if causal == "bottom_right" else 0
        relative = torch.arange(rows, device=s.device)[:, None] + offset - torch.arange(columns, device=s.device)
        if alibi is not None:
            s = s - (alibi.float()[:, None, None] * relative.abs()).to(s.dtype)
        if bias is not None:
            s = s + bias.to(s.dtype)
        left, right = options.get("window") or (-1, -1)
        right = 0 if causal is not None else right
        keep = torch.ones_like(relative, dtype=torch.bool)
        if left >= 0:
            keep = keep & (relative <= left)
        if right >= 0:
            keep = keep & (relative >= -right)
        if options.get("mask") is not None:
            keep = keep & options["mask"]
        s = s.masked_fill(~keep, -math.inf)
        if sinks is not None:
            s = torch.cat([s, sinks.to(s.dtype)[:, None, None].expand(*s.shape[:3], 1)], -1)
        if not s.size(-1):
            return s
        empty = (s == -math.inf).all(-1, keepdim=True)
        weights = torch.softmax(s.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
        return weights if sinks is None else weights[..., :-1]


def _repeated(x: Tensor, q: Tensor) -> Tensor:
    return x.repeat_interleave(q.size(1) // max(1, x.size(1)), 1)
