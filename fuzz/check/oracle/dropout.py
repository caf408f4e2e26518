"""Whether active dropout that drew other numbers than eager's has their distribution: told from runs with many seeds.

Eager runs with seeds of its own. For pair i of n, d_i = statistic(compiled_i) - statistic(eager_i) are independent and,
where both have one distribution, as likely positive as negative. Then S = sum d / sqrt(sum d^2) has
P(S > x) <= exp(-x^2 / 2) whatever the distribution is (Efron, JASA 64, 1969): no outlier raises
a false alarm. x_e is element e of a value, m_e and v_e its mean and variance over all 2 n runs; g runs over the whole
tensor, every slice along an axis, every head of every batch and every row:

    mean      sum_(e in g) sign(m_e) (x_e - m_e) / sqrt(v_e)
    variance  sum_(e in g) (x_e - m_e)^2 / v_e
    nonfinite 1 where something in the tensor is NaN or infinite
    slope     r^2 / (r^2 + SHARE V) where it exceeds 1/2, with r = <cotangent, y(x+) - y(x-)> - <gradient, x+ - x->

The slope needs no eager at all: with one seed forward draws one mask, and the difference of outputs for inputs moved a
little either way is what gradients predict, unless backward uses another mask. V is the variance of the prediction.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuzz.check.oracle import constants
from fuzz.check.oracle.dynamo_same import same_bits
from fuzz.check.program import Execution
from fuzz.protocol.failures import DropoutStatistic

#: Runs the case with a seed on inputs; with gradients or without.
Run = Callable[[int, list[Any], bool], Execution]

MEAN, VARIANCE, SLOPE, NONFINITE = "mean", "variance", "slope", "nonfinite"
_LEAST = {MEAN: constants.DROPOUT_MEAN, VARIANCE: constants.DROPOUT_VARIANCE}


@dataclass(frozen=True)
class Difference:
    """One statistic of one group: `value` is the tensor's name, `part` its group as an index ("" for all of it), `s` is
    S (signed) of `seeds` pairs, `effect` the mean or variance of compiled over eager's, or the share of seeds off the
    slope, or not finite."""

    value: str
    kind: str
    part: str
    s: float
    effect: float
    seeds: int

    @property
    def excess(self) -> float:
        """|S| over what is suspicious with so many seeds; 0 for an effect too small to matter."""
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
        """The mean difference in standard errors of it."""
        left = self.seeds - self.s**2
        return math.inf if left <= 0 else abs(self.s) * math.sqrt(self.seeds / left)

    @property
    def failure(self) -> DropoutStatistic:
        """What is wrong, as data."""
        return DropoutStatistic(self.value, self.kind, self.part, self.effect, self.seeds, self.errors)


class Comparison:
    """Two ways to run a case, compared over as many seeds as it takes.

    `first_eager` and `first_compiled` are runs with seed 0; `inputs` gives fresh inputs; `coarsest` is the least
    precise float dtype the case computes in.
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
        self._likes = {**_make_zeros(first_compiled), **_make_zeros(first_eager)}
        self._eager = Sample(eager, 0, self._likes, first_eager)
        self._compiled = Sample(compiled, constants.DROPOUT_APART, self._likes, first_compiled)
        self._started = time.process_time()

    def difference(self, noisy: Callable[[int], Run]) -> Difference | None:
        """The gravest difference in distribution that neither chance nor rounding explains; None without one.

        `noisy(number)` is eager under noise: what rounding does to it alone accuses nobody. Raises what the runs raise.
        """
        worst = None
        for seeds in constants.DROPOUT_SEEDS:
            if not self.take(seeds):
                return None
            worst = max(self.all(), key=_rank, default=None)
            if worst is None or worst.excess <= 1:
                return None
        return None if worst is None or self._is_rounding(worst, noisy) else worst

    def take(self, seeds: int) -> bool:
        """Run both until there are so many pairs. False when that would take too long."""
        taken = self._eager.count
        if taken:
            spent = time.process_time() - self._started
            if spent / taken * seeds > constants.DROPOUT_SECONDS:
                return False
        for sample in (self._eager, self._compiled):
            sample.take(seeds, self._inputs)
        return True

    def all(self) -> Iterator[Difference]:
        """Every statistic of every group, with the seeds taken so far."""
        return _differences(self._eager, self._compiled, self._unit)

    def steady(self, eager: Execution, compiled: Execution) -> Execution | None:
        """`compiled` with eager's elements wherever a seed changes either; None when that makes it equal to eager."""

        def kept(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: self._kept(name, value, eager.values.get(name)) for name, value in values.items()}

        made = replace(
            compiled, outputs=kept(compiled.outputs), mutated=kept(compiled.mutated), gradients=kept(compiled.gradients)
        )
        equal = all(
            same_bits(value, eager.values.get(name, torch.zeros_like(value))) for name, value in made.values.items()
        )
        return None if equal else made

    def _kept(self, name: str, value: Tensor, eager: Tensor | None) -> Tensor:
        made = torch.zeros_like(value) if eager is None else eager.clone()
        same = self._eager.constant[name] & self._compiled.constant[name]
        made[same] = value[same]
        return made

    def _is_rounding(self, found: Difference, noisy: Callable[[int], Run]) -> bool:
        likes = {found.value: self._likes[found.value]} if found.value else self._likes
        seeds = constants.DROPOUT_SEEDS[1]
        eager = self._eager.first(seeds)
        for number in range(constants.REPLICAS):
            sample = Sample(noisy(number), (number + 2) * constants.DROPOUT_APART, likes)
            sample.take(seeds, self._inputs)
            for other in _differences(eager, sample, self._unit):
                alike = other.kind == found.kind and bool(other.part) == bool(found.part)
                if alike and constants.DROPOUT_NOISE * _shift(other) >= _shift(found):
                    return True
        return False


