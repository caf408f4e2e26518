"""Which ways of making cases are worth their price: those that are likely to reach something new."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SINGLES, _TRIES = 1.0, 2.0
"""What every way is credited with before its first try."""
_MIN_PRICE, _MAX_PRICE = 0.4, 2.5
"""Prices are noisy: they are clipped to these multiples of the mean of all ways."""


class SourceBandit(Generic[K]):
    """Chooses among ways of making cases those that are likely to reach something new. `known`: what was reached before.
    Not for several threads at once.

    Of all that n tries reached, let m things have been reached once: m / n estimates the chance that the next try reaches
    something new (Good and Turing; I. J. Good, "The population frequencies of species", Biometrika 40, 1953). It falls by
    itself as a way is exhausted, and a way not tried yet counts as promising.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._tries: Counter[K] = Counter()
        self._singles: Counter[K] = Counter()
        self._prices: dict[K, float] = defaultdict(float)
        self._finders: dict[str, tuple[K, ...]] = dict.fromkeys(known, ())
        """By thing: the ways of the try that reached it, for as long as no other has."""

    def credit(self, ways: Iterable[K], names: Iterable[str], price: float) -> None:
        """Note a try: the ways taken together in it, all that it reached, and what it cost."""
        ways = tuple(ways)
        for way in ways:
            self._tries[way] += 1
            self._prices[way] += price
        for name in names:
            if name in self._finders:
                self._singles.subtract(self._finders[name])
            else:
                self._singles.update(ways)
            self._finders[name] = () if name in self._finders else ways

    def weights(self, own: Mapping[K, float]) -> dict[K, float]:
        """The weights of ways: each one's own, times the chance that it reaches something new, for its price."""
        tries = self._tries.total()
        mean = sum(self._prices.values()) / tries if tries else 0.0
        return {way: weight * self._chance(way) / self._price(way, mean) for way, weight in own.items()}

    def _chance(self, way: K) -> float:
        return (self._singles[way] + _SINGLES) / (self._tries[way] + _TRIES)

    def _price(self, way: K, mean: float) -> float:
        tries = self._tries[way]
        return min(_MAX_PRICE, max(_MIN_PRICE, self._prices[way] / tries / mean)) if tries and mean else 1.0
