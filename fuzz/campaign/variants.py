"""Which variants of cases are worth judging: forms in which an attention rewrite was not seen yet."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection

from fuzz.campaign.source_bandit import SourceBandit
from generators.program.case import Case
from generators.sampling.choices import Choices
from generators.sampling.variants import Variant, make_variants, variant_of

TRIES = 2
"""A pattern is tried so often in each form it was not seen in; more tries are left to chance."""


class VariantQueue:
    """Cases that wait to be judged. Not for several threads at once. `seed`: the campaign's."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._waiting: dict[tuple[str, ...], deque[tuple[str, Case]]] = defaultdict(deque)
        """By what they change."""
        self._seen: set[tuple[str, Variant]] = set()
        self._planned: Counter[tuple[str, Variant]] = Counter()

    def plan(self, case: Case, patterns: Collection[str], new: Collection[str]) -> None:
        """Note that these patterns matched a case, and queue its variants for those that are new in its form."""
        own = variant_of(case)
        self._seen.update((pattern, own) for pattern in patterns)
        for other in make_variants(case, Choices(f"{self._seed}:{case.id}:siblings")) if new else ():
            form = variant_of(other)
            wanted = [p for p in sorted(new) if (p, form) not in self._seen and self._planned[p, form] < TRIES]
            if wanted:
                self._planned.update((pattern, form) for pattern in wanted)
                self._waiting[own.changed(form)].append((wanted[0], other))

    def take(self, c: Choices, changes: SourceBandit[str]) -> tuple[Case, tuple[str, ...]] | None:
        """A variant and what it changes, preferring changes that are likely to reach something new. None when none waits."""
        while waiting := [change for change, cases in self._waiting.items() if cases]:
            words = changes.weights({word: 1.0 for change in waiting for word in change})
            change = c.weighted({change: math.prod(words[word] for word in change) for change in waiting})
            pattern, case = self._waiting[change].popleft()
            if (pattern, variant_of(case)) not in self._seen:
                return case, change
        return None
