"""The error of a tensor, row by row, against the noise of eager in the same rows.

A row is the last dimension, such as a query of a head; a tensor of fewer than two dimensions is one row. For row r,
with all errors against float64:

    size_r  = largest magnitude of the row + TENSOR_SHARE * largest magnitude of the tensor
    noise_r = largest error of eager and its replicas
    ratio_r = error_r / (noise_r + u * size_r)

Runs that make other discrete choices (fuzz/check/judge/choices.py) do not count as noise. They show which elements
depend on a choice. The error of such an element is its distance from the values that it may have, whatever its row.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from fuzz.check.judge import constants
from fuzz.protocol import Verdict, WrongElements
from fuzz.protocol.failures import Failure, NotFinite, Value, WrongValue


class Envelope:
    """The float64 truth of a value, and the error that rounding allows in each row."""

    def __init__(
        self,
        eager: Tensor,
        exact: Tensor,
        replicas: list[Tensor],
        coarsest: torch.dtype,
        terms: float = 0.0,
        tolerance_factor: float = 1.0,
        chosen: Sequence[Tensor] = (),
    ) -> None:
        """`eager`, `exact`, `replicas` and `chosen` have one shape.

        coarsest: the least precise float dtype of the program
        terms: the magnitude of the terms behind a value that is 0 in truth
        tolerance_factor: multiplies the usual limit
        chosen: of right runs that make other discrete choices than eager
        """
        self.shape = eager.shape
        is_low = coarsest in constants.LOW_PRECISION_DTYPES
        self.limit = tolerance_factor * (constants.WRONG_LOW_PRECISION if is_low else constants.WRONG)
        self._suspicious_share = constants.suspicious_share(coarsest)
        self._exact = _widen(exact)
        # Each is widened when it is needed: together they would take most of a worker's memory.
        values = [as_rows(value.detach()) for value in (eager, *replicas)]
        # A value this close to overflow is not judged: right programs may overflow there.
        self._finite_limit = constants.finite_limit(eager.dtype)
        self._eager_finite = values[0].isfinite()
        within = self._exact.abs() < self._finite_limit
        finite = (value.isfinite() for value in (*values, *map(as_rows, chosen)))
        self._judged = functools.reduce(torch.logical_and, finite, within)
        self._all_judged = bool(self._judged.all())
        if not self._all_judged:
            # A mask's fill may lie beyond this dtype: a right program gives infinity or the dtype's extreme there.
            most = torch.finfo(eager.dtype).max
            clamped = self._exact.clamp(-most, most)
            steady = ((value.double() - clamped).abs() < most / 2 for value in values)
            self._fills = functools.reduce(torch.logical_and, steady, self._exact.isfinite() & ~within)
            self._exact = torch.where(self._fills, clamped, self._exact)
        self._choices: PossibleValues | None = None
        self._eager = self._errors(values[0].double())
        magnitude = self._exact.abs().masked_fill_(~self._judged, 0.0).amax(-1)
        self.scale = float(magnitude.max())
        unit = max(constants.UNIT_ROUNDOFF[coarsest], constants.UNIT_ROUNDOFF[eager.dtype])
        # A gradient that is 0 in truth holds the rounding of its terms.
        cancelled = terms if self.scale <= constants.CANCELLED * terms else 0.0
        self._size = magnitude + constants.TENSOR_SHARE * self.scale + cancelled
        self._floor = unit * self._size + torch.finfo(eager.dtype).smallest_normal
        errors = (self._errors(value.double()).amax(-1) for value in values[1:])
        self._noise = functools.reduce(torch.maximum, errors, self._eager.amax(-1))
        if chosen:
            self.allow(chosen)

    def allow(self, chosen: Sequence[Tensor]) -> "Envelope":
        """Let elements have the values of right runs that make other discrete choices."""
        allowed = (self._noise + self._floor).unsqueeze(-1).expand_as(self._exact)
        runs = [as_rows(value.detach()) for value in chosen]
        self._choices = find_possible_values(self._exact, runs, allowed, self._judged)
        return self

    def judge(
        self, name: Value, compiled: Tensor, wrong: Verdict = Verdict.WRONG_RESULT
    ) -> tuple[Verdict, Failure | None, dict[str, float]]:
        """The verdict on `compiled`, a tensor of the value's shape, the failure, and the numbers behind them.

        wrong: the verdict on an error beyond the limit
        """
        values = _widen(compiled)
        finite = values.isfinite()
        # If a replica is not finite, a missing number accuses nobody: one ulp decides whether there is a number.
        missing = self._judged & ~finite
        error = self._errors(values).masked_fill_(~finite, 0.0)
        per_row = error.amax(-1)
        ratios = per_row / (self._noise + self._floor)
        row = int(ratios.argmax())
        column = int(error[row].argmax())
        flat = row * error.shape[1] + column
        numbers = {
            "ratio": float(ratios[row]),
            "limit": self.limit,
            "compiled_error": float(per_row.max()),
            "eager_error": float(self._eager.max()),
            "scale": self.scale,
            "rows_wrong": float((ratios > self.limit).sum()),
            "rows_total": float(ratios.numel()),
            "index": float(flat),
        }
        error_here, eager_error = float(error[row, column]), float(self._eager[row, column])
        place, ratio = unravel(flat, self.shape), numbers["ratio"]
        off = WrongValue(name, place, error_here, ratio, self.limit, eager_error=eager_error)
        if missing.any():
            first = first_index(missing.reshape(self.shape))
            return Verdict.NONFINITE, NotFinite(name, int(missing.sum()), first), numbers
        if ratio > self.limit:
            return wrong, off, numbers
        if self._noise[row] > constants.ILL_CONDITIONED * self._size[row] or self.depends_on_choice(compiled):
            return Verdict.ILL_CONDITIONED, off, numbers
        if ((finite != self._eager_finite) & ~self._judged).any():
            return Verdict.CONVENTION, None, numbers
        is_closer = numbers["compiled_error"] <= numbers["eager_error"]
        return (Verdict.OK, None, numbers) if is_closer else (Verdict.ROUNDING, off, numbers)

    def find_wrong(self, compiled: Tensor) -> Tensor:
        """Mask of the elements of `compiled` that are wrongly not finite, or off by more than their row allows."""
        values = _widen(compiled)
        finite = values.isfinite()
        allowed = self.limit * (self._noise + self._floor)
        off = self._errors(values).masked_fill_(~finite, 0.0) > allowed.unsqueeze(-1)
        return (off | (self._judged & ~finite)).reshape(self.shape)

    def depends_on_choice(self, compiled: Tensor) -> bool:
        """Whether elements of `compiled` would be wrong if it had to make eager's discrete choices."""
        if self._choices is None:
            return False
        values = _widen(compiled)
        allowed = self.limit * (self._noise + self._floor).unsqueeze(-1)
        far = (values - self._exact).abs() > allowed
        return bool((far & self._choices.uncertain & values.isfinite()).any())

    def find_suspicious(self) -> Tensor:
        """Mask of the elements of eager that are wrongly not finite, or off by more than `suspicious_share` allows."""
        lost = ~self._eager_finite & (self._exact.abs() < self._finite_limit)
        far = self._eager > (self._suspicious_share * self._size + self._floor).unsqueeze(-1)
        return (lost | far).reshape(self.shape)

    def _errors(self, values: Tensor) -> Tensor:
        errors = (values - self._exact).abs_()
        if self._choices is not None:
            errors = self._choices.replace_errors(values, errors, self.limit)
        if self._all_judged:
            return errors
        is_other = self._fills & (errors > self._finite_limit / 2)
        return errors.masked_fill(~(self._judged | is_other), 0.0)


