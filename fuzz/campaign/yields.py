"""What each way of making cases brought of late, so that a search goes the ways that bring something."""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MEMORY = 0.97
"""What a try weighs after the next one of the same way: a way that brought all it can is left within some dozens of tries."""
DOUBT = 4.0
"""A way counts as if it had been tried so often, at the mean price and with the mean result: few tries say little."""
LEAST, MOST = 0.2, 5.0
"""No way is gone less or more than so many times as often as it would be by its own weight."""


class Yields(Generic[K]):
    """Ways by what they yield. Not for several threads at once."""

    def __init__(self) -> None:
        self._prices: dict[K, float] = defaultdict(float)
        self._brought: dict[K, float] = defaultdict(float)
        self._tries = self._price = self._result = 0.0

    def credit(self, way: K, brought: float, price: float) -> None:
        """Note one try of a way: what it brought, and what it cost."""
        self._prices[way] = MEMORY * self._prices[way] + price
        self._brought[way] = MEMORY * self._brought[way] + brought
        # Over all ways the mean follows slowly: it is what ways are compared with.
        memory = 1 - (1 - MEMORY) / 10
        self._tries = memory * self._tries + 1
        self._price = memory * self._price + price
        self._result = memory * self._result + brought

    def weights(self, own: Mapping[K, float]) -> dict[K, float]:
        """The weights of ways, given each one's own, times what it yields for its price beside all ways together."""
        if not self._result:
            return dict(own)
        return {way: weight * self._factor(way) for way, weight in own.items()}

    def _factor(self, way: K) -> float:
        doubt = DOUBT / self._tries
        brought = (self._brought.get(way, 0.0) + doubt * self._result) / self._result
        price = (self._prices.get(way, 0.0) + doubt * self._price) / self._price
        return min(MOST, max(LEAST, brought / price))
