"""Where suspicions wait: which are explained by a finding, and which one is worth work next."""

import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace

from fuzz.bug_identity import Symptom, kind_of, name_accused
from fuzz.campaign.known_bugs import Explanation, KnownBugs
from fuzz.campaign.share import SharedFolder
from fuzz.events import Bus
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
    case_id: str
    symptom: Symptom
    size: int


@dataclass(slots=True)
class Bucket:
    """The suspicions of one coarse signature."""

    waiting: list[Pending] = field(default_factory=list)
    busy: int = 0
    """How many are worked on."""
    works: int = 0
    fruitless: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether some wait, and few enough are worked on: one, or as many as work has ended on. None of those
        explains what still waits, which so may be many bugs."""
        return bool(self.waiting) and self.busy < max(1, self.works - self.busy)


class SuspicionQueue:
    """Suspicions wait here for work: at first one at a time for each coarse signature, new signatures first. Threads
    share it.

    While one is worked on the others of its signature wait, and are compared with what became of it.
    """

    def __init__(self, results: Results, bus: Bus, known: KnownBugs, share: SharedFolder | None = None) -> None:
        self._results, self._bus, self._known, self._share = results, bus, known, share
        self._buckets: defaultdict[str, Bucket] = defaultdict(Bucket)
        self._lock = threading.RLock()

    def split(
        self, case: Case, results: tuple[SubjectResult, ...]
    ) -> tuple[list[tuple[Case, SubjectResult]], list[tuple[Case, SubjectResult, Explanation]]]:
        """The failures among the results on a case, one for each compiler and kind: unexplained, and explained."""
        first: dict[tuple[str, str], SubjectResult] = {}
        for result in (result for result in results if result.verdict.is_finding):
            who = name_accused(result.subject, result.verdict)
            first.setdefault((who, kind_of(result.verdict)), result)
        unexplained: list[tuple[Case, SubjectResult]] = []
        explained: list[tuple[Case, SubjectResult, Explanation]] = []
        for result in first.values():
            failing = case
            if not get_spec(result.subject).options or result.verdict is Verdict.EAGER_SUSPECT:
                failing = replace(case, settings=())
            explanation = self._known.explain(self._known.symptom(result, failing))
            if explanation is None:
                unexplained.append((failing, result))
            else:
                explained.append((failing, result, explanation))
        return unexplained, explained

    def put(self, suspicion: Suspicion) -> None:
        """Let a suspicion wait for work, unless it has been explained meanwhile."""
        symptom = self._known.symptom(suspicion.result, suspicion.case)
        pending = Pending(suspicion.id, suspicion.case.id, symptom, len(suspicion.case.ops))
        with self._lock:
            explanation = self._known.explain(symptom)
            if explanation is not None:
                self._settle(pending, explanation)
            else:
                self._buckets[symptom.signature].waiting.append(pending)

    def settle_explained(self, explanation: Explanation) -> None:
        """Take out all that a new finding explains."""
        with self._lock:
            for bucket in self._buckets.values():
                for pending in [one for one in bucket.waiting if explanation.symptom.explains(one.symptom)]:
                    bucket.waiting.remove(pending)
                    self._settle(pending, explanation)

    def take(self, *, even_fruitless: bool = False) -> tuple[Suspicion, str] | None:
        """The suspicion to work on next and its coarse signature, to be given to `finish`; None when none is worth
        work. `even_fruitless`: where there is nothing better, of a signature that keeps coming to nothing."""
        with self._lock:
            idle = [(signature, bucket) for signature, bucket in self._buckets.items() if bucket.is_idle]
            ready = [one for one in idle if len(one[1].waiting) >= 2 ** min(one[1].fruitless, _LONGEST_WAIT)]
            chosen = ready or (idle if even_fruitless else [])
            chosen.sort(key=lambda item: (item[1].works, item[1].waiting[0].id))
            for signature, bucket in chosen:
                if self._share is not None and not self._share.claim(signature):
                    continue
                # The smallest is the quickest to shrink. Later none waits for ever.
                pending = bucket.waiting[0] if bucket.works else min(bucket.waiting, key=lambda one: (one.size, one.id))
                bucket.waiting.remove(pending)
                bucket.busy += 1
                bucket.works += 1
                return self._results.suspicion(pending.id), signature
            return None

    def finish(self, signature: str, *, fruitful: bool | None) -> None:
        """Work on a suspicion of this signature ended with a new finding, without one, or (None) was broken off."""
        with self._lock:
            bucket = self._buckets[signature]
            bucket.busy -= 1
            if self._share is not None and not bucket.busy:
                self._share.release(signature)
            if fruitful is not None:
                bucket.fruitless = 0 if fruitful else bucket.fruitless + 1

    @property
    def waiting(self) -> int:
        """How many suspicions wait. Takes no lock: listeners of the bus ask, which others tell while they hold ours."""
        return sum(len(bucket.waiting) for bucket in tuple(self._buckets.values()))

    def _settle(self, pending: Pending, explanation: Explanation) -> None:
        self._results.settle(pending.id, Outcome.DUPLICATE, explained_by=explanation.case_id)
        self._bus.emit(explanation.report(pending.case_id, pending.symptom.verdict))
