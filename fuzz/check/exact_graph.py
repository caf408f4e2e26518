"""Graphs of torch.fx, evaluated in float64 on the operands of a case."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from fuzz.check.oracle.constants import REWRITE_AGREEMENT, REWRITE_AGREEMENT_ROUNDOFFS, UNIT_ROUNDOFF
from fuzz.check.oracle.operations import decompose_fused, is_fused, to_float64
from fuzz.check.oracle.reference import Float64
from fuzz.experiments import Outcome

_UNREAD_RESULTS = 12
"""At most so many results of a fused call follow those of its definition: statistics and random states, never read."""


class Float64Interpreter(fx.Interpreter):
    """Runs fused calls by their definition. For use within `Float64`."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See the class."""
        if isinstance(target, OpOverload) and is_fused(target):
            return (*decompose_fused(target)(*args, **kwargs), *[None] * _UNREAD_RESULTS)
        if target is torch.ops.prims.convert_element_type.default and args[1].is_floating_point:
            args = (args[0], torch.float64)
        return super().call_function(target, args, kwargs)


def name_operation(node: fx.Node) -> str:
    """The operation of a node without its overload, such as aten.mul."""
    return str(getattr(node.target, "overloadpacket", None) or getattr(node.target, "__name__", node.target))


def tolerance_of(operands: Iterable[Any]) -> float:
    """The largest relative difference that counts as equal: a program rounds constants to the dtype of its tensors."""
    units = [UNIT_ROUNDOFF.get(value.dtype, 0.0) for value in operands if isinstance(value, Tensor)]
    return max(REWRITE_AGREEMENT, REWRITE_AGREEMENT_ROUNDOFFS * max(units, default=0.0))


def measure_difference(before: Tensor, after: Tensor) -> float | None:
    """The largest difference where `before` is finite, relative to its largest element.

    Infinite if the shapes differ or `after` is not finite there; None if `before` is finite nowhere.
    """
    if before.shape != after.shape:
        return torch.inf
    known = before.isfinite()
    if not bool(known.any()):
        return None
    before, after = before.double()[known], after.double()[known]
    error, size = float((before - after).abs().nan_to_num(torch.inf).max()), float(before.abs().max())
    return error / size if size else torch.inf if error else 0.0


def read_outputs(graph: fx.GraphModule) -> list[Any]:
    """The values that a graph returns."""
    found = next(node for node in reversed(graph.graph.nodes) if node.op == "output").args[0]
    return list(found) if isinstance(found, (list, tuple)) else [found]


def read_inputs(inputs: Iterable[Any]) -> list[Any]:
    """Inputs of a graph, detached; the number behind each symbolic size."""
    plain = (value.node.hint if isinstance(value, torch.SymInt) else value for value in inputs)
    return [value.detach() if isinstance(value, Tensor) else value for value in plain]


Run = Callable[[dict[str, Any], type[fx.Interpreter]], list[Tensor]]


def compare_exactly(program: Run, rewrite: Run, operands: dict[str, Any]) -> Outcome:
    """Whether both are close wherever `program` is finite. If it is finite nowhere, or either does not run, the
    experiment does not apply."""
    exact = {name: to_float64(value) for name, value in operands.items()}
    try:
        with Float64(), torch.no_grad():
            before, after = program(exact, Float64Interpreter), rewrite(exact, Float64Interpreter)
    except Exception:
        # A changed operand that torch refuses tells nothing of the rewrite.
        return Outcome.DOES_NOT_APPLY
    limit = tolerance_of(operands.values())
    found = [measure_difference(mine, theirs) for mine, theirs in zip(before, after, strict=True)]
    if any(error is not None and error > limit for error in found):
        return Outcome.FAILS_ALIKE
    return Outcome.DOES_NOT_APPLY if found.count(None) == len(found) else Outcome.PASSES
