"""Metamorphic relations of an attention function's output: an oracle that needs no second implementation.

A relation (relation_table.py) changes a call so that what must come out follows from what came out. A mistake that
eager, the reference and a kernel share is not hidden from it: a head mapping, an offset, an order of steps.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from fuzz.check.exceptions import Unsupported
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.error_bound import compute_error_bounds
from fuzz.check.oracle.attention.exact import Exact
from fuzz.check.oracle.attention.relation_table import RELATIONS, Equation
from fuzz.check.oracle.constants import LARGEST_RELATED, MOST_SCORES, SMALLEST_RELATED, UNIT_ROUNDOFF, error_bound_limit
from fuzz.check.oracle.where import largest_index
from fuzz.protocol.failures import RelationBroken

Function = Callable[..., Tensor]

_RECOMPILED = 0.1
"""The share of cases in which natively a relation counts that takes another compiled kernel, a second or more each."""


def find_violations(attend: Function, given: Call, chance: Random, most: int) -> list[RelationBroken]:
    """Which of up to `most` relations of a call, drawn by `chance` from those that apply, the function breaks.

    `attend(q, k, v, **options)` gives the output of docs/kernels.md. A call that it refuses (`Unsupported`) is skipped;
    any other exception is raised. Both sides may differ by the sum of their error bounds. Nothing is found for calls
    with dropout, numbers that are not finite or scores beyond float32, nor in rows that keep no key.
    """
    call = given.replace()
    if not _is_tame(call):
        return []
    call.options.pop("dropout", None)
    found: list[RelationBroken] = []
    trial = _Trial(attend, call)
    tried = 0
    for name in chance.sample([*RELATIONS], len(RELATIONS)):
        if tried == most:
            break
        equation = RELATIONS[name](call, chance)
        if equation is None or (_is_recompiled(equation, call) and chance.random() > _RECOMPILED):
            continue
        try:
            wrong = trial.check(equation)
        except Unsupported:
            continue
        tried += 1
        if wrong is not None:
            found.append(replace(wrong, relation=name))
    return found


def _is_recompiled(equation: Equation, call: Call) -> bool:
    asked = [(one.options.keys(), one.q.shape[3], one.v.shape[3]) for one in (call, equation.changed, equation.call)]
    return call.q.is_cuda and asked != asked[:1] * 3


class _Trial:
    """A function and what it gave for a call and its changes."""

    def __init__(self, attend: Function, call: Call) -> None:
        self._attend = attend
        self._call = call
        self._outputs: dict[Call, Tensor] = {}
        self._bounds: dict[Call, Tensor] = {}
        #: Whether a function that computes scores in the dtype of q may have infinite ones.
        self._may_overflow = _largest_score(call) > torch.finfo(call.q.dtype).max / 2

    def check(self, equation: Equation) -> RelationBroken | None:
        """How the equation does not hold; None where it does."""
        calls = (equation.changed, equation.call)
        left, right = self._output(equation.changed), equation.map(self._output(equation.call))
        empty = _mark_empty_rows(equation.changed) + equation.map(_mark_empty_rows(equation.call)) > 0
        tiny = SMALLEST_RELATED * torch.finfo(self._call.q.dtype).smallest_normal
        same = (left == right) | (left.isnan() & right.isnan()) | empty | ((left.abs() < tiny) & (right.abs() < tiny))
        if same.all():
            return None
        unlike = ~(left.isfinite() & right.isfinite() | same)
        if unlike.any() and not self._may_overflow and not empty.any():
            return _violation("not_finite", left, right, unlike.double())
        same |= unlike
        error = (left - right).abs().masked_fill(same, 0.0)
        if not error.any():
            return None
        if any(math.prod(call.q.shape[:3]) * call.k.shape[2] > MOST_SCORES for call in calls):
            return None
        allowed = self._bound(equation.changed) + equation.map(self._bound(equation.call))
        limit = error_bound_limit(self._call.q.dtype)
        ratio = (error / allowed).nan_to_num(0.0, posinf=0.0)
        worst = float(ratio.max())
        if worst <= limit:
            return None
        return _violation("rounding", left, right, ratio.where(ratio > limit, 0.0), ratio=worst, limit=limit)

    def _output(self, call: Call) -> Tensor:
        if call not in self._outputs:
            with torch.no_grad():
                self._outputs[call] = call.run(self._attend).double()
        return self._outputs[call]

    def _bound(self, call: Call) -> Tensor:
        if call not in self._bounds:
            # Weights and sums of equal terms round alike, step by step; the bound counts one rounding of their sum.
            largest = call.v.double().abs().amax(2, keepdim=True).repeat_interleave(call.group, 1)
            summing = math.sqrt(call.k.shape[2]) * UNIT_ROUNDOFF[torch.float32] * largest
            self._bounds[call] = compute_error_bounds(Exact(call), ("weights", "scores"))["out"] + summing
        return self._bounds[call]


def _violation(
    aspect: str, left: Tensor, right: Tensor, blame: Tensor, ratio: float = 0.0, limit: float = 0.0
) -> RelationBroken:
    at = largest_index(blame)
    broken = RelationBroken("", aspect, count=int((blame > 0).sum()), total=blame.numel(), index=at)
    return replace(broken, left=float(left[at]), right=float(right[at]), ratio=ratio, limit=limit)


def _mark_empty_rows(call: Call) -> Tensor:
    """1 where a row keeps no key, else 0, in the shape of the output."""
    mask, bias = call.combine_masks(), call.combine_biases()
    shape = (*call.q.shape[:3], call.k.shape[2])
    keep = torch.ones(shape, dtype=torch.bool, device=call.q.device)
    keep = keep if mask is None else keep & mask
    keep = keep if bias is None else keep & (bias != -math.inf)
    return (~keep.any(-1, keepdim=True)).double().expand(*shape[:3], call.v.shape[3])


def _is_tame(call: Call) -> bool:
    """Whether relations can be judged: finite numbers, scores far below the largest float32, no dropout."""
    options = call.options
    if not (call.q.numel() and call.k.numel() and call.v.numel()) or (options.get("dropout") or (0.0,))[0]:
        return False
    given = [call.q, call.k, call.v, *(x for name in ("alibi", "sinks") if (x := options.get(name)) is not None)]
    bias = options.get("bias")
    if bias is not None:
        given.append(bias.masked_fill(bias == -math.inf, 0.0))
    if not (math.isfinite(options["scale"]) and all(bool(x.isfinite().all()) for x in given)):
        return False
    return _largest_score(call) < LARGEST_RELATED


def _largest_score(call: Call) -> float:
    largest = [float(x.double().abs().max()) for x in (call.q, call.k)]
    return max(1.0, abs(call.options["scale"])) * largest[0] * largest[1] * call.q.shape[3]
