"""The results of a campaign: a SQLite file, which survives a kill at any time.

- One transaction stores the failures of a case and marks the case as judged.
- One transaction stores a finding and closes its suspicion.
- The file of a finding is written after its row, and again at the next start if it is missing.
"""

import fcntl
import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from corpus import casefile, value_files
from corpus import entry as corpus_entry
from corpus.entry import Entry
from corpus.strict_yaml import Document
from fuzz.ask.evaluator import Judged
from fuzz.protocol import CoverageItem, CoverageKind, SubjectResult
from generators.errors import UserError
from generators.program.case import Case
from generators.records import Rule, Word, decode, encode

RESULTS_FILE, EVENTS_FILE, OLD_EVENTS_FILE = "results.sqlite", "events.ndjson", "events.1.ndjson"
"""Files in a run directory."""
LOCK_FILE = "lock"
"""A campaign holds it while it runs."""
_LOCK_SECONDS = 5.0
"""How long to wait for another process that has locked the results: the default of `sqlite3`."""
_FORMAT = 8
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
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

T = TypeVar("T")
Time = Annotated[float, Rule(lambda seconds: 0 <= seconds < 1 << 33, "is no time of a calendar")]


class SuspicionOutcome(Word):
    """How work on a suspicion ended."""

    FINDING = "finding", "became a finding"
    INTERNAL = "internal", "became a finding of an internal subject only, since no public subject was run"
    INTERNAL_ONLY = "internal_only", "shown by an internal subject only"
    WITHIN_SAME = "within_same", "accepted by torch._dynamo.utils.same"
    UNCONFIRMED = "unconfirmed", "not reproduced by fresh workers, alone or after the cases before it"
    IN_BOTH = "in_both", "failing under --against too, so not regressions"
    NOT_COMPARED = "not_compared", "not judged under --against"
    DUPLICATE = "duplicate", "explained by a finding"


class StoreLocked(UserError):
    """Another process has locked the results of a run for longer than `_LOCK_SECONDS`."""


def is_running(directory: Path) -> bool:
    """Whether a campaign runs in a directory."""
    with suppress(OSError), (directory / LOCK_FILE).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


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


