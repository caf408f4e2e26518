"""The numbers of a run directory, for screen, closing summary, `fuzz.status`, page and clusters."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from corpus.ledger import Bug
from fuzz.durations import format_count
from fuzz.events import Counts, SuspicionOutcome
from fuzz.protocol import CoverageItem, CoverageKind, SubjectResult, Verdict
from fuzz.run_database import is_running
from fuzz.run_store import FindingRow, Results
from fuzz.subjects import is_user_function

_OF_EAGER = Verdict.EAGER_SUSPECT.value


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
    findings: tuple[FindingRow, ...]  # Oldest first. Known bugs are among them if the campaign met them.
    coverage: Mapping[CoverageItem, int]  # how many cases reached each rewrite, operator and so on
    outcomes: Mapping[str, int]  # how many suspicions ended in each way, or wait
    unconfirmed: Mapping[tuple[str, str], int]  # suspicions that fresh workers did not confirm, by verdict and subject
    open: Mapping[tuple[str, str], int]  # suspicions that wait, likewise
    is_running: bool

    @classmethod
    def load(cls, run: Path) -> Self:
        """The numbers of a directory in which a campaign may run. Nothing is changed there. Raises `UserError`."""
        with Results.open_readonly(run) as results:
            return cls.read(results, is_running=is_running(run))

    @classmethod
    def read(cls, results: Results, *, is_running: bool = True) -> Self:
        """The numbers of an open store. Raises `UserError`."""
        return cls(
            path=results.path.parent,
            counts=results.count_events(),
            findings=tuple(row for row in results.findings() if row.kind != "known" or row.count),
            coverage=results.count_coverage(),
            outcomes=results.outcomes(),
            unconfirmed=results.count_suspicions(SuspicionOutcome.UNCONFIRMED),
            open=results.count_suspicions(None),
            is_running=is_running,
        )

    @property
    def cases(self) -> int:
        """The number of judged cases."""
        return self.counts.cursor + len(self.counts.beyond)

    def list_findings(self, kind: str) -> list[FindingRow]:
        """Findings of a kind: "new", "internal" or "known"."""
        return [row for row in self.findings if row.kind == kind]

    @property
    def functions(self) -> list[FunctionSummary]:
        """The functions of the user's among the subjects of the last session."""
        return [self._summarize_function(name) for name in self.counts.started.subjects if is_user_function(name)]

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
