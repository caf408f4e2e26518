"""Whether compiled dropout, whose random numbers differ from eager's, has eager's distribution: runs with many seeds.

Eager and compiled code run with different seeds. For pair i of n, d_i = statistic(compiled_i) - statistic(eager_i) are
independent. If both sides have one distribution, d_i is as likely positive as negative. S = sum d / sqrt(sum d^2) then
has P(S > x) <= exp(-x^2 / 2) for any distribution (Efron, JASA 64, 1969). So outliers raise no false alarm.
x_e is element e of a value, m_e and v_e its mean and variance over all 2 n runs. g is the whole tensor, a slice along
an axis, a head of a batch, or a row:

    mean      sum_(e in g) sign(m_e) (x_e - m_e) / sqrt(v_e)
    variance  sum_(e in g) (x_e - m_e)^2 / v_e
    nonfinite 1 if an element of the tensor is NaN or infinite
    slope     r^2 / (r^2 + SHARE V) if it exceeds 1/2, else 0, with r = <cotangent, y(x+) - y(x-)> - <gradient, x+ - x->

The slope measures each run by itself: with one seed, gradients predict how outputs change when inputs move a little,
unless backward uses another mask than forward. V is the variance of the prediction.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuzz.check.judge import constants
from fuzz.check.judge.row_error_bound import unravel
from fuzz.check.run.program import Execution, Tensors, same_numbers
from fuzz.protocol.failures import Value

#: Runs the case with a seed, on inputs, with gradients or without.
Run = Callable[[int, list[Any], bool], Execution]

#: For each run: the difference of outputs, the prediction of gradients, and the size of the terms of the prediction.
Slopes = list[tuple[float, float, float]]

MEAN, VARIANCE, SLOPE, NONFINITE = "mean", "variance", "slope", "nonfinite"
_LEAST = {MEAN: constants.DROPOUT_MEAN, VARIANCE: constants.DROPOUT_VARIANCE}


@dataclass(frozen=True)
class Difference:
    """A statistic of a group of elements."""

    value: Value | None  # None for the slope
    kind: str
    part: str  # the group as an index; "" for the whole tensor
    s: float  # the signed S of `seeds` pairs
    effect: float
    """- mean, variance: compiled over eager's
    - slope: the share of seeds that miss it
    - nonfinite: the share of seeds with NaN or infinity
    """
    seeds: int

    @property
    def excess(self) -> float:
        """|S| over its limit for `seeds`; 0 if the effect is too small to matter."""
        if self.kind == SLOPE:
            matters = self.s > 0 and self.effect > constants.DROPOUT_SLOPE
        elif self.kind == NONFINITE:
            matters = self.s > 0
        else:
            matters = abs(self.effect - 1) > _LEAST[self.kind]
        limits = constants.DROPOUT_PARTS if self.part else constants.DROPOUT_WHOLE
        return abs(self.s) / limits[self.seeds] if matters else 0.0

    @property
    def errors(self) -> float:
        """The mean difference in units of its standard error."""
        left = self.seeds - self.s**2
        return math.inf if left <= 0 else abs(self.s) * math.sqrt(self.seeds / left)

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Suspicious differences come first, then differences of outputs, then larger differences."""
        suspicious = self.excess > 1
        return suspicious, suspicious and self.is_of_output, self.excess

    @property
    def is_of_output(self) -> bool:
        return self.value is not None and not self.value.is_gradient