class Results:
    """The open store. Threads share it."""

    def __init__(self, directory: Path, *, readonly: bool = False) -> None:
        """Open the store, or create it unless `readonly`. Raises `UserError` for a file of another kind, a damaged run
        or a file that another process has locked."""
        self.path, self._is_written = directory / RESULTS_FILE, False
        self._lock = threading.RLock()
        value_files.note(directory)
        existed = self.path.exists()
        if existed and not readonly and not self.path.stat().st_size:
            _require_no_run(directory)  # before SQLite removes a log that lies beside it
        uri = self.path.resolve().as_uri()
        if readonly:
            # Without a writer's log beside it the file is complete, and its directory may be read-only.
            uri += "?mode=ro" if self.path.with_name(f"{RESULTS_FILE}-wal").exists() else "?immutable=1"
        with self._translating("opened"):
            self._db = sqlite3.connect(uri, _LOCK_SECONDS, uri=True, check_same_thread=False, isolation_level=None)
            try:
                if not readonly:
                    self._db.execute("PRAGMA journal_mode=WAL")
                    self._db.execute("PRAGMA synchronous=NORMAL")
                self._require_tables(readonly=readonly, existed=existed)
            except Exception:
                self._db.close()
                raise
        self._is_written = not readonly

    def _require_tables(self, *, readonly: bool, existed: bool) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version or self._db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall():
            if version != _FORMAT:
                way = "this version reads" if readonly else "use another --out: this version writes"
                raise UserError(f"{self.path}: store of format {version}, {way} {_FORMAT}")
            return
        if readonly:
            raise UserError(f"{self.path}: empty: the run has not begun, or is damaged")
        if existed:
            _require_no_run(self.path.parent)
        with self._transaction():
            for statement in _TABLES.split(";\n"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={_FORMAT}")

    @classmethod
    def open_readonly(cls, directory: Path) -> Self:
        """The store of a campaign that may be running. Nothing is written. Raises `UserError` if there is none."""
        if not (directory / RESULTS_FILE).is_file():
            raise UserError(f"{directory}: no {RESULTS_FILE}, so not a run directory")
        return cls(directory, readonly=True)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def meta(self, key: str) -> str | None:
        rows = self._select("SELECT value FROM meta WHERE key = ?", key)
        return str(rows[0][0]) if rows else None

    def read_meta(self, key: str, kind: type[T]) -> T:
        """A dataclass by key; its defaults if nothing is stored. Raises `UserError`."""
        with self._reading(key):
            return decode(kind, json.loads(self.meta(key) or "{}"))

    def position(self) -> tuple[int, frozenset[int]]:
        """The first case number that is not judged, and later numbers that are."""
        with self._reading("position"):
            return int(self.meta("cursor") or 0), frozenset(map(int, json.loads(self.meta("beyond") or "[]")))

    def set_meta(self, values: Mapping[str, str]) -> None:
        with self._transaction():
            self._set_meta(values)

    def record_case(
        self,
        case: Case,
        *,
        position: tuple[int, frozenset[int]],  # cursor and beyond, from `CaseNumbers.finish`
        unexplained: Iterable[tuple[Case, SubjectResult]] = (),  # failures that no finding explains
        explained: Iterable[str] = (),  # ids of the findings that explain other failures
        coverage: frozenset[CoverageItem] = frozenset(),  # all that the case reached
        queued: bool = False,  # some of the coverage is new, so the case joins the queue
        chosen: str = "",  # the id under which the case is not chosen again; "" for random cases, which hardly repeat
        earlier: Sequence[Judged] = (),  # judged before by the same process
    ) -> list[Suspicion]:
        """Mark a case as judged, in one transaction, and return its new suspicions."""
        now, raised, unexplained = time.time(), [], tuple(unexplained)
        history = [(place, one.case.id, json.dumps(one.subjects)) for place, one in enumerate(earlier)]
        cases = {one.case.id: one.case for one in earlier} if unexplained else {}
        for kept in (*([case] if queued else ()), *(failing for failing, _ in unexplained), *cases.values()):
            value_files.copy_files(kept, self.path.parent)
        with self._transaction():
            self._set_meta({"cursor": str(position[0]), "beyond": json.dumps(sorted(position[1]))})
            self._db.executemany(
                "INSERT INTO coverage VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
                [(item.kind.value, item.name) for item in sorted(coverage)],
            )
            if chosen:
                self._db.execute("INSERT OR IGNORE INTO judged VALUES (?)", (chosen,))
            if queued:
                before = self._db.execute("SELECT coverage FROM queue WHERE case_id = ?", (case.id,)).fetchone()
                items = coverage.union(_read_coverage(before[0]) if before else ())
                self._db.execute(
                    "INSERT INTO queue VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET coverage = excluded.coverage",
                    (case.id, casefile.dumps(case), json.dumps(encode(sorted(items))), now),
                )
            for finding in explained:
                self._count_again(finding, now)
            for failing, result in unexplained:
                cursor = self._db.execute(
                    "INSERT INTO suspicions (case_text, result) VALUES (?, ?)",
                    (casefile.dumps(failing), _to_json(result)),
                )
                raised.append(Suspicion(int(cursor.lastrowid or 0), failing, result))
            for suspicion in raised:
                rows = ((suspicion.id, *row) for row in history)
                self._db.executemany("INSERT INTO history VALUES (?, ?, ?, ?)", rows)
            for case_id, before in cases.items():
                if not self._select("SELECT 1 FROM earlier WHERE case_id = ?", case_id):
                    data = json.dumps(casefile.encode(before))
                    self._db.execute("INSERT INTO earlier VALUES (?, ?)", (case_id, data))
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

    def _select(self, query: str, *values: object) -> list[Any]:
        with self._lock, self._translating("read"):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _translating(self, way: str) -> Iterator[None]:
        """Raises `StoreLocked` or `UserError` for an error of SQLite. An operational error of a store that is written
        stays, since the disk may be its reason."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                locked = f"{self.path}: another process has locked it; end that process, then try again"
                raise StoreLocked(locked) from error
            if isinstance(error, sqlite3.OperationalError) and self._is_written:
                raise
            raise UserError(f"{self.path}: can't be {way}: {error}") from error

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Raises UserError for a row that this version did not write."""
        try:
            yield
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise UserError(f"{self.path}: {what} is not readable: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._translating("written"), self._db:  # which commits, or rolls back
            self._db.execute("BEGIN IMMEDIATE")
            yield

    def _set_meta(self, values: Mapping[str, str]) -> None:
        self._db.executemany(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", list(values.items())
        )

    def _settle(self, suspicion_id: int, outcome: str) -> None:
        self._db.execute("UPDATE suspicions SET outcome = ? WHERE id = ?", (outcome, suspicion_id))
        self._db.execute("DELETE FROM history WHERE suspicion = ?", (suspicion_id,))
        self._db.execute("DELETE FROM earlier WHERE case_id NOT IN (SELECT case_id FROM history)")
        if outcome == SuspicionOutcome.DUPLICATE:  # Most are, and nobody reads them again.
            self._db.execute("UPDATE suspicions SET case_text = '', result = '' WHERE id = ?", (suspicion_id,))

    def _count_again(self, case_id: str, now: float) -> None:
        self._db.execute("UPDATE findings SET count = count + 1, last_seen = ? WHERE case_id = ?", (now, case_id))


def _require_no_run(directory: Path) -> None:
    """Raises `UserError` if a directory whose results are empty has other files. A run that was killed before its first
    write has none: it writes the results first."""
    own = {LOCK_FILE, *(RESULTS_FILE + suffix for suffix in ("", "-journal", "-wal", "-shm"))}
    if others := sorted({one.name for one in directory.iterdir()} - own):
        path = directory / RESULTS_FILE
        raise UserError(f"{path}: empty, but {directory} has {others[0]}: the run is damaged; give another --out")


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