class Inputs:
    """The inputs of the case, and those moved a little to either side; `distances` between them by name of gradient.

    Made once, unless running has `changed` them.
    """

    def __init__(self, fresh: Callable[[], list[Any]], *, changed: bool) -> None:
        self._fresh, self.changed = fresh, changed
        self._plain = fresh()
        self.moved = [_move(fresh(), side) for side in (1, -1)]
        self.distances = {
            f"grad of input {index}": (high.double() - low.double()).nan_to_num(0.0, 0.0, 0.0)
            for index, (high, low) in enumerate(zip(*self.moved, strict=True))
            if isinstance(high, Tensor) and high.is_floating_point()
        }

    def plain(self) -> list[Any]:
        """Inputs to run on."""
        return self._fresh() if self.changed else self._plain


class Sample:
    """Runs with the seeds after `start`, and of them: up to `DROPOUT_ELEMENTS` elements of each value, and what the
    gradients predict of the outputs for moved inputs."""

    def __init__(self, run: Run, start: int, likes: dict[str, Tensor], first: Execution | None = None) -> None:
        """`likes`: a tensor of each value's shape. `first`: a run with another seed, that `constant` counts too."""
        self._run, self._start, self._likes = run, start, likes
        self._seen = dict(_all_values(first, likes)) if first else {}
        self._elements: dict[str, list[Tensor]] = {name: [] for name in likes}
        self.chosen = {name: _choose(like) for name, like in likes.items()}
        self.slopes: list[tuple[float, float, float]] = []
        self.constant = {name: torch.ones_like(like, dtype=torch.bool) for name, like in likes.items()}
        self.count = 0

    def take(self, seeds: int, inputs: Inputs) -> None:
        """Run until there are so many."""
        while self.count < seeds:
            self.count += 1
            seed = self._start + self.count
            run = self._run(seed, inputs.plain(), True)
            for name, value in _all_values(run, self._likes):
                before = self._seen.setdefault(name, value)
                self.constant[name] &= (value == before) | (value.isnan() & before.isnan())
                self._elements[name].append(value.flatten()[self.chosen[name]].double())
            if run.gradients and not inputs.changed:
                self.slopes.append(self._slope(seed, run, inputs))

    def first(self, seeds: int) -> "Sample":
        """The first so many of the runs."""
        made = Sample(self._run, self._start, self._likes)
        made._elements = {name: values[:seeds] for name, values in self._elements.items()}
        made.slopes, made.constant, made.count = self.slopes[:seeds], self.constant, seeds
        return made

    def matrix(self, name: str) -> Tensor:
        """[runs, chosen elements] of a value, in float64."""
        return torch.stack(self._elements[name])

    def names(self) -> list[str]:
        """The values there are."""
        return list(self._likes)

    def _slope(self, seed: int, run: Execution, inputs: Inputs) -> tuple[float, float, float]:
        """(how the outputs differ, how the gradients say they do, the size of the terms of the latter)."""
        ends = [self._run(seed, moved, False).outputs for moved in inputs.moved]
        found = sum(
            float((run.cotangents[name].double() * (ends[0][name].double() - ends[1][name].double())).sum())
            for name in run.cotangents
        )
        terms = [
            run.gradients[name].double() * distance
            for name, distance in inputs.distances.items()
            if name in run.gradients
        ]
        predicted = sum(float(term.sum()) for term in terms)
        size = math.sqrt(sum(float(term.square().sum()) for term in terms))
        return found, predicted, size


