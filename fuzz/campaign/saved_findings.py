"""Learns the findings that others saved, and saves those of this campaign."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import CASE_SUFFIX, Entry, Found
from corpus.files import lock_directory
from corpus.ledger import Bug
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.stored import cause_path, read_cause
from fuzz.bug_identity import Symptom
from fuzz.campaign.campaign_state import CampaignState
from fuzz.campaign.investigation import Conclusion
from fuzz.campaign.options import StopReason
from fuzz.error_location import describe_where
from fuzz.events import FindingSaved, Notice
from fuzz.known_bugs import KnownBug
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.protocol.render import describe
from fuzz.replay_result import read_recorded_result
from fuzz.run_store import FindingRow, Suspicion, SuspicionOutcome
from fuzz.subjects import list_packages
from generators.errors import UserError
from generators.program.case import Case
from generators.records import encode


class SavedFindings:
    """The findings of the ledger, the store and `--corpus`, where other campaigns may save findings at any time.

    Threads share it.
    """

    def __init__(self, state: CampaignState) -> None:
        self.new = 0  # saved here, without bugs of eager if only the user's functions are tested
        self._state, self._versions = state, dict[str, str]()
        self._read = set[Path]()  # case files
        self._lock = threading.RLock()

    def load(self, versions: Mapping[str, str]) -> None:
        """Learn every finding of the ledger, on disk and in the store. Raises `CaseError`."""
        self._versions = dict(versions)
        options, known_bugs, rows = self._state.options, self._state.known_bugs, self._state.results.findings()
        for path, entry in known_bugs.load_ledger(versions):
            self._add_known(entry, path)
        for row in rows:
            path = Path(row.file)
            if row.kind != "known" and not path.exists():
                corpus_entry.write(row.entry, path)  # Killed between the row and the file.
            cause = read_cause(cause_path(options.out, row.entry, versions, row.entry.device))
            known_bugs.learn(row.entry, from_corpus=row.kind == "known", cause=cause, path=path)
            if row.count:  # an earlier session told of it
                self._state.schedule.has_shown = True
                known_bugs.meet(row.case_id, row.case_id, options.worker_config.device)
        for directory in (*options.ignore_dirs, options.corpus):
            for path, entry in corpus_entry.load_directory(directory).items():
                self._learn(path, entry)

    def learn_new(self) -> None:
        """Learn the findings that other campaigns saved in `--corpus` since the last call."""
        with self._lock:
            for path in sorted({*self._state.options.corpus.rglob(f"*{CASE_SUFFIX}")} - self._read):
                try:
                    self._learn(path, corpus_entry.load(path))
                except UserError as error:
                    self._read.add(path)
                    self._state.bus.emit(Notice(text=f"--corpus: skipped {error}"))

    def _learn(self, path: Path, entry: Entry) -> None:
        self._read.add(path)
        finding = self._state.known_bugs.learn(entry, versions=self._versions, path=path)
        if finding is not None:
            self._add_known(entry, path)
            self._state.suspicions.reconsider(finding)

    @contextmanager
    def exclude_others(self) -> Iterator[None]:
        """Within it no other thread saves a finding, and no other campaign with this `--corpus` does. Learns what they
        saved before."""
        with self._lock, lock_directory(self._state.options.corpus):
            self.learn_new()
            yield

    def save(
        self,
        suspicion: Suspicion,
        conclusion: Conclusion,
        entry: Entry,
        symptom: Symptom,
        known: KnownBug | None,
        cause: RootCause | None,
    ) -> KnownBug | None:
        """Save a minimal case: as a new finding, or as a further example of the listed bug that it shows.

        Returns the known finding that the case is, or has become; None for a new finding.
        """
        if known is not None and not known.is_back:
            return known if known.case_id or known.bug is None else self._add_example(entry, known.bug)
        self._save_new(suspicion, conclusion, entry, symptom, known.bug if known else None, cause)
        return None

    def _add_known(self, entry: Entry, path: Path) -> None:
        self._state.results.add_finding(None, _row(entry, path, "known", 0, read_recorded_result(entry)))

    def _add_example(self, entry: Entry, bug: Bug) -> KnownBug:
        """Save a minimal case of a listed bug as a further example, which explains later failures."""
        path = self._state.options.out / "internal" / entry.file_name
        self._add_known(entry, path)
        corpus_entry.write(entry, path)
        finding = self._state.known_bugs.add_entry(entry, bug, path=path)
        self._state.suspicions.reconsider(finding)
        return finding

    def _save_new(
        self,
        suspicion: Suspicion,
        conclusion: Conclusion,
        entry: Entry,
        symptom: Symptom,
        back: Bug | None,
        cause: RootCause | None,
    ) -> None:
        state, case, shown = self._state, conclusion.case, conclusion.shown
        is_public, is_eager = conclusion.outcome is SuspicionOutcome.FINDING, shown.verdict is Verdict.EAGER_SUSPECT
        path = (state.options.corpus if is_public else state.options.out / "internal") / entry.file_name
        # The row is written first. After a kill, `load` writes the file from it.
        state.results.add_finding(suspicion.id, _row(entry, path, "new" if is_public else "internal", 1, shown))
        # It is known before its file: if that can't be written, other threads still finish their investigations.
        causes, decided_by = ((cause.key,), cause.decided_by) if cause else ((), None)
        finding = state.known_bugs.add(KnownBug(case.id, symptom, causes, decided_by, entry))
        corpus_entry.write(entry, path)
        state.suspicions.reconsider(finding)
        of_eager = is_eager and state.options.is_of_user
        counts = is_public and not of_eager
        self.new += counts
        state.schedule.has_shown = True
        state.bus.emit(
            FindingSaved(
                case=case.id,
                verdict=shown.verdict,
                result=replace(shown, coverage=()),
                ops=len(case.ops),
                n_earlier=sum(earlier.times for earlier in case.before),
                path=str(path),
                internal=not is_public,
                source=state.known_bugs.emit(case, shown),
                where=describe_where(case, shown.where),
                ledger=f"regression: fixed in {back.status.about} and back: {back.title}" if back else "",
                seen=entry.seen,
                of_eager=of_eager,
                is_shrinking_cut=conclusion.is_shrinking_cut,
            )
        )
        if counts and state.options.fail_fast:
            state.stop.stop(StopReason.FAIL_FAST)


def write_fault(case: Case, text: str, directory: Path) -> Path:
    """Save a case whose check failed because of a fault in attnfuzz, with a log of `text`. Returns the case's file."""
    entry = Entry(case=case)
    path = corpus_entry.write(entry, directory / entry.file_name)
    path.with_name(path.name.replace(".case.yaml", ".log")).write_text(f"{text}\n", encoding="utf-8")
    return path


