"""Which failures a campaign knows, by which finding or entry of the ledger."""

import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.causes import CauseKey, MechanismKind, Stage, details
from corpus.entry import Entry
from corpus.ledger import Bug, Ledger
from fuzz.bug_identity import Symptom, contract_features, measured_rewrite
from fuzz.protocol import EAGER, SubjectResult, Verdict
from fuzz.replay_result import read_recorded_result
from fuzz.subjects import compiler_of
from generators.program.attention_stub import AttentionCall
from generators.program.case import Case
from generators.program.features import features
from generators.program.type_check import types_of
from generators.program.values import LOW_PRECISION

_RIGHT_FOR_ONE_WRONG = 9
_MOST_COMPARED = 1000
"""More failures are not kept to compare: they are of every kind by then."""


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """A finding by which later failures are known."""

    case_id: str
    symptom: Symptom


class Why(Enum):
    """Why a failure is known. Asked in this order; only `ALIKE` is asked of cases that are not minimal."""

    SAME_MINIMUM = "a finding has this minimal case, or the ledger lists the case with that finding"
    LISTED = "the ledger lists the case, or eager's wrong operation as a cause, and has no example like it"
    ALIKE = "the symptom of a finding explains it"
    BACK = "a bug that is fixed in this torch version shows again, which is a new finding"


@dataclass(frozen=True, slots=True)
class Known:
    """The answer to "is this failure known?"."""

    why: Why
    finding: KnownFinding | None = None  # of `SAME_MINIMUM` and `ALIKE`
    bug: Bug | None = None  # of `LISTED` and `BACK`