def _differences(eager: Sample, compiled: Sample, unit: float) -> Iterator[Difference]:
    for name in compiled.names():
        yield from _of_value(name, eager, compiled, unit)
    if eager.slopes and compiled.slopes:
        yield from _of_slopes(eager, compiled, unit)


def _of_value(name: str, eager: Sample, compiled: Sample, unit: float) -> Iterator[Difference]:
    mine, theirs = compiled.matrix(name), eager.matrix(name)
    if not mine.numel():
        return
    lost = [(~side.isfinite()).any(1).double() for side in (mine, theirs)]
    if bool((lost[0] + lost[1]).any()):
        more = float(_balance((lost[0] - lost[1]).unsqueeze(1)))
        yield Difference(name, NONFINITE, "", more, float(lost[0].mean()), len(mine))
    both = torch.cat([mine, theirs])
    mean, variance = both.mean(0), both.var(0, correction=0)
    # Elements that hardly vary would tell of rounding, and a constant one has no distribution.
    scale = mean.abs() + constants.TENSOR_SHARE * mean.abs().nan_to_num(0.0, 0.0, 0.0).max()
    still = (eager.constant[name] & compiled.constant[name]).flatten()[compiled.chosen[name]]
    varies = variance.sqrt() > constants.DROPOUT_FLOOR * unit * scale
    varies &= both.isfinite().all(0) & ~still
    if not bool(varies.any()):
        return
    mine, theirs, mean, variance = mine[:, varies], theirs[:, varies], mean[varies], variance[varies]
    sizes = mean.abs() / variance.sqrt()
    signed = mean.sign() / variance.sqrt()
    moved = ((mine - mean) * signed, (theirs - mean) * signed)
    spread = ((mine - mean).square() / variance, (theirs - mean).square() / variance)
    seeds = len(mine)
    for numbers, named in _groups(compiled.constant[name].shape, compiled.chosen[name][varies]):
        there, ids = numbers.unique(return_inverse=True)
        count = len(there)
        size, *own = (
            torch.zeros(count, dtype=torch.float64, device=ids.device).index_add_(0, ids, each)
            for each in (sizes, mine.var(0, correction=0) / variance, theirs.var(0, correction=0) / variance)
        )
        for kind, sides in ((MEAN, moved), (VARIANCE, spread)):
            sums = [
                torch.zeros(seeds, count, dtype=torch.float64, device=ids.device).index_add_(1, ids, side)
                for side in sides
            ]
            s = _balance(sums[0] - sums[1])
            left, right = [side.mean(0) + size for side in sums] if kind == MEAN else own
            effect = (left / right).nan_to_num(1.0, math.inf)
            matters = (effect - 1).abs() > _LEAST[kind]
            for worst in {int(s.abs().argmax()), int((s.abs() * matters).argmax())}:
                yield Difference(name, kind, named(int(there[worst])), float(s[worst]), float(effect[worst]), seeds)