@dataclass(frozen=True)
class PossibleValues:
    """The values that elements may have which depend on a discrete choice.

    `uncertain` marks these elements in a tensor. The other fields have an entry for each.
    """

    uncertain: Tensor
    allowed: Tensor  # the error that rounding explains
    least: Tensor
    largest: Tensor
    known: Tensor  # whether so many runs gave either end of the range that it is no chance

    def replace_errors(self, values: Tensor, errors: Tensor, limit: float) -> Tensor:
        """`errors` with the distances of uncertain elements of `values` from the range of what these may be.

        If the range is not known, and most elements are within it, as far again counts as within.
        """
        given = values[self.uncertain]
        beyond = torch.maximum(self.least - given, given - self.largest).clamp(min=0.0)
        vague = ~self.known
        is_beyond = vague & (beyond > limit * self.allowed)
        if int(is_beyond.sum()) <= constants.BEYOND_SHARE * int(vague.sum()):
            beyond -= (self.largest - self.least) * vague
        errors = errors.clone()
        errors[self.uncertain] = beyond.clamp(min=0.0)
        return errors


def find_possible_values(
    exact: Tensor, runs: Sequence[Tensor], allowed: Tensor, judged: Tensor
) -> PossibleValues | None:
    """The values that elements may have; None if all runs agree.

    exact: float64
    runs: of the same shape
    allowed: the error that rounding explains, for each element
    judged: mask of the elements that are compared
    """
    least, largest = (
        functools.reduce(pick, (run.double() for run in runs), exact) for pick in (torch.minimum, torch.maximum)
    )
    uncertain = (largest - least > 2 * allowed) & judged
    if not uncertain.any():
        return None
    rounding, least, largest = allowed[uncertain], least[uncertain], largest[uncertain]
    at_least, at_largest = torch.zeros_like(rounding), torch.zeros_like(rounding)
    for run in (exact, *runs):
        given = run[uncertain].double()
        at_least += given - least <= 2 * rounding
        at_largest += largest - given <= 2 * rounding
    known = torch.minimum(at_least, at_largest) >= constants.END_SHARE * (len(runs) + 1)
    return PossibleValues(uncertain, rounding, least, largest, known)


def locate(value: Value, wrong: Tensor) -> WrongElements:
    ranges = tuple(_ranges(indices.unique().tolist()) for indices in torch.nonzero(wrong).unbind(-1))
    return WrongElements(value, tuple(wrong.shape), int(wrong.sum()), ranges)


def first_index(mask: Tensor) -> tuple[int, ...]:
    return tuple(torch.nonzero(mask)[0].tolist())


def unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(place) for place in torch.unravel_index(torch.tensor(flat), shape))


def _ranges(indices: list[int]) -> tuple[tuple[int, ...], ...]:
    runs = groupby(enumerate(indices), lambda numbered: numbered[1] - numbered[0])
    ranges = [[index for _, index in run] for _, run in runs]
    return tuple((one[0], one[-1]) for one in ranges[: constants.LONGEST_AXIS])


def largest_finite(value: Tensor) -> float:
    """The largest magnitude among the finite elements; 0 without any."""
    return float(value.abs().nan_to_num(0.0, 0.0, 0.0).max()) if value.numel() else 0.0


def as_rows(value: Tensor) -> Tensor:
    return value.reshape(-1, value.shape[-1]) if value.dim() > 1 else value.reshape(1, -1)


def _widen(value: Tensor) -> Tensor:
    return as_rows(value.detach().to(torch.float64))
