"""Tells which known bug a failure is. A known bug is an earlier finding, or an entry of the ledger."""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.causes import CauseKey, Details
from corpus.entry import Entry
from corpus.ledger import Bug, Ledger
from corpus.versions import sort_versions
from fuzz.attribution.decide import decides
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study
from fuzz.bug_identity import Symptom, contract_features, is_same_cause, measured_rewrite
from fuzz.commands import find_report
from fuzz.events import KnownBugMet
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.protocol.rewrites import WrongRewrite
from fuzz.replay_result import read_recorded_result
from fuzz.subjects import compiler_of
from fuzz.versions import list_failing
from generators.errors import UserError
from generators.program.attention_stub import AttentionCall, emit_call
from generators.program.case import Case
from generators.program.emit import source
from generators.program.features import features


class NoTimeLeft(UserError):
    """The time for experiments is over."""


Seek = Callable[[Entry], RootCause | None]
"""Finds the cause of a minimal case; None if it shows no bug. Raises `NoTimeLeft`."""


@dataclass(frozen=True, slots=True)
class KnownBug:
    """A bug that later failures may be: a finding, an example of an entry of the ledger, or an entry without one."""

    case_id: str
    """"" without an example."""
    symptom: Symptom | None
    causes: tuple[CauseKey, ...] = ()
    decided_by: Details | None = None
    """The experiments that show whether a failure is this bug; None until its cause is searched for. If it is empty,
    only failures with the same measurement, or of the same minimal case, are known."""
    entry: Entry | None = None
    path: str = ""  # of its case file, for examples of the ledger
    bug: Bug | None = None  # its entry
    is_back: bool = False
    """Whether the ledger calls it fixed in this version, so that meeting it is news: it explains nothing."""


