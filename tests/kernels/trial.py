"""One attention, its gradients, and what the oracle says of them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fuzz.check.judge.attention.dropout_masks import extract_mask
from fuzz.check.judge.attention.judge import judge
from fuzz.check.run.attention.call import Call
from fuzz.protocol import SubjectResult
from kernels.attention import attention

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

    def run(self) -> dict[str, Tensor]:
        """Forward and backward through the bundled kernels."""
        leaves = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]
        out = attention(*leaves, **self.options)
        gradients = torch.autograd.grad(out, leaves, self.dout)
        return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *gradients), strict=True))

    def judged(self, values: dict[str, Tensor]) -> SubjectResult:
        """What the oracle says of these results."""
        gradients = {name: value for name, value in values.items() if name != "out"}
        call = Call(self.q, self.k, self.v, dict(self.options), values["out"], self.dout, gradients)
        return judge(call, ("weights",), extract_mask(attention, call) if "dropout" in self.options else None)

    def holds(self) -> bool:
        """Whether the oracle finds nothing wrong; prints what it finds."""
        judgement = self.judged(self.run())
        if judgement.verdict.is_finding:
            print(f"{judgement} of {self.options} {list(self.q.shape)} {list(self.k.shape)} {self.dtype}")  # noqa: T201
        return not judgement.verdict.is_finding


def with_few_heads(**given: Any) -> Trial:
    """With one head on the CPU: heads are only an axis of the grid, which Triton's interpreter walks one by one."""
    heads = 1 if DEVICE == "cpu" else 2
    return Trial(heads, heads, **given)
