"""One attention, its gradients, and how far each is from float64 in units of its budget."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fuzz.check.oracle.budget import budget
from fuzz.check.oracle.constants import budget_limit
from kernels.attention import attention, dropout_mask

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Trial:
    """Inputs of one attention: q [batch, heads, rows, dim] and so on, drawn from N(0, 1)."""

    heads: int = 2
    kv_heads: int = 2
    rows: int = 65
    columns: int = 65
    dim: int = 16
    value_dim: int = 16
    batch: int = 1
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.q = self.draw(self.batch, self.heads, self.rows, self.dim)
        self.k = self.draw(self.batch, self.kv_heads, self.columns, self.dim)
        self.v = self.draw(self.batch, self.kv_heads, self.columns, self.value_dim)
        self.dout = self.draw(self.batch, self.heads, self.rows, self.value_dim)
        self.options = {"scale": self.dim**-0.5, **self.options}

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE).to(self.dtype)

    def run(self, **more: Any) -> dict[str, Tensor]:
        """Forward and backward through the bundled kernels."""
        leaves = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]
        out = attention(*leaves, **{**self.options, **more})
        gradients = torch.autograd.grad(out, leaves, self.dout)
        return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *gradients), strict=True))

    def ratios(self, values: dict[str, Tensor]) -> dict[str, float]:
        """The largest error of each result over its budget."""
        exact = budget(self.q, self.k, self.v, self.dout, **self._plain())
        return {name: exact.worst(name, value) for name, value in values.items()}

    def holds(self, **more: Any) -> bool:
        """Whether every result is within its limit; prints what is not."""
        ratios = self.ratios(self.run(**more))
        over = {name: ratio for name, ratio in ratios.items() if not ratio <= budget_limit(self.dtype)}
        if over:
            print(f"{over} of {self.options} {list(self.q.shape)} {list(self.k.shape)} {self.dtype}")  # noqa: T201
        return not over

    def _plain(self) -> dict[str, Any]:
        """The options with causality, windows and slopes as mask and bias, which is all that a budget knows."""
        options = dict(self.options)
        causal, window = options.pop("causal", None), options.pop("window", None)
        slopes, dropout = options.pop("alibi", None), options.pop("dropout", None)
        offset = self.columns - self.rows if causal == "bottom_right" else 0
        relative = torch.arange(self.rows, device=DEVICE)[:, None] + offset - torch.arange(self.columns, device=DEVICE)
        kept = torch.ones(self.rows, self.columns, dtype=torch.bool, device=DEVICE)
        left, right = window or (-1, -1)
        if causal:
            kept &= relative >= 0
        if left >= 0:
            kept &= relative <= left
        if right >= 0:
            kept &= relative >= -right
        options["mask"] = kept if options.get("mask") is None else kept & options["mask"]
        if slopes is not None:
            distances = -slopes.double()[:, None, None] * relative.abs()
            options["bias"] = distances if options.get("bias") is None else distances + options["bias"].double()
        if dropout is not None:
            p, seed = dropout
            sizes = (self.batch, self.heads, self.rows, self.columns)
            options |= {"kept": dropout_mask(*sizes, p, seed, DEVICE), "dropout_p": p}
        return options