class Comparison:
    """Compares eager and compiled runs of a case over an increasing number of seeds.

    first_eager, first_compiled: runs with seed 0
    inputs: returns fresh inputs
    coarsest: the least precise float dtype of the case
    """

    def __init__(
        self,
        eager: Run,
        compiled: Run,
        first_eager: Execution,
        first_compiled: Execution,
        inputs: Callable[[], list[Any]],
        coarsest: torch.dtype,
    ) -> None:
        self._inputs = Inputs(inputs, changed=bool(first_eager.mutated))
        self._unit = constants.UNIT_ROUNDOFF[coarsest]
        values = {**first_compiled.values, **first_eager.values}
        self._likes = {name: torch.zeros_like(value) for name, value in values.items()}
        self._eager = Sample(eager, 0, self._likes, first_eager)
        self._compiled = Sample(compiled, constants.DROPOUT_APART, self._likes, first_compiled)
        self._started = time.process_time()

    def find_difference(self, noisy: Callable[[int], Run]) -> Difference | None:
        """The difference of highest rank, unless chance or rounding explains it.

        `noisy(number)` runs eager under noise, which shows the effect of rounding. Raises exceptions of the runs.
        """
        for seeds in constants.DROPOUT_SEEDS:
            if not self.run_seeds(seeds):
                return None
            found = _compare_samples(self._eager, self._compiled, self._unit)
            worst = dict[Value | None, Difference]()  # by value: one may differ by rounding, and another may be wrong
            for difference in sorted(found, key=lambda difference: difference.rank, reverse=True):
                if difference.excess > 1:
                    worst.setdefault(difference.value, difference)
            if not worst:
                return None
        return next((one for one in worst.values() if not self._is_rounding(one, noisy)), None)

    def run_seeds(self, seeds: int) -> bool:
        """Run both until there are `seeds` pairs. False if that would take too long."""
        spent, taken = time.process_time() - self._started, self._eager.count
        if taken and spent / taken * seeds > constants.DROPOUT_SECONDS:
            return False
        for sample in (self._eager, self._compiled):
            sample.run_seeds(seeds, self._inputs)
        return True

    def merge_constant(self, eager: Execution, compiled: Execution) -> Execution | None:
        """`compiled`, with eager's elements where the seed changes either. None if the result is equal to eager."""
        made = compiled.merge(eager, lambda name, _: self._eager.constant[name] & self._compiled.constant[name])
        expected = eager.values
        equal = all(same_numbers(value, expected.get(name, self._likes[name])) for name, value in made.values.items())
        return None if equal else made

    def _is_rounding(self, found: Difference, noisy: Callable[[int], Run]) -> bool:
        likes = {found.value: self._likes[found.value]} if found.value else self._likes
        if found.value is not None:
            noise = Sample(noisy(0), 0, likes)  # with eager's seeds
            noise.run_seeds(constants.DROPOUT_SEEDS[0], self._inputs)
            rest = _compare_value(found.value, self._eager, self._compiled, self._unit, noise)
            if all(difference.excess <= 1 for difference in rest):
                return True
        for number in range(constants.REPLICAS):
            sample = Sample(noisy(number), (number + 2) * constants.DROPOUT_APART, likes)
            sample.run_seeds(constants.DROPOUT_SEEDS[1], self._inputs)
            for other in _compare_samples(self._eager, sample, self._unit):
                alike = other.kind == found.kind and bool(other.part) == bool(found.part)
                # Mean differences over their standard deviations from seed to seed.
                shifts = [difference.errors / math.sqrt(difference.seeds) for difference in (other, found)]
                if alike and constants.DROPOUT_NOISE * shifts[0] >= shifts[1]:
                    return True
        return False


class Inputs:
    """The inputs of the case. `fresh` returns them for each run. `changed`: whether a run changes them."""

    def __init__(self, fresh: Callable[[], list[Any]], *, changed: bool) -> None:
        self.fresh, self.changed = fresh, changed
        self.moved = [_move(fresh(), side) for side in (1, -1)]  # moved a little to either side
        self.distances = {  # by gradient
            Value("input", index, is_gradient=True): (high.double() - low.double()).nan_to_num(0.0, 0.0, 0.0).cpu()
            for index, (high, low) in enumerate(zip(*self.moved, strict=True))
            if isinstance(high, Tensor) and high.is_floating_point()
        }


