"""Where the generator's decisions come from. One small interface, so that a seed or a fuzzer's bytes can drive it."""

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Decisions drawn from a seed: the same seed gives the same decisions on every platform and Python version."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)  # noqa: S311 - not cryptography

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1."""
        # int(random() * n) is specified; randrange's algorithm has changed between Python versions.
        return int(self._random.random() * n)

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, all equally likely."""
        return options[self.below(len(options))]

    def weighted(self, options: Mapping[T, float]) -> T:
        """One of the keys, with likelihood proportional to its value."""
        at = self._random.random() * sum(options.values())
        for option, weight in options.items():
            at -= weight
            if at < 0:
                return option
        return next(reversed(options))

    def subset(self, options: Sequence[T], probability: float) -> list[T]:
        """Each option kept with the given probability."""
        return [o for o in options if self.chance(probability)]