def _of_slopes(eager: Sample, compiled: Sample, unit: float) -> Iterator[Difference]:
    mine, theirs = (torch.tensor(sample.slopes, dtype=torch.float64) for sample in (compiled, eager))
    both = torch.cat([mine, theirs])
    variance = both[:, 1].var(correction=0)
    if not bool(both.isfinite().all()) or variance.sqrt() <= constants.DROPOUT_FLOOR * unit * both[:, 2].mean():
        return
    limit = constants.DROPOUT_SHARE * variance
    off = []
    for side in (mine, theirs):
        missed = (side[:, 0] - side[:, 1]).square()
        off.append(torch.where(missed > limit, missed / (missed + limit), 0.0))
    s = float(_balance((off[0] - off[1]).unsqueeze(1)))
    yield Difference("", SLOPE, "", s, float((off[0] > 0).double().mean()), len(mine))


def _balance(differences: Tensor) -> Tensor:
    """S of each column."""
    total = differences.square().sum(0).sqrt()
    return differences.sum(0) / torch.where(total > 0, total, 1.0)


def _groups(shape: torch.Size, flat: Tensor) -> Iterator[tuple[Tensor, Callable[[int], str]]]:
    """Every way to divide the elements `flat` of a tensor: each element's part number, and the parts' names."""
    yield torch.zeros_like(flat), lambda _: ""
    for axis, size in enumerate(shape):
        if size > 1:
            yield flat // math.prod(shape[axis + 1 :]) % size, functools.partial(_on_axis, axis)
    for axes in {2, len(shape) - 1}:
        if 1 < axes < len(shape):
            yield flat // math.prod(shape[axes:]), functools.partial(_leading, shape[:axes])


def _on_axis(axis: int, number: int) -> str:
    return f"[{':, ' * axis}{number}]"


def _leading(sizes: torch.Size, number: int) -> str:
    return str([int(at) for at in torch.unravel_index(torch.tensor(number), sizes)])


def _rank(found: Difference) -> tuple[bool, bool, float]:
    """What is suspicious before what is not, outputs before gradients, and then the largest excess."""
    suspicious = found.excess > 1
    return suspicious, suspicious and bool(found.value) and not found.value.startswith("grad of"), found.excess


def _shift(found: Difference) -> float:
    """The mean difference over its standard deviation from seed to seed."""
    return found.errors / math.sqrt(found.seeds)


def _make_zeros(run: Execution) -> dict[str, Tensor]:
    return {name: torch.zeros_like(value) for name, value in run.values.items()}


def _all_values(run: Execution, likes: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Every value by name; a gradient that doesn't exist is zero."""
    for name, like in likes.items():
        yield name, run.values.get(name, like)


def _choose(like: Tensor) -> Tensor:
    """Flat indices of the elements that are kept."""
    if like.numel() <= constants.DROPOUT_ELEMENTS:
        return torch.arange(like.numel(), device=like.device)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(like.numel(), (constants.DROPOUT_ELEMENTS,), generator=generator)
    return drawn.unique().to(like.device)


def _move(inputs: list[Any], side: int) -> list[Any]:
    """`inputs` with floating elements a little larger or smaller, at random; the other way round for the other side."""
    generator = torch.Generator().manual_seed(1)
    for value in inputs:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        signs = torch.randint(0, 2, value.shape, generator=generator).mul_(2).sub_(1).to(value.device)
        step = constants.DROPOUT_STEP_LOW if value.dtype in constants.LOW_PRECISION else constants.DROPOUT_STEP
        # Large magnitudes are fills; memory that elements share can't be written to.
        if torch._debug_has_internal_overlap(value) == 0:
            value.copy_(torch.where(value.abs() < constants.DROPOUT_LARGE, value * (1 + side * step * signs), value))
    return inputs
