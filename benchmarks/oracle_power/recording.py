"""What an attention function is called with and gives while something else runs: the arguments, the output, the
gradients."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.oracle_power.problem import Outcome, Problem


@dataclass
class Recorder:
    """Calls `function` as it is called, and keeps copies of what goes in and comes out."""

    function: Callable[..., Tensor]
    _calls: list[tuple[dict[str, Any], dict[str, Tensor]]] = field(default_factory=list)

    def attention(self) -> Callable[..., Tensor]:
        """The attention function that records; it has the signature and capabilities of the one it calls."""

        @functools.wraps(self.function)
        def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
            seen: dict[str, Tensor] = {}
            given = {"q": q, "k": k, "v": v, **options}
            self._calls.append(({name: _copied(value) for name, value in given.items()}, seen))
            bias = options.get("bias")
            if isinstance(bias, Tensor):
                options["bias"] = _Tap.apply(bias, seen, "dbias")
            tapped = [_Tap.apply(x, seen, name) for x, name in ((q, "dq"), (k, "dk"), (v, "dv"))]
            out = self.function(*tapped, **options)
            seen["out"] = out.detach().clone()
            recorded: Tensor = _Tap.apply(out, seen, "dout")
            return recorded

        return attention

    def calls(self) -> list[tuple[Problem, Outcome]]:
        """The calls so far, each as a problem and what was given."""
        found = []
        for given, seen in self._calls:
            if "out" not in seen:
                continue
            q, k, v = (given[name].detach() for name in ("q", "k", "v"))
            options = {name: value for name, value in given.items() if name not in ("q", "k", "v")}
            outcome = {name: value for name, value in seen.items() if name != "dout"}
            found.append((Problem(q, k, v, options, seen.get("dout")), outcome))
        return found


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, seen: dict[str, Tensor], name: str) -> Tensor:
        ctx.seen, ctx.name = seen, name
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        ctx.seen[ctx.name] = gradients[0].clone()
        return gradients[0], None, None


def _copied(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad and value.is_floating_point())
