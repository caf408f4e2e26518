"""The numbers of a run directory, for screen, closing summary, `fuzz.status`, page and clusters."""

import copy
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from corpus.ledger import Bug
from fuzz import events
from fuzz.durations import format_count
from fuzz.protocol import CoverageItem, CoverageKind, SubjectResult, Verdict
from fuzz.protocol.failures import Process, normalize
from fuzz.run_store import FindingRow, Results, SuspicionOutcome, Time, is_running
from fuzz.subjects import is_user_function
from generators.records import encode

_WRITE_SECONDS = 2.0
_OF_EAGER = Verdict.EAGER_SUSPECT.value


@dataclass(eq=False)
class Counts:
    """Counts over the events of all sessions. The run directory keeps them. Times are seconds."""

    started: events.CampaignStarted | None = None  # the last session
    ended: str = ""  # why the last session ended; "" while it runs and after a kill
    runs: int = 0  # sessions
    began: Time = 0.0  # time of the first event, since the epoch
    last: Time = 0.0  # time of the last event, since the epoch
    seconds: Time = 0.0  # of wall time, of all sessions
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
    known_bugs: tuple[events.KnownBugMet, ...] = ()  # of the ledger, in the order of their first meetings
    faults: tuple[events.WorkerFailed, ...] = ()  # of attnfuzz itself

    def add(self, event: events.Event, when: float) -> None:
        self.began, self.last = self.began or when, when
        match event:
            case events.CampaignStarted():
                self.started, self.ended, self.runs = event, "", self.runs + 1
            case events.CaseJudged():
                self.compared += any(verdict is not Verdict.SKIPPED for verdict in event.verdicts.values())
                self.rejected.update(() if event.rejected is None else (normalize(event.rejected),))
                for subject, verdict in event.verdicts.items():
                    self.verdicts.setdefault(subject, Counter())[verdict] += 1
                for subject, reason in event.skipped.items():
                    self.skipped.setdefault(subject, Counter())[normalize(reason)] += 1
            case events.SuspicionClosed():
                self.closed += 1
                self.probes += event.probes
            case events.SuspicionExamined():
                self.examined += 1
                self.explaining += event.seconds
                self.probes += event.probes
            case events.KnownBugMet():
                self.known_bugs += (event,)
            case events.ForkRefused():
                self.not_forked += 1
            case events.WorkerDied():
                self.lost += 1
                self.timeouts += event.how is Process.TIMEOUT
            case events.WorkerFailed():
                self.faults += (event,)
            case events.CampaignEnded():
                self.ended = event.reason

    def list_refusals(self, subject: str) -> str:
        """The operators and reasons for which a subject took no case, with their numbers, the most frequent first."""
        return ", ".join(f"{reason} {count}x" for reason, count in self.skipped[subject].most_common(_REASONS))


_REASONS = 8
"""The most operators and reasons that are listed."""


@dataclass(frozen=True, slots=True)
class FunctionSummary:
    """The failures of a function of the user's in a run. Mistakes of eager are none of its failures."""

    subject: str
    cases: int  # that it took
    failures: int  # findings about it, known ones among them
    undecided: int  # suspicions about it that wait, or that fresh workers did not confirm

    @property
    def is_right(self) -> bool:
        return bool(self.cases) and not self.failures and not self.undecided


