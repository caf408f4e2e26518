"""Where suspicions wait: which are explained by a finding, and which one is worth work next."""

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from fuzz.campaign.contract_features import asked
from fuzz.campaign.events import Bus, Duplicate
from fuzz.campaign.investigate import Outcome
from fuzz.campaign.store import Results, Suspicion
from fuzz.campaign.symptom import Symptom, accused, kind_of
from fuzz.protocol import SubjectResult, Verdict
from generators.program.case import Case
from generators.program.features import features

_LONGEST_WAIT = 10
"""A signature whose work keeps ending without a finding waits for 2**10 more failures at most."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A finding as far as later failures are compared with it; `known`: it was in the corpus before this run."""

    case_id: str
    symptom: Symptom
    known: bool


@dataclass(frozen=True, slots=True)
class _Ticket:
    """A suspicion that waits: enough to compare and order it. The case stays in the store."""

    id: int
    case_id: str
    symptom: Symptom
    size: int


@dataclass(slots=True)
class _Pile:
    """The suspicions of one coarse signature."""

    waiting: list[_Ticket] = field(default_factory=list)
    busy: bool = False
    works: int = 0
    fruitless: int = 0

    @property
    def ready(self) -> bool:
        return not self.busy and len(self.waiting) >= 2 ** min(self.fruitless, _LONGEST_WAIT)


class Desk:
    """Failures are put here and taken for work: one at a time for each coarse signature, new signatures first.

    While one is worked on the others of its signature wait, and are looked at again with what became of it.
    """

    def __init__(self, results: Results, bus: Bus) -> None:
        self._results, self._bus = results, bus
        self.attention: frozenset[str] = frozenset()
        """Subjects that compute attention alone."""
        self._explanations: list[Explanation] = []
        self._listed: dict[str, Explanation] = {}
        self._piles: defaultdict[str, _Pile] = defaultdict(_Pile)
        self._lock = threading.RLock()

    def symptom(self, result: SubjectResult, case: Case) -> Symptom:
        """What is seen of a bug when a subject gives `result` on `case`."""
        alone = result.subject in self.attention and result.verdict is not Verdict.EAGER_SUSPECT
        return Symptom.of(result, asked(case) if alone else features(case))

    def learn(self, explanation: Explanation) -> None:
        """From now on this finding explains failures, those that wait included."""
        with self._lock:
            self._explanations.append(explanation)
            for pile in self._piles.values():
                for ticket in [t for t in pile.waiting if explanation.symptom.explains(t.symptom)]:
                    pile.waiting.remove(ticket)
                    self._explained(ticket, explanation)

    def explanation(self, symptom: Symptom) -> Explanation | None:
        """The finding that explains a failure."""
        with self._lock:
            return next((e for e in self._explanations if e.symptom.explains(symptom)), None)

    def finding(self, case_id: str) -> Explanation | None:
        """The finding whose minimal case this is, or one that is known to be of the same bug."""
        with self._lock:
            own = next((e for e in self._explanations if e.case_id == case_id), None)
            return own or self._listed.get(case_id)

    def take_for_same(self, case_ids: Iterable[str], explanation: Explanation) -> None:
        """Take failures whose minimum is one of these cases for the bug of this finding."""
        with self._lock:
            for case_id in case_ids:
                self._listed.setdefault(case_id, explanation)

    def sort(
        self, case: Case, results: tuple[SubjectResult, ...]
    ) -> tuple[list[SubjectResult], list[tuple[SubjectResult, Explanation]]]:
        """The failures among a case's results, one for each compiler and kind: unexplained, and explained."""
        first: dict[tuple[str, str], SubjectResult] = {}
        for result in results:
            if result.verdict.is_finding:
                first.setdefault((accused(result.subject, result.verdict), kind_of(result.verdict)), result)
        suspect, explained = [], []
        for result in first.values():
            explanation = self.explanation(self.symptom(result, case))
            if explanation is None:
                suspect.append(result)
            else:
                explained.append((result, explanation))
        return suspect, explained

    def put(self, suspicion: Suspicion) -> None:
        """Let a suspicion wait for work, unless it has been explained meanwhile."""
        ticket = _Ticket(
            suspicion.id, suspicion.case.id, self.symptom(suspicion.result, suspicion.case), len(suspicion.case.ops)
        )
        with self._lock:
            explanation = self.explanation(ticket.symptom)
            if explanation is not None:
                self._explained(ticket, explanation)
            else:
                self._piles[ticket.symptom.signature].waiting.append(ticket)

    def take(self) -> tuple[Suspicion, str] | None:
        """The suspicion to work on next and its coarse signature, to be given to `done`; None when none is due."""
        with self._lock:
            ready = [(signature, pile) for signature, pile in self._piles.items() if pile.ready]
            if not ready:
                return None
            signature, pile = min(ready, key=lambda item: (item[1].works, min(t.id for t in item[1].waiting)))
            # The smallest is the quickest to shrink.
            ticket = min(pile.waiting, key=lambda t: (t.size, t.id))
            pile.waiting.remove(ticket)
            pile.busy = True
            pile.works += 1
            return self._results.suspicion(ticket.id), signature

    def done(self, signature: str, *, fruitful: bool | None) -> None:
        """Work on a suspicion of this signature ended with a new finding, without one, or (None) was broken off."""
        with self._lock:
            pile = self._piles[signature]
            pile.busy = False
            if fruitful is not None:
                pile.fruitless = 0 if fruitful else pile.fruitless + 1

    @property
    def due(self) -> bool:
        """Whether something is worth work now."""
        with self._lock:
            return any(pile.ready for pile in self._piles.values())

    @property
    def waiting(self) -> int:
        """How many suspicions wait."""
        with self._lock:
            return sum(len(pile.waiting) for pile in self._piles.values())

    def _explained(self, ticket: _Ticket, explanation: Explanation) -> None:
        self._results.settle(ticket.id, Outcome.DUPLICATE, explained_by=explanation.case_id)
        self._bus.emit(Duplicate(ticket.case_id, ticket.symptom.verdict, explanation.case_id, explanation.known))
