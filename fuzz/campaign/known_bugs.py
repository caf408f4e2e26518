"""Decides whether a campaign knows a failure: by a finding, or by an entry of the ledger."""

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
"""Failures compared for each finding. These are representative, so no more are kept."""


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """A finding that explains later failures."""

    case_id: str
    symptom: Symptom


class Why(Enum):
    """How a failure is recognised, in the order of the checks. Only `ALIKE` is asked of cases that are not minimal."""

    SAME_MINIMUM = "a finding has this minimal case, or the ledger lists the case with that finding"
    LISTED = "the ledger lists the case, or eager's wrong operation as a cause, but has no example like it"
    ALIKE = "the symptom of a finding explains it"
    REGRESSION = "not known but new: a bug that the ledger calls fixed in this torch version shows again"


@dataclass(frozen=True, slots=True)
class Recognition:
    """A failure that matches a finding or an entry of the ledger. It is known, except for `REGRESSION`."""

    why: Why
    finding: KnownFinding | None = None  # for `SAME_MINIMUM` and `ALIKE`
    bug: Bug | None = None  # for `LISTED` and `REGRESSION`


class KnownBugs:
    """Findings and bugs of the ledger, which explain later failures. Threads share it.

    A bug of the ledger explains the failures whose symptom resembles an example of the bug. A bug that is marked fixed
    in this torch version explains nothing: the campaign watches for it, and its failures are new findings.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.attention: frozenset[str] = frozenset()  # subjects that only compute attention
        self.bugs: dict[str, Bug] = {}
        """Bugs of the ledger that explain failures, by the case ids of their examples."""
        self._ledger, self._torch = ledger or Ledger(Path()), ""
        self._findings: list[KnownFinding] = []
        self._minima: dict[str, KnownFinding] = {}  # by the id of a minimal case
        self._watched: list[tuple[Symptom, Bug]] = []
        self._watched_cases: dict[str, Bug] = {}
        self._right: defaultdict[str, set[Hashable]] = defaultdict(set)
        self._wrong: defaultdict[str, set[Hashable]] = defaultdict(set)
        """By case id of a finding: failures that its other evidence joins to it, if rewrites are proven wrong in both.
        `_right`: the rewrites agree; `_wrong`: they do not."""
        self._lock = threading.RLock()

    def symptom(self, result: SubjectResult, case: Case) -> Symptom:
        """How the bug behind `result` on `case` shows."""
        attention_only = result.subject in self.attention and result.verdict is not Verdict.EAGER_SUSPECT
        return Symptom.of(
            result, contract_features(case) if attention_only else features(case), attention_only=attention_only
        )

    def find(self, symptom: Symptom, minimal: Case | None = None) -> Recognition | None:
        """The first check of `Why` that recognises a failure, or None. `minimal`: its case, if that is minimal."""
        with self._lock:
            if minimal is not None:
                if minimal.id in self._minima:
                    return Recognition(Why.SAME_MINIMUM, self._minima[minimal.id])
                bug = self._watched_cases.get(minimal.id) or self._ledger.find_case(minimal.id)
                bug = bug or self._find_operation(symptom, minimal)
                if bug is not None and not bug.status.is_back_in(self._torch):
                    return Recognition(Why.LISTED, bug=bug)
            finding = self._find_alike(symptom)
            if finding is not None:
                return Recognition(Why.ALIKE, finding)
            bug = self._find_regression(symptom, minimal) if minimal is not None else None
            return None if bug is None else Recognition(Why.REGRESSION, bug=bug)

    def load_ledger(self, torch: str) -> Iterator[tuple[Path, Entry]]:
        """Load the ledger for this torch version. Yields the examples that explain failures. Raises `CaseError`."""
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
        """Let an entry explain failures from now on. None, without effect, if the entry:

        - was learned before
        - is expected to pass
        - shows a bug of the ledger that is fixed in this torch version
        - is not expected to fail in the version `torch`, if given
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
        if bug is None and self._find_regression(self.symptom(read_recorded_result(entry), entry.case), entry.case):
            return None
        return self.add_entry(entry, bug if from_corpus else None)

    def add_entry(self, entry: Entry, bug: Bug | None) -> KnownFinding:
        """Let an entry, and the bug of the ledger that it shows, explain failures from now on."""
        symptom = self.symptom(read_recorded_result(entry), entry.case)
        if bug is not None:
            self.bugs[entry.case.id] = bug
            # The example may have fewer measurements than the cause in the ledger, so both are used.
            measured = filter(None, map(measured_rewrite, bug.causes))
            symptom = replace(symptom, wrong_rewrites=(*symptom.wrong_rewrites, *measured))
        return self.add(KnownFinding(entry.case.id, symptom))

    def add(self, finding: KnownFinding) -> KnownFinding:
        with self._lock:
            self._findings.append(finding)
            self._minima[finding.case_id] = finding
        return finding

    def expects(self, subject: str, call: AttentionCall) -> bool:
        """Whether a call of an attention function probably shows one of its known bugs."""
        with self._lock:
            symptoms = [finding.symptom for finding in self._findings]
        accused = compiler_of(subject)
        return any(symptom.accused == accused and symptom.is_expected_of(call) for symptom in symptoms)

    def _find_alike(self, symptom: Symptom) -> KnownFinding | None:
        """The finding that explains a failure.

        If rewrites are proven wrong in both, they decide. They also measure how often the other evidence is right. If
        it is wrong for more than one of ten such failures, it does not explain failures by itself any more.
        """
        for finding in self._findings:
            own, case_id = finding.symptom, finding.case_id
            if own.can_compare_rewrites(symptom):
                if own.is_shown_by(symptom):
                    said = self._right if own.explains(symptom) else self._wrong
                    if len(said[case_id]) < _MOST_COMPARED:
                        said[case_id].add((symptom.applied_rewrites, symptom.features))
            elif len(self._wrong[case_id]) * _RIGHT_FOR_ONE_WRONG > len(self._right[case_id]):
                continue
            if own.explains(symptom):
                return finding
        return None

    def _find_regression(self, symptom: Symptom, case: Case) -> Bug | None:
        """The bug that a failure shows although the ledger calls it fixed in this torch version."""
        watched = (bug for known, bug in self._watched if known.explains(symptom))
        bug = self._watched_cases.get(case.id) or next(watched, None) or self._find_operation(symptom, case)
        return bug if bug is not None and bug.status.is_back_in(self._torch) else None

    def _find_operation(self, symptom: Symptom, case: Case) -> Bug | None:
        """The bug whose cause is eager's wrong operation, with the key that `triage.cluster` gives such a cause."""
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
