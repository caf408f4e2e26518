"""Holds the open suspicions, closes those that a finding explains, and chooses the next to examine or investigate."""

import threading
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from fuzz.bug_identity import Signature, Symptom, kind_of, name_accused
from fuzz.known_bugs import KnownBug, KnownBugs
from fuzz.protocol import EAGER, SubjectResult, Verdict
from fuzz.run_store import Results, Suspicion, SuspicionOutcome
from fuzz.subjects import get_spec, is_user_function
from generators.program.case import Case

_LONGEST_WAIT = 10
"""After n investigations without a finding, a signature needs 2**n waiting suspicions; at most 2**10."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The part of a waiting suspicion that is compared and ordered. The case stays in the store."""

    id: int
    symptom: Symptom
    size: int
    refuted: frozenset[str] = frozenset()
    """Findings that it looks like, whose experiments showed that it is another bug."""
    is_alike: bool = False
    """Whether it looks like a finding whose experiments did not decide."""


@dataclass(slots=True)
class Bucket:
    """The suspicions of one signature."""

    waiting: list[Pending] = field(default_factory=list)
    busy: int = 0  # suspicions that are being investigated
    works: int = 0  # investigations that began
    fruitless: int = 0  # investigations without a finding, since the last finding

    @property
    def may_start(self) -> bool:
        """Whether suspicions wait and another investigation may start.

        One runs at first, then as many at once as have ended: a suspicion that still waits is unlike each of those.
        """
        return bool(self.waiting) and self.busy < max(1, self.works - self.busy)