def record_origin(shown: SubjectResult, hello: Hello, *, is_shrinking_cut: bool = False) -> Found:
    """How a case was found, for its file: now, by the worker of `hello`. is_shrinking_cut: shrinking was cut off."""
    return Found(
        verdict=shown.verdict.value,
        subject=shown.subject,
        fired=tuple(name for name in shown.applied_rewrites if name not in shown.right_rewrites),
        torch=hello.torch,
        versions={name: hello.versions[name] for name in list_packages(shown.subject) if name in hello.versions},
        device=hello.device,
        message=describe(shown),
        numbers=shown.numbers,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        failure=encode(shown.failure) or {},
        rewrites=tuple(encode(rewrite) for rewrite in shown.wrong_rewrites),
        is_shrinking_cut=is_shrinking_cut,
    )


def make_entry(conclusion: Conclusion, hello: Hello, seen: Mapping[str, str], note: str) -> Entry:
    """The case file of a minimal case. `seen`: its verdicts by version."""
    # Later failures come from the cheapest subject, so the entry gets the rewrites of that subject.
    of_rewrites = ("applied_rewrites", "wrong_rewrites", "right_rewrites")
    seen_best = replace(conclusion.shown, **{name: getattr(conclusion.cheapest_result, name) for name in of_rewrites})
    found = record_origin(seen_best, hello, is_shrinking_cut=conclusion.is_shrinking_cut)
    return Entry(case=conclusion.case, note=note, found=found, seen=seen)


def _row(entry: Entry, path: Path, kind: str, count: int, result: SubjectResult) -> FindingRow:
    now = time.time()
    return FindingRow(entry, str(path), result, kind, count, now, now)