class Sample:
    """Up to `DROPOUT_ELEMENTS` elements of each value in runs with the seeds after `start`, and the slopes of the runs.

    likes: zeros of each value's shape
    first: a run with another seed, which counts for `constant`
    """

    def __init__(self, run: Run, start: int, likes: Tensors, first: Execution | None = None) -> None:
        self._run, self._start, self.likes = run, start, likes
        self._seen = self._values(first) if first else {}
        self.elements: dict[Value, list[Tensor]] = {name: [] for name in likes}  # in float64, for each run
        self.chosen = {name: _choose(like) for name, like in likes.items()}
        self.slopes: Slopes = []
        self.constant = {name: torch.ones_like(like, dtype=torch.bool) for name, like in likes.items()}
        self.count = 0

    def run_seeds(self, seeds: int, inputs: Inputs) -> None:
        while self.count < seeds:
            self.count += 1
            seed = self._start + self.count
            run = self._run(seed, inputs.fresh(), True)
            for name, value in self._values(run).items():
                before = self._seen.setdefault(name, value)
                self.constant[name] &= (value == before) | (value.isnan() & before.isnan())
                self.elements[name].append(value.flatten()[self.chosen[name]].double())
            if run.gradients and not inputs.changed:
                self.slopes.append(self._slope(seed, run, inputs))

    def _values(self, run: Execution) -> Tensors:
        return {name: run.values.get(name, like) for name, like in self.likes.items()}

    def _slope(self, seed: int, run: Execution, inputs: Inputs) -> tuple[float, float, float]:
        high, low = (self._run(seed, moved, False).outputs for moved in inputs.moved)
        found = sum(
            float((cotangent.double() * (high[name].double() - low[name].double())).sum())
            for name, cotangent in run.cotangents.items()
        )
        distances = [(name, distance) for name, distance in inputs.distances.items() if name in run.gradients]
        terms = [run.gradients[name].double() * distance for name, distance in distances]
        size = math.sqrt(sum(float(term.square().sum()) for term in terms))
        return found, sum(float(term.sum()) for term in terms), size


def _compare_samples(eager: Sample, compiled: Sample, unit: float) -> Iterator[Difference]:
    """All statistics of all groups, over as many pairs as `compiled` has runs."""
    for name in compiled.likes:
        yield from _compare_value(name, eager, compiled, unit)
    if eager.slopes and compiled.slopes:
        yield from _compare_slopes(eager.slopes[: compiled.count], compiled.slopes, unit)


def _compare_value(
    name: Value, eager: Sample, compiled: Sample, unit: float, noise: Sample | None = None
) -> Iterator[Difference]:
    """All statistics of a value. noise: eager under noise with the same seeds, which shows what varies by rounding, as
    the gradient of what softmax shifts."""
    mine, theirs = (torch.stack(sample.elements[name][: compiled.count]) for sample in (compiled, eager))
    seeds = len(mine)
    if not mine.numel():
        return
    lost = [(~side.isfinite()).any(1).double() for side in (mine, theirs)]
    if bool((lost[0] + lost[1]).any()):
        more = float(_compute_s((lost[0] - lost[1]).unsqueeze(1)))
        yield Difference(name, NONFINITE, "", more, float(lost[0].mean()), seeds)
    both = torch.cat([mine, theirs])
    mean, variance = both.mean(0), both.var(0, correction=0)
    # Constant elements, and elements that vary only by rounding, are left out.
    scale = mean.abs() + constants.TENSOR_SHARE * mean.abs().nan_to_num(0.0, 0.0, 0.0).max()
    still = (eager.constant[name] & compiled.constant[name]).flatten()[compiled.chosen[name]]
    varies = (variance.sqrt() > constants.DROPOUT_FLOOR * unit * scale) & both.isfinite().all(0) & ~still
    if noise is not None:
        rounding = torch.stack(noise.elements[name]) - torch.stack(eager.elements[name][: noise.count])
        varies &= variance.sqrt() > constants.DROPOUT_FLOOR * rounding.square().mean(0).sqrt()
    if not bool(varies.any()):
        return
    mine, theirs, mean, variance = mine[:, varies], theirs[:, varies], mean[varies], variance[varies]
    signed = mean.sign() / variance.sqrt()
    moved = [(side - mean) * signed for side in (mine, theirs)]
    spread = [(side - mean).square() / variance for side in (mine, theirs)]
    for numbers, named in _groups(compiled.constant[name].shape, compiled.chosen[name][varies]):
        there, ids = numbers.unique(return_inverse=True)
        size = _sum_parts(mean.abs() / variance.sqrt(), ids)
        own = [_sum_parts(side.var(0, correction=0) / variance, ids) for side in (mine, theirs)]
        for kind, sides in ((MEAN, moved), (VARIANCE, spread)):
            sums = [_sum_parts(side, ids) for side in sides]
            s = _compute_s(sums[0] - sums[1])
            left, right = [side.mean(0) + size for side in sums] if kind == MEAN else own
            effect = (left / right).nan_to_num(1.0, math.inf)
            matters = (effect - 1).abs() > _LEAST[kind]
            for worst in {int(s.abs().argmax()), int((s.abs() * matters).argmax())}:
                yield Difference(name, kind, named(int(there[worst])), float(s[worst]), float(effect[worst]), seeds)


