"""What happens in a campaign, as typed events. Screen, log and statistics listen; nothing else prints or logs."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import dataclass_transform

from fuzz.cli import ignore_lost_output
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.codec import encode
from fuzz.protocol.failures import normalize
from fuzz.run_store import EVENTS_FILE, OLD_EVENTS_FILE, Results

MAX_LOG_BYTES = 64 * 2**20
"""Some 100,000 cases."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Event:
    """Base of all events, which are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class CampaignStarted(Event):
    """`index`: the next case's number, above 0 when an earlier run is continued; `known`: findings known before;
    `against`: the torch version of `--against`, empty without one; `missing_hooks`: as in `Hello`."""

    seed: int
    index: int
    budget: str
    out: str
    corpus: str
    subjects: tuple[str, ...]
    workers: int
    torch: str
    python: str
    device: str
    device_name: str
    known: int
    pending: int
    against: str = ""
    missing_hooks: Mapping[str, str] = field(default_factory=dict)


class WorkerStarted(Event):
    """A worker process said hello."""

    worker: int
    pid: int


class WorkerDied(Event):
    """A worker process ended, or was ended, because of `reason`."""

    worker: int
    reason: str


class WorkerFailed(Event):
    """A worker ended because of a fault of attnfuzz, which says nothing of the case; `text`: its last lines, `path`:
    the case."""

    worker: int
    case: str
    text: str
    path: str


class CaseJudged(Event):
    """One sampled case has its verdicts, by subject; `rejected`: why eager refuses it, else None; `skipped`: why a
    subject did not take it, by subject; `reached`: as in `fuzz.protocol.SubjectResult`, under any subject."""

    index: int
    case: str
    worker: int
    verdicts: Mapping[str, Verdict]
    fired: tuple[str, ...]
    rejected: str | None
    torch_seconds: float
    skipped: Mapping[str, str] = field(default_factory=dict)
    reached: tuple[str, ...] = ()


class ProbeJudged(Event):
    """One check made while a suspicion is shown, shrunk or confirmed."""

    case: str
    worker: int
    subject: str
    verdict: Verdict
    torch_seconds: float


class SuspicionRaised(Event):
    """A case failed in a way that no finding explains so far."""

    suspicion: int
    case: str
    subject: str
    verdict: Verdict


class Duplicate(Event):
    """A failure that a finding explains; `known`: one that was in the corpus before this run."""

    case: str
    verdict: Verdict
    finding: str
    known: bool


class SuspicionOpened(Event):
    """Work on a suspicion begins: show, shrink, confirm."""

    suspicion: int
    case: str
    worker: int


class SuspicionClosed(Event):
    """Work on a suspicion ended; `outcome` is a value of `investigate.Outcome`."""

    suspicion: int
    case: str
    outcome: str
    message: str


class FindingSaved(Event):
    """A confirmed, minimal, new failure; `path` is its case file; `internal`: only an internal subject shows it.

    `source` is the program that fails; `where`: what of it is wrong; `ledger`: what the ledger says of it; `seen`: what
    other torch versions say, by version; `of_eager`: eager is wrong, which is not what the run tests.
    """

    case: str
    verdict: Verdict
    result: SubjectResult
    ops: int
    path: str
    internal: bool
    source: str
    where: str = ""
    ledger: str = ""
    seen: Mapping[str, str] = field(default_factory=dict)
    of_eager: bool = False


class Notice(Event):
    """A line for whoever watches, such as that a file of another campaign is skipped."""

    text: str


class CampaignEnded(Event):
    """`reason`: why it stopped."""

    reason: str


class Listener:
    """Gets every event, one at a time; `tick` is called a few times a second by the main thread."""

    is_output = False
    """Whether it writes to stdout and stderr, whose reader may go."""

    def on_event(self, event: Event, when: float) -> None:
        """`when`: seconds since the epoch."""

    def tick(self) -> None:
        """Time has passed."""

    def close(self) -> None:
        """No event will follow."""


@dataclass(eq=False)
class Counts(Listener):
    """What events add up to.

    `began`, `last`: the first and the last event, in seconds since the epoch; `seconds`: how long the runs took;
    `compared`: cases that a subject took; `rejected`: why eager refused some; by subject `verdicts`, and `skipped`, why
    it did not take some; `losses`: why workers were lost; `faults`: those of attnfuzz itself; `torch_seconds`: those
    inside torch.
    """

    started: CampaignStarted | None = None
    ended: str = ""
    runs: int = 0
    began: float = 0.0
    last: float = 0.0
    seconds: float = 0.0
    cases: int = 0
    compared: int = 0
    probes: int = 0
    torch_seconds: float = 0.0
    verdicts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, Counter[str]] = field(default_factory=dict)
    losses: Counter[str] = field(default_factory=Counter)
    faults: tuple[WorkerFailed, ...] = ()

    def __post_init__(self) -> None:
        """Raises `ValueError` for a time that no calendar has."""
        if not all(0 <= when < 1 << 33 for when in (self.began, self.last, self.seconds)):
            raise ValueError("a time out of range")

    def on_event(self, event: Event, when: float) -> None:
        """Count."""
        self.began, self.last = self.began or when, when
        match event:
            case CampaignStarted():
                self.started, self.ended, self.runs = event, "", self.runs + 1
            case CaseJudged():
                self.cases += 1
                self.compared += any(verdict is not Verdict.SKIPPED for verdict in event.verdicts.values())
                self.torch_seconds += event.torch_seconds
                self.rejected.update(() if event.rejected is None else (normalize(event.rejected),))
                for subject, verdict in event.verdicts.items():
                    self.verdicts.setdefault(subject, Counter())[verdict] += 1
                for subject, reason in event.skipped.items():
                    self.skipped.setdefault(subject, Counter())[normalize(reason)] += 1
            case ProbeJudged():
                self.probes += 1
                self.torch_seconds += event.torch_seconds
            case WorkerDied():
                self.losses[normalize(event.reason)] += 1
            case WorkerFailed():
                self.faults += (event,)
            case CampaignEnded():
                self.ended = event.reason

    @classmethod
    def load(cls, results: Results) -> "Counts":
        """Those of all runs in a directory. Raises `UserError`."""
        return results.read_meta("counts", Counts)


class Bus:
    """Hands events to listeners in order, whatever thread they come from."""

    def __init__(self, listeners: list[Listener]) -> None:
        self._listeners = listeners
        self._lock = threading.RLock()

    def add(self, listener: Listener) -> None:
        """A listener for what follows."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Tell all listeners."""
        when = time.time()
        self._each(lambda listener: listener.on_event(event, when))

    def tick(self) -> None:
        """Let listeners do what they do from time to time."""
        self._each(lambda listener: listener.tick())

    def close(self) -> None:
        """Tell listeners that nothing follows."""
        self._each(lambda listener: listener.close())

    def _each(self, call: Callable[[Listener], None]) -> None:
        errors = []
        with self._lock:
            for listener in self._listeners:
                try:
                    with ignore_lost_output() if listener.is_output else nullcontext():
                        call(listener)
                except Exception as error:  # noqa: BLE001 - raised when all have been told
                    errors.append(error)
        if errors:
            raise errors[0]


class EventLog(Listener):
    """Appends each event to events.ndjson as it happens, one JSON object a line, `time` (seconds since the epoch)
    first. A long file becomes events.1.ndjson, in place of an earlier one: nothing but people reads them."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVENTS_FILE
        self._open()
        if self._file.tell():
            self._file.write("\n" if _ends_mid_line(self._path) else "")

    def _open(self) -> None:
        # Line buffered: a kill costs no line, and breaks at most the last.
        self._file = self._path.open("a", buffering=1, encoding="utf-8")

    def on_event(self, event: Event, when: float) -> None:
        """Write one line."""
        fields = {name: encode(value) for name, value in vars(event).items()}
        line = {"time": round(when, 3), "event": type(event).__name__, **fields}
        self._file.write(json.dumps(line) + "\n")
        if self._file.tell() > MAX_LOG_BYTES:
            self._file.close()
            self._path.replace(self._path.with_name(OLD_EVENTS_FILE))
            self._open()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _ends_mid_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
