"""Findings between the store and the corpus: what is known at the start, and how a new one is saved."""

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corpus import entry as corpus_entry
from corpus.entry import Entry, Found
from corpus.ledger import Bug, Ledger
from fuzz.campaign.investigate import Conclusion, Outcome
from fuzz.campaign.store import FindingRow, Results
from fuzz.campaign.suspicion_queue import Desk, Explanation
from fuzz.campaign.symptom import Symptom, failure_of
from fuzz.protocol import Hello, SubjectResult, subject_result
from fuzz.protocol.codec import encode
from fuzz.protocol.render import describe
from generators.errors import UserError
from generators.program.case import Case


class Keeper:
    """Loads and saves findings. `corpus`: where new ones go; `known`: directories of bugs that are no news; `ledger`: what
    people decided about bugs."""

    def __init__(
        self,
        results: Results,
        desk: Desk,
        corpus: Path,
        internal: Path,
        known: list[Path],
        ledger: Ledger | None = None,
    ) -> None:
        self._results, self._desk = results, desk
        self._corpus, self._internal, self._known, self._ledger = corpus, internal, known, ledger
        self.bugs: dict[str, Bug] = {}
        """By the id of an example, the entry of the ledger that it explains failures by."""
        self._watched: list[tuple[Symptom, Bug]] = []
        """Bugs of the ledger that are findings where they show: those that should be gone, and those nobody decided about."""
        self._watched_cases: dict[str, Bug] = {}
        """The cases that the ledger lists under these."""
        self._open: set[str] = set()
        self._back: set[str] = set()
        self._learned: set[str] = set()

    def load(self, hello: Hello) -> int:
        """Teach the desk every finding of the ledger, on disk and in the store; how many there are. Raises `CaseError`."""
        rows = self._results.findings()
        if self._ledger is not None:
            for bug in self._ledger.bugs:
                self._load_bug(bug, self._ledger.examples(bug), hello.torch)
        for row in rows:
            path = Path(row.file)
            if row.kind != "known" and not path.exists():
                # Killed between the row and the file.
                corpus_entry.write(corpus_entry.loads(row.entry, row.file), path)
            entry = corpus_entry.loads(row.entry, row.file)
            # A bug that is back is a finding of every run, this directory's next one included.
            if not self._is_back(entry):
                self._learn(entry, known=row.kind == "known")
        for directory in [*self._known, self._corpus]:
            news = self._back if directory == self._corpus else self._back | self._open
            for path, known in corpus_entry.load_directory(directory).items():
                if known.case.id not in news and self._learn(known, known=True, torch=hello.torch):
                    self._results.add_finding(None, _row(known, path, "known", 0, recorded_result(known)), "")
        return len(self._results.findings())

    def _load_bug(self, bug: Bug, examples: list[Path], torch: str) -> None:
        """Take failures that this bug explains for known, or watch for them."""
        back = bug.status.is_back_in(torch)
        entries = [(path, corpus_entry.load(path)) for path in examples]
        if back or bug.status.is_open:
            cases = {*bug.findings, *(entry.case.id for _, entry in entries)}
            (self._back if back else self._open).update(cases)
            self._watched_cases |= dict.fromkeys(cases, bug)
            self._watched += [(self._desk.symptom(recorded_result(entry), entry.case), bug) for _, entry in entries]
            return
        for path, entry in entries:
            self.bugs[entry.case.id] = bug
            self._desk.take_for_same(bug.findings, self._teach(entry, known=True))
            self._results.add_finding(None, _row(entry, path, "known", 0, recorded_result(entry)), "")

    def listed(self, case: Case, result: SubjectResult) -> Bug | None:
        """The bug of the ledger that explains a finding: one nobody decided about, or one that should be gone."""
        symptom = self._desk.symptom(result, case)
        exact = self._watched_cases.get(case.id)
        return exact or next((bug for known, bug in self._watched if known.explains(symptom)), None)

    def explanation(self, conclusion: Conclusion, hello: Hello) -> Explanation | None:
        """What explains a minimal case that the ledger lists under a bug without an example: the case itself, which is the
        example of this run from now on. Raises `UserError` when it can't be written."""
        bug = self._ledger.of_case(conclusion.case.id) if self._ledger else None
        if bug is None or conclusion.case.id in self._watched_cases:
            return None
        entry = _entry(conclusion, hello)
        path = self._internal / entry.file_name
        self._results.add_finding(None, _row(entry, path, "known", 0, recorded_result(entry)), "")
        corpus_entry.write(entry, path)
        self.bugs[entry.case.id] = bug
        return self._teach(entry, known=True)

    def save(self, suspicion: int, conclusion: Conclusion, hello: Hello, seen: Mapping[str, str]) -> Path:
        """Save a new finding and settle the suspicion; gives the case file. `seen`: what other torch versions say of it.

        Raises `UserError` when it can't be written.
        """
        entry = _entry(conclusion, hello, seen)
        new = conclusion.outcome is Outcome.FINDING
        path = (self._corpus if new else self._internal) / entry.file_name
        row = _row(entry, path, "new" if new else "internal", 1, conclusion.shown)
        symptom = self._desk.symptom(conclusion.cheap, conclusion.case)
        # The row first: it holds all of the file, which `load` writes again.
        self._results.add_finding(suspicion, row, symptom.signature)
        corpus_entry.write(entry, path)
        self._desk.learn(Explanation(entry.case.id, symptom, known=False))
        return path

    def _learn(self, entry: Entry, *, known: bool, torch: str = "") -> bool:
        """Whether the entry is one that explains failures, and was not learned before."""
        if entry.case.id in self._learned:
            return False
        expected = entry.expect
        if torch and expected is not None and (expected.status != "known" or not expected.holds_for(torch)):
            return False
        if entry.found is None and (expected is None or not expected.verdict):
            return False
        bug = self._ledger.of_case(entry.case.id) if self._ledger else None
        if known and bug is None and self._is_back(entry):
            return False  # saved before it was fixed, or since it is back: no explanation for what is met now
        if known and bug is not None:
            self.bugs[entry.case.id] = bug
        self._teach(entry, known=known)
        return True

    def _is_back(self, entry: Entry) -> bool:
        """Whether it shows a bug that should be gone."""
        if self._ledger is not None and self._ledger.of_case(entry.case.id) is not None:
            return entry.case.id in self._back
        bug = self.listed(entry.case, recorded_result(entry))
        return bug is not None and not bug.status.is_open

    def _teach(self, entry: Entry, *, known: bool) -> Explanation:
        explanation = Explanation(entry.case.id, self._desk.symptom(recorded_result(entry), entry.case), known)
        self._desk.learn(explanation)
        self._learned.add(entry.case.id)
        return explanation


