"""The queue of a guided search: cases that reached something first, and how often each thing is reached."""

import threading
from collections import Counter
from collections.abc import Iterable

from fuzz.protocol import SubjectResult
from fuzz.run_store import Results
from generators.program.case import Case
from generators.program.features import features

WITH = " with "
"""Between a pattern and what is unusual about a case that it matched."""

ATTENTION = "_sfdp_pattern_"
"""Begins the names of attention patterns."""


def reached(case: Case, results: Iterable[SubjectResult]) -> frozenset[str]:
    """What a case reached in compilers, by name: rewrites, what else workers report, and everything unusual about the
    case that an attention rewrite matched nevertheless, where rewrites go wrong."""
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
    """How often each thing was reached, and which cases are queued. Threads share it.

    The campaign's store holds the cases: they get there in the transaction that judges them.
    """

    def __init__(self, results: Results) -> None:
        self._lock = threading.Lock()
        self._counts = Counter(results.reached())
        self._queued = {case.id for case, _ in results.queue()}

    @property
    def size(self) -> int:
        """How many cases are in it."""
        return len(self._queued)

    def new(self, case: Case, names: frozenset[str]) -> frozenset[str]:
        """Count what a case reached. Gives what is new of it, for which the case is in the queue then."""
        with self._lock:
            fresh = names - self._counts.keys()
            self._counts.update(names)
            if fresh:
                self._queued.add(case.id)
            return fresh
