"""The results of a campaign, and its events: what happened is an event, and all counts are over events.

- One transaction stores the verdicts on a case, as an event, and its failures.
- One transaction stores a finding and closes its suspicion.
- The file of a finding is written after its row, and again at the next start if it is missing.
"""

import copy
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from corpus import casefile, value_files
from corpus import entry as corpus_entry
from corpus.entry import Entry
from corpus.strict_yaml import Document
from fuzz import events
from fuzz.ask.evaluator import Judged
from fuzz.events import Counts, Event, SuspicionOutcome, Time
from fuzz.protocol import CoverageItem, CoverageKind, SubjectResult
from fuzz.run_database import RESULTS_FILE, RunDatabase
from generators.errors import UserError
from generators.program.case import Case
from generators.records import decode, encode

MAX_LOG_BYTES = 128 * 2**20
"""The size of the latest events, which are kept: some 200,000 cases."""
_WRITE_SECONDS = 2.0
"""How often counts over the events are stored. An event that is counted there may be deleted."""
_FORMAT = 9
_TABLES = """
CREATE TABLE events (
    place INTEGER PRIMARY KEY,  -- the bytes of all lines up to this one, deleted lines among them
    line TEXT NOT NULL          -- as `list_lines` gives it
);
CREATE TABLE counts (place INTEGER NOT NULL, counts TEXT NOT NULL);
INSERT INTO counts VALUES (0, '{}');
CREATE TABLE coverage (kind TEXT, name TEXT, count INTEGER NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE TABLE judged (case_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE queue (case_id TEXT PRIMARY KEY, case_text TEXT NOT NULL, coverage TEXT NOT NULL, found REAL NOT NULL);
CREATE TABLE suspicions (
    id INTEGER PRIMARY KEY, case_text TEXT NOT NULL, result TEXT NOT NULL,
    outcome TEXT,           -- NULL while it waits
    alike INTEGER           -- 1 if it looks like a finding whose experiments have not decided
);
CREATE INDEX waiting ON suspicions (outcome) WHERE outcome IS NULL;
CREATE TABLE findings (
    case_id TEXT PRIMARY KEY,
    entry TEXT NOT NULL,    -- the case file
    file TEXT NOT NULL, result TEXT NOT NULL, kind TEXT NOT NULL,  -- new, internal or known
    count INTEGER NOT NULL, first_seen REAL NOT NULL, last_seen REAL NOT NULL
);
CREATE TABLE history (      -- the cases that a process judged before a waiting suspicion
    suspicion INTEGER, place INTEGER, case_id TEXT NOT NULL, subjects TEXT NOT NULL, PRIMARY KEY (suspicion, place)
);
CREATE INDEX history_cases ON history (case_id);
CREATE TABLE earlier (case_id TEXT PRIMARY KEY, data TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A failure that is not investigated yet: a case, and the result of a subject."""

    id: int
    case: Case
    result: SubjectResult


@dataclass(frozen=True)
class FindingRow:
    """A finding as stored. Times are seconds since the epoch."""

    entry: Entry  # the contents of its case file
    file: str
    result: SubjectResult
    kind: str  # "new": of this campaign; "internal": no public subject shows it; "known"
    count: int  # failures that it explains
    first_seen: Time
    last_seen: Time

    @property
    def case_id(self) -> str:
        return self.entry.case.id


