"""Choices driven by bytes, so that a fuzzer that knows nothing of cases can write them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from generators.sampling.choices import Choices

T = TypeVar("T")

_WIDTH = 2
_RANGE = 1 << 8 * _WIDTH


class ByteChoices(Choices):
    """Decisions read from bytes, two for each.

    When the bytes are used up every decision has its likeliest outcome, the first of equals. So any bytes are a case,
    and a short input is a conventional one.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__("")
        self._data, self._at = data, 0

    def below(self, n: int) -> int:
        """An integer from 0 to n - 1."""
        drawn = self._drawn()
        return 0 if drawn is None else int(drawn * n)

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        drawn = self._drawn()
        return probability > 0.5 if drawn is None else drawn < probability

    def weighted(self, options: Mapping[T, float]) -> T:
        """One of the keys, with likelihood proportional to its value."""
        drawn = self._drawn()
        return max(options, key=lambda option: options[option]) if drawn is None else self._at_weight(options, drawn)

    def along(self, sums: Sequence[float]) -> int:
        """An index of a list, with likelihood proportional to its weight; `sums`: running sums of the weights."""
        return self.weighted({i: after - before for i, (before, after) in enumerate(pairwise((0.0, *sums)))})

    def _drawn(self) -> float | None:
        """A number from 0 to 1; None when the bytes are used up."""
        part = self._data[self._at : self._at + _WIDTH]
        self._at += _WIDTH
        return int.from_bytes(part, "little") / _RANGE if len(part) == _WIDTH else None
