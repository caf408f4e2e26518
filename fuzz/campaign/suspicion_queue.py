"""Where suspicions wait: which are known by a finding, and which is worth work next."""

import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace

from fuzz.bug_identity import Signature, Symptom, kind_of, name_accused
from fuzz.campaign.known_bugs import KnownBugs, KnownFinding
from fuzz.protocol import SubjectResult, Verdict
from fuzz.run_store import Outcome, Results, Suspicion
from fuzz.subjects import get_spec
from generators.program.case import Case

_LONGEST_WAIT = 10
"""A signature whose work keeps ending without a finding waits for 2**10 more failures at most."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A suspicion that waits: enough to compare and order it. The case stays in the store."""

    id: int
    symptom: Symptom
    size: int


@dataclass(slots=True)
class Bucket:
    """The suspicions of one signature."""

    waiting: list[Pending] = field(default_factory=list)
    busy: int = 0  # suspicions under work
    works: int = 0  # works that began
    fruitless: int = 0  # works without a finding since the last finding

    @property
    def is_idle(self) -> bool:
        """Whether some wait and another work may begin: one at first, then as many as works have ended. Their results
        explain none of the suspicions that wait, so these may be many bugs."""
        return bool(self.waiting) and self.busy < max(1, self.works - self.busy)


class SuspicionQueue:
    """Suspicions wait here for work, new signatures first. Threads share it.

    The suspicions of a signature wait while work on another goes on, and are compared with its result.
    """

    def __init__(self, results: Results, known_bugs: KnownBugs) -> None:
        self._results, self._known_bugs = results, known_bugs
        self._buckets: defaultdict[Signature, Bucket] = defaultdict(Bucket)
        self._lock = threading.RLock()

    def partition_known(
        self, case: Case, results: tuple[SubjectResult, ...]
    ) -> tuple[list[tuple[Case, SubjectResult]], list[KnownFinding]]:
        """The failures among the results on a case, one for each compiler and kind: the unknown failures, and the
        findings by which the known failures are known."""
        first: dict[tuple[str, str], SubjectResult] = {}
        for result in (result for result in results if result.verdict.is_finding):
            who = name_accused(result.subject, result.verdict)
            first.setdefault((who, kind_of(result.verdict)), result)
        unknown: list[tuple[Case, SubjectResult]] = []
        known: list[KnownFinding] = []
        for result in first.values():
            failing = case
            if not get_spec(result.subject).options or result.verdict is Verdict.EAGER_SUSPECT:
                failing = replace(case, settings=())
            finding = self._find(self._known_bugs.symptom(result, failing))
            if finding is None:
                unknown.append((failing, result))
            else:
                known.append(finding)
        return unknown, known

    def put(self, suspicion: Suspicion) -> None:
        """Let a suspicion wait for work, unless it is known meanwhile."""
        symptom = self._known_bugs.symptom(suspicion.result, suspicion.case)
        pending = Pending(suspicion.id, symptom, len(suspicion.case.ops))
        with self._lock:
            finding = self._find(symptom)
            if finding is not None:
                self._close(pending, finding)
            else:
                self._buckets[symptom.signature].waiting.append(pending)

    def close_explained(self, finding: KnownFinding) -> None:
        """Take out all that a new finding explains."""
        with self._lock:
            for bucket in self._buckets.values():
                for pending in [one for one in bucket.waiting if finding.symptom.explains(one.symptom)]:
                    bucket.waiting.remove(pending)
                    self._close(pending, finding)

    def take(self, *, even_fruitless: bool = False) -> tuple[Suspicion, Signature] | None:
        """The suspicion to work on next and its signature, to be given to `finish`; None when none is worth work.
        `even_fruitless`: where there is nothing better, of a signature that keeps coming to nothing."""
        with self._lock:
            idle = [(signature, bucket) for signature, bucket in self._buckets.items() if bucket.is_idle]
            ready = [one for one in idle if len(one[1].waiting) >= 2 ** min(one[1].fruitless, _LONGEST_WAIT)]
            chosen = ready or (idle if even_fruitless else [])
            if not chosen:
                return None
            signature, bucket = min(chosen, key=lambda item: (item[1].works, item[1].waiting[0].id))
            # The smallest is the quickest to shrink. Later none waits for ever.
            pending = bucket.waiting[0] if bucket.works else min(bucket.waiting, key=lambda one: (one.size, one.id))
            bucket.waiting.remove(pending)
            bucket.busy += 1
            bucket.works += 1
            return self._results.suspicion(pending.id), signature

    def finish(self, signature: Signature, *, fruitful: bool | None) -> None:
        """Work on a suspicion of this signature ended with a new finding, without, or (None) was broken off."""
        with self._lock:
            bucket = self._buckets[signature]
            bucket.busy -= 1
            if fruitful is not None:
                bucket.fruitless = 0 if fruitful else bucket.fruitless + 1

    @property
    def waiting(self) -> int:
        """How many suspicions wait. Takes no lock, so that the screen never waits for a worker thread."""
        return sum(len(bucket.waiting) for bucket in tuple(self._buckets.values()))

    def _find(self, symptom: Symptom) -> KnownFinding | None:
        known = self._known_bugs.find(symptom)
        return None if known is None else known.finding

    def _close(self, pending: Pending, finding: KnownFinding) -> None:
        self._results.close_suspicion(pending.id, Outcome.DUPLICATE, explained_by=finding.case_id)
