"""The typed events of a campaign. Screen, log and counts listen; nothing else prints or logs."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import dataclass_transform

from corpus.ledger import Status
from corpus.upstream import Upstream
from fuzz.cli import ignore_lost_output
from fuzz.protocol import CoverageItem, SubjectResult, Verdict
from fuzz.protocol.failures import Process
from fuzz.run_store import EVENTS_FILE, OLD_EVENTS_FILE
from generators.records import encode

MAX_LOG_BYTES = 64 * 2**20
"""Some 100,000 cases."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Event:
    """Base of all events, which are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class CampaignStarted(Event):
    """A session of a campaign began."""

    seed: int
    index: int  # of the next case; above 0 if an earlier session is continued
    subjects: tuple[str, ...]
    workers: int
    torch: str
    device: str
    device_name: str
    pending: int  # suspicions that wait
    n_known: int = 0  # findings known before
    against: str = ""  # the version in which `--against` differs
    runtimes: tuple[str, ...] = ()  # versions of the runtimes of the subjects
    missing_hooks: Mapping[str, str] = field(default_factory=dict)  # as in `Hello`


class WorkerStarted(Event):
    """A worker process said hello."""

    worker: int
    pid: int


class ForkRefused(Event):
    """A worker process was started alone, which takes seconds: its fork server has ended, since a fork is not safe."""

    worker: int


class WorkerDied(Event):
    """A worker process ended, or was ended."""

    worker: int
    reason: str
    how: Process | None = None  # None if something else ended it, such as a lost machine


class WorkerFailed(Event):
    """A worker ended because of a fault of attnfuzz, which says nothing about the case."""

    worker: int
    case: str
    text: str  # the worker's last lines
    path: str  # the case file


class CaseJudged(Event):
    """A case has its verdicts."""

    index: int
    case: str
    worker: int
    verdicts: Mapping[str, Verdict]  # by subject
    rejected: str | None  # why eager refuses the case
    skipped: Mapping[str, str] = field(default_factory=dict)  # why a subject did not take the case, by subject
    coverage: tuple[CoverageItem, ...] = ()  # under any subject
    explained_by: tuple[str, ...] = ()  # findings that explain its failures


class SuspicionRaised(Event):
    """A case failed in a way that no finding explains so far."""

    suspicion: int
    case: str
    subject: str
    verdict: Verdict


class SuspicionExamined(Event):
    """Experiments of known bugs were run on a suspicion that looks like them, or on its minimal case."""

    suspicion: int
    case: str
    explained_by: str  # the finding that it is; "" if it is none of them
    probes: int
    seconds: float


class SuspicionClosed(Event):
    """Work on a suspicion ended."""

    suspicion: int
    case: str
    outcome: str  # a value of `run_store.SuspicionOutcome`
    message: str
    probes: int  # checks that show, shrink and confirm it


class FindingSaved(Event):
    """A confirmed, minimal, new failure has its case file."""

    case: str
    verdict: Verdict
    result: SubjectResult
    ops: int
    path: str
    internal: bool  # only an internal subject shows it
    source: str  # the program that fails
    where: str = ""  # the part of the value that is wrong
    ledger: str = ""  # the ledger's words on a bug that is fixed and back
    seen: Mapping[str, str] = field(default_factory=dict)  # verdicts of other torch versions
    n_earlier: int = 0  # cases that have to run before, in the same process
    of_eager: bool = False  # a bug of eager, in a run that tests functions of the user
    is_shrinking_cut: bool = False  # shrinking was cut off


class KnownBugMet(Event):
    """A failure is the first that the campaign knows to be this bug of the ledger, by experiments or measurements."""

    bug: str  # its id
    title: str
    status: Status  # by people
    versions: tuple[str, ...]  # with the bug, as in corpus/versions.py
    report: str  # path of its report; "" without a report
    case: str  # the case that failed
    example: str  # the id of the case in the ledger that shows it best
    result: SubjectResult  # of the example, as its file records it
    ops: int  # of the example
    path: str  # of the example
    source: str  # the program of the example
    upstream: Upstream | None = None


class Notice(Event):
    """A line for the person who watches, such as that a file of another campaign is skipped."""

    text: str


class CampaignEnded(Event):
    """A session ended."""

    reason: str


class Listener:
    """Gets every event, in order."""

    is_output = False  # whether it writes to stdout and stderr, whose reader may go

    def on_event(self, event: Event, when: float) -> None:
        """Something happened, `when` seconds after the epoch."""

    def tick(self) -> None:
        """Time has passed: the main thread calls this a few times a second."""

    def close(self) -> None:
        """No event will follow."""


class Bus:
    """Hands events to listeners in order, from any thread."""

    def __init__(self, listeners: list[Listener]) -> None:
        self.listeners = listeners
        self._lock = threading.RLock()

    def emit(self, event: Event) -> None:
        when = time.time()
        self._each(lambda listener: listener.on_event(event, when))

    def tick(self) -> None:
        self._each(lambda listener: listener.tick())

    def close(self) -> None:
        self._each(lambda listener: listener.close())

    def _each(self, call: Callable[[Listener], None]) -> None:
        errors = []
        with self._lock:
            for listener in self.listeners:
                try:
                    with ignore_lost_output() if listener.is_output else nullcontext():
                        call(listener)
                except Exception as error:  # noqa: BLE001 - raised after all listeners got the event
                    errors.append(error)
        if errors:
            raise errors[0]


class EventLog(Listener):
    """Appends each event to events.ndjson as it happens, as a line of JSON that begins with its time and name.

    A long file becomes events.1.ndjson, in place of an earlier long file.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVENTS_FILE
        self._open()
        if self._file.tell() and self._path.read_bytes()[-1:] != b"\n":  # a kill broke the last line
            self._file.write("\n")

    def _open(self) -> None:
        self._file = self._path.open("a", buffering=1, encoding="utf-8")  # by lines: a kill breaks at most the last

    def on_event(self, event: Event, when: float) -> None:
        fields = {name: encode(value) for name, value in vars(event).items()}
        line = {"time": round(when, 3), "event": type(event).__name__, **fields}
        self._file.write(json.dumps(line) + "\n")
        if self._file.tell() > MAX_LOG_BYTES:
            self._file.close()
            self._path.replace(self._path.with_name(OLD_EVENTS_FILE))
            self._open()

    def close(self) -> None:
        self._file.close()