class Results(RunDatabase, events.Listener):
    """The open store. Threads share it. It stores the events that it is told, and has counts over them."""

    def __init__(self, directory: Path, *, readonly: bool = False) -> None:
        """Open the store, or create it unless `readonly`. Raises `UserError`, as `RunDatabase`."""
        value_files.note(directory)
        super().__init__(directory, _TABLES, _FORMAT, readonly=readonly)
        self._counted = -math.inf  # when the counts were stored
        self._zero: float | None = None  # the beginning of the time that was spent
        try:
            self.counts = self._read_counts()  # of all events
        except Exception:
            self.close()
            raise

    @classmethod
    def open_readonly(cls, directory: Path) -> Self:
        """The store of a campaign that may be running. Nothing is written. Raises `UserError` if there is none."""
        if not (directory / RESULTS_FILE).is_file():
            raise UserError(f"{directory}: no {RESULTS_FILE}, so not a run directory")
        return cls(directory, readonly=True)

    def on_event(self, event: Event, when: float) -> None:
        """Store an event. It counts even if it can't be stored."""
        with self._lock:
            if isinstance(event, events.CampaignStarted):
                self._zero = time.monotonic() - self.counts.seconds
            self.counts.add(event, when)
            with self._transaction():
                self._add_event(event, when)

    def tick(self) -> None:
        """Store the counts when it is time."""
        if time.monotonic() - self._counted >= _WRITE_SECONDS:
            self.finish()

    def finish(self) -> None:
        """Store the counts, and delete the oldest events, unless no campaign ever began."""
        self._counted = time.monotonic()
        with self._lock:
            if not self.counts.runs:
                return
            counts = json.dumps(encode(self.count_events()))
            with self._transaction():
                last = self._db.execute("SELECT coalesce(max(place), 0) FROM events").fetchone()[0]
                self._db.execute("UPDATE counts SET place = ?, counts = ?", (last, counts))
                self._db.execute("DELETE FROM events WHERE place <= ?", (last - MAX_LOG_BYTES,))

    def count_events(self) -> Counts:
        """The counts at this moment."""
        with self._lock:
            if self._zero is not None:  # by the monotonic clock, since the wall clock can be set
                self.counts.seconds = time.monotonic() - self._zero
            return copy.deepcopy(self.counts)

    def list_lines(self) -> list[str]:
        """The latest events, oldest first, each a line of JSON that begins with time and name."""
        with self._reading("events"):
            return [line for (line,) in self._select("SELECT line FROM events ORDER BY place")]

    def list_events(self, *names: str) -> list[dict[str, Any]]:
        """The events of `list_lines`, as data. `names`: those alone."""
        with self._reading("events"):
            told = map(json.loads, self.list_lines())
            return [event for event in told if not names or event["event"] in names]

    def record_case(
        self,
        case: Case,
        event: events.CaseJudged,
        *,
        unexplained: Iterable[tuple[Case, SubjectResult]] = (),  # failures that no finding explains
        queued: bool = False,  # some of the coverage is new, so the case joins the queue
        chosen: str = "",  # the id under which the case is not chosen again; "" for random cases, which hardly repeat
        earlier: Sequence[Judged] = (),  # judged before by the same process
    ) -> list[Suspicion]:
        """Store the verdicts on a case, in one transaction, and return its new suspicions."""
        now, raised, unexplained = time.time(), [], tuple(unexplained)
        history = [(place, one.case.id, json.dumps(one.subjects)) for place, one in enumerate(earlier)]
        cases = {one.case.id: one.case for one in earlier} if unexplained else {}
        for kept in (*([case] if queued else ()), *(failing for failing, _ in unexplained), *cases.values()):
            value_files.copy_files(kept, self.path.parent)
        with self._lock:
            with self._transaction():
                self._add_event(event, now)
                self._db.executemany(
                    "INSERT INTO coverage VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
                    [(item.kind.value, item.name) for item in event.coverage],
                )
                if chosen:
                    self._db.execute("INSERT OR IGNORE INTO judged VALUES (?)", (chosen,))
                if queued:
                    before = self._db.execute("SELECT coverage FROM queue WHERE case_id = ?", (case.id,)).fetchone()
                    items = {*event.coverage, *(_read_coverage(before[0]) if before else ())}
                    self._db.execute(
                        "INSERT INTO queue VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET coverage = excluded.coverage",
                        (case.id, casefile.dumps(case), json.dumps(encode(sorted(items))), now),
                    )
                for finding in event.explained_by:
                    self._count_again(finding, now)
                for failing, result in unexplained:
                    cursor = self._db.execute(
                        "INSERT INTO suspicions (case_text, result) VALUES (?, ?)",
                        (casefile.dumps(failing), _to_json(result)),
                    )
                    number = int(cursor.lastrowid or 0)
                    raised.append(Suspicion(number, failing, result))
                    self._add_event(events.SuspicionRaised(number, failing.id, result.subject, result.verdict), now)
                    rows = ((number, *row) for row in history)
                    self._db.executemany("INSERT INTO history VALUES (?, ?, ?, ?)", rows)
                for case_id, before in cases.items():
                    if not self._select("SELECT 1 FROM earlier WHERE case_id = ?", case_id):
                        data = json.dumps(casefile.encode(before))
                        self._db.execute("INSERT INTO earlier VALUES (?, ?)", (case_id, data))
            self.counts.add(event, now)  # once it is stored: a case that is not is judged again
        return raised

    def waiting(self) -> Iterator[Suspicion]:
        """The suspicions that have no outcome, oldest first."""
        rows = self._select("SELECT id FROM suspicions WHERE outcome IS NULL ORDER BY id")
        return (self.suspicion(row[0]) for row in rows)

    def suspicion(self, suspicion_id: int) -> Suspicion:
        text, result = self._select("SELECT case_text, result FROM suspicions WHERE id = ?", suspicion_id)[0]
        case = casefile.loads(text, f"{self.path}: suspicion {suspicion_id}")
        with self._reading(f"suspicion {suspicion_id}"):
            return Suspicion(suspicion_id, case, decode(SubjectResult, json.loads(result)))

    def history(self, suspicion_id: int) -> list[Judged]:
        """The cases that the process of a waiting suspicion judged before, oldest first."""
        query = "SELECT data, subjects FROM history NATURAL JOIN earlier WHERE suspicion = ? ORDER BY place"
        found, origin = [], f"{self.path}: history of suspicion {suspicion_id}"
        for data, subjects in self._select(query, suspicion_id):
            with self._reading(origin):
                document = Document(json.loads(data), origin, {(): 1})
                found.append(Judged(casefile.decode(document), tuple(json.loads(subjects))))
        return found

    def close_suspicion(self, suspicion_id: int, outcome: str, explained_by: str | None = None) -> None:
        """Store a suspicion's outcome, and count the finding that explains it once more."""
        with self._transaction():
            self._settle(suspicion_id, outcome)
            if explained_by is not None:
                self._count_again(explained_by, time.time())

    def set_alike(self, suspicion_id: int, is_alike: bool) -> None:
        """Note whether a suspicion looks like a finding, so that it is counted apart while it waits."""
        with self._transaction():
            self._db.execute("UPDATE suspicions SET alike = ? WHERE id = ?", (is_alike, suspicion_id))

    def add_finding(self, suspicion_id: int | None, finding: FindingRow) -> None:
        """Store a finding and the outcome of its suspicion. A finding that is stored already is counted once more."""
        row = vars(finding) | {"entry": corpus_entry.dumps(finding.entry), "result": _to_json(finding.result)}
        with self._transaction():
            self._db.execute(
                "INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                " entry = excluded.entry, file = excluded.file, result = excluded.result, kind = excluded.kind,"
                " count = count + excluded.count, last_seen = excluded.last_seen WHERE excluded.count > 0",
                (finding.case_id, *row.values()),
            )
            if suspicion_id is not None:
                self._settle(suspicion_id, SuspicionOutcome.FINDING)

    def findings(self) -> list[FindingRow]:
        """All findings, oldest first."""
        found = []
        for row in self._select("SELECT * FROM findings ORDER BY first_seen, case_id"):
            with self._reading(f"finding {row[0]}"):
                found.append(_read_finding(*row))
        return found

    def is_judged(self, case_id: str) -> bool:
        return bool(self._select("SELECT 1 FROM judged WHERE case_id = ?", case_id))

    def count_coverage(self) -> dict[CoverageItem, int]:
        """How many cases reached each item."""
        with self._reading("coverage"):
            rows = self._select("SELECT kind, name, count FROM coverage")
            return {CoverageItem(CoverageKind(kind), str(name)): int(count) for kind, name, count in rows}

    def queue(self) -> Iterator[tuple[Case, frozenset[CoverageItem]]]:
        """The cases that reached something new, oldest first, each with all that it reached."""
        rows = self._select("SELECT case_id, case_text, coverage FROM queue ORDER BY found, case_id")
        for case_id, text, listed in rows:
            case = casefile.loads(text, f"{self.path}: queued case {case_id}")
            with self._reading(f"queued case {case_id}"):
                items = frozenset(_read_coverage(listed))
            yield case, items

    def outcomes(self) -> dict[str, int]:
        """The number of suspicions by outcome; "waiting", or "not_examined" for those that look like a known bug."""
        rows = self._select("SELECT outcome, alike, count(*) FROM suspicions GROUP BY 1, 2")
        counts = Counter[str]()
        for outcome, is_alike, count in rows:
            counts[outcome or ("not_examined" if is_alike else "waiting")] += count
        return counts

    def count_suspicions(self, outcome: SuspicionOutcome | None) -> Counter[tuple[str, str]]:
        """How many suspicions have this outcome, or none yet, by verdict and subject."""
        rows = self._select("SELECT result FROM suspicions WHERE outcome IS ?", outcome)
        with self._reading("a suspicion"):
            return Counter((one["verdict"], one["subject"]) for one in (json.loads(row[0]) for row in rows))

    def _add_event(self, event: Event, when: float) -> None:
        line = json.dumps(events.encode_event(event, when))
        query = "INSERT INTO events SELECT coalesce(max(place), 0) + ?, ? FROM events"
        self._db.execute(query, (len(line) + 1, line))

    def _read_counts(self) -> Counts:
        # A single statement, since a campaign may store newer counts meanwhile.
        query = "SELECT counts, line FROM counts LEFT JOIN events ON events.place > counts.place ORDER BY events.place"
        rows = self._select(query)
        with self._reading("counts"):
            counts = decode(Counts, json.loads(rows[0][0] if rows else "{}"))
            for _, line in rows:
                if line is not None:
                    counts.add(*events.decode_event(json.loads(line)))
        return counts

    def _settle(self, suspicion_id: int, outcome: str) -> None:
        self._db.execute("UPDATE suspicions SET outcome = ? WHERE id = ?", (outcome, suspicion_id))
        self._db.execute("DELETE FROM history WHERE suspicion = ?", (suspicion_id,))
        self._db.execute("DELETE FROM earlier WHERE case_id NOT IN (SELECT case_id FROM history)")
        if outcome == SuspicionOutcome.DUPLICATE:  # Most are, and nobody reads them again.
            self._db.execute("UPDATE suspicions SET case_text = '', result = '' WHERE id = ?", (suspicion_id,))

    def _count_again(self, case_id: str, now: float) -> None:
        self._db.execute("UPDATE findings SET count = count + 1, last_seen = ? WHERE case_id = ?", (now, case_id))


def read_events(directory: Path, *names: str) -> list[dict[str, Any]]:
    """As `Results.list_events`, of a campaign that may be running. Raises `UserError` if there is none."""
    with Results.open_readonly(directory) as results:
        return results.list_events(*names)


def _read_coverage(text: str) -> tuple[CoverageItem, ...]:
    return tuple(decode(CoverageItem, item) for item in json.loads(text))


@lru_cache(maxsize=4096)
def _read_finding(case_id: str, *row: Any) -> FindingRow:
    """The row of a finding. Screens read all of them twice a second."""
    data = dict(zip([field.name for field in fields(FindingRow)], row, strict=True))
    entry = corpus_entry.loads(data["entry"], data["file"])
    if entry.case.id != case_id:
        raise ValueError(f"its entry holds case {entry.case.id}")
    return decode(FindingRow, data | {"result": json.loads(data["result"])}, entry=entry)


def _to_json(result: SubjectResult) -> str:
    return json.dumps(encode(replace(result, coverage=())))
