"""What a campaign knows of bugs: which failures are explained, by what, and what the ledger says of them."""

import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corpus import entry as corpus_entry
from corpus.causes import CauseKey, MechanismKind, Stage, details
from corpus.entry import Entry
from corpus.ledger import Bug, Ledger
from fuzz.bug_identity import Symptom, contract_features, name_accused
from fuzz.events import Duplicate
from fuzz.protocol import EAGER, SubjectResult, Verdict
from fuzz.protocol.rewrites import WrongRewrite
from fuzz.subjects import compiler_of
from generators.errors import UserError
from generators.program.attention_stub import AttentionCall
from generators.program.case import Case
from generators.program.dtypes import LOW_PRECISION
from generators.program.features import features
from generators.program.type_check import types_of
from generators.records import decode

_RIGHT_FOR_ONE_WRONG = 9
_MOST_COMPARED = 1000
"""More failures are not kept for that: they are of every kind by then."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A finding that may explain later failures. `known`: it was in the corpus before this run."""

    case_id: str
    symptom: Symptom
    known: bool

    def report(self, case_id: str, verdict: Verdict) -> Duplicate:
        """The event that it explains a failure of this case."""
        return Duplicate(case=case_id, verdict=verdict, finding=self.case_id)


class KnownBugs:
    """Findings that explain later failures, and bugs of the ledger. Threads share it.

    Bugs of the ledger explain the failures that look like one of their examples. Those that are fixed and back in this
    torch version explain nothing: the campaign watches for them, and their failures are findings.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.attention: frozenset[str] = frozenset()
        """Subjects that compute attention alone."""
        self.bugs: dict[str, Bug] = {}
        """The bugs of the ledger that explain failures, by the ids of the cases they explain them by."""
        self._ledger, self._torch = ledger, ""
        self._explanations: list[Explanation] = []
        self._minima: dict[str, Explanation] = {}
        """By case id: the finding that has this minimum, or that is of the same bug."""
        self._watched: list[tuple[Symptom, Bug]] = []
        self._watched_cases: dict[str, Bug] = {}
        self._right: defaultdict[str, set[Hashable]] = defaultdict(set)
        self._wrong: defaultdict[str, set[Hashable]] = defaultdict(set)
        """By case id: failures with rewrites proven wrong that the words of the finding explain, rightly or wrongly."""
        self._lock = threading.RLock()

    def symptom(self, result: SubjectResult, case: Case) -> Symptom:
        """How the bug behind `result` on `case` shows."""
        attention_only = result.subject in self.attention and result.verdict is not Verdict.EAGER_SUSPECT
        return Symptom.of(
            result, contract_features(case) if attention_only else features(case), attention_only=attention_only
        )

    def load_ledger(self, torch: str) -> Iterator[tuple[Path, Entry]]:
        """Take in the ledger under this torch version; gives the examples that explain failures. Raises `CaseError`."""
        self._torch = torch
        for bug in self._ledger.bugs if self._ledger is not None else ():
            assert self._ledger is not None
            examples = [(path, corpus_entry.load(path)) for path in self._ledger.examples(bug)]
            if bug.status.is_back_in(torch):
                cases = {*bug.findings, *(entry.case.id for _, entry in examples)}
                self._watched_cases |= dict.fromkeys(cases, bug)
                self._watched += [(self.symptom(read_recorded_result(entry), entry.case), bug) for _, entry in examples]
                continue
            for path, entry in examples:
                explanation = self.add_entry(entry, bug)
                for case_id in bug.findings:
                    self._minima.setdefault(case_id, explanation)
                yield path, entry

    def learn(self, entry: Entry, *, known: bool = True, torch: str = "") -> bool:
        """Explain failures by an entry from now on, and return True.

        False if the entry was learned before, is expected to pass, or shows a bug that is watched for. `torch`: also
        False unless it is expected to fail in this version.
        """
        expected = entry.expect
        if any(explanation.case_id == entry.case.id for explanation in self._explanations):
            return False
        if torch and expected is not None and (expected.status != "known" or not expected.holds_for(torch)):
            return False
        if (entry.found is None and (expected is None or not expected.verdict)) or self._is_back(entry):
            return False
        self.add_entry(entry, self._bug_of(entry.case.id) if known else None, known=known)
        return True

    def add_entry(self, entry: Entry, bug: Bug | None, *, known: bool = True) -> Explanation:
        """Explain failures by an entry, and so by a bug of the ledger where one is given."""
        symptom = self.symptom(read_recorded_result(entry), entry.case)
        if bug is not None:
            self.bugs[entry.case.id] = bug
            # The simplest example may say less of its rewrite than the findings by which the cause was named.
            measured = (WrongRewrite(one.part, dict(one.right), dict(one.wrong)) for one in bug.causes if one.right)
            symptom = replace(symptom, rewrites=(*symptom.rewrites, *measured))
        return self.add(Explanation(entry.case.id, symptom, known))

    def add(self, explanation: Explanation) -> Explanation:
        """Explain failures by a finding."""
        with self._lock:
            self._explanations.append(explanation)
            self._minima[explanation.case_id] = explanation
        return explanation

    def explain(self, symptom: Symptom) -> Explanation | None:
        """The finding that explains a failure.

        Where rewrites are proven wrong, they decide, and also test what comparing words would have said. A finding for
        which words were wrong in more than one of ten such failures explains no failure by words alone.
        """
        with self._lock:
            for one in self._explanations:
                if one.symptom.can_compare_rewrites(symptom):
                    if one.symptom.is_contained_in(symptom):
                        said = self._right if one.symptom.explains(symptom) else self._wrong
                        if len(said[one.case_id]) < _MOST_COMPARED:
                            said[one.case_id].add((symptom.fired, symptom.features))
                elif len(self._wrong[one.case_id]) * _RIGHT_FOR_ONE_WRONG > len(self._right[one.case_id]):
                    continue
                if one.symptom.explains(symptom):
                    return one
        return None

    def expects(self, subject: str, call: AttentionCall) -> bool:
        """Whether a call of an attention function has all that one of its known bugs takes."""
        with self._lock:
            symptoms = [one.symptom for one in self._explanations]
        own = (one for one in symptoms if name_accused(one.subject, one.verdict) == compiler_of(subject))
        return any(one.is_expected_of(call) for one in own)

    def explain_minimum(self, case_id: str) -> Explanation | None:
        """The finding whose minimal case this is, or that the ledger calls the same bug."""
        with self._lock:
            return self._minima.get(case_id)

    def find_listed(self, case: Case, symptom: Symptom) -> Bug | None:
        """The bug of the ledger that lists this case, or has eager's wrong operation as cause; None if watched for."""
        bug = self._watched_cases.get(case.id) or self._bug_of(case.id) or self._find_operation(case, symptom)
        return None if bug is None or bug.status.is_back_in(self._torch) else bug

    def find_watched(self, case: Case, symptom: Symptom) -> Bug | None:
        """The bug of the ledger that is back, where a finding shows one."""
        exact = self._watched_cases.get(case.id)
        bug = exact or next((bug for known, bug in self._watched if known.explains(symptom)), None)
        bug = bug or self._find_operation(case, symptom)
        return bug if bug is not None and bug.status.is_back_in(self._torch) else None

    def _find_operation(self, case: Case, symptom: Symptom) -> Bug | None:
        """The bug whose cause is the operation of eager that is wrong, as `triage.cluster` names it."""
        if symptom.verdict is not Verdict.EAGER_SUSPECT or self._ledger is None:
            return None
        operation, _, how = symptom.identity.partition(" ")
        is_finite = how == "wrong"
        how_in = MechanismKind.WRONG_IN if is_finite else MechanismKind.NOT_FINITE_IN
        low = sorted({value.dtype for value in types_of(case).values()} & set(LOW_PRECISION))
        causes = [CauseKey(EAGER, Stage.OPERATION, operation, how_in, details(dtype=one)) for one in low]
        causes.append(
            CauseKey(EAGER, Stage.OPERATION, operation, MechanismKind.WRONG if is_finite else MechanismKind.NOT_FINITE)
        )
        return next(filter(None, map(self._ledger.find_cause, causes)), None)

    def _bug_of(self, case_id: str) -> Bug | None:
        return self._ledger.find_case(case_id) if self._ledger is not None else None

    def _is_back(self, entry: Entry) -> bool:
        if self._bug_of(entry.case.id) is not None:
            return entry.case.id in self._watched_cases
        return self.find_watched(entry.case, self.symptom(read_recorded_result(entry), entry.case)) is not None


def read_recorded_result(entry: Entry) -> SubjectResult:
    """The result an entry records. Raises `UserError` for an unknown verdict or failure."""
    found, expected = entry.found, entry.expectation
    data: dict[str, Any] = {"subject": entry.subject, "verdict": expected.verdict or Verdict.OK.value}
    if found is not None:
        data = {"subject": found.subject, "verdict": found.verdict, "applied_rewrites": found.fired}
        data |= {"numbers": found.numbers, "wrong_rewrites": found.rewrites}
        data |= {"failure": found.failure} if found.failure else {}
    try:
        return decode(SubjectResult, data)
    except ValueError as error:
        raise UserError(f"{entry.file_name}: `found` is not readable: {error}") from error
