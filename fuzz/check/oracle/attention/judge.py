"""From one call of an attention function to a verdict.

Every result is compared with float64 in units of its budget (error_bound.py) and, in low precision, with simulated
kernels on the same inputs (rounding_simulation.py). The budget shows what is wrong somewhere, the simulations what is
wrong a little everywhere.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fuzz.check.oracle import constants
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.error_bound import budget, ill_conditioned
from fuzz.check.oracle.attention.exact import Exact
from fuzz.check.oracle.attention.rounding_simulation import Peers, Statistics, Trends, measure
from fuzz.check.oracle.verdict import SEVERITY, Judgement, pick_worst
from fuzz.check.oracle.where import first_index, largest_index
from fuzz.protocol import Verdict
from fuzz.protocol.failures import EmptyRowsNotZero, Failure, IllConditioned, NotFinite, WrongValue


def judge(call: Call, rounds: tuple[str, ...], dropped: Tensor | None = None) -> Judgement:
    """The verdict on `call`, whose function rounds what `rounds` says (see `budget`). `dropped`: its dropout mask.

    numbers: see `Judgement`; peer_error is the largest error of a few right kernels in the place of eager's.
    """
    if call.out is None:
        return Judgement(Verdict.OK)
    return _Judge(call, rounds, dropped).verdict()


@dataclass
class _Result:
    """One result on the bench: the truth, its budget, and which elements are judged."""

    name: str
    value: Tensor
    exact: Tensor
    allowed: Tensor
    finite: Tensor
    judged: Tensor

    def errors(self, value: Tensor) -> Tensor:
        """Errors in units of the budget, signed, 0 where nothing is judged."""
        return ((value.double() - self.exact) / self.allowed).nan_to_num(0.0, 0.0, 0.0).masked_fill(~self.judged, 0.0)

    def judgement(
        self, verdict: Verdict, failure: Failure, numbers: dict[str, float], wrong: Tensor | None
    ) -> Judgement:
        """That the result is wrong; `wrong`: which elements, where that is known."""
        judgement = Judgement(verdict, failure, numbers, self.name)
        return judgement if wrong is None else judgement.locate(wrong, self.value, self.exact)


class _Judge:
    def __init__(self, call: Call, rounds: tuple[str, ...], dropped: Tensor | None) -> None:
        self._call, self._rounds, self._dropped = call, rounds, dropped
        self._exact = Exact(call, dropped)
        self._low = call.q.dtype in constants.LOW_PRECISION
        self._limit = constants.error_bound_limit(call.q.dtype)
        self._peers = Peers(self._exact, rounds, call.options.get("sinks"))
        self._drawn: list[dict[str, Tensor]] = []
        self._ill_conditioned = ill_conditioned(self._exact, rounds)
        overflows = bool((self._exact.products.abs() > constants.LARGEST_SCORE).any())
        self._results = [] if overflows else self._make_results()

    def verdict(self) -> Judgement:
        judgements = [self._judge(result) for result in self._results if result.value.numel()]
        return self._check_empty_rows() or pick_worst(judgements, _rank)

    def _check_empty_rows(self) -> Judgement | None:
        """That rows without a key give numbers: 0 and NaN are conventions there, and nothing else is."""
        assert self._call.out is not None
        wrong = ~self._exact.live & self._call.out.isfinite() & (self._call.out != 0)
        count = int(wrong.any(-1).sum())
        if not count:
            return None
        failure = EmptyRowsNotZero("out", count, first_index(wrong))
        numbers = {"rows_wrong": float(count), "rows_total": float(self._exact.live.numel())}
        out = self._call.out
        return Judgement(Verdict.WRONG_RESULT, failure, numbers, "out").locate(wrong, out, torch.zeros_like(out))

    def _make_results(self) -> list[_Result]:
        call, exact = self._call, self._exact
        allowed, truth = budget(exact, self._rounds), dict(exact.results)
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
        # What a row without a key gives is convention, and what is not 0 there goes into gradients.
        live = exact.live.expand_as(truth["out"])
        given = results if bool((call.out == 0)[~live].all()) else {"out": call.out}
        laid_out = []
        for name in [name for name in given if name in truth]:
            value = given[name]
            limit = constants.finite_limit(value.dtype)
            finite = truth[name].abs().lt(limit) & (live if name == "out" else True)
            # What a query with ill-conditioned weights gives goes into dk and dv of every key.
            firm = ~self._ill_conditioned if name in ("out", "dq") else ~self._ill_conditioned.any()
            judged = finite & allowed[name].lt(limit) & firm
            laid_out.append(_Result(name, value, truth[name], allowed[name], finite, judged))
        return laid_out

    def _judge(self, result: _Result) -> Judgement:
        wrong = Verdict.WRONG_RESULT if result.name == "out" else Verdict.WRONG_GRADIENT
        missing = result.finite & ~result.value.isfinite()
        if bool(missing.any()):
            # Where a right kernel overflows nobody is accused.
            for peer in (peer for peer in self._draw(constants.SIMULATED_KERNELS) if result.name in peer):
                missing &= peer[result.name].isfinite()
        lost = int(missing.sum())
        r = result.errors(result.value)
        numbers = self._numbers(result, r)
        if lost:
            failure = NotFinite(result.name, lost, first_index(missing))
            return result.judgement(Verdict.NONFINITE, failure, numbers, missing)
        if numbers["ratio"] > numbers["limit"]:
            index, missed, limit = largest_index(r.abs()), result.name in self._call.missing, numbers["limit"]
            error = abs(float(result.value[index]) - float(result.exact[index]))
            off = WrongValue(result.name, index, error, numbers["ratio"], limit, gradient_missing=missed)
            return result.judgement(wrong, off, numbers, r.abs() > limit)
        # Code that rounds scores may do so anywhere, and no peer does as it does.
        if self._low and "scores" not in self._rounds and result.name in ("out", "dq", "dk", "dv"):
            trends = self._trends(result, r)
            numbers |= trends.numbers
            if trends.failure is not None:
                return result.judgement(wrong, trends.failure, numbers, trends.rows(r))
        if not bool(result.judged.any()) and bool(result.finite.any()):
            return Judgement(Verdict.ILL_CONDITIONED, IllConditioned(result.name), numbers, result.name)
        right = numbers["compiled_error"] <= numbers["peer_error"]
        return Judgement(Verdict.OK if right else Verdict.ROUNDING, None, numbers, result.name)

    def _trends(self, result: _Result, r: Tensor) -> Trends:
        along = {"bias": result.exact, "scale": (self._stretched[result.name] - result.exact) / constants.STRETCH}
        directions = {
            name: (value / result.allowed).masked_fill(~result.judged, 0.0).flatten() for name, value in along.items()
        }
        # Numbers close to the smallest ones do not round in proportion.
        small = result.exact.abs() < constants.SMALLEST_TREND * torch.finfo(self._exact.dtype).smallest_normal
        mine = measure(r.masked_fill(small, 0.0), directions)

        def measure_peers(peers: list[dict[str, Tensor]]) -> list[Statistics]:
            errors = [result.errors(peer[result.name]).masked_fill(small, 0.0) for peer in peers]
            return [measure(one, directions) for one in errors]

        # A smaller bias or change of the scale is no mistake.
        inaccurate = math.inf if "exponentials" in self._rounds else 0.0
        least = max(inaccurate, constants.TREND_SHARE * constants.UNIT_ROUNDOFF[self._exact.dtype])
        for count in (constants.SIMULATED_KERNELS, constants.SIMULATED_KERNELS_BEFORE_WRONG):
            peers = measure_peers(self._draw(count))
            trends = Trends(result.name, mine, peers, measure_peers(self._online), least)
            if trends.failure is None:
                break
        return trends

    @cached_property
    def _stretched(self) -> dict[str, Tensor]:
        return Exact(self._call, self._dropped, stretch=1 + constants.STRETCH).results

    @cached_property
    def _online(self) -> list[dict[str, Tensor]]:
        return self._peers.online()

    def _worst_of_peers(self, result: _Result) -> float:
        """The largest error of right kernels in budgets: beyond the limit where terms are equal."""
        peers = [*self._online, *self._draw(constants.SIMULATED_KERNELS_BEFORE_WRONG)] if self._low else []
        errors = [result.errors(peer[result.name]) for peer in peers if result.name in peer]
        return max((float(one.abs().max()) for one in errors), default=0.0)

    def _draw(self, count: int) -> list[dict[str, Tensor]]:
        while len(self._drawn) < count:
            self._drawn.append(self._peers.draw())
        return self._drawn[:count]

    def _numbers(self, result: _Result, r: Tensor) -> dict[str, float]:
        per_row = r.abs().amax(-1)

        def error(value: Tensor) -> float:
            errors = (value.double() - result.exact).abs().nan_to_num(0.0, 0.0, 0.0)
            return float(errors.masked_fill(~result.judged, 0.0).max())

        limit = self._limit
        if float(per_row.max()) > limit:
            limit = max(limit, constants.SIMULATED_KERNELS_MARGIN * self._worst_of_peers(result))
        peers = [error(peer[result.name]) for peer in self._draw(2) if result.name in peer]
        return {
            "ratio": float(per_row.max()),
            "limit": limit,
            "compiled_error": error(result.value),
            "peer_error": max(peers, default=math.nan),
            "scale": float(result.exact.abs().masked_fill(~result.judged, 0.0).max()),
            "rows_wrong": float((per_row > limit).sum()),
            "rows_total": float(per_row.numel()),
            "index": float(r.abs().argmax()),
        }


def _rank(judgement: Judgement) -> tuple[int, bool, float, float]:
    """The order in which results speak for a call: the gravest, the output, the one with the fewest wrong rows."""
    numbers = judgement.numbers
    few = -numbers["rows_wrong"] / numbers["rows_total"] if numbers["rows_wrong"] else -2.0
    return SEVERITY.index(judgement.verdict), judgement.value == "out", few, numbers["ratio"]