def _sum_parts(values: Tensor, ids: Tensor) -> Tensor:
    sums = torch.zeros(*values.shape[:-1], int(ids.max()) + 1, dtype=torch.float64, device=ids.device)
    return sums.index_add_(-1, ids, values)


def _compare_slopes(eager: Slopes, compiled: Slopes, unit: float) -> Iterator[Difference]:
    mine, theirs = (torch.tensor(slopes, dtype=torch.float64) for slopes in (compiled, eager))
    both = torch.cat([mine, theirs])
    variance = both[:, 1].var(correction=0)
    if not bool(both.isfinite().all()) or variance.sqrt() <= constants.DROPOUT_FLOOR * unit * both[:, 2].mean():
        return
    limit = constants.DROPOUT_SHARE * variance
    misses = [(side[:, 0] - side[:, 1]).square() for side in (mine, theirs)]
    off = [torch.where(missed > limit, missed / (missed + limit), 0.0) for missed in misses]
    s = float(_compute_s((off[0] - off[1]).unsqueeze(1)))
    yield Difference(None, SLOPE, "", s, float((off[0] > 0).double().mean()), len(mine))


def _compute_s(differences: Tensor) -> Tensor:
    total = differences.square().sum(0).sqrt()
    return differences.sum(0) / torch.where(total > 0, total, 1.0)


def _groups(shape: torch.Size, flat: Tensor) -> Iterator[tuple[Tensor, Callable[[int], str]]]:
    """Each way to divide the elements `flat` of a tensor into parts: the part of each element, and names of parts."""
    yield torch.zeros_like(flat), lambda _: ""
    for axis, size in enumerate(shape):
        if size > 1:
            yield flat // math.prod(shape[axis + 1 :]) % size, f"[{':, ' * axis}{{}}]".format
    for axes in {2, len(shape) - 1}:
        if 1 < axes < len(shape):
            yield flat // math.prod(shape[axes:]), functools.partial(_name_leading, shape[:axes])


def _name_leading(sizes: torch.Size, number: int) -> str:
    return str([*unravel(number, sizes)])


def _choose(like: Tensor) -> Tensor:
    if like.numel() <= constants.DROPOUT_ELEMENTS:
        return torch.arange(like.numel(), device=like.device)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(like.numel(), (constants.DROPOUT_ELEMENTS,), generator=generator)
    return drawn.unique().to(like.device)


def _move(inputs: list[Any], side: int) -> list[Any]:
    """`inputs` with each floating element moved up or down at random; side -1 moves each the opposite way."""
    generator = torch.Generator().manual_seed(1)
    for value in inputs:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        signs = torch.randint(0, 2, value.shape, generator=generator).mul_(2).sub_(1).to(value.device)
        step = constants.DROPOUT_STEP_LOW if value.dtype in constants.LOW_PRECISION_DTYPES else constants.DROPOUT_STEP
        # Large magnitudes are fills of masks. Overlapping elements can't be written.
        if torch._debug_has_internal_overlap(value) == 0:
            value.copy_(torch.where(value.abs() < constants.DROPOUT_LARGE, value * (1 + side * step * signs), value))
    return inputs
