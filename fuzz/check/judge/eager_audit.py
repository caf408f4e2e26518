"""Whether eager is at fault.

Rounding, overflow and rows without a key explain most differences of eager from float64. Eager is at fault if one of
its operations is wrong by itself, and eager is right once that result is replaced.

Every aten operation, also of backward, runs again in float64 on the arguments it got. Its tolerance is measured: the
operation runs with each element of its arguments moved by up to one ulp of its dtype. If PyTorch can decompose the
operation, each intermediate result moves too. Cancellation thus widens the tolerance. Not audited are operations that
draw random numbers, views, uninitialised memory, and operations without a float64 kernel.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from fuzz.check.judge import constants
from fuzz.check.judge.open_orders import AnotherOrder
from fuzz.check.judge.operations import (
    FILL,
    RANDOM,
    SCATTERING,
    UNWRITTEN,
    OperationMode,
    decompose_fused,
    is_exact,
    is_floating,
    is_fused,
    to_float64,
)
from fuzz.check.judge.row_error_bound import Envelope, as_rows, largest_finite
from fuzz.check.judge.verdict import conclude, largest_gradient
from fuzz.check.run.program import Execution
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import FaultyOperation, Value

Float64Counterpart = Callable[..., Any]
"""The float64 counterpart of an operation."""


class Audit(OperationMode):
    """A mode below autograd that notes the first wrong operation, as `faulty`.

    Wrong elements are replaced by float64's, so that the run goes on as if the operation were right.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faulty: FaultyOperation | None = None
        self._chance = torch.Generator().manual_seed(0)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        exactly = _find_float64(func)
        if exactly is None:
            return func(*args, **kwargs)
        taken: Any = (args, kwargs)
        if func._schema.is_mutable:
            taken = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, taken)
        result = func(*args, **kwargs)
        self.compare(func, exactly, taken, result)
        return result

    def compare(self, func: OpOverload, exactly: Float64Counterpart, taken: Any, result: Any) -> None:
        """Note `func` if `result` is wrong for what it took, (args, kwargs). `exactly`: as in `Float64Counterpart`."""
        values = tree_leaves(result)
        given = [leaf for leaf in tree_leaves(taken) if is_floating(leaf)]
        judged = {index: value for index, value in enumerate(values) if is_floating(value) and value.numel()}
        if not judged or any(leaf.dtype not in constants.UNIT_ROUNDOFF for leaf in (*given, *judged.values())):
            return  # a dtype of 8 bits
        try:
            replay = _Float64Replay(func, exactly, taken, self._chance)
        except (RuntimeError, ValueError, TypeError):  # the operation has no float64 kernel
            return
        name = f"{func.namespace}.{func.overloadpacket.__name__}"
        for index, value in judged.items():
            # A kernel may return more results than its definition.
            if index < len(replay.exact) and _shape(replay.exact[index]) == value.shape:
                known = replay.envelope(index, value, tolerance_factor=math.sqrt(_count_terms(name, value, given)))
                wrong = known.find_wrong(value)
                if wrong.any():
                    wrong &= replay.differs_in_any_order(index, value, known)
                if any(largest_finite(leaf) > constants.NO_OVERFLOW_WITHIN for leaf in given):
                    wrong &= value.isfinite()
                if name.removeprefix("aten.") in SCATTERING:
                    wrong &= value.isfinite() | (replay.sum_magnitudes(index) <= torch.finfo(value.dtype).max)
                # Later steps make a finite number of an overflow: a kernel that divides by inf gives 0.
                if wrong.any() and replay.largest <= torch.finfo(torch.float32).max:
                    self._replace(name, value, replay.exact[index], wrong)

    def _replace(self, name: str, value: Tensor, truth: Tensor, wrong: Tensor) -> None:
        if self.faulty is None:
            error = (value.double() - truth).abs().nan_to_num(math.inf).masked_fill(~wrong, -1.0)
            worst = int(error.argmax())
            self.faulty = FaultyOperation(name, float(value.flatten()[worst]), float(truth.flatten()[worst]))
        value.copy_(torch.where(wrong, truth.to(value.dtype), value))


def _find_float64(func: Any) -> Float64Counterpart | None:
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func.is_view:
        return None
    name = func.overloadpacket.__name__
    if is_fused(func):
        return decompose_fused(func)
    if name in RANDOM or name in UNWRITTEN or torch.Tag.nondeterministic_seeded in func.tags:
        return None
    if name in ("_softmax", "_log_softmax"):
        return lambda values, dim, _half_to_float: func(values, dim, False)
    return func