class KnownBugs:
    """Findings and bugs of the ledger, which explain later failures. Threads share it.

    A symptom suggests which bug a failure may be; the bug's experiments decide (fuzz/attribution/decide.py).
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.attention: frozenset[str] = frozenset()  # subjects that only compute attention
        self._ledger, self._versions = ledger or Ledger(Path()), dict[str, str]()
        self._known: list[KnownBug] = []
        self._by_case: dict[str, KnownBug] = {}  # by the id of a minimal case
        self._met = set[str]()  # ids of bugs of the ledger
        self._lock = threading.RLock()

    @property
    def bugs(self) -> dict[str, Bug]:
        """Bugs of the ledger that explain failures, by the case ids of their examples."""
        return {one.case_id: one.bug for one in self._explaining() if one.bug and one.case_id}

    def symptom(self, result: SubjectResult, case: Case) -> Symptom:
        """The symptom of `result` on `case`."""
        attention_only = result.subject in self.attention and result.verdict is not Verdict.EAGER_SUSPECT
        return Symptom.of(
            result, contract_features(case) if attention_only else features(case), attention_only=attention_only
        )

    def find(self, symptom: Symptom, minimal: Case, cause: RootCause | None = None) -> KnownBug | None:
        """The bug that the failure of a minimal case is. Runs no experiments.

        If the bug `is_back`, the failure is still a new finding. With `cause`, a bug with the same cause and the same
        `decided_by` counts too.
        """
        with self._lock:
            known = self._by_case.get(minimal.id) or self.find_by_rewrites(symptom)
            if known is not None or cause is None:
                return known
            twins = (
                one for one in self.list_of_cause(cause.key) if cause.decided_by and one.decided_by == cause.decided_by
            )
            # Another thread may have found it meanwhile.
            return next(twins, None) or self.find_regression(symptom, cause.key)

    def find_by_rewrites(self, symptom: Symptom) -> KnownBug | None:
        """The bug that measurements of its rewrites show to be the same."""
        return next((one for one, own in self._list_shown() if own.is_measured_in(symptom)), None)

    def list_alike(self, symptom: Symptom) -> list[KnownBug]:
        """The bugs that a failure looks like. Their experiments decide whether it is one of these."""
        return [one for one, own in self._list_shown() if own.is_like(symptom)]

    def list_possible(self, symptom: Symptom) -> list[KnownBug]:
        """The bugs that a failure may be, although it does not look like them: some examples are not minimal."""
        return [one for one, own in self._list_shown() if own.may_be(symptom)]

    def list_of_cause(self, cause: CauseKey) -> list[KnownBug]:
        """The bugs with this cause, those with an example first."""
        found = [one for one in self._explaining() if any(is_same_cause(cause, key) for key in one.causes)]
        return sorted(found, key=lambda one: not one.case_id)

    def find_regression(self, symptom: Symptom, cause: CauseKey | None) -> KnownBug | None:
        """The bug that a failure shows although it is fixed: it `is_back`."""
        with self._lock:
            caused = [one for one in self._known if one.bug and cause in one.causes]
            alike = [one for one in self._known if one.is_back and one.symptom and one.symptom.is_like(symptom)]
        return next((one for one in caused or alike if one.is_back), None)

    def _explaining(self) -> list[KnownBug]:
        with self._lock:
            return [one for one in self._known if not one.is_back]

    def _list_shown(self) -> list[tuple[KnownBug, Symptom]]:
        return [(one, one.symptom) for one in self._explaining() if one.symptom]

    def load_ledger(self, versions: Mapping[str, str]) -> list[tuple[Path, Entry]]:
        """Load the ledger for these versions, by package; without versions no bug `is_back`. Returns the examples that
        explain failures.

        Raises `CaseError`.
        """
        self._versions, examples = dict(versions), list[tuple[Path, Entry]]()
        for bug in self._ledger.bugs:
            is_back, own = bug.status.is_back_in(versions), list[KnownBug]()
            for path, entry in ((path, corpus_entry.load(path)) for path in self._ledger.examples(bug)):
                own.append(self.add_entry(entry, bug, path=path, is_back=is_back))
                examples += [] if is_back else [(path, entry)]
            if not own:
                own.append(self.add(KnownBug("", None, bug.causes, bug.decided_by, bug=bug, is_back=is_back)))
            for case_id in bug.findings:
                self._by_case.setdefault(case_id, own[0])
        return examples

    def learn(
        self,
        entry: Entry,
        *,
        from_corpus: bool = True,
        versions: Mapping[str, str] | None = None,
        cause: RootCause | None = None,
        path: str | Path = "",
    ) -> KnownBug | None:
        """Let an entry explain failures from now on; `cause`: its cause, if it is known. None, without effect, if the
        entry:

        - was learned before
        - is expected to pass
        - shows a bug of the ledger that is fixed in this version
        - is not expected to fail in `versions`, if given
        """
        expected = entry.expect
        if any(known.case_id == entry.case.id for known in self._known):
            return None
        if versions and expected is not None and (expected.status != "known" or not expected.holds_for(versions)):
            return None
        if entry.found is None and (expected is None or not expected.verdict):
            return None
        listed, symptom = self._by_case.get(entry.case.id), self.symptom(read_recorded_result(entry), entry.case)
        if listed.is_back if listed else self.find_regression(symptom, None):
            return None
        return self.add_entry(entry, listed.bug if listed and from_corpus else None, cause, path)

    def add_entry(
        self,
        entry: Entry,
        bug: Bug | None,
        cause: RootCause | None = None,
        path: str | Path = "",
        *,
        is_back: bool = False,
    ) -> KnownBug:
        """Let an entry, and the bug of the ledger that it shows, explain failures from now on."""
        symptom = self.symptom(read_recorded_result(entry), entry.case)
        causes: tuple[CauseKey, ...] = (cause.key,) if cause else ()
        decided_by = cause.decided_by if cause else None
        if bug is not None:
            causes, decided_by = bug.causes, bug.decided_by
            # The example may have fewer measurements than the cause in the ledger, so both are used.
            symptom = replace(symptom, wrong_rewrites=(*symptom.wrong_rewrites, *_list_measured(causes)))
        return self.add(KnownBug(entry.case.id, symptom, causes, decided_by, entry, str(path), bug, is_back))

    def add(self, known: KnownBug) -> KnownBug:
        with self._lock:
            self._known.append(known)
            if known.case_id:
                self._by_case[known.case_id] = known
        return known

    def set_cause(self, known: KnownBug, cause: RootCause | None) -> KnownBug:
        """Let a finding explain failures by the experiments of its cause; None: none are found."""
        made = replace(known, causes=(cause.key,) if cause else (), decided_by=cause.decided_by if cause else ())
        with self._lock:
            self._known = [made if one is known else one for one in self._known]
            self._by_case = {case_id: made if one is known else one for case_id, one in self._by_case.items()}
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
            examples = {one.path: one.entry for one in self._explaining() if one.entry and one.bug is bug}
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
        accused = compiler_of(subject)
        return any(own.accused == accused and own.is_expected_of(call) for _, own in self._list_shown())


def read_known_bugs(ledger: Ledger, hello: Hello, versions: Mapping[str, str]) -> KnownBugs:
    """The bugs of a ledger, for the worker of `hello`; `versions`: as of `KnownBugs.load_ledger`."""
    known_bugs = KnownBugs(ledger)
    known_bugs.attention = frozenset(hello.attention)
    known_bugs.load_ledger(versions)
    return known_bugs


def identify(
    study: Study, known_bugs: KnownBugs, *, seek: Seek | None = None, cause: RootCause | None = None
) -> tuple[KnownBug | None, RootCause | None]:
    """(bug, cause): the known bug that the minimal case of `study` shows, and the cause of its failure, as far as it
    was needed and the time sufficed.

    | step | a failure is a known bug if                                    | runs        |
    |------|----------------------------------------------------------------|-------------|
    | 1    | the bug lists its case, or measurements of rewrites are equal  | nothing     |
    | 2    | it looks like the bug, and the bug's experiments show it       | experiments |
    | 3    | the causes are equal, and the bug's experiments show it        | experiments |

    `cause`: if it is known. `seek`: finds causes that are missing, those of findings too. Raises as `Asker.ask`.
    """
    symptom = known_bugs.symptom(study.result, study.case)
    if known := known_bugs.find(symptom, study.case, cause):
        return known, cause
    with suppress(NoTimeLeft):
        if known := find_decided(known_bugs.list_alike(symptom), study, known_bugs, seek):
            return known, cause
        cause = cause or (seek(study.entry) if seek else None)
        if cause is None:
            return None, None
        for one in known_bugs.list_possible(symptom):
            _with_cause(one, known_bugs, seek)  # Step 3 compares causes, and a finding saved in a hurry has none.
        return find_decided(known_bugs.list_of_cause(cause.key), study, known_bugs, seek), cause
    return None, cause


def find_decided(
    alike: Iterable[KnownBug], study: Study, known_bugs: KnownBugs, seek: Seek | None = None
) -> KnownBug | None:
    """The first of these bugs whose experiments show that the failure of `study` is the same. Raises `NoTimeLeft`."""
    for one in alike:
        known = _with_cause(one, known_bugs, seek)
        measured = known.symptom.wrong_rewrites if known.symptom else _list_measured(known.causes)
        if decides(known.decided_by or (), study, measured):
            return known
    return None


def _with_cause(known: KnownBug, known_bugs: KnownBugs, seek: Seek | None) -> KnownBug:
    if known.decided_by is not None or known.entry is None or seek is None:
        return known
    return known_bugs.set_cause(known, seek(known.entry))


def _list_measured(causes: Iterable[CauseKey]) -> tuple[WrongRewrite, ...]:
    return tuple(filter(None, map(measured_rewrite, causes)))
