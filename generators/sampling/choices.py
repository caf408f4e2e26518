"""The generator's decisions, driven by a seed or by a fuzzer's bytes."""

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")

Preferences = Mapping[str, object]  # a family's preferred outcomes, by the name of the decision


class Choices:
    """Decisions drawn from a seed: the same seed gives the same decisions on every platform and Python version.

    A compiler's pattern matches only if every step is as expected. Compiler bugs show in programs that differ in a step
    or two. So most decisions have a conventional outcome, and `deviation` is the probability of a different outcome.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.deviation = 1.0
        self.preferences: Preferences = MappingProxyType({})

    def share(self) -> float | None:
        """A number from 0 to 1; None if every decision takes its likeliest outcome."""
        return self._random.random()

    def below(self, n: int) -> int:
        """An integer from 0 to n - 1."""
        share = self.share()
        # int(random() * n) is specified; randrange's algorithm has changed between Python versions.
        return 0 if share is None else int(share * n)

    def chance(self, probability: float) -> bool:
        share = self.share()
        return probability > 0.5 if share is None else share < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def draw(self, options: Mapping[T, float]) -> T:
        """A key, with likelihood proportional to its value."""
        share = self.share()
        if share is None:
            return max(options, key=lambda option: options[option])
        at = share * sum(options.values())
        for option, weight in options.items():
            at -= weight
            if at < 0:
                return option
        return list(options)[-1]

    def subset(self, options: Sequence[T], probability: float) -> list[T]:
        return [o for o in options if self.chance(probability)]

    def deviates(self) -> bool:
        """Whether to leave the conventional outcome."""
        return self.chance(self.deviation)

    def choose(self, name: str, options: Mapping[T, float]) -> T:
        """The family's preference, if it has one and the decision does not deviate; else an option by weight."""
        preferred = self._find_preferred(name, options)
        return self.draw(options) if preferred is None or self.deviates() else preferred

    def choose_default(self, options: Mapping[T, float], name: str = "") -> T:
        """The family's preference, or else the heaviest option; if the decision deviates, another option by weight."""
        preferred = self._find_preferred(name, options)
        usual = max(options, key=lambda option: options[option]) if preferred is None else preferred
        if not self.deviates():
            return usual
        others = {option: weight for option, weight in options.items() if option != usual and weight}
        return self.draw(others) if others else usual

    def _find_preferred(self, name: str, options: Mapping[T, float]) -> T | None:
        wanted = self.preferences.get(name)
        return next((option for option in options if option == wanted), None) if wanted is not None else None


_WIDTH = 2
_RANGE = 1 << 8 * _WIDTH


class ByteChoices(Choices):
    """Decisions read from bytes, two for each.

    After the last byte every decision takes its likeliest outcome, the first of equals. So any bytes give a case, and
    few bytes give a conventional case.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__("")
        self._data, self._at = data, 0

    def share(self) -> float | None:
        """A number from 0 to 1; None when the bytes are used up."""
        part = self._data[self._at : self._at + _WIDTH]
        self._at += _WIDTH
        return int.from_bytes(part, "little") / _RANGE if len(part) == _WIDTH else None
