"""Whether the dropout masks of a program are independent: of each other, of later calls, and within a mask.

A mask is read off the argument and the result of a dropout, where a program returns both. Elements whose argument is 0,
subnormal or not finite don't show it.

Of n elements that two independent masks keep with probability a and b, the number that agree has a binomial
distribution with share s = ab + (1 - a)(1 - b). A share x or further from s has at most the probability
exp(-n KL(x, s)) (Hoeffding, JASA 58, 1963). All comparisons of a run, on both sides, share `FALSE_ALARMS`. Blocks of a
mask are compared in disjoint pairs, so that their elements are independent too.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fuzz.check.judge import constants
from fuzz.check.judge.attention.dropout_masks import bound_chance
from fuzz.check.run.program import Execution
from fuzz.protocol import Dropout
from fuzz.protocol.failures import RepeatedMask, Value


@dataclass(frozen=True)
class KeptElements:
    """The elements that a dropout kept, and those that show it."""

    kept: Tensor
    shown: Tensor

    def split(self, axis: int, lag: int) -> "tuple[KeptElements, KeptElements]":
        """Every other block of `lag` indices along an axis, and the blocks after them."""
        pairs = self.kept.shape[axis] // (2 * lag)
        blocks = (
            part.narrow(axis, 0, 2 * lag * pairs).unflatten(axis, (pairs, 2, lag)).unbind(axis + 1)
            for part in (self.kept, self.shown)
        )
        (kept, kept_after), (shown, shown_after) = blocks
        return KeptElements(kept, shown), KeptElements(kept_after, shown_after)


def find_repeated_mask(run: Execution, dropouts: tuple[Dropout, ...], calls: int) -> RepeatedMask | None:
    """The least likely agreement of masks of a run of several calls, which draw one after the other."""
    calls_of = [[_read_mask(run, dropout, call) for call in range(1, calls + 1)] for dropout in dropouts]
    found = list(_compare(dropouts, calls_of))
    limit = math.log(2 * max(1, len(found)) / constants.REPEATED_FALSE_ALARMS)
    worst = max(found, key=lambda one: one.doubt, default=None)
    return worst if worst is not None and worst.doubt > limit else None


def _read_mask(run: Execution, dropout: Dropout, call: int) -> KeptElements:
    given, result = (run.outputs[Value("output", index, call=call)] for index in (dropout.argument, dropout.result))
    shown = given.isfinite() & (given.abs() >= torch.finfo(given.dtype).tiny)
    return KeptElements(result != 0, shown)


def _compare(dropouts: tuple[Dropout, ...], masks: list[list[KeptElements]]) -> Iterator[RepeatedMask]:
    for one, mine in zip(dropouts, masks, strict=True):
        same = RepeatedMask(Value("output", one.result))
        flat = [KeptElements(mask.kept.flatten(), mask.shown.flatten()) for mask in mine]
        for axis, parts in [(None, flat), *((axis, mine) for axis in range(mine[0].kept.dim()))]:
            for lag in (lag for lag in constants.MASK_LAGS if 2 * lag <= parts[0].kept.shape[axis or 0]):
                split = [mask.split(axis or 0, lag) for mask in parts]
                yield _count(replace(same, axis=axis, lag=lag), (one, one), split)
        for other, theirs in zip(dropouts, masks, strict=True):
            if one.result < other.result:
                yield _count(
                    replace(same, other=Value("output", other.result)), (one, other), zip(mine, theirs, strict=True)
                )
            for call in (1, 2):
                pair = Value("output", one.result, call=call), Value("output", other.result, call=call + 1)
                calls = zip(mine[call - 1 :: 2], theirs[call::2], strict=False)
                yield _count(RepeatedMask(*pair), (one, other), calls)


def _count(
    compared: RepeatedMask, rows: tuple[Dropout, Dropout], pairs: Iterable[tuple[KeptElements, KeptElements]]
) -> RepeatedMask:
    """`compared` with the numbers of these pairs of masks. Of masks of different sizes, the first elements count."""
    agree = total = 0
    kept = [0, 0]
    for left, right in pairs:
        count = min(left.kept.numel(), right.kept.numel())
        (mine, shown), (theirs, also) = ((m.kept.flatten()[:count], m.shown.flatten()[:count]) for m in (left, right))
        both = shown & also
        total += int(both.sum())
        agree += int((both & (mine == theirs)).sum())
        kept = [known + int((both & mask).sum()) for known, mask in zip(kept, (mine, theirs), strict=True)]
    # Rates that differ from p are for other tests to find, so both the actual and the right rates explain agreement.
    rates = [(1 - row.p for row in rows), (number / max(1, total) for number in kept)]
    shares = sorted(a * b + (1 - a) * (1 - b) for a, b in rates)
    nearest = min(max(agree / max(1, total), shares[0]), shares[1])
    doubt = bound_chance(agree, total, nearest, 0.0)
    return replace(compared, agree=agree, total=total, expected=nearest, doubt=doubt)
