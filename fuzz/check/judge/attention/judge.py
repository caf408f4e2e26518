"""The verdict on a call of an attention function.

Every result is compared with float64 in units of its error bound (error_bound.py), which finds a large error in one
element. In low precision, simulated kernels on the same inputs (rounding_simulation.py) find a small error in all.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fuzz.check.judge import constants
from fuzz.check.judge.attention.error_bound import compute_error_bounds, ill_conditioned
from fuzz.check.judge.attention.rounding_simulation import SimulatedKernels, Statistics, Trends, measure
from fuzz.check.judge.row_error_bound import first_index, unravel
from fuzz.check.judge.verdict import conclude, pick_worst
from fuzz.check.run.attention.call import Call, Exact
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import EmptyRowsNotZero, NotFinite, Value, WrongValue

_OUT = Value.of_result("out")
_TRENDING = ("out", "dq", "dk", "dv")  # the results of simulated kernels
_FLOAT64 = constants.UNIT_ROUNDOFF[torch.float64] / constants.UNIT_ROUNDOFF[torch.float32]


def judge(call: Call, rounds: tuple[str, ...], dropped: Tensor | None = None) -> SubjectResult:
    """The verdict on `call`. `rounds`: as in `compute_error_bounds`; `dropped`: its dropout mask, True keeps.

    The numbers have no `eager_error`, but `peer_error`: the largest error of two simulated kernels.
    """
    if call.out is None:
        return conclude(Verdict.OK)
    if call.q.shape[:3].numel() * call.k.size(2) <= constants.SCORES_ON_CPU:
        call = call.on_cpu()
        dropped = dropped.cpu() if dropped is not None else None
    return _Judge(call, rounds, dropped).verdict()


@dataclass
class _Result:
    """A result of the call."""

    name: str
    value: Tensor
    exact: Tensor
    allowed: Tensor  # the error bound
    finite: Tensor  # elements that must be finite
    judged: Tensor  # elements whose error is judged

    def errors(self, value: Tensor) -> Tensor:
        """Signed errors in units of the error bound; 0 for elements that are not judged."""
        return ((value.double() - self.exact) / self.allowed).nan_to_num(0.0, 0.0, 0.0).masked_fill(~self.judged, 0.0)


class _Judge:
    def __init__(self, call: Call, rounds: tuple[str, ...], dropped: Tensor | None) -> None:
        self._call, self._rounds, self._dropped = call, rounds, dropped
        self._exact = Exact(call, dropped)
        self._low = call.q.dtype in constants.LOW_PRECISION_DTYPES
        self._limit = constants.ERROR_BOUNDS_LOW_PRECISION if self._low else constants.ERROR_BOUNDS
        self._simulated = SimulatedKernels(self._exact, rounds, call.options.get("sinks"))
        self._drawn: list[dict[str, Tensor]] = []
        self._ill_conditioned = ill_conditioned(self._exact, rounds)
        overflows = bool((self._exact.products.abs() > constants.LARGEST_SCORE).any())
        self._results = [] if overflows else self._make_results()

    def verdict(self) -> SubjectResult:
        judgements = [self._judge(result) for result in self._results if result.value.numel()]
        worst = pick_worst(judgements, _rank)
        worst = worst if worst.verdict.is_finding else self._check_empty_rows() or worst
        also = tuple(r.judged for r in judgements if r.judged and r.verdict.is_finding and r.judged != worst.judged)
        return replace(worst, failure=replace(worst.failure, also=also)) if worst.failure and also else worst

    def _check_empty_rows(self) -> SubjectResult | None:
        """The verdict on rows without a key that are neither 0 nor NaN. Both of these are accepted conventions."""
        assert self._call.out is not None
        wrong = ~self._exact.live & self._call.out.isfinite() & (self._call.out != 0)
        count = int(wrong.any(-1).sum())
        if not count:
            return None
        failure = EmptyRowsNotZero(_OUT, count, first_index(wrong))
        numbers = {"rows_wrong": float(count), "rows_total": float(self._exact.live.numel())}
        return conclude(Verdict.WRONG_RESULT, failure, numbers, _OUT, wrong=wrong)

    def _make_results(self) -> list[_Result]:
        call, exact = self._call, self._exact
        allowed, truth = compute_error_bounds(exact, self._rounds), dict(exact.results)
        assert call.out is not None
        results = call.results
        bias = call.options.get("bias")
        if "dbias" in results and bias is not None and "dscores" in truth:
            unit = constants.UNIT_ROUNDOFF[bias.dtype]
            truth["dbias"] = truth["dscores"].sum_to_size(bias.shape)
            rounded = constants.UNIT_ROUNDOFF[exact.dtype] * truth["dscores"].abs()
            least = torch.finfo(bias.dtype).smallest_normal * unit
            rounded = (allowed["dscores"] + rounded).sum_to_size(bias.shape)
            allowed["dbias"] = rounded + unit * truth["dbias"].abs() + least
        sinks = call.options.get("sinks")
        if "dsinks" in truth and sinks is not None:
            allowed["dsinks"] = allowed["dsinks"] + constants.UNIT_ROUNDOFF[sinks.dtype] * truth["dsinks"].abs()
        # The output of a row without a key is convention; if it is not 0, it changes gradients.
        live = exact.live.expand_as(truth["out"])
        given = results if bool((call.out == 0)[~live].all()) else {"out": call.out}
        laid_out = []
        for name in [name for name in given if name in truth]:
            value = given[name]
            limit = constants.finite_limit(value.dtype)
            finite = truth[name].abs().lt(limit) & (live if name == "out" else True)
            # A query with ill-conditioned weights changes dk and dv of every key.
            firm = ~self._ill_conditioned if name in ("out", "dq") else ~self._ill_conditioned.any()
            judged = finite & allowed[name].lt(limit) & firm
            laid_out.append(_Result(name, value, truth[name], allowed[name], finite, judged))
        return laid_out

    def _judge(self, result: _Result) -> SubjectResult:
        wrong = Verdict.WRONG_RESULT if result.name == "out" else Verdict.WRONG_GRADIENT
        missing = result.finite & ~result.value.isfinite()
        if bool(missing.any()):
            # If a right kernel overflows too, the overflow is no fault.
            for kernel in (kernel for kernel in self._draw(constants.SIMULATED_KERNELS) if result.name in kernel):
                missing &= kernel[result.name].isfinite()
        lost = int(missing.sum())
        r = result.errors(result.value)
        numbers, value = self._numbers(result, r), Value.of_result(result.name)
        if lost:
            failure = NotFinite(value, lost, first_index(missing))
            return conclude(Verdict.NONFINITE, failure, numbers, value, wrong=missing)
        if numbers["ratio"] > numbers["limit"]:
            index, missed, limit = (
                unravel(int(r.abs().argmax()), r.shape),
                result.name in self._call.missing,
                numbers["limit"],
            )
            error = abs(float(result.value[index]) - float(result.exact[index]))
            off = WrongValue(value, index, error, numbers["ratio"], limit, gradient_missing=missed)
            return conclude(wrong, off, numbers, value, wrong=r.abs() > limit)
        # A kernel that rounds scores may do so in places where no simulated kernel rounds, so trends are not compared.
        if self._low and "scores" not in self._rounds and result.name in _TRENDING and self._is_rounded(result, r):
            trends = self._trends(result, r)
            numbers |= trends.numbers
            if trends.failure is not None:
                return conclude(wrong, trends.failure, numbers, value, wrong=trends.rows(r))
        if not bool(result.judged.any()) and bool(result.finite.any()):
            return conclude(Verdict.ILL_CONDITIONED, None, numbers, value)
        right = numbers["compiled_error"] <= numbers["peer_error"]
        return conclude(Verdict.OK if right else Verdict.ROUNDING, None, numbers, value)

    def _is_rounded(self, result: _Result, r: Tensor) -> bool:
        """Whether an error exceeds those of right kernels that compute in float32 throughout."""
        return bool((r.abs() * result.allowed > constants.ERROR_BOUNDS * self._single[result.name]).any())

    def _trends(self, result: _Result, r: Tensor) -> Trends:
        # A truth within the error bound of float64 may be 0, and a result is no multiple of it.
        zero = constants.ERROR_BOUNDS * _FLOAT64 * self._single[result.name]
        along = {"bias": (result.exact, 1.0), "scale": (self._stretched[result.name] - result.exact, constants.STRETCH)}
        directions = {
            name: (change / step / result.allowed).masked_fill((change.abs() <= zero) | ~result.judged, 0.0).flatten()
            for name, (change, step) in along.items()
        }
        # The rounding error of subnormal numbers is not proportional to them.
        small = result.exact.abs() < constants.SMALLEST_TREND * torch.finfo(self._exact.dtype).smallest_normal
        mine = measure(r.masked_fill(small, 0.0), directions)

        def measure_all(kernels: list[dict[str, Tensor]]) -> list[Statistics]:
            errors = [result.errors(kernel[result.name]).masked_fill(small, 0.0) for kernel in kernels]
            return [measure(one, directions) for one in errors]

        # A bias or change of the scale below `least` is accepted.
        inaccurate = math.inf if "exponentials" in self._rounds else 0.0
        least = max(inaccurate, constants.TREND_SHARE * constants.UNIT_ROUNDOFF[self._exact.dtype])
        for count in (constants.SIMULATED_KERNELS, constants.SIMULATED_KERNELS_BEFORE_WRONG):
            kernels = measure_all(self._draw(count))
            trends = Trends(Value.of_result(result.name), mine, kernels, measure_all(self._systematic), least)
            if trends.failure is None:
                break
        return trends

    @cached_property
    def _stretched(self) -> dict[str, Tensor]:
        return Exact(self._call, self._dropped, stretch=1 + constants.STRETCH).results

    @cached_property
    def _systematic(self) -> list[dict[str, Tensor]]:
        return self._simulated.draw_systematic()

    @cached_property
    def _single(self) -> dict[str, Tensor]:
        return compute_error_bounds(self._exact, (), torch.float32)

    def _find_worst_simulated(self, result: _Result) -> float:
        """The largest error of simulated kernels, in units of the bound. With equal terms it can exceed the limit."""
        kernels = [*self._systematic, *self._draw(constants.SIMULATED_KERNELS_BEFORE_WRONG)] if self._low else []
        errors = [result.errors(kernel[result.name]) for kernel in kernels if result.name in kernel]
        return max((float(one.abs().max()) for one in errors), default=0.0)

    def _draw(self, count: int) -> list[dict[str, Tensor]]:
        while len(self._drawn) < count:
            self._drawn.append(self._simulated.draw())
        return self._drawn[:count]

    def _numbers(self, result: _Result, r: Tensor) -> dict[str, float]:
        per_row = r.abs().amax(-1)

        def error(value: Tensor) -> float:
            errors = (value.double() - result.exact).abs().nan_to_num(0.0, 0.0, 0.0)
            return float(errors.masked_fill(~result.judged, 0.0).max())

        limit = self._limit
        if float(per_row.max()) > limit:
            limit = max(limit, constants.SIMULATED_KERNELS_MARGIN * self._find_worst_simulated(result))
        kernels = [error(kernel[result.name]) for kernel in self._draw(2) if result.name in kernel]
        return {
            "ratio": float(per_row.max()),
            "limit": limit,
            "compiled_error": error(result.value),
            "peer_error": max(kernels, default=math.nan),
            "scale": float(result.exact.abs().masked_fill(~result.judged, 0.0).max()),
            "rows_wrong": float((per_row > limit).sum()),
            "rows_total": float(per_row.numel()),
            "index": float(r.abs().argmax()),
        }


def _rank(judgement: SubjectResult) -> tuple[int, bool, float, float]:
    """The order of results: the gravest verdict, then the output, then the smallest share of wrong rows."""
    numbers = judgement.numbers
    few = -numbers["rows_wrong"] / numbers["rows_total"] if numbers["rows_wrong"] else -2.0
    return judgement.verdict.severity, judgement.judged == _OUT, few, numbers["ratio"]