class SuspicionQueue:
    """Suspicions that wait, new signatures first. Threads share it.

    While a suspicion is investigated, others of its signature wait, and are then compared with the result. Suspicions
    that look like a known bug wait behind all others, for the experiments of that bug. `eager_last`: suspicions about
    eager wait behind those too, since the user tests functions of their own.
    """

    def __init__(self, results: Results, known_bugs: KnownBugs, *, eager_last: bool = False) -> None:
        self._results, self._known_bugs, self._eager_last = results, known_bugs, eager_last
        self._buckets: defaultdict[Signature, Bucket] = defaultdict(Bucket)
        self._alike: list[Pending] = []  # suspicions that look like a bug with deciding experiments
        self._lock = threading.RLock()

    def partition_known(
        self, case: Case, results: tuple[SubjectResult, ...]
    ) -> tuple[list[tuple[Case, SubjectResult]], list[KnownBug]]:
        """The failures of a case, one for each accused compiler and kind of verdict. Returns the failures that are not
        known by measurements, and the findings that explain the other failures."""
        first: dict[tuple[str, str], SubjectResult] = {}
        for result in (result for result in results if result.verdict.is_finding):
            who = name_accused(result.subject, result.verdict)
            first.setdefault((who, kind_of(result.verdict)), result)
        unknown: list[tuple[Case, SubjectResult]] = []
        known: list[KnownBug] = []
        for result in first.values():
            failing = case
            if not get_spec(result.subject).options or result.verdict is Verdict.EAGER_SUSPECT:
                failing = replace(case, settings=())
            finding = self._known_bugs.find_by_rewrites(self._known_bugs.symptom(result, failing))
            if finding is None:
                unknown.append((failing, result))
            else:
                known.append(finding)
        return unknown, known

    def put(self, suspicion: Suspicion, refuted: Collection[str] = ()) -> None:
        """Add a suspicion, or close it if measurements of a finding explain it by now. `refuted`: the ids of findings
        whose experiments showed that it is another bug."""
        symptom = self._known_bugs.symptom(suspicion.result, suspicion.case)
        with self._lock:
            self._place(Pending(suspicion.id, symptom, len(suspicion.case.ops), frozenset(refuted), bool(refuted)))

    def reconsider(self, finding: KnownBug) -> None:
        """Close the suspicions that measurements of a new finding explain. Others that look like it wait for its
        experiments."""
        with self._lock:
            for waiting in (self._alike, *(bucket.waiting for bucket in self._buckets.values())):
                for pending in [one for one in waiting if finding.symptom and finding.symptom.is_like(one.symptom)]:
                    waiting.remove(pending)
                    self._place(pending)

    def _place(self, pending: Pending) -> None:
        finding, alike = self._known_bugs.find_by_rewrites(pending.symptom), self._list_alike(pending)
        if finding is not None:
            self._results.close_suspicion(pending.id, SuspicionOutcome.DUPLICATE, explained_by=finding.case_id)
            return
        if bool(alike) != pending.is_alike:
            self._results.set_alike(pending.id, bool(alike))
        is_decidable = any(one.decided_by != () for one in alike)
        waiting = self._alike if is_decidable else self._buckets[pending.symptom.signature].waiting
        waiting.append(replace(pending, is_alike=bool(alike)))

    def take_alike(self) -> tuple[Suspicion, list[KnownBug]] | None:
        """A suspicion that looks like known bugs, and the findings whose experiments decide. None if none waits."""
        with self._lock:
            if not self._alike:
                return None
            pending = min(self._alike, key=self._is_late)  # the first of the equals
            self._alike.remove(pending)
            alike = [one for one in self._list_alike(pending) if one.decided_by != ()]
            return self._results.suspicion(pending.id), alike

    def take(self, *, even_fruitless: bool = False, with_exceptions: bool = True) -> tuple[Suspicion, Signature] | None:
        """The suspicion to investigate next, and its signature for `finish`; None if no investigation may start.
        `even_fruitless`: if nothing better waits, take a suspicion of a fruitless signature. `with_exceptions`: of a
        compiler that is no part of torch too."""
        with self._lock:
            startable = [
                (signature, bucket)
                for signature, bucket in self._buckets.items()
                if bucket.may_start and (with_exceptions or not self.is_exception(signature))
            ]
            ready = [one for one in startable if len(one[1].waiting) >= 2 ** min(one[1].fruitless, _LONGEST_WAIT)]
            chosen = ready or (startable if even_fruitless else [])

            def rank(item: tuple[Signature, Bucket]) -> tuple[bool, bool, bool, int, int]:
                first = item[1].waiting[0]
                return self._is_late(first), self.is_exception(item[0]), first.is_alike, item[1].works, first.id

            if not chosen:
                return None
            signature, bucket = min(chosen, key=rank)
            if self._is_late(bucket.waiting[0]) and not all(map(self._is_late, self._alike)):
                return None
            # The smallest is the quickest to shrink. Later the oldest comes first, so that each gets its turn.
            pending = bucket.waiting[0] if bucket.works else min(bucket.waiting, key=lambda one: (one.size, one.id))
            bucket.waiting.remove(pending)
            bucket.busy += 1
            bucket.works += 1
            return self._results.suspicion(pending.id), signature

    def finish(self, signature: Signature, *, fruitful: bool | None) -> None:
        """An investigation ended. `fruitful`: whether it gave a new finding; None if the outcome does not count."""
        with self._lock:
            bucket = self._buckets[signature]
            bucket.busy -= 1
            if fruitful is not None:
                bucket.fruitless = 0 if fruitful else bucket.fruitless + 1

    def is_exception(self, signature: Signature) -> bool:
        """Whether a compiler that is no part of torch gave no result. Its wrong numbers go first: nobody sees them."""
        accused, kinds = signature.accused, {verdict.value for verdict in Verdict if verdict.is_logged}
        is_other = get_spec(accused).is_foreign or is_user_function(accused)
        return is_other and accused not in self._known_bugs.attention and signature.kind in kinds

    @property
    def waiting(self) -> int:
        """How many suspicions wait. Takes no lock, so that the screen never waits for a worker thread."""
        return len(self._alike) + sum(len(bucket.waiting) for bucket in tuple(self._buckets.values()))

    def _is_late(self, pending: Pending) -> bool:
        return self._eager_last and pending.symptom.accused == EAGER

    def _list_alike(self, pending: Pending) -> list[KnownBug]:
        return [one for one in self._known_bugs.list_alike(pending.symptom) if one.case_id not in pending.refuted]