@dataclass(frozen=True)
class RunSummary:
    """A run directory at one moment. Its numbers are of all sessions, killed sessions included."""

    path: Path
    counts: Counts
    cases: int  # Judged cases. The store has them all; a kill costs `counts` the last two seconds.
    torch: str
    runtimes: tuple[str, ...]  # of subjects, with their versions
    python: str  # the interpreter of the workers
    findings: tuple[FindingRow, ...]  # Oldest first. Known bugs are among them if the campaign met them.
    coverage: Mapping[CoverageItem, int]  # how many cases reached each rewrite, operator and so on
    outcomes: Mapping[str, int]  # how many suspicions ended in each way, or wait
    unconfirmed: Mapping[tuple[str, str], int]  # suspicions that fresh workers did not confirm, by verdict and subject
    open: Mapping[tuple[str, str], int]  # suspicions that wait, likewise
    is_running: bool

    @classmethod
    def load(cls, run: Path) -> Self:
        """The numbers of a directory in which a campaign may run. Nothing is changed there. Raises `UserError`."""
        with closing(Results.open_readonly(run)) as results:
            return cls.read(results, results.read_meta("counts", Counts), is_running=is_running(run))

    @classmethod
    def read(cls, results: Results, counts: Counts, *, is_running: bool = True) -> Self:
        """The numbers of an open store, with counts that may be newer than the stored counts. Raises `UserError`."""
        cursor, beyond = results.position()
        return cls(
            path=results.path.parent,
            counts=copy.deepcopy(counts),
            cases=cursor + len(beyond),
            torch=results.meta("torch") or "",
            runtimes=tuple((results.meta("--python") or "").split(", ")[1:]),
            python=results.meta("interpreter") or sys.executable,
            findings=tuple(row for row in results.findings() if row.kind != "known" or row.count),
            coverage=results.count_coverage(),
            outcomes=results.outcomes(),
            unconfirmed=results.count_suspicions(SuspicionOutcome.UNCONFIRMED),
            open=results.count_suspicions(None),
            is_running=is_running,
        )

    def list_findings(self, kind: str) -> list[FindingRow]:
        """Findings of a kind: "new", "internal" or "known"."""
        return [row for row in self.findings if row.kind == kind]

    @property
    def functions(self) -> list[FunctionSummary]:
        """The functions of the user's among the subjects of the last session."""
        subjects = self.counts.started.subjects if self.counts.started else ()
        return [self._summarize_function(subject) for subject in subjects if is_user_function(subject)]

    def _summarize_function(self, subject: str) -> FunctionSummary:
        verdicts = self.counts.verdicts.get(subject, Counter[Verdict]())
        counted = Counter[tuple[str, str]](self.unconfirmed) + Counter(self.open)
        return FunctionSummary(
            subject,
            cases=verdicts.total() - verdicts[Verdict.SKIPPED],
            failures=sum(is_of_function(row.result) and row.result.subject == subject for row in self.findings),
            undecided=sum(n for (verdict, who), n in counted.items() if who == subject and verdict != _OF_EAGER),
        )

    def count_known(self, bugs: Mapping[str, Bug], *, of_functions: bool | None = None) -> Counter[str]:
        """How often each known bug was met. Keys: id and title of its entry in the ledger, else its case file.

        bugs: entries of the ledger by the ids of their examples.
        of_functions: only bugs of the user's functions, or only others
        """
        met = Counter[str]()
        for row in self.list_findings("known"):
            if of_functions not in (None, is_of_function(row.result)):
                continue
            bug = bugs.get(row.case_id)
            name = f"{bug.id}: {bug.title} ({bug.standing})" if bug else f"{row.result.verdict}: {row.file}"
            met[name] += row.count
        return met

    @property
    def state(self) -> str:
        """Whether the campaign runs, or how it ended."""
        return "runs" if self.is_running else self.counts.ended or "killed"

    @property
    def waiting(self) -> int:
        """The number of open suspicions, those that look like a known bug among them."""
        return self.outcomes.get("waiting", 0) + self.not_examined

    @property
    def not_examined(self) -> int:
        """The number of open suspicions that look like a known bug, whose experiments have not decided yet."""
        return self.outcomes.get("not_examined", 0)

    @property
    def n_unconfirmed(self) -> int:
        return sum(self.unconfirmed.values())

    @property
    def checks(self) -> int:
        """The number of judged cases, and of probes of suspicions."""
        return self.cases + self.counts.probes

    def rate(self, number: int) -> float:
        return number / self.counts.seconds if self.counts.seconds else 0.0

    def count_coverage(self) -> Counter[CoverageKind]:
        return Counter(item.kind for item in self.coverage)

    def describe_losses(self) -> str:
        """The number of lost workers, and the fate of their cases, in words; "" for none."""
        if not self.counts.lost:
            return ""
        timeouts = f" ({format_count(self.counts.timeouts, 'timeout')})" if self.counts.timeouts else ""
        lost = f"{format_count(self.counts.lost, 'worker')} {'was' if self.counts.lost == 1 else 'were'} lost{timeouts}"
        return f"{lost}: their cases became suspicions, were judged again, or count as refused"


def is_of_function(result: SubjectResult) -> bool:
    """Whether a failure is one of a function of the user's, and not of eager."""
    return is_user_function(result.subject) and result.verdict is not Verdict.EAGER_SUSPECT


class RunRecorder(events.Listener):
    """Counts the events of a session, and stores the counts every few seconds."""

    def __init__(self, results: Results) -> None:
        self.counts = results.read_meta("counts", Counts)
        self.earlier = RunSummary.read(results, self.counts)  # the run directory before this session
        self._results = results
        self._start, self._written = time.monotonic(), -math.inf

    def on_event(self, event: events.Event, when: float) -> None:
        if isinstance(event, events.CampaignStarted):
            self._start = time.monotonic()
        self.counts.add(event, when)
        self._measure()

    def tick(self) -> None:
        """Store the counts when it is time."""
        self._measure()
        if time.monotonic() - self._written >= _WRITE_SECONDS:
            self.close()

    def close(self) -> None:
        """Store the counts, unless the campaign was refused."""
        self._written = time.monotonic()
        if self.counts.started is not None:
            self._results.set_meta({"counts": json.dumps(encode(self.counts))})

    def summarize(self) -> RunSummary:
        return RunSummary.read(self._results, self.counts)

    def _measure(self) -> None:
        # The monotonic clock, since the wall clock can be set.
        self.counts.seconds = self.earlier.counts.seconds + time.monotonic() - self._start
