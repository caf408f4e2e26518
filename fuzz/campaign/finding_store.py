"""Findings between the store and the corpus: which there are at the start, and how a new finding is saved."""

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import Entry, Found
from corpus.ledger import Bug
from fuzz.campaign.investigation import Conclusion
from fuzz.campaign.known_bugs import KnownBugs, KnownFinding
from fuzz.campaign.options import Options
from fuzz.campaign.share import FINDINGS, SharedFolder
from fuzz.protocol import Hello, SubjectResult
from fuzz.protocol.render import describe
from fuzz.replay_result import read_recorded_result
from fuzz.run_store import FindingRow, Outcome, Results
from generators.program.case import Case
from generators.records import encode


class FindingStore:
    """Loads and saves findings. `share`: where other campaigns learn of them."""

    def __init__(self, options: Options, results: Results, known_bugs: KnownBugs, share: SharedFolder | None) -> None:
        self._options, self._results, self._known_bugs, self._share = options, results, known_bugs, share
        self._internal = options.out / "internal"
        """For findings that no public subject shows, and examples of listed bugs."""

    def load(self, torch: str) -> None:
        """Learn every finding of the ledger, on disk and in the store. Raises `CaseError`."""
        rows = self._results.findings()
        for path, entry in self._known_bugs.load_ledger(torch):
            self._add_known(entry, path)
        for row in rows:
            path, entry = Path(row.file), corpus_entry.loads(row.entry, row.file)
            if row.kind != "known" and not path.exists():
                corpus_entry.write(entry, path)  # Killed between the row and the file.
            self._known_bugs.learn(entry, from_corpus=row.kind == "known")
        for directory in (*self._options.ignore_dirs, self._options.corpus):
            for path, entry in corpus_entry.load_directory(directory).items():
                self.learn(entry, path, torch)

    def learn(self, entry: Entry, path: Path, torch: str) -> KnownFinding | None:
        """Know failures by a finding that is saved in `path`; None where it is no news (`KnownBugs.learn`)."""
        finding = self._known_bugs.learn(entry, torch=torch)
        if finding is not None:
            self._add_known(entry, path)
        return finding

    def add_example(self, bug: Bug, conclusion: Conclusion, hello: Hello) -> KnownFinding:
        """Know failures by a minimal case of a bug in the ledger that has no example like it. Raises `UserError` when
        it can't be written."""
        entry = _entry(conclusion, hello)
        path = self._internal / entry.file_name
        self._add_known(entry, path)
        corpus_entry.write(entry, path)
        return self._known_bugs.add_entry(entry, bug)

    def save(
        self, suspicion: int, conclusion: Conclusion, hello: Hello, seen: Mapping[str, str]
    ) -> tuple[Path, KnownFinding]:
        """Save a new finding and close the suspicion; gives the case file. `seen`: what other torch versions say of it.

        Raises `UserError` when it can't be written.
        """
        entry = _entry(conclusion, hello, seen)
        is_public = conclusion.outcome is Outcome.FINDING
        path = (self._options.corpus if is_public else self._internal) / entry.file_name
        row = _row(entry, path, "new" if is_public else "internal", 1, conclusion.shown)
        symptom = self._known_bugs.symptom(conclusion.cheapest_result, conclusion.case)
        # The row first: it holds all of the file, which `load` writes again.
        self._results.add_finding(suspicion, row)
        corpus_entry.write(entry, path)
        if is_public and self._share is not None:
            self._share.publish(FINDINGS, entry)
        return path, self._known_bugs.add(KnownFinding(entry.case.id, symptom))

    def _add_known(self, entry: Entry, path: Path) -> None:
        self._results.add_finding(None, _row(entry, path, "known", 0, read_recorded_result(entry)))


def write_fault(case: Case, text: str, directory: Path) -> Path:
    """Save a case that can't be judged for a fault of attnfuzz, and a log with `text`. Gives the case's file."""
    entry = Entry(case=case)
    path = corpus_entry.write(entry, directory / entry.file_name)
    path.with_name(path.name.replace(".case.yaml", ".log")).write_text(f"{text}\n", encoding="utf-8")
    return path


def record_origin(shown: SubjectResult, hello: Hello) -> Found:
    """How a case was found, for its file: now, by the worker that said `hello`."""
    return Found(
        verdict=shown.verdict.value,
        subject=shown.subject,
        fired=tuple(name for name in shown.applied_rewrites if name not in shown.right_rewrites),
        torch=hello.torch,
        device=hello.device,
        message=describe(shown),
        numbers=shown.numbers,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        failure=encode(shown.failure) or {},
        rewrites=tuple(encode(rewrite) for rewrite in shown.wrong_rewrites),
    )


def _entry(conclusion: Conclusion, hello: Hello, seen: Mapping[str, str] | None = None) -> Entry:
    # Later failures are compared with the rewrites that the cheapest subject saw.
    of_rewrites = ("applied_rewrites", "wrong_rewrites", "right_rewrites")
    seen_best = replace(conclusion.shown, **{name: getattr(conclusion.cheapest_result, name) for name in of_rewrites})
    return Entry(case=conclusion.case, found=record_origin(seen_best, hello), seen=seen or {})


def _row(entry: Entry, path: Path, kind: str, count: int, result: SubjectResult) -> FindingRow:
    now = time.time()
    return FindingRow(entry.case.id, corpus_entry.dumps(entry), str(path), result, kind, count, now, now)
