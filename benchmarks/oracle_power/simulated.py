"""A flash attention in plain torch, forward and backward, that makes one mistake on request.

Blocks of keys with an online softmax, float32 inside, weights and gradients of scores rounded to the inputs' dtype,
delta from the rounded output: FlashAttention-2's numerics. `benchmarks.oracle_power.mistakes` says what the names of
mistakes stand for.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.oracle_power.mistakes import (
    DELTA_OF_WEIGHTS,
    DELTA_UNROUNDED,
    WEIGHTS_NORMALISED,
    WEIGHTS_ROUNDED_FIRST,
)
from benchmarks.oracle_power.rounding import keep_ten_bits, truncate

BLOCK = 64
"""Keys of a block, and query rows of one where rows come in blocks."""
LOG2E = 1.4426950408889634
_POLYNOMIAL = (0.077119089663028717, 0.22756439447402954, 0.69514614343643188, 1.0)
"""2^f for f in [0, 1), as FlashAttention-4 takes it off the special function unit for low precision: 9e-5 off."""

Attention = Callable[..., Tensor]


@dataclass(frozen=True)
class Call:
    """What one call was given beside q, k, v and bias; `wrong` names the mistake, "" for none."""

    wrong: str
    scale: float
    mask: Tensor | None
    causal: str | None
    window: tuple[int, int] | None
    softcap: float | None
    alibi: Tensor | None
    sinks: Tensor | None
    dropout: tuple[float, int] | None


def simulated(wrong: str = "") -> Attention:
    """The attention function (docs/kernels.md) with the mistake called `wrong`; right with a name of RIGHT."""

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: str | None = None,
        window: tuple[int, int] | None = None,
        softcap: float | None = None,
        alibi: Tensor | None = None,
        sinks: Tensor | None = None,
        dropout: tuple[float, int] | None = None,
    ) -> Tensor:
        call = Call(wrong, scale, mask, causal, window, softcap, alibi, sinks, dropout)
        out: Tensor = _Simulated.apply(q, k, v, bias, call)
        return out

    attention.__name__ = wrong or "right"
    if wrong == WEIGHTS_ROUNDED_FIRST:
        attention.capabilities = {"rounds": ("weights", "backward_weights")}  # type: ignore[attr-defined]
    return attention


class _Simulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, call: Call) -> Tensor:
        kernel = Kernel(call, q, k, v, bias)
        out, lse = kernel.forward()
        ctx.save_for_backward(q, k, v, bias, kernel.unrounded if call.wrong == DELTA_UNROUNDED else out, lse)
        ctx.call = call
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, lse = ctx.saved_tensors
        return (*Kernel(ctx.call, q, k, v, bias).backward(gradients[0], out, lse), None)


class Kernel:
    """One call: keys and values repeated for their query heads and padded with zeros to whole blocks, all in
    float32."""

    def __init__(self, call: Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> None:
        self.call, self.wrong, self.dtype = call, call.wrong, q.dtype
        self.rows, self.columns, self.kv_heads = q.size(2), k.size(2), k.size(1)
        self.group = q.size(1) // max(1, self.kv_heads)
        self.padded = -(-self.columns // BLOCK) * BLOCK
        self.bias, self.bias_block = bias, self._over_columns(bias)
        self.mask_block = self._over_columns(call.mask)
        self.q = q.float()
        self.k, self.v = (pad(self._over_heads(x.float()), (0, 0, 0, self.padded - self.columns)) for x in (k, v))
        if self.wrong == "products_in_ten_bits":
            self.q, self.k, self.v = (keep_ten_bits(x) for x in (self.q, self.k, self.v))
        if self.wrong == "tail_features_ignored":
            whole = torch.arange(self.q.size(-1), device=q.device) < self.q.size(-1) // 16 * 16
            self.q, self.k = self.q * whole, self.k * whole
        self.scale = call.scale * (1.001 if self.wrong == "scale_off_by_a_thousandth" else 1.0)
        self.offset = self.columns - self.rows if call.causal == "bottom_right" else 0
        if self.wrong == "corner_ignored":
            self.offset = 0

    def forward(self) -> tuple[Tensor, Tensor]:
        """(out in the inputs' dtype; the natural logarithm of each row's sum, [batch, heads, seq_len], -inf in a row
        without a key)."""
        shape = self.q.shape[:3]
        sinks = self.call.sinks
        top = self.q.new_full(shape, -math.inf)
        total = self.q.new_zeros(shape)
        if sinks is not None and self.wrong != "sink_ignored":
            top, total = sinks.float()[:, None].expand(shape), torch.ones_like(total)
        sums = self.q.new_zeros(*shape, self.v.size(-1))
        stored = torch.full_like(top, -math.inf)
        for at in self._blocks():
            last = at + BLOCK >= self.padded
            if self.wrong == "statistics_stale" and last:
                stored = top + total.log()
            dots = self._dots(at)
            s = self._shaped(dots, at)
            higher, shrunk = self._raised(top, s, dots)
            weights = self._exp(s - _finite(higher)[..., None])
            kept = self._kept(at)
            used = weights if kept is None else weights * kept
            counted = used if self.wrong == "dropout_before_the_sum" else weights
            if self.wrong == "denominators_in_low_precision":
                total = self._low(total * shrunk + self._low(counted).sum(-1))
            elif not (self.wrong == "denominators_without_last_block" and last):
                total = total * (1.0 if self.wrong == "sum_not_rescaled" else shrunk) + counted.sum(-1)
            factor = self.q.new_ones(()) if self.wrong == "sums_not_rescaled" else shrunk[..., None]
            sums = sums * factor + self._rounded(used) @ self.v[:, :, at : at + BLOCK]
            if self.wrong == "sums_in_low_precision":
                sums = self._low(sums)
            if self.wrong == "sums_in_float16":
                sums = sums.half().float()
            top = higher
        out = sums * self._survivors() / total.masked_fill(total == 0, 1.0)[..., None]
        if self.wrong == WEIGHTS_NORMALISED:
            weights = self._weights(top) / total.masked_fill(total == 0, 1.0)[..., None]
            out = self._low(weights * self._kept_of_all()) @ self.v * self._survivors()
        self.unrounded = out
        return self._stored(out), self._overwritten(stored if self.wrong == "statistics_stale" else top + total.log())

    def backward(self, dout: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """dq, dk, dv and dbias for the output's gradient, the output that delta comes from and its statistics."""
        do = dout.float()
        products = out.float() * do
        if self.wrong == "delta_of_half_the_features":
            products = products[..., : products.size(-1) // 2]
        delta = products.sum(-1, keepdim=True)
        if self.wrong == "delta_omitted":
            delta = torch.zeros_like(delta)
        survivors = self._survivors(backward=True)
        if self.wrong == DELTA_OF_WEIGHTS:
            weights = self._weights(lse)
            dp = do @ self.v.mT * self._kept_of_all() * survivors
            # With the sink, the weights of a row add up to 1, as those of a softmax do.
            total = weights.sum(-1, keepdim=True)
            if self.call.sinks is not None:
                total = total + self._exp(self.call.sinks.float()[:, None] - _finite(lse))[..., None]
            delta = (weights * dp).sum(-1, keepdim=True) / total.masked_fill(total == 0, 1.0)
        dq = torch.zeros_like(self.q)
        dk, dv, dscores = [], [], []
        for at in self._blocks():
            dots = self._dots(at)
            s = self._shaped(dots, at, backward=True)
            p = self._exp(s - _finite(lse)[..., None])
            if self.wrong == "statistics_in_base_two":
                p = torch.exp2(s * LOG2E - _finite(lse)[..., None])
            kept = self._kept(at, backward=True)
            dp = do @ self.v[:, :, at : at + BLOCK].mT
            used = p * self._normalised(lse)
            if kept is not None:
                used, dp = used * kept, dp * kept * survivors
            dv.append(self._rounded(used).mT @ do * survivors)
            ds = (self._low(p) if self.wrong == WEIGHTS_ROUNDED_FIRST else p) * (dp - delta)
            dscores.append(ds)
            if self.call.softcap is not None and self.wrong != "softcap_without_derivative":
                ds = ds * (1 - torch.tanh(dots * self.scale / self.call.softcap) ** 2)
            ds = truncate(ds, self.dtype) if self.wrong == "score_gradients_truncated" else self._low(ds)
            dk.append(self._over_rows(ds.mT, self.q))
            if not (self.wrong == "dq_without_last_block" and at + BLOCK >= self.padded):
                dq = dq + ds @ self.k[:, :, at : at + BLOCK]
            if self.wrong == "dq_in_low_precision":
                dq = self._low(dq)
        factor = 1.0 if self.wrong == "gradients_not_scaled" else self.scale
        dq = dq * factor * (1.001 if self.wrong == "dq_off_by_a_thousandth" else 1.0)
        keys, values = self._joined(dk, self.k) * factor, self._joined(dv, self.v)
        if self.wrong == "dk_row_zeroed":
            keys[:, :, -1:] = 0.0
        if self.wrong == "dv_row_shrunk":
            values[:, :, :1] *= 0.9
        return (
            dq.to(self.dtype),
            self._of_groups(keys, last_only=self.wrong == "dk_of_one_head").to(self.dtype),
            self._of_groups(values).to(self.dtype),
            self._of_bias(dscores),
        )

    def _weights(self, top: Tensor) -> Tensor:
        """exp(scores - `top`), [batch, heads, seq_len, padded]."""
        scores = torch.cat([self._shaped(self._dots(at), at) for at in self._blocks()] or [top[..., None][..., :0]], -1)
        return self._exp(scores - _finite(top)[..., None])

    def _kept_of_all(self) -> Tensor:
        kept = [self._kept(at) for at in self._blocks()]
        return torch.cat([one for one in kept if one is not None] or [self.q.new_ones(1)], -1)

    def _blocks(self) -> range:
        return range(0, self.padded, BLOCK)

    def _over_heads(self, x: Tensor) -> Tensor:
        if self.wrong == "heads_interleaved":
            return x.repeat(1, self.group, 1, 1)
        return x.repeat_interleave(self.group, 1)

    def _over_columns(self, x: Tensor | None) -> Tensor | None:
        """A mask or a bias with four axes and a column for every key, padded ones included."""
        if x is None:
            return None
        x = x.reshape((1,) * (4 - x.dim()) + x.shape)
        return pad(x.expand(*x.shape[:3], self.columns), (0, self.padded - self.columns))

    def _dots(self, at: int) -> Tensor:
        keys = self.k[:, :, at : at + BLOCK]
        if self.wrong != "scores_summed_in_low_precision":
            return self.q @ keys.mT
        dots = self.q.new_zeros(*self.q.shape[:3], BLOCK)
        for feature in range(0, keys.size(-1), 16):
            part = slice(feature, feature + 16)
            dots = self._low(dots + self.q[..., part] @ keys[..., part].mT)
        return dots

    def _shaped(self, dots: Tensor, at: int, *, backward: bool = False) -> Tensor:
        """The scores of a block: [batch, heads, seq_len, BLOCK], -inf where a key is not kept."""
        call = self.call
        s = dots * self.scale
        if call.softcap is not None:
            s = call.softcap * torch.tanh(s / call.softcap)
        i = torch.arange(self.rows, device=s.device)[:, None] + self.offset
        j = torch.arange(at, at + BLOCK, device=s.device)
        if call.alibi is not None:
            slopes = call.alibi[:1].expand(call.alibi.shape) if self.wrong == "slope_of_the_first_head" else call.alibi
            s = s - slopes.float()[:, None, None] * (i - j).abs()
        if self.bias_block is not None:
            bias = self.bias_block[..., at : at + BLOCK].float()
            if self.wrong == "bias_of_the_first_head":
                bias = bias[:, :1]
            s = s + bias * (self.scale if self.wrong == "bias_scaled" else 1.0)
        if self.wrong == "scores_in_low_precision":
            s = self._low(s)
        fill = -1e4 if self.wrong == "finite_minus_infinity" else -math.inf
        return s.masked_fill(~self._keeps(i, j, at, backward=backward), fill)

    def _keeps(self, i: Tensor, j: Tensor, at: int, *, backward: bool) -> Tensor:
        keep = (j < (self.padded if self.wrong == "tail_keys_counted" else self.columns)).expand(self.rows, BLOCK)
        left, right = self.call.window or (-1, -1)
        if self.call.causal is not None:
            right = int(self.wrong == "causal_off_by_one" or (backward and self.wrong == "causal_off_by_one_backward"))
        if left >= 0:
            keep = keep & (j >= i - left + (self.wrong == "window_short_by_one"))
        if right >= 0:
            keep = keep & (j <= i + right)
        if self.wrong == "last_key_dropped":
            keep = keep & (j != self.columns - 1)
        if self.mask_block is not None:
            keep = keep & self.mask_block[..., at : at + BLOCK]
        return keep

    def _raised(self, top: Tensor, s: Tensor, dots: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum after a block, and what earlier sums shrink by."""
        peak = s.amax(-1)
        if self.wrong == "maximum_before_scale":
            peak = dots.masked_fill(s == -math.inf, -math.inf).amax(-1) * self.scale
            peak = peak.masked_fill(peak == math.inf, -math.inf)
        higher = torch.maximum(top, peak)
        shrunk = self._exp(top - _finite(peak if self.wrong == "rescaled_by_the_block" else higher))
        if self.wrong == "small_rescale_skipped":
            shrunk = torch.where(higher - top < 0.1, 1.0, shrunk)
        return higher, shrunk

    def _exp(self, x: Tensor) -> Tensor:
        if self.wrong == "exponent_in_low_precision":
            x = self._low(x)
        if self.wrong == "log2e_in_three_digits":
            return torch.exp2(x * 1.44)
        if self.wrong == "exp_by_a_cubic":
            x = x * LOG2E
            f = (x - x.floor()).nan_to_num(0.0)
            result = torch.zeros_like(f)
            for factor in _POLYNOMIAL:
                result = result * f + factor
            return torch.exp2(x.floor()) * result
        return torch.exp2(x * LOG2E)

    def _kept(self, at: int, *, backward: bool = False) -> Tensor | None:
        """Which weights of a block dropout keeps, as 0 and 1."""
        if self.call.dropout is None:
            return None
        p, seed = self.call.dropout
        batch, heads = self.q.shape[:2]
        if self.wrong == "dropout_another_mask_backward" and backward:
            seed += 1
        if self.wrong == "dropout_keeps_too_few":
            p = 1 - 0.95 * (1 - p)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand((batch, heads, self.rows, self.padded), generator=generator)
        if self.wrong == "dropout_same_for_all_heads":
            drawn = drawn[:, :1].expand(drawn.shape)
        block = drawn[..., :BLOCK] if self.wrong == "dropout_same_for_all_blocks" else drawn[..., at : at + BLOCK]
        kept = block < p if self.wrong == "dropout_keeps_p" else block >= p
        return kept.to(self.q.device, torch.float32)

    def _survivors(self, *, backward: bool = False) -> float:
        """What weights that dropout keeps are multiplied by."""
        p = self.call.dropout[0] if self.call.dropout is not None else 0.0
        if self.wrong == "dropout_not_scaled" or (backward and self.wrong == "dropout_not_scaled_backward"):
            return 1.0
        if self.wrong == "dropout_scaled_by_p" and p:
            return 1 / p
        return 1 / (1 - p) if p < 1 else 0.0

    def _normalised(self, lse: Tensor) -> Tensor | float:
        """What the weights of dv are multiplied by: 1, unless the mistake is to leave out their normalisation."""
        if self.wrong != "dv_not_normalised":
            return 1.0
        tops = [self._shaped(self._dots(at), at).amax(-1) for at in self._blocks()]
        return (_finite(lse) - _finite(torch.stack(tops).amax(0))).exp()[..., None]

    def _overwritten(self, lse: Tensor) -> Tensor:
        """The statistics, as rows past the end of one head leave them for the next head when nothing masks their
        store."""
        if self.wrong == "statistics_without_mask":
            over = -self.rows % BLOCK
            lse.flatten(0, 1)[1:, :over] = math.log(max(1, self.columns))
        return lse

    def _over_rows(self, ds: Tensor, q: Tensor) -> Tensor:
        """Sum over the query rows, in blocks if they are to be summed in low precision."""
        if self.wrong != "dk_in_low_precision":
            return ds @ q
        total = q.new_zeros(*q.shape[:2], BLOCK, q.size(-1))
        for at in range(0, self.rows, BLOCK):
            total = self._low(total + ds[..., at : at + BLOCK] @ q[:, :, at : at + BLOCK])
        return total

    def _joined(self, parts: list[Tensor], like: Tensor) -> Tensor:
        whole = torch.cat(parts, 2) if parts else torch.zeros_like(like)
        return whole[:, :, : self.columns]

    def _of_groups(self, x: Tensor, *, last_only: bool = False) -> Tensor:
        """Sum over the query heads that share a key head."""
        if self.group == 1:
            return x
        if self.wrong == "heads_interleaved":
            return x.reshape(x.size(0), self.group, self.kv_heads, *x.shape[2:]).sum(1)
        parts = x.reshape(x.size(0), self.kv_heads, self.group, *x.shape[2:])
        return parts[:, :, -1] if last_only else parts.sum(2)

    def _of_bias(self, dscores: list[Tensor]) -> Tensor | None:
        if self.bias is None:
            return None
        whole = torch.cat(dscores, -1) if dscores else self.q.new_zeros(*self.q.shape[:3], 0)
        whole = whole[..., : self.columns]
        if self.wrong == "dbias_scaled":
            whole = whole * self.scale
        if self.wrong == "dbias_of_one_head":
            whole = whole * (torch.arange(whole.size(1), device=whole.device) == whole.size(1) - 1)[:, None, None]
        return whole.sum_to_size(self.bias.shape).to(self.bias.dtype)

    def _rounded(self, weights: Tensor) -> Tensor:
        return truncate(weights, self.dtype) if self.wrong == "weights_truncated" else self._low(weights)

    def _stored(self, out: Tensor) -> Tensor:
        rounded = truncate(out, self.dtype) if self.wrong == "output_truncated" else out
        rounded = rounded.to(self.dtype)
        if self.wrong == "first_row_zeroed":
            rounded[:, :, :1] = 0
        if self.wrong == "last_row_zeroed":
            rounded[:, :, -1:] = 0
        return rounded

    def _low(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).float()


def _finite(top: Tensor) -> Tensor:
    """A maximum that may be subtracted: 0 in a row that has no key yet."""
    return top.masked_fill(top == -math.inf, 0.0)
