"""Where the generator's decisions come from."""

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")

Preferences = Mapping[str, object]
"""The outcomes of named decisions that one family of models has."""


class Choices:
    """Decisions drawn from a seed: the same seed gives the same decisions on every platform and Python version.

    A compiler matches a program only when every step is as expected, and its mistakes lie one or two steps away from
    that. So most decisions have a conventional outcome, and `deviation` is the probability of another one.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.deviation = 1.0
        self.preferences: Preferences = MappingProxyType({})

    def below(self, n: int) -> int:
        """An integer from 0 to n - 1."""
        # int(random() * n) is specified; randrange's algorithm has changed between Python versions.
        return int(self._random.random() * n)

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, all equally likely."""
        return options[self.below(len(options))]

    def draw(self, options: Mapping[T, float]) -> T:
        """One of the keys, with likelihood proportional to its value."""
        at = self._random.random() * sum(options.values())
        for option, weight in options.items():
            at -= weight
            if at < 0:
                return option
        return list(options)[-1]

    def subset(self, options: Sequence[T], probability: float) -> list[T]:
        """Each option kept with the given probability."""
        return [o for o in options if self.chance(probability)]

    def deviates(self) -> bool:
        """Whether to take another outcome than the conventional one."""
        return self.chance(self.deviation)

    def choose(self, name: str, options: Mapping[T, float]) -> T:
        """The family's preference, where it has one and does not deviate, else one by weight."""
        preferred = self._find_preferred(name, options)
        return self.draw(options) if preferred is None or self.deviates() else preferred

    def choose_default(self, options: Mapping[T, float], name: str = "") -> T:
        """The family's preference or the heaviest option; when it deviates, one of the others."""
        preferred = self._find_preferred(name, options)
        usual = max(options, key=lambda option: options[option]) if preferred is None else preferred
        if not self.deviates():
            return usual
        others = {option: weight for option, weight in options.items() if option != usual and weight}
        return self.draw(others) if others else usual

    def _find_preferred(self, name: str, options: Mapping[T, float]) -> T | None:
        wanted = self.preferences.get(name)
        return next((option for option in options if option == wanted), None) if wanted is not None else None


class LikeliestChoices(Choices):
    """Every decision has its likeliest outcome, the first of equals."""

    def __init__(self) -> None:
        super().__init__("")

    def below(self, n: int) -> int:  # noqa: ARG002 - any number would do
        """0."""
        return 0

    def chance(self, probability: float) -> bool:
        """Whether that is likelier than not."""
        return probability > 0.5

    def draw(self, options: Mapping[T, float]) -> T:
        """The heaviest key."""
        return max(options, key=lambda option: options[option])
