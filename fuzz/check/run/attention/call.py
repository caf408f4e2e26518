"""A call of an attention function with its results, and the float64 truth of the call."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fuzz.check.run.tensor_memory import bring_to_cpu
from fuzz.protocol.failures import Sequences


@dataclass(eq=False)
class Call:
    """A call of an attention function: its arguments, all detached, and its results."""

    q: Tensor  # [batch, heads, seq_len, head_dim]
    k: Tensor  # [batch, kv_heads, kv_len, head_dim]
    v: Tensor  # [batch, kv_heads, kv_len, value_dim]
    options: dict[str, Any] = field(default_factory=dict)
    out: Tensor | None = None  # [batch, heads, seq_len, value_dim]
    dout: Tensor | None = None  # the gradient of `out`; None without a backward pass
    gradients: dict[str, Tensor] = field(default_factory=dict)  # by name: dq, dk, dv, dbias, dsinks
    differentiable: bool = False  # whether the output has a gradient
    wanted: tuple[str, ...] = ()  # the names of the gradients that the arguments want
    is_inference: bool = False  # whether torch's inference mode is on
    is_dout_expanded: bool = False  # whether the elements of `dout` share memory
    sequences: Sequences | None = None  # of the packed or paged call that it is part of

    @property
    def missing(self) -> tuple[str, ...]:
        """The wanted gradients that are missing although the backward pass ran."""
        return tuple(name for name in self.wanted if self.dout is not None and name not in self.gradients)

    @property
    def results(self) -> dict[str, Tensor]:
        """The output and gradients by name, with zeros for missing gradients."""
        given = {"q": self.q, "k": self.k, "v": self.v, **self.options}
        missing = {name: torch.zeros_like(given[name.removeprefix("d")]) for name in self.missing}
        return {**({} if self.out is None else {"out": self.out}), **self.gradients, **missing}

    def replace(
        self, *, q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None, **options: Any
    ) -> "Call":
        """A call to make in the same state, with some arguments changed. An option that is None is left out.

        It wants no gradients if this call was made without a backward pass.
        """
        given = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        made = Call(self.q if q is None else q, self.k if k is None else k, self.v if v is None else v, given)
        made.is_inference, made.is_dout_expanded = self.is_inference, self.is_dout_expanded
        made.wanted = self.wanted if self.out is None or self.dout is not None else ()
        return made

    def on_cpu(self) -> "Call":
        """This call and its results on the CPU."""
        named: dict[str, Any] = {"q": self.q, "k": self.k, "v": self.v, "out": self.out, "dout": self.dout}
        groups = [named, self.options, self.gradients]
        moved = iter(bring_to_cpu(x for group in groups for x in group.values() if isinstance(x, Tensor)))
        named, options, gradients = (
            {name: next(moved) if isinstance(value, Tensor) else value for name, value in group.items()}
            for group in groups
        )
        return dataclasses.replace(self, **named, options=options, gradients=gradients)

    def run(self, function: Callable[..., Tensor]) -> Tensor:
        return function(self.q, self.k, self.v, **self.options)

    @property
    def group(self) -> int:
        """The number of query heads for each key head."""
        return self.q.size(1) // max(1, self.k.size(1))

    def relative(self) -> Tensor:
        """The number i + off - j of query i and key j, [seq_len, kv_len]. For bottom_right off is kv_len - seq_len."""
        offset = self.k.size(2) - self.q.size(2) if self.options.get("causal") == "bottom_right" else 0
        rows = torch.arange(self.q.size(2), device=self.q.device)[:, None] + offset
        return rows - torch.arange(self.k.size(2), device=self.q.device)

    def combine_masks(self) -> Tensor | None:
        """The keys that mask, causality and window keep, as bool that broadcasts to the scores; None for all keys."""
        mask: Tensor | None = self.options.get("mask")
        left, right = self.options.get("window") or (-1, -1)
        if self.options.get("causal") is not None:
            right = 0
        relative = self.relative()
        for applies, within in ((left >= 0, relative <= left), (right >= 0, relative >= -right)):
            if applies:
                mask = within if mask is None else mask & within
        return mask

    def combine_biases(self) -> Tensor | None:
        """Bias and ALiBi slopes as a float64 tensor that broadcasts to the scores."""
        bias, slopes = self.options.get("bias"), self.options.get("alibi")
        if slopes is None:
            return None if bias is None else bias.double()
        distances: Tensor = -slopes.double()[:, None, None] * self.relative().abs()
        return distances if bias is None else bias.double() + distances


class Exact:
    """The float64 truth of a call; q, k and v have a head for each query head.

    [batch, heads, seq_len, kv_len]:
        products: scaled products of q and k    terms: the magnitudes summed up in a score
        scores: the input of the softmax        slope: the derivative of the softcap
        weights: 0 in rows without a key        used: weights after dropout
    [batch, heads, seq_len, 1]:
        peak: the largest score of a row        live: whether a row keeps a key       sink: the weight of the sink
    with a gradient:
        dweights: of weights after dropout      delta: [..., 1]                       dscores: of `scores`
    `results` by name, in the shapes of the call: out, dq, dk, dv, dscores, and dsinks with sinks.
    """

    def __init__(self, call: Call, dropped: Tensor | None = None, *, stretch: float = 1.0) -> None:
        """`dropped`: the dropout mask, True keeps. `stretch` multiplies the scale."""
        options, group = call.options, call.group
        self.dtype, self.group = call.q.dtype, group
        self.q = q = call.q.double()
        k, v = self.k, self.v = [x.double().repeat_interleave(group, 1) for x in (call.k, call.v)]
        self.scale = scale = float(options["scale"]) * stretch
        self.products = s = scale * (q @ k.mT)
        self.terms = abs(scale) * (q.abs() @ k.abs().mT)
        self.slope = torch.ones_like(s)
        softcap = options.get("softcap")
        if softcap is not None:
            tanh = torch.tanh(s / softcap)
            s, self.slope = softcap * tanh, 1 - tanh * tanh
        added, mask = call.combine_biases(), call.combine_masks()
        if added is not None:
            s, self.terms = s + added, self.terms + added.abs()
        self.scores = s = s if mask is None else s.masked_fill(~mask, -math.inf)
        sinks = options.get("sinks")
        self.peak, p, self.live = softmax(s, sinks)
        self.weights, self.sink = p, torch.zeros_like(self.peak)
        if sinks is not None:
            column = sinks.double()[:, None, None].expand_as(self.peak)
            self.sink = torch.cat([s, column], -1).softmax(-1)[..., -1:]
        probability = float((options.get("dropout") or (0.0, 0))[0])
        self.share: Tensor | None = None
        if dropped is not None:
            self.share = dropped.double() / (1 - probability) if probability < 1 else torch.zeros_like(s)
        self.used = p if self.share is None else p * self.share
        self.results = {"out": self.used @ v}
        self.dout = None if call.dout is None else call.dout.double()
        if self.dout is None:
            return
        do = self.dout
        dp = do @ v.mT
        self.dweights = dp if self.share is None else dp * self.share
        self.delta = (self.results["out"] * do).sum(-1, keepdim=True)
        self.dscores = p * (self.dweights - self.delta)
        grad = self.dscores * self.slope
        self.results |= {
            "dq": scale * (grad @ k),
            "dk": sum_groups(scale * (grad.mT @ q), group),
            "dv": sum_groups(self.used.mT @ do, group),
            "dscores": self.dscores,
        }
        if sinks is not None:
            self.results["dsinks"] = -(self.sink * self.delta).sum((0, 2, 3))


def softmax(s: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The largest score of each row and the weights, both 0 in a row without a key, and whether rows have a key."""
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
    """Sums over the query heads of each group, [batch, kv_heads, ...]."""
    return value.unflatten(1, (-1, group)).sum(2) if group > 1 else value
