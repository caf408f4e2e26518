"""Simulated kernels: the float64 truth of a call, rounded at random as right kernels round.

Kernels round weights before or after dividing by the row's sum, relative to some running maximum. So a simulated kernel
multiplies all weights by one random factor, rounds them, and divides them by the factor. The mean of simulated
kernels is the systematic error of rounding on these inputs, and their spread is the random error. If scores take few
values, weights round alike in all rows, and no random error is left. Simulated kernels that round relative to a
running maximum, or to 1, show that systematic error.

If values are equal, gradients of scores P (dP - delta) are 0 up to the error of delta. Kernels compute delta as

    sum_d o do       of the rounded output o (FlashAttention-2, arXiv 2307.08691, algorithm 2), or before o is rounded
    sum_j P dP       the derivative of the softmax, as in MATH

Sums are exact here, so an error that float32 explains is not compared.

Statistics of a result show small errors in many elements, compared with those of simulated kernels. With
r = (result - truth) / error bound over the judged elements:

    row    the largest root mean square of r over a row (the last axis)
    rms    the root mean square of r
    bias   the result as a multiple of the truth, less 1: sum r g / sum g^2 with g = truth / bound
    scale  the change of the scale that explains the result best: the same with g = (d truth / d log scale) / bound
"""

import functools
import itertools
import math

import torch
from torch import Tensor

from fuzz.check.judge import constants
from fuzz.check.judge.attention.error_bound import score_error
from fuzz.check.run.attention.call import Exact, softmax, sum_groups
from fuzz.protocol.failures import BiasedErrors, Value

Statistics = dict[str, float]


class SimulatedKernels:
    """Draws results (out, dq, dk, dv) of right kernels. `rounds`: as in `compute_error_bounds`."""

    def __init__(self, exact: Exact, rounds: tuple[str, ...], sinks: Tensor | None) -> None:
        self._exact = exact
        self._sinks = sinks
        known = ("weights", "scores", "sums", "backward_weights")
        self._weights, self._scores, self._sums, self._backward_weights = (name in rounds for name in known)
        self._chance = torch.Generator().manual_seed(0)
        self._noise = score_error(exact, rounded=False)
        self._drawn = 0

    def draw_systematic(self) -> list[dict[str, Tensor]]:
        """Kernels that round weights relative to the largest weight so far (an online softmax), or relative to 1."""
        if not self._weights:
            return []
        starts = [torch.zeros(()), *([] if self._sinks is None else [self._exact.sink])]
        online = [*itertools.product(constants.KEY_BLOCKS, starts), (constants.KEY_BLOCKS[-1], torch.ones(()))]
        deltas = range(1 if self._exact.dout is None else 2)
        return [self.draw(block, start, delta) for (block, start), delta in itertools.product(online, deltas)]

    def draw(self, block: int = 0, start: Tensor | None = None, delta_from: int | None = None) -> dict[str, Tensor]:
        """The results of one kernel, in the call's dtype.

        block: the keys in a block of an online softmax; 0 for weights multiplied by a random factor
        start: the weight that the first block of an online softmax starts from
        delta_from: the source of delta: 0 for the output, 1 for the unrounded output, 2 for the weights; None for turns
        """
        exact = self._exact
        self._drawn += 1
        s = exact.scores + self._noise * (2 * self._random(exact.scores.shape) - 1)
        if self._scores:
            # Such kernels round twice: the product, and the score after scale and bias.
            off = self._round(self._round(exact.products)) - exact.products
            s = self._round(s + off * exact.slope)
        _, p, _ = softmax(s, self._sinks)
        round_weights = functools.partial(self._round_weights, p, block, start)
        used = round_weights()
        unrounded = used @ exact.v
        out = unrounded.to(exact.dtype)
        results = {"out": out}
        if exact.dout is None:
            return results
        do = exact.dout
        dp = do @ exact.v.mT
        dp = dp if exact.share is None else dp * exact.share
        dp = self._round(dp) if self._scores else dp
        delta_from = self._drawn // 3 % 3 if delta_from is None else delta_from
        delta = (out.double() * do, unrounded * do, p * dp)[delta_from].sum(-1, keepdim=True)
        # The scale is applied before or after rounding. In float16 this decides which numbers are subnormal.
        before, after = (exact.scale, 1.0) if self._drawn % 3 == 0 else (1.0, exact.scale)
        grad = (self._round(p) if self._backward_weights else p) * (dp - delta) * exact.slope * before
        grad = self._round(grad) if self._weights else grad
        grad = self._round(grad) if self._scores else grad
        # Kernels for grouped heads round the result of each head, or only the sum over heads.
        each = exact.group > 1 and (self._sums or self._drawn % 2 == 0)
        by_head = {
            "dk": after * self._sum_over_queries(grad, exact.q),
            "dv": self._sum_over_queries(round_weights(), do),
        }
        results["dq"] = (after * (grad @ exact.k)).to(exact.dtype)
        for name, value in by_head.items():
            rounded = value.to(exact.dtype).double() if each else value
            results[name] = self._sum_groups(rounded).to(exact.dtype)
        return results

    def _sum_over_queries(self, left: Tensor, right: Tensor) -> Tensor:
        """`left.mT @ right`, rounded after each block of queries if the kernel rounds sums."""
        if not self._sums:
            return left.mT @ right
        total = torch.zeros_like(left.mT @ right)
        for rows in zip(left.split(constants.QUERY_BLOCK, -2), right.split(constants.QUERY_BLOCK, -2), strict=True):
            total = (total + rows[0].mT @ rows[1]).to(self._exact.dtype).double()
        return total

    def _sum_groups(self, value: Tensor) -> Tensor:
        if not self._sums or self._exact.group == 1:
            return sum_groups(value, self._exact.group)
        heads = value.unflatten(1, (-1, self._exact.group)).unbind(2)
        return functools.reduce(lambda total, head: (total + head).to(self._exact.dtype).double(), heads)

    def _round_weights(self, p: Tensor, block: int, start: Tensor | None) -> Tensor:
        if start is not None:
            p = self._round_online(p, block, start)
        elif self._weights:
            p = self._round(p)
        return p if self._exact.share is None else p * self._exact.share

    def _round(self, value: Tensor) -> Tensor:
        factor = torch.exp2(self._random((1,)))
        return (value * factor).to(self._exact.dtype).double() / factor

    def _round_online(self, p: Tensor, block_size: int, start: Tensor) -> Tensor:
        """Weights rounded as exp(score - the largest score up to the end of the block)."""
        top = start.to(p).expand(*p.shape[:-1], 1)
        rounded = []
        for block in p.split(block_size, -1):
            top = torch.maximum(top, block.amax(-1, keepdim=True)) if block.size(-1) else top
            unit = top.masked_fill(top == 0, 1.0)
            rounded.append((block / unit).to(self._exact.dtype).double() * unit)
        return torch.cat(rounded, -1)

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=self._chance, dtype=torch.float64).to(self._exact.scores.device)


