"""The queue of a guided search: cases that reached what no case before them had, and how often each thing is reached."""

import threading
from collections import Counter
from collections.abc import Iterable

from fuzz.campaign.store import Results
from fuzz.protocol import SubjectResult
from generators.program.case import Case
from generators.program.features import features
from generators.sampling.choices import Choices

KEPT_FOR_ONE = 16
"""So many cases are remembered for each thing reached, the shortest."""

WITH = " with "
"""Between a pattern and what is unusual about a case that it matched."""

ATTENTION = "_sfdp_pattern_"
"""Begins the names of attention patterns."""

_REFRESH = 25
"""Energies are computed anew after so many cases."""


def reached(case: Case, results: Iterable[SubjectResult]) -> frozenset[str]:
    """What a case reached in compilers, by name: rewrites, what else workers report, and everything unusual about the case
    that an attention rewrite matched nevertheless, where rewrites go wrong."""
    results = tuple(results)
    fired = {name for result in results for name in result.fired}
    patterns = {pattern_of(name) for name in fired if name.startswith(ATTENTION)}
    unusual = features(case) if patterns else ()
    names = {f"rewrite {name}" for name in fired}.union(*(result.reached for result in results))
    return frozenset(names | {f"{pattern}{WITH}{word}" for pattern in patterns for word in unusual})


def pattern_of(name: str) -> str:
    """`_sfdp_pattern_5` of `_sfdp_pattern_5_half_inference`."""
    return "_".join(name.split("_")[:4])


class Queue:
    """Threads share it. What is in it is in the store of the campaign too, in the transaction that judges the case."""

    def __init__(self, results: Results) -> None:
        self._lock = threading.Lock()
        self._counts = Counter(results.reached())
        self._cases: dict[str, list[Case]] = {}
        self._queued: set[str] = set()
        self._energies: dict[str, float] = {}
        self._stale = 0
        for case, names in results.queue():
            self._remember(case, names)

    @property
    def size(self) -> int:
        """How many cases are in it."""
        return len(self._queued)

    def new(self, case: Case, names: frozenset[str]) -> frozenset[str]:
        """Count what a case reached. Gives what is new of it, for which the case is in the queue then."""
        with self._lock:
            fresh = names - self._counts.keys()
            self._counts.update(names)
            self._stale -= 1
            if fresh:
                self._remember(case, names)
            return fresh

    def pick(self, c: Choices) -> Case | None:
        """A case that reached something rare: a thing reached n times is chosen 1/n times as often; None of an empty queue."""
        with self._lock:
            if self._stale <= 0:
                self._energies = {name: 1.0 / self._counts[name] for name in self._cases}
                self._stale = _REFRESH
            return c.pick(self._cases[c.weighted(self._energies)]) if self._energies else None

    def _remember(self, case: Case, names: Iterable[str]) -> None:
        self._queued.add(case.id)
        for name in sorted(names):
            cases = self._cases.setdefault(name, [])
            if any(known.id == case.id for known in cases):
                continue
            cases.append(case)
            if len(cases) > KEPT_FOR_ONE:
                cases.remove(max(cases, key=lambda known: len(known.ops)))
