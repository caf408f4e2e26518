"""Whether eager is at fault.

Rounding, overflow and rows without a key explain most differences of eager from float64. Eager is at fault if one of
its operations is wrong by itself (operation_audit.py), and eager is right once that result is replaced.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fuzz.check.oracle.operation_audit import Audit
from fuzz.check.oracle.row_error_bound import Envelope, as_rows, largest_finite
from fuzz.check.oracle.verdict import Judgement, largest_gradient
from fuzz.check.program import Execution
from fuzz.protocol import Verdict
from fuzz.protocol.failures import FaultyOperation, Value


@dataclass(frozen=True, eq=False)
class EagerAudit:
    """The evidence against eager in one case."""

    eager: Execution
    exact: Execution
    run_audited: Callable[[Audit], Execution]  # runs eager within a mode
    coarsest: torch.dtype  # the least precise float dtype of the case

    @cached_property
    def judgement(self) -> Judgement | None:
        """The verdict that eager is wrong, or None without proof. A subject that calls the same kernel may agree."""
        faulty, marked = self._proof
        if faulty is None:
            return None
        name, wrong = next(iter(marked.items()))
        truth = self._truth(name)
        # It is infinite where eager is not finite.
        error = float((self.eager.values[name].double() - truth).abs().nan_to_num(math.inf)[wrong].max())
        numbers = {
            "eager_error": error,
            "scale": largest_finite(truth),
            "rows_wrong": float(sum(int(as_rows(found).any(-1).sum()) for found in marked.values())),
            "rows_total": float(sum(as_rows(eager).shape[0] for eager in self._floating.values())),
        }
        failure = replace(faulty, value=name, error=error)
        return Judgement(Verdict.EAGER_SUSPECT, failure, numbers, name).locate(wrong)

    @cached_property
    def _proof(self) -> tuple[FaultyOperation | None, dict[Value, Tensor]]:
        """The faulty operation, and by name the elements of eager's values that are wrong because of it."""
        suspicious = _keep_marked({name: self._find_suspicious(name, value) for name, value in self._floating.items()})
        if not suspicious:
            return None, {}
        audit = Audit()
        values = self.run_audited(audit).values
        wrong = _keep_marked(
            {
                name: found & ~self._find_suspicious(name, values[name])
                for name, found in suspicious.items()
                if name in values and values[name].shape == found.shape
            }
        )
        return (audit.faulty, wrong) if wrong else (None, {})

    @cached_property
    def _floating(self) -> dict[Value, Tensor]:
        """Eager's floating-point values that are not empty."""
        return {name: v for name, v in self.eager.values.items() if v.is_floating_point() and v.numel()}

    def _find_suspicious(self, name: Value, value: Tensor) -> Tensor:
        terms = largest_gradient(self.exact) if name.is_gradient else 0.0
        return Envelope(value, self._truth(name), [], self.coarsest, terms).find_suspicious()

    def _truth(self, name: Value) -> Tensor:
        value = self.eager.values[name]
        return self.exact.values.get(name, torch.zeros_like(value, dtype=torch.float64))


def _keep_marked(masks: dict[Value, Tensor]) -> dict[Value, Tensor]:
    return {name: mask for name, mask in masks.items() if mask.any()}