class _Float64Replay:
    """An operation in float64; `exact` are the leaves of its result. Raises the operation's exceptions."""

    def __init__(self, func: OpOverload, exactly: Float64Counterpart, taken: Any, chance: torch.Generator) -> None:
        self._exactly, self._taken, self._chance = exactly, taken, chance
        self._in_steps = None if func._schema.is_mutable else decomposition_table.get(func)
        dtypes = [leaf.dtype for leaf in tree_leaves(taken) if is_floating(leaf)]
        self._coarsest = constants.coarsest(torch.float64, *dtypes)
        args, kwargs = tree_map(to_float64, taken)
        self.exact = tree_leaves(exactly(*args, **kwargs))
        self.largest = 0.0  # the largest finite number of any step
        self._replicas = [self._replica() for _ in range(constants.REPLICAS)]

    def envelope(self, index: int, value: Tensor, tolerance_factor: float) -> Envelope:
        """The envelope of a result. Takes more replicas if `value` is outside it."""
        exact, coarsest = self.exact[index], constants.coarsest(self._coarsest, value.dtype)
        while True:
            replicas = [replica[index] for replica in self._replicas]
            known = Envelope(exact.to(value.dtype), exact, replicas, coarsest, tolerance_factor=tolerance_factor)
            more = constants.REPLICAS_BEFORE_WRONG - len(replicas)
            if more <= 0 or not known.find_wrong(value).any():
                return known
            self._replicas += [self._replica() for _ in range(more)]

    def differs_in_any_order(self, index: int, value: Tensor, known: Envelope) -> Tensor:
        """Mask of the elements that are wrong in every order that the documentation leaves open."""
        runs: list[Tensor] = []
        for number in range(constants.ORDERS_BEFORE_WRONG):
            order = AnotherOrder(number)
            args, kwargs = tree_map(to_float64, self._taken)
            with order:
                runs.append(tree_leaves(self._exactly(*args, **kwargs))[index])
            if not order.met:
                return torch.ones_like(value, dtype=torch.bool)
        return known.allow(runs).find_wrong(value)

    def sum_magnitudes(self, index: int) -> Tensor:
        """A sum's terms without their signs: no partial sum is larger."""
        args, kwargs = tree_map(lambda value: to_float64(value).abs() if is_floating(value) else value, self._taken)
        found: Tensor = tree_leaves(self._exactly(*args, **kwargs))[index]
        return found

    def _replica(self) -> list[Any]:
        if self._in_steps is not None:
            try:
                found = self._perturb(self._in_steps)
            except (RuntimeError, ValueError, TypeError, AssertionError):  # not for these arguments
                found = []
            if [_shape(leaf) for leaf in found] == [_shape(leaf) for leaf in self.exact]:
                return found
            self._in_steps = None
        return self._perturb(self._exactly)

    def _perturb(self, call: Float64Counterpart) -> list[Any]:
        args, kwargs = tree_map(
            lambda value: (
                _perturb(to_float64(value), torch.finfo(value.dtype).eps, self._chance)
                if is_floating(value)
                else to_float64(value)
            ),
            self._taken,
        )
        with _PerturbationMode(torch.finfo(self._coarsest).eps, self._chance) as mode:
            found = tree_leaves(call(*args, **kwargs))
        self.largest = max(self.largest, mode.largest)
        return found


class _PerturbationMode(OperationMode):
    """Moves every float64 result by up to the relative amount `ulp`."""

    def __init__(self, ulp: float, chance: torch.Generator) -> None:
        super().__init__()
        self._ulp, self._chance = ulp, chance
        self.largest = 0.0

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func.is_view or is_exact(func, args, kwargs):
            return result
        for leaf in tree_leaves(result):
            if is_floating(leaf) and leaf.dtype == torch.float64:
                self.largest = max(self.largest, largest_finite(leaf))
                leaf.copy_(_perturb(leaf, self._ulp, self._chance))
        return result


def _perturb(value: Tensor, ulp: float, chance: torch.Generator) -> Tensor:
    # The amount is random: by exactly one ulp, terms that cancel would often move together. A factor keeps 0 and inf.
    moves = torch.rand(value.shape, generator=chance, dtype=torch.float64).mul_(2).sub_(1)
    moved = value * (1 + moves.to(value.device) * ulp)
    return torch.where(value.abs() >= FILL, value, moved)  # a row of equal fills would keep one key of its own


def _count_terms(name: str, value: Tensor, given: list[Tensor]) -> float:
    """About how many elements a kernel adds up into an element of the result, rounding each sum to its dtype.

    The rounding error of such a sum is larger than moving each element by an ulp shows. The ratio is the square root of
    their number.
    """
    count = value.size(-1) if value.dim() and name.removeprefix("aten.") in SCATTERING else value.numel()
    return max(1.0, *(leaf.numel() / count for leaf in given)) if given else 1.0


def _shape(value: Any) -> torch.Size | None:
    return value.shape if is_floating(value) else None


def audit_eager(
    eager: Execution, exact: Execution, run_audited: Callable[[Audit], Execution], coarsest: torch.dtype
) -> SubjectResult | None:
    """The verdict `eager_suspect`, or None without proof. A subject that agrees may call the same wrong kernel.

    run_audited: runs eager within a mode
    coarsest: the least precise float dtype of the case
    """
    floating = {name: value for name, value in eager.values.items() if value.is_floating_point() and value.numel()}
    truth = {
        name: exact.values.get(name, torch.zeros_like(value, dtype=torch.float64)) for name, value in floating.items()
    }

    def find_suspicious(name: Value, value: Tensor) -> Tensor:
        terms = largest_gradient(exact) if name.is_gradient else 0.0
        return Envelope(value, truth[name], [], coarsest, terms).find_suspicious()

    suspicious = _keep_marked({name: find_suspicious(name, value) for name, value in floating.items()})
    if not suspicious:
        return None
    audit = Audit()
    values = run_audited(audit).values
    marked = _keep_marked(
        {
            name: found & ~find_suspicious(name, values[name])
            for name, found in suspicious.items()
            if name in values and values[name].shape == found.shape
        }
    )
    if not marked or audit.faulty is None:
        return None
    name, wrong = next(iter(marked.items()))
    # The error is infinite if eager is not finite.
    error = float((eager.values[name].double() - truth[name]).abs().nan_to_num(math.inf)[wrong].max())
    numbers = {
        "eager_error": error,
        "scale": largest_finite(truth[name]),
        "rows_wrong": float(sum(int(as_rows(found).any(-1).sum()) for found in marked.values())),
        "rows_total": float(sum(as_rows(value).shape[0] for value in floating.values())),
    }
    failure = replace(audit.faulty, value=name, error=error)
    return conclude(Verdict.EAGER_SUSPECT, failure, numbers, name, wrong=wrong)


def _keep_marked(masks: dict[Value, Tensor]) -> dict[Value, Tensor]:
    return {name: mask for name, mask in masks.items() if mask.any()}