class KnownBugs:
    """Findings by which later failures are known, and bugs of the ledger. Threads share it.

    By a bug of the ledger those failures are known that look like an example of it. By a bug that is fixed and back in
    this torch version no failure is known: the campaign watches for it, and its failures are findings.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.attention: frozenset[str] = frozenset()  # subjects that compute attention alone
        self.bugs: dict[str, Bug] = {}
        """The bugs of the ledger by which failures are known, by the case ids of their examples."""
        self._ledger, self._torch = ledger or Ledger(Path()), ""
        self._findings: list[KnownFinding] = []
        self._minima: dict[str, KnownFinding] = {}  # by the id of a minimal case
        self._watched: list[tuple[Symptom, Bug]] = []
        self._watched_cases: dict[str, Bug] = {}
        self._right: defaultdict[str, set[Hashable]] = defaultdict(set)
        self._wrong: defaultdict[str, set[Hashable]] = defaultdict(set)
        """By case id: failures with rewrites proven wrong that the other evidence of the finding joins to it, rightly
        or wrongly."""
        self._lock = threading.RLock()

    def symptom(self, result: SubjectResult, case: Case) -> Symptom:
        """How the bug behind `result` on `case` shows."""
        attention_only = result.subject in self.attention and result.verdict is not Verdict.EAGER_SUSPECT
        return Symptom.of(
            result, contract_features(case) if attention_only else features(case), attention_only=attention_only
        )

    def find(self, symptom: Symptom, minimal: Case | None = None) -> Known | None:
        """Whether a failure with this symptom, of a `minimal` case if one is given, is known: by the first of `Why`."""
        with self._lock:
            if minimal is not None:
                if minimal.id in self._minima:
                    return Known(Why.SAME_MINIMUM, self._minima[minimal.id])
                bug = self._watched_cases.get(minimal.id) or self._ledger.find_case(minimal.id)
                bug = bug or self._find_operation(symptom, minimal)
                if bug is not None and not bug.status.is_back_in(self._torch):
                    return Known(Why.LISTED, bug=bug)
            finding = self._find_alike(symptom)
            if finding is not None:
                return Known(Why.ALIKE, finding)
            bug = self._find_back(symptom, minimal) if minimal is not None else None
            return None if bug is None else Known(Why.BACK, bug=bug)

    def load_ledger(self, torch: str) -> Iterator[tuple[Path, Entry]]:
        """Take in the ledger under this torch version; gives the examples by which failures are known. Raises
        `CaseError`."""
        self._torch = torch
        for bug in self._ledger.bugs:
            examples = [(path, corpus_entry.load(path)) for path in self._ledger.examples(bug)]
            if bug.status.is_back_in(torch):
                cases = {*bug.findings, *(entry.case.id for _, entry in examples)}
                self._watched_cases |= dict.fromkeys(cases, bug)
                self._watched += [(self.symptom(read_recorded_result(entry), entry.case), bug) for _, entry in examples]
                continue
            for path, entry in examples:
                finding = self.add_entry(entry, bug)
                for case_id in bug.findings:
                    self._minima.setdefault(case_id, finding)
                yield path, entry

    def learn(self, entry: Entry, *, from_corpus: bool = True, torch: str = "") -> KnownFinding | None:
        """Know failures by an entry from now on.

        None if the entry was learned before, is expected to pass, or shows a bug that is watched for; with `torch`,
        also if it is not expected to fail in that version.
        """
        expected = entry.expect
        if any(finding.case_id == entry.case.id for finding in self._findings):
            return None
        if torch and expected is not None and (expected.status != "known" or not expected.holds_for(torch)):
            return None
        if entry.found is None and (expected is None or not expected.verdict):
            return None
        bug = self._ledger.find_case(entry.case.id)
        if entry.case.id in self._watched_cases:
            return None
        if bug is None and self._find_back(self.symptom(read_recorded_result(entry), entry.case), entry.case):
            return None
        return self.add_entry(entry, bug if from_corpus else None)

    def add_entry(self, entry: Entry, bug: Bug | None) -> KnownFinding:
        """Know failures by an entry, and so by a bug of the ledger where one is given."""
        symptom = self.symptom(read_recorded_result(entry), entry.case)
        if bug is not None:
            self.bugs[entry.case.id] = bug
            # The simplest example may say less of its rewrite than the findings by which the cause was named.
            measured = filter(None, map(measured_rewrite, bug.causes))
            symptom = replace(symptom, wrong_rewrites=(*symptom.wrong_rewrites, *measured))
        return self.add(KnownFinding(entry.case.id, symptom))

    def add(self, finding: KnownFinding) -> KnownFinding:
        with self._lock:
            self._findings.append(finding)
            self._minima[finding.case_id] = finding
        return finding

    def expects(self, subject: str, call: AttentionCall) -> bool:
        """Whether a call of an attention function has all that one of its known bugs takes."""
        with self._lock:
            symptoms = [finding.symptom for finding in self._findings]
        accused = compiler_of(subject)
        return any(symptom.accused == accused and symptom.is_expected_of(call) for symptom in symptoms)

    def _find_alike(self, symptom: Symptom) -> KnownFinding | None:
        """The finding that explains a failure.

        Where rewrites are proven wrong, they decide, and also test what the other evidence would have said. A finding
        whose other evidence was wrong of more than one of ten such failures explains none by that alone.
        """
        for finding in self._findings:
            own, case_id = finding.symptom, finding.case_id
            if own.can_compare_rewrites(symptom):
                if own.is_contained_in(symptom):
                    said = self._right if own.explains(symptom) else self._wrong
                    if len(said[case_id]) < _MOST_COMPARED:
                        said[case_id].add((symptom.applied_rewrites, symptom.features))
            elif len(self._wrong[case_id]) * _RIGHT_FOR_ONE_WRONG > len(self._right[case_id]):
                continue
            if own.explains(symptom):
                return finding
        return None

    def _find_back(self, symptom: Symptom, case: Case) -> Bug | None:
        """The bug that a finding shows although it is fixed in this torch version."""
        watched = (bug for known, bug in self._watched if known.explains(symptom))
        bug = self._watched_cases.get(case.id) or next(watched, None) or self._find_operation(symptom, case)
        return bug if bug is not None and bug.status.is_back_in(self._torch) else None

    def _find_operation(self, symptom: Symptom, case: Case) -> Bug | None:
        """The bug whose cause is the operation of eager that is wrong, as `triage.cluster` names it."""
        if symptom.verdict is not Verdict.EAGER_SUSPECT or symptom.key is None:
            return None
        kind, kind_in = MechanismKind.NOT_FINITE, MechanismKind.NOT_FINITE_IN
        if symptom.key.is_finite:
            kind, kind_in = MechanismKind.WRONG, MechanismKind.WRONG_IN
        low = sorted({value.dtype for value in types_of(case).values()} & set(LOW_PRECISION))
        for mechanism, detail in (*((kind_in, details(dtype=dtype)) for dtype in low), (kind, ())):
            bug = self._ledger.find_cause(CauseKey(EAGER, Stage.OPERATION, symptom.key.operation, mechanism, detail))
            if bug is not None:
                return bug
        return None
