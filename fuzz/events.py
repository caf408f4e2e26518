"""The typed events of a campaign, and counts over them. Store and screen listen; nothing else prints or logs."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, dataclass_transform

from corpus.ledger import Status
from corpus.upstream import Upstream
from fuzz.cli import ignore_lost_output
from fuzz.protocol import CoverageItem, SubjectResult, Verdict
from fuzz.protocol.failures import Process, normalize
from generators.records import Rule, Word, decode, encode, one_of, read_mapping

_OF_CALENDAR = Rule(lambda seconds: 0 <= seconds < 1 << 33, "is no time of a calendar")
Time = Annotated[float, _OF_CALENDAR]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Event:
    """Base of all events, which are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


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


class CampaignStarted(Event):
    """A session of a campaign began."""

    seed: int = 0
    index: int = 0  # of the next case; above 0 if an earlier session is continued
    subjects: tuple[str, ...] = ()
    workers: int = 0
    torch: str = ""
    device: str = ""
    device_name: str = ""
    pending: int = 0  # suspicions that wait
    n_known: int = 0  # findings known before
    against: str = ""  # the version in which `--against` differs
    runtimes: tuple[str, ...] = ()  # versions of the runtimes of the subjects
    missing_hooks: Mapping[str, str] = field(default_factory=dict)  # as in `Hello`
    python: str = ""  # the interpreter of the workers

    @property
    def versions(self) -> str:
        """The versions of torch and of the runtimes, in words."""
        return ", ".join([self.torch, *self.runtimes])


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
    outcome: SuspicionOutcome
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


def encode_event(event: Event, when: float) -> dict[str, Any]:
    """An event as data: its time, seconds after the epoch; its name; all its fields."""
    fields = {name: encode(value) for name, value in vars(event).items()}
    return {"time": round(when, 3), "event": type(event).__name__, **fields}


def decode_event(data: Any) -> tuple[Event, float]:
    """An event and its time. Raises ValueError."""
    kinds = {kind.__name__: kind for kind in Event.__subclasses__()}
    name, when = str(read_mapping(data).get("event")), decode(float, data.get("time"))
    one_of(kinds).require(name)
    _OF_CALENDAR.require(when)
    return decode(kinds[name], data), when


@dataclass(eq=False)
class Counts:
    """Counts over the events of all sessions. Times are seconds."""

    started: CampaignStarted = field(default_factory=CampaignStarted)  # the last session
    ended: str = ""  # why the last session ended; "" while it runs and after a kill
    runs: int = 0  # sessions
    began: Time = 0.0  # time of the first event, since the epoch
    last: Time = 0.0  # time of the last event, since the epoch
    seconds: Time = 0.0  # of wall time, of all sessions
    cursor: int = 0  # the first case number that is not judged
    beyond: tuple[int, ...] = ()  # later case numbers that are
    compared: int = 0  # cases that a subject took
    probes: int = 0
    closed: int = 0  # suspicions that were investigated
    examined: int = 0  # failures on which experiments of known bugs were run
    explaining: float = 0.0  # seconds of worker time for these experiments, and for the causes of findings
    verdicts: dict[str, Counter[Verdict]] = field(default_factory=dict)  # by subject
    rejected: Counter[str] = field(default_factory=Counter)  # why eager refused cases
    skipped: dict[str, Counter[str]] = field(default_factory=dict)  # why a subject did not take cases, by subject
    lost: int = 0  # workers
    not_forked: int = 0  # starts of workers whose fork server had ended
    timeouts: int = 0  # workers that were lost to a timeout
    known_bugs: tuple[KnownBugMet, ...] = ()  # of the ledger, in the order of their first meetings
    faults: tuple[WorkerFailed, ...] = ()  # of attnfuzz itself

    def add(self, event: Event, when: float) -> None:
        self.began, self.last = self.began or when, when
        match event:
            case CampaignStarted():
                self.started, self.ended, self.runs = event, "", self.runs + 1
            case CaseJudged():
                beyond = {*self.beyond, event.index}
                while self.cursor in beyond:
                    beyond.remove(self.cursor)
                    self.cursor += 1
                self.beyond = tuple(sorted(beyond))
                self.compared += any(verdict is not Verdict.SKIPPED for verdict in event.verdicts.values())
                self.rejected.update(() if event.rejected is None else (normalize(event.rejected),))
                for subject, verdict in event.verdicts.items():
                    self.verdicts.setdefault(subject, Counter())[verdict] += 1
                for subject, reason in event.skipped.items():
                    self.skipped.setdefault(subject, Counter())[normalize(reason)] += 1
            case SuspicionClosed():
                self.closed += 1
                self.probes += event.probes
            case SuspicionExamined():
                self.examined += 1
                self.explaining += event.seconds
                self.probes += event.probes
            case KnownBugMet():
                self.known_bugs += (event,)
            case ForkRefused():
                self.not_forked += 1
            case WorkerDied():
                self.lost += 1
                self.timeouts += event.how is Process.TIMEOUT
            case WorkerFailed():
                self.faults += (event,)
            case CampaignEnded():
                self.ended = event.reason

    def list_refusals(self, subject: str) -> str:
        """The operators and reasons for which a subject took no case, with their numbers, the most frequent first."""
        return ", ".join(f"{reason} {count}x" for reason, count in self.skipped[subject].most_common(_REASONS))


_REASONS = 8
"""The most operators and reasons that are listed."""


class Listener:
    """Gets every event, in order."""

    is_output = False  # whether it writes to stdout and stderr, whose reader may go

    def on_event(self, event: Event, when: float) -> None:
        """Something happened, `when` seconds after the epoch."""

    def tick(self) -> None:
        """Time has passed: the main thread calls this a few times a second."""

    def finish(self) -> None:
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

    def finish(self) -> None:
        self._each(lambda listener: listener.finish())

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