def measure(r: Tensor, directions: dict[str, Tensor]) -> Statistics:
    """The statistics of `r`, [..., features]. `directions`: the flat g of bias and scale."""
    squares, flat = r.square(), r.flatten()
    found = {"row": float(squares.mean(-1).max().sqrt()), "rms": float(squares.mean().sqrt())}
    for name, along in directions.items():
        length = float(along.square().sum())
        found[name] = float((flat * along).sum()) / length if length > 0 else 0.0
    return found


def _count_deviations(value: float, simulated: Tensor, systematic: Tensor) -> float:
    """The distance of a statistic from the mean of `simulated`, in standard deviations."""
    others = float(systematic.var()) if len(systematic) > 1 else 0.0
    spread = (float(simulated.var()) * (1 + 1 / len(simulated)) + others) ** 0.5
    apart = abs(value - float(simulated.mean()))
    return apart / spread if spread > 0 else (torch.inf if apart else 0.0)


class Trends:
    """Compares the statistics `mine` of a result with the statistics of at least two `simulated` kernels.

    systematic: statistics of kernels without a random factor; a trend that any of these kernels shares is rounding
    least: the smallest bias or change of the scale that matters. It is infinite for a function with inexact
        exponentials, whose errors may be larger as well
    """

    def __init__(
        self, value: Value, mine: Statistics, simulated: list[Statistics], systematic: list[Statistics], least: float
    ) -> None:
        columns = {name: torch.tensor([kernel[name] for kernel in simulated]) for name in mine}
        z = {
            name: _count_deviations(mine[name], column, torch.tensor([kernel[name] for kernel in systematic]))
            for name, column in columns.items()
        }
        worst = {name: max(kernel[name] for kernel in (*simulated, *systematic)) for name in ("rms", "row")}
        self._row = worst["row"]
        ratio = {name: mine[name] / other if other else 0.0 for name, other in worst.items()}
        off: dict[str, float] = {}
        for name in ("scale", "bias"):
            near = (float(columns[name].mean()), *(kernel[name] for kernel in systematic))
            off[name] = min((mine[name] - other for other in near), key=abs)
        # scale, bias: the difference from the nearest simulation. rms, row: the ratio to the largest simulation.
        self.numbers = {
            **{f"{name}_ratio": times for name, times in ratio.items()},
            **{f"{name}_change": change for name, change in off.items()},
            **{f"{name}_deviations": deviations for name, deviations in z.items()},
        }
        rms_limit = constants.RMS_RATIO if math.isfinite(least) else constants.ROW_RATIO
        matters = {
            **{name: 1 + off[name] for name in sorted(off, key=lambda name: -z[name]) if abs(off[name]) > least},
            **{
                name: ratio[name]
                for name, limit in (("row", constants.ROW_RATIO), ("rms", rms_limit))
                if ratio[name] > limit
            },
        }
        wrong = [name for name in matters if z[name] > constants.TREND_DEVIATIONS]
        self.failure = BiasedErrors(value, wrong[0], matters[wrong[0]], z[wrong[0]], len(simulated)) if wrong else None

    def rows(self, r: Tensor) -> Tensor | None:
        """The elements of rows whose errors `r` [..., features] are too large, for a failure about rows."""
        if self.failure is None or self.failure.statistic != "row":
            return None
        return (r.square().mean(-1, keepdim=True).sqrt() > constants.ROW_RATIO * self._row).expand_as(r)
