"""Attention and its gradients in float64, with every value on the way."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.check.oracle.attention.call import Call


@dataclass(frozen=True)
class Exact:
    """The float64 truth of a call; q, k and v with one head for each query head.

    scores, products (scaled, before anything else), weights (softmax, 0 in rows without a key), used (weights after
    dropout) and `terms`, the magnitudes summed up in a score: [batch, heads, seq_len, kv_len]; `slope`, the derivative
    of the softcap, likewise; `peak`, the largest score of a row, [..., 1]; `live`, rows that keep a key, and `sink`,
    the weight of its sink, [..., 1]. With a gradient: `dweights` (of the weights after dropout's share), `delta` [...,
    1], `dscores` (of the scores as the softmax takes them). `results` by name: out, dq, dk, dv, with sinks dsinks (of
    the shapes the call has) and dscores.
    """

    dtype: torch.dtype
    group: int
    scale: float
    q: Tensor
    k: Tensor
    v: Tensor
    products: Tensor
    scores: Tensor
    terms: Tensor
    slope: Tensor
    peak: Tensor
    weights: Tensor
    used: Tensor
    live: Tensor
    sink: Tensor
    share: Tensor | None
    dout: Tensor | None
    dweights: Tensor
    delta: Tensor
    dscores: Tensor
    results: dict[str, Tensor]

    @classmethod
    def of(cls, call: Call, dropped: Tensor | None = None, *, stretch: float = 1.0) -> "Exact":
        """The truth of `call`. `dropped`: the dropout mask, True keeps. `stretch` multiplies the scale."""
        options, dtype = call.options, call.q.dtype
        group = call.group
        q = call.q.double()
        k, v = (x.double().repeat_interleave(group, 1) for x in (call.k, call.v))
        scale = float(options["scale"]) * stretch
        products = s = scale * (q @ k.mT)
        terms = abs(scale) * (q.abs() @ k.abs().mT)
        slope = torch.ones_like(s)
        softcap = options.get("softcap")
        if softcap is not None:
            tanh = torch.tanh(s / softcap)
            s, slope = softcap * tanh, 1 - tanh * tanh
        added, mask = call.added(), call.kept()
        if added is not None:
            s, terms = s + added, terms + added.abs()
        if mask is not None:
            s = s.masked_fill(~mask, -math.inf)
        sinks = options.get("sinks")
        peak, p, live = softmax(s, sinks)
        sink = torch.zeros_like(peak)
        if sinks is not None:
            column = sinks.double()[:, None, None].expand_as(peak)
            sink = torch.cat([s, column], -1).softmax(-1)[..., -1:]
        probability = float((options.get("dropout") or (0.0, 0))[0])
        share = None
        if dropped is not None:
            share = dropped.double() / (1 - probability) if probability < 1 else torch.zeros_like(s)
        used = p if share is None else p * share
        out = used @ v
        results = {"out": out}
        empty = s.new_zeros(())
        do, dp, delta, ds = None, empty, empty, empty
        if call.dout is not None:
            do = call.dout.double()
            dp = do @ v.mT
            dp = dp if share is None else dp * share
            delta = (out * do).sum(-1, keepdim=True)
            ds = p * (dp - delta)
            grad = ds * slope
            results |= {
                "dq": scale * (grad @ k),
                "dk": sum_groups(scale * (grad.mT @ q), group),
                "dv": sum_groups(used.mT @ do, group),
                "dscores": ds,
            }
            if sinks is not None:
                results["dsinks"] = -(sink * delta).sum((0, 2, 3))
        return cls(
            dtype=dtype,
            group=group,
            scale=scale,
            q=q,
            k=k,
            v=v,
            products=products,
            scores=s,
            terms=terms,
            slope=slope,
            peak=peak,
            weights=p,
            used=used,
            live=live,
            sink=sink,
            share=share,
            dout=do,
            dweights=dp,
            delta=delta,
            dscores=ds,
            results=results,
        )


def softmax(s: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(the largest score of each row, 0 in a row without a key; the weights, 0 in such a row; rows with a key)."""
    if not s.size(-1):
        nothing = s.new_zeros(*s.shape[:-1], 1)
        return nothing, s, nothing.bool()
    peak = s.amax(-1, keepdim=True)
    live = peak > -math.inf
    if sinks is not None:
        peak = torch.maximum(peak, sinks.double()[:, None, None])
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    e = (s - peak).exp()
    total = e.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks.double()[:, None, None] - peak).exp()
    return peak, e / total.masked_fill(total == 0, 1.0), live


def sum_groups(value: Tensor, group: int) -> Tensor:
    """Sum over the query heads of each group: [batch, kv_heads, ...]."""
    return value.unflatten(1, (-1, group)).sum(2) if group > 1 else value
