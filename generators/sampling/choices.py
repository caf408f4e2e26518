"""Where the generator's decisions come from. One small interface, so that a seed or a fuzzer's bytes can drive it."""

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")

Habits = Mapping[str, object]
"""What one family of models writes: for some named decisions, what it decides."""


class Choices:
    """Decisions drawn from a seed: the same seed gives the same decisions on every platform and Python version.

    A compiler recognises a spelling only when every step of it is as expected, and its mistakes lie one or two steps
    beside that. So most decisions have a conventional outcome, and `wildness` is the probability of leaving it.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.wildness = 1.0
        self.habits: Habits = MappingProxyType({})

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
        return self._at_weight(options, self._random.random())

    def _at_weight(self, options: Mapping[T, float], share: float) -> T:
        """The key at this share of all weight."""
        at = share * sum(options.values())
        for option, weight in options.items():
            at -= weight
            if at < 0:
                return option
        return list(options)[-1]

    def subset(self, options: Sequence[T], probability: float) -> list[T]:
        """Each option kept with the given probability."""
        return [o for o in options if self.chance(probability)]

    def wild(self) -> bool:
        """Whether to leave convention here."""
        return self.chance(self.wildness)

    def structure(self, name: str, options: Mapping[T, float]) -> T:
        """A decision that families differ in: the family's, where it has one, else by weight."""
        habit = self._habit(name, options)
        return self.weighted(options) if habit is None or self.wild() else habit

    def detail(self, options: Mapping[T, float], name: str = "") -> T:
        """A decision with a conventional outcome, the family's or the heaviest; when wild, one of the others."""
        habit = self._habit(name, options)
        usual = max(options, key=lambda option: options[option]) if habit is None else habit
        if not self.wild():
            return usual
        others = {option: weight for option, weight in options.items() if option != usual and weight}
        return self.weighted(others) if others else usual

    def _habit(self, name: str, options: Mapping[T, float]) -> T | None:
        wanted = self.habits.get(name)
        return next((option for option in options if option == wanted), None) if wanted is not None else None
