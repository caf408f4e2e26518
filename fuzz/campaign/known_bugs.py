"""Decides whether a campaign knows a failure: by a finding, or by an entry of the ledger."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.causes import CauseKey, Details
from corpus.entry import Entry
from corpus.ledger import Bug, Ledger
from corpus.versions import sort_versions
from fuzz.attribution.root_cause import RootCause
from fuzz.bug_identity import Symptom, contract_features, is_same_cause, measured_rewrite
from fuzz.commands import find_report
from fuzz.events import KnownBugMet
from fuzz.protocol import SubjectResult, Verdict
from fuzz.replay_result import read_recorded_result
from fuzz.subjects import compiler_of
from fuzz.versions import list_failing
from generators.program.attention_stub import AttentionCall, emit_call
from generators.program.case import Case
from generators.program.emit import source
from generators.program.features import features


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """A finding that explains later failures, by experiment."""

    case_id: str
    symptom: Symptom
    causes: tuple[CauseKey, ...] = ()
    decided_by: Details | None = None
    """The experiments that show whether a failure is this bug; None until its cause is searched for. If it is empty,
    only failures with the same measurement, or of the same minimal case, are known."""
    entry: Entry | None = None
    path: str = ""  # of its case file, for examples of the ledger


class KnownBugs:
    """Findings and bugs of the ledger, which explain later failures. Threads share it.

    A symptom suggests which bug a failure may be; the bug's experiments decide (fuzz/attribution/decide.py). A bug
    that is marked fixed in this version explains nothing: the campaign watches for it, and its failures are new
    findings.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.attention: frozenset[str] = frozenset()  # subjects that only compute attention
        self.bugs: dict[str, Bug] = {}
        """Bugs of the ledger that explain failures, by the case ids of their examples."""
        self._ledger, self._versions = ledger or Ledger(Path()), dict[str, str]()
        self._findings: list[KnownFinding] = []
        self._minima: dict[str, KnownFinding] = {}  # by the id of a minimal case
        self._watched: list[tuple[Symptom, Bug]] = []
        self._watched_cases: dict[str, Bug] = {}
        self._met = set[str]()  # ids of bugs of the ledger
        self._lock = threading.RLock()

    def symptom(self, result: SubjectResult, case: Case) -> Symptom:
        """The symptom of `result` on `case`."""
        attention_only = result.subject in self.attention and result.verdict is not Verdict.EAGER_SUSPECT
        return Symptom.of(
            result, contract_features(case) if attention_only else features(case), attention_only=attention_only
        )

    def find(self, symptom: Symptom, minimal: Case, cause: RootCause | None = None) -> KnownFinding | Bug | None:
        """The finding, or the bug of the ledger, that explains the failure of a minimal case. Runs no experiments.

        If the bug `is_back`, the failure is still a new finding. A finding with `cause` and its experiments counts too.
        """
        with self._lock:
            listed = self._watched_cases.get(minimal.id) or self._ledger.find_case(minimal.id)
            known = self._minima.get(minimal.id) or listed or self.find_by_rewrites(symptom)
            if known is not None or cause is None:
                return known
            twins = (
                one for one in self.list_of_cause(cause.key) if cause.decided_by and one.decided_by == cause.decided_by
            )
            # Another thread may have found it meanwhile.
            return next(twins, None) or self.find_regression(symptom, cause.key)

    def find_by_rewrites(self, symptom: Symptom) -> KnownFinding | None:
        """The finding that measurements of its rewrites show to be the same bug."""
        with self._lock:
            return next((one for one in self._findings if one.symptom.is_measured_in(symptom)), None)

    def list_alike(self, symptom: Symptom) -> list[KnownFinding]:
        """The findings that a failure looks like. Their experiments decide whether it is one of these."""
        with self._lock:
            return [one for one in self._findings if one.symptom.is_like(symptom)]

    def list_possible(self, symptom: Symptom) -> list[KnownFinding]:
        """The findings that a failure may be, although it does not look like them: some are not minimal."""
        with self._lock:
            return [one for one in self._findings if one.symptom.may_be(symptom)]

    def list_of_cause(self, cause: CauseKey) -> list[KnownFinding]:
        """The findings with this cause."""
        with self._lock:
            return [one for one in self._findings if any(is_same_cause(cause, key) for key in one.causes)]

    def find_bug(self, cause: CauseKey) -> Bug | None:
        """The bug of the ledger that has this cause but no example. None if it is fixed in this version."""
        bug = self._ledger.find_cause(cause)
        return None if bug is None or bug.cases or self.is_back(bug) else bug

    def find_regression(self, symptom: Symptom, cause: CauseKey | None) -> Bug | None:
        """The bug that a failure shows although it is fixed: it `is_back`."""
        caused = self._ledger.find_cause(cause) if cause else None
        bug = caused or next((bug for known, bug in self._watched if known.is_like(symptom)), None)
        return bug if bug is not None and self.is_back(bug) else None

    def is_back(self, bug: Bug) -> bool:
        """Whether the ledger calls a bug fixed in this version, so that meeting it is news."""
        return bug.status.is_back_in(self._versions)

    def load_ledger(self, versions: Mapping[str, str]) -> Iterator[tuple[Path, Entry]]:
        """Load the ledger for these versions, by package. Yields the examples that explain failures.

        Raises `CaseError`.
        """
        self._versions = dict(versions)
        for bug in self._ledger.bugs:
            examples = [(path, corpus_entry.load(path)) for path in self._ledger.examples(bug)]
            if self.is_back(bug):
                cases = {*bug.findings, *(entry.case.id for _, entry in examples)}
                self._watched_cases |= dict.fromkeys(cases, bug)
                self._watched += [(self.symptom(read_recorded_result(entry), entry.case), bug) for _, entry in examples]
                continue
            for path, entry in examples:
                finding = self.add_entry(entry, bug, path=path)
                for case_id in bug.findings:
                    self._minima.setdefault(case_id, finding)
                yield path, entry

    def learn(
        self,
        entry: Entry,
        *,
        from_corpus: bool = True,
        versions: Mapping[str, str] | None = None,
        cause: RootCause | None = None,
        path: str | Path = "",
    ) -> KnownFinding | None:
        """Let an entry explain failures from now on; `cause`: its cause, if it is known. None, without effect, if the
        entry:

        - was learned before
        - is expected to pass
        - shows a bug of the ledger that is fixed in this version
        - is not expected to fail in `versions`, if given
        """
        expected = entry.expect
        if any(finding.case_id == entry.case.id for finding in self._findings):
            return None
        if versions and expected is not None and (expected.status != "known" or not expected.holds_for(versions)):
            return None
        if entry.found is None and (expected is None or not expected.verdict):
            return None
        bug, symptom = self._ledger.find_case(entry.case.id), self.symptom(read_recorded_result(entry), entry.case)
        if entry.case.id in self._watched_cases or (bug is None and self.find_regression(symptom, None)):
            return None
        return self.add_entry(entry, bug if from_corpus else None, cause, path)

    def add_entry(
        self, entry: Entry, bug: Bug | None, cause: RootCause | None = None, path: str | Path = ""
    ) -> KnownFinding:
        """Let an entry, and the bug of the ledger that it shows, explain failures from now on."""
        symptom = self.symptom(read_recorded_result(entry), entry.case)
        causes: tuple[CauseKey, ...] = (cause.key,) if cause else ()
        decided_by = cause.decided_by if cause else None
        if bug is not None:
            causes, decided_by = bug.causes, bug.decided_by
            self.bugs[entry.case.id] = bug
            # The example may have fewer measurements than the cause in the ledger, so both are used.
            measured = filter(None, map(measured_rewrite, bug.causes))
            symptom = replace(symptom, wrong_rewrites=(*symptom.wrong_rewrites, *measured))
        return self.add(KnownFinding(entry.case.id, symptom, causes, decided_by, entry, str(path)))

    def add(self, finding: KnownFinding) -> KnownFinding:
        with self._lock:
            self._findings.append(finding)
            self._minima[finding.case_id] = finding
        return finding

    def set_cause(self, finding: KnownFinding, cause: RootCause | None) -> KnownFinding:
        """Let a finding explain failures by the experiments of its cause; None: none are found."""
        made = replace(finding, causes=(cause.key,) if cause else (), decided_by=cause.decided_by if cause else ())
        with self._lock:
            self._findings = [made if one is finding else one for one in self._findings]
            self._minima = {case_id: made if one is finding else one for case_id, one in self._minima.items()}
        return made

    def meet(self, finding_id: str, case_id: str, device: str) -> KnownBugMet | None:
        """Note that this finding explains the failure of a case.

        Returns the event to show when a listed bug is first met, with its smallest example that fails here.
        """
        with self._lock:
            bug = self.bugs.get(finding_id)
            if bug is None or bug.id in self._met or bug.status.kind == "not_a_bug":
                return None
            self._met.add(bug.id)
            examples = {
                one.path: one.entry for one in self._findings if one.entry and self.bugs.get(one.case_id) is bug
            }
        failing = {version for entry in examples.values() for version in list_failing(entry)}

        def unfitness(path: str) -> tuple[bool, bool, int]:
            entry = examples[path]
            return entry.device != device, not entry.expectation.holds_for(self._versions), len(entry.case.ops)

        path = min(examples, key=unfitness)
        example, result = examples[path], read_recorded_result(examples[path])
        return KnownBugMet(
            bug=bug.id,
            title=bug.title,
            status=bug.status,
            upstream=bug.upstream,
            versions=tuple(sort_versions({*failing, *bug.versions})),
            report=str(find_report(bug.id) or ""),
            case=case_id,
            example=example.case.id,
            result=result,
            ops=len(example.case.ops),
            path=path,
            source=self.emit(example.case, result),
        )

    def emit(self, case: Case, result: SubjectResult) -> str:
        """The program that fails: with a call of the attention function, if that is at fault."""
        is_call = result.subject in self.attention and result.verdict is not Verdict.EAGER_SUSPECT
        return emit_call(case, result.subject) if is_call else source(case)

    def expects(self, subject: str, call: AttentionCall) -> bool:
        """Whether a call of an attention function probably shows one of its known bugs."""
        with self._lock:
            symptoms = [finding.symptom for finding in self._findings]
        accused = compiler_of(subject)
        return any(symptom.accused == accused and symptom.is_expected_of(call) for symptom in symptoms)
