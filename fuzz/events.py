"""What happens in a campaign, as typed events. Screen, log and statistics listen; nothing else prints or logs."""

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, dataclass_transform

from corpus.files import open_file
from fuzz.cli import ignore_lost_output
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.codec import decode, encode
from fuzz.protocol.failures import normalize
from fuzz.run_store import EVENTS_FILE


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Event:
    """Base of all events, which are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def to_dict(self) -> dict[str, Any]:
        """This event as JSON-ready data; `event` is its type's name."""
        return {"event": type(self).__name__, **{name: encode(value) for name, value in vars(self).items()}}


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
    """A worker process said hello after `seconds`."""

    worker: int
    pid: int
    seconds: float


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
    seconds: float
    torch_seconds: float
    rss_mib: float
    skipped: Mapping[str, str] = field(default_factory=dict)
    oracle_seconds: float = 0.0
    reached: tuple[str, ...] = ()


class ProbeJudged(Event):
    """One check made while a suspicion is shown, shrunk or confirmed."""

    case: str
    worker: int
    subject: str
    verdict: Verdict
    seconds: float
    torch_seconds: float
    oracle_seconds: float = 0.0


class SuspicionRaised(Event):
    """A case failed in a way that no finding explains so far."""

    suspicion: int
    case: str
    index: int
    subject: str
    verdict: Verdict
    message: str


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
    ops: int


class ShrinkProgress(Event):
    """The smallest case so far that still fails."""

    suspicion: int
    case: str
    ops: int
    probes: int


class SuspicionClosed(Event):
    """Work on a suspicion ended; `outcome` is a value of `investigate.Outcome`."""

    suspicion: int
    case: str
    outcome: str
    message: str
    seconds: float


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
    """`reason`: why it stopped; `new`: findings saved by this run; `pending`: suspicions not worked on."""

    reason: str
    new: int
    pending: int
    seconds: float


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


class Counts(Listener):
    """What events add up to.

    `compared`: cases that a subject took; `rejected`: why eager refused some; by subject `verdicts`, and `skipped`, why
    it did not take some; `fired`, `reached`: in how many cases each rewrite, and each other thing of the compiler;
    `deaths`: why workers were lost; `faults`: those of attnfuzz itself. `torch_seconds` are those inside torch,
    `oracle_seconds` those of the oracle: reference, noise, judgement and all runs to decide.
    """

    def __init__(self) -> None:
        self.started: CampaignStarted | None = None
        self.ended = ""
        self.cases = self.compared = self.probes = 0
        self.torch_seconds = self.oracle_seconds = 0.0
        self.verdicts: defaultdict[str, Counter[Verdict]] = defaultdict(Counter)
        self.rejected: Counter[str] = Counter()
        self.skipped: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.fired: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self.deaths: list[str] = []
        self.faults: list[WorkerFailed] = []

    def on_event(self, event: Event, when: float) -> None:  # noqa: ARG002 - a listener's signature
        """Count."""
        match event:
            case CampaignStarted():
                self.started, self.ended = event, ""
            case CaseJudged():
                self.cases += 1
                self.compared += any(verdict is not Verdict.SKIPPED for verdict in event.verdicts.values())
                self._add_seconds(event)
                self.rejected.update(() if event.rejected is None else (normalize(event.rejected),))
                for subject, verdict in event.verdicts.items():
                    self.verdicts[subject][verdict] += 1
                for subject, reason in event.skipped.items():
                    self.skipped[subject][normalize(reason)] += 1
                self.fired.update(event.fired)
                self.reached.update(event.reached)
            case ProbeJudged():
                self.probes += 1
                self._add_seconds(event)
            case WorkerDied():
                self.deaths.append(event.reason)
            case WorkerFailed():
                self.faults.append(event)
            case CampaignEnded():
                self.ended = event.reason

    def _add_seconds(self, event: CaseJudged | ProbeJudged) -> None:
        self.torch_seconds += event.torch_seconds
        self.oracle_seconds += event.oracle_seconds


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
    first."""

    def __init__(self, directory: Path) -> None:
        # Line buffered: a kill costs no line, and breaks at most the last.
        self._file = (directory / EVENTS_FILE).open("a", buffering=1, encoding="utf-8")
        if self._file.tell():
            self._file.write("\n" if _ends_mid_line(directory / EVENTS_FILE) else "")

    def on_event(self, event: Event, when: float) -> None:
        """Write one line."""
        self._file.write(json.dumps({"time": round(when, 3), **event.to_dict()}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_events(run: Path) -> Iterator[tuple[Event, float]]:
    """The events of a run directory, in order, each with its time. Lines that a killed or working writer left, and
    events of another version, are skipped."""
    kinds = {kind.__name__: kind for kind in Event.__subclasses__()}
    if (run / EVENTS_FILE).exists():
        with open_file(run / EVENTS_FILE) as file:
            for line in file:
                with suppress(KeyError, TypeError, ValueError, AttributeError, RecursionError):
                    data = json.loads(line)
                    if 0 <= (when := float(data["time"])) < 1 << 33:
                        yield decode(kinds[data["event"]], data), when


def _ends_mid_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
