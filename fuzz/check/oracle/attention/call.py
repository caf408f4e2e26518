"""One call of an attention function, recorded: what it was handed, what it gave, and what its backward pass gave."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(eq=False)
class Call:
    """One call of an attention function: its arguments, all detached, and its results.

    q [batch, heads, seq_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, value_dim].

    `out` [batch, heads, seq_len, value_dim]; `dout`, its gradient, and `gradients` by name (dq, dk, dv, dbias, dsinks)
    only where a backward pass came. `differentiable`: the output has a gradient; `wanted`: the names of the gradients
    that the arguments want. `sequences`: what it was part of, if a packed or paged call, in words.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    out: Tensor | None = None
    dout: Tensor | None = None
    gradients: dict[str, Tensor] = field(default_factory=dict)
    differentiable: bool = False
    wanted: tuple[str, ...] = ()
    sequences: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """Gradients that are wanted and did not come, though that of the output did."""
        return tuple(name for name in self.wanted if self.dout is not None and name not in self.gradients)

    @property
    def results(self) -> dict[str, Tensor]:
        """What it gave, by name: out, and the gradients, zeros in the place of missing ones."""
        given = {"q": self.q, "k": self.k, "v": self.v, **self.options}
        missing = {name: torch.zeros_like(given[name.removeprefix("d")]) for name in self.missing}
        return {**({} if self.out is None else {"out": self.out}), **self.gradients, **missing}

    def replace(
        self, *, q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None, **options: Any
    ) -> "Call":
        """A call to be made, with some arguments changed. An option that is None is left out."""
        given = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        return Call(self.q if q is None else q, self.k if k is None else k, self.v if v is None else v, given)

    def run(self, function: Callable[..., Tensor]) -> Tensor:
        """What a function gives for it."""
        return function(self.q, self.k, self.v, **self.options)

    @property
    def group(self) -> int:
        """Query heads for each key head."""
        return self.q.size(1) // max(1, self.k.size(1))

    def relative(self) -> Tensor:
        """The number i + off - j of every query i and key j, [seq_len, kv_len]; off is that of the contract."""
        offset = self.k.size(2) - self.q.size(2) if self.options.get("causal") == "bottom_right" else 0
        rows = torch.arange(self.q.size(2), device=self.q.device)[:, None] + offset
        return rows - torch.arange(self.k.size(2), device=self.q.device)

    def combine_masks(self) -> Tensor | None:
        """The keys that mask, causality and window keep: bool, broadcasts to the scores; None for all."""
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
        """Bias and slopes as one float64 tensor that broadcasts to the scores; None for nothing."""
        bias, slopes = self.options.get("bias"), self.options.get("alibi")
        if slopes is None:
            return None if bias is None else bias.double()
        distances: Tensor = -slopes.double()[:, None, None] * self.relative().abs()
        return distances if bias is None else bias.double() + distances