def write_fault(case: Case, text: str, directory: Path) -> Path:
    """Write down a case that a fault of ours kept from being judged, and what the worker said. Gives the case's file."""
    entry = Entry(case=case)
    path = corpus_entry.write(entry, directory / entry.file_name)
    path.with_name(path.name.replace(".case.yaml", ".log")).write_text(f"{text}\n", encoding="utf-8")
    return path


def found_as(shown: SubjectResult, hello: Hello) -> Found:
    """What a case file says of how the case was met: now, by the worker that said `hello`."""
    return Found(
        verdict=shown.verdict.value,
        subject=shown.subject,
        fired=shown.fired,
        torch=hello.torch,
        device=hello.device,
        message=describe(shown),
        numbers=shown.numbers,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        failure=encode(failure_of(shown)) or {},
    )


def _entry(conclusion: Conclusion, hello: Hello, seen: Mapping[str, str] | None = None) -> Entry:
    # Later failures are compared with what the cheapest subject saw.
    found = replace(found_as(conclusion.shown, hello), fired=conclusion.cheap.fired)
    return Entry(case=conclusion.case, found=found, seen=seen or {})


def recorded_result(entry: Entry) -> SubjectResult:
    """The result an entry records. Raises `UserError` for a verdict or a failure that there is not."""
    found, expected = entry.found, entry.expectation
    data: dict[str, Any] = {"subject": entry.subject, "verdict": expected.verdict}
    if found is not None:
        data = {"subject": found.subject, "verdict": found.verdict, "message": found.message, "fired": found.fired}
        data |= {"numbers": found.numbers} | ({"failure": found.failure} if found.failure else {})
    try:
        return subject_result(data)
    except ValueError as error:
        raise UserError(f"{entry.file_name}: what was found is not readable: {error}") from error


def _row(entry: Entry, path: Path, kind: str, count: int, result: SubjectResult) -> FindingRow:
    now = time.time()
    return FindingRow(entry.case.id, corpus_entry.dumps(entry), str(path), result, kind, count, now, now)
