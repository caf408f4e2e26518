"""What a campaign prints: its state on stderr, findings and the summary on stdout.

The state is a live block on a terminal, else a line every few seconds.
"""

import shlex
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TextIO

from corpus import entry as corpus_entry
from corpus.ledger import Bug
from fuzz.bug_identity import operation_of
from fuzz.campaign.events import (
    CampaignStarted,
    CaseJudged,
    Event,
    FindingSaved,
    Listener,
    SuspicionClosed,
    SuspicionRaised,
    WorkerDied,
    WorkerStarted,
)
from fuzz.campaign.options import Budget
from fuzz.campaign.stats import Statistics
from fuzz.cli import escape_controls
from fuzz.durations import format_count, format_duration
from fuzz.expectation import describe_details, reproduce_lines
from fuzz.protocol import Verdict
from fuzz.protocol.render import describe
from fuzz.run_store import FindingRow, Outcome, Results
from fuzz.subjects import is_user_function

_LINE_SECONDS = 5.0


def describe_finding(event: FindingSaved) -> str:
    """A saved finding: what fails, the program, the numbers, its file, and how to reproduce it."""
    kind, result = "internal finding" if event.internal else "finding", event.result
    operations = format_count(event.ops, "operation")
    head = f"{kind}: {event.verdict} under {result.subject}, {operations}: {event.verdict.explanation}"
    lines = [describe(result), event.ledger, *describe_details(result, event.where)]
    lines += [f"a regression: torch {version} says {verdict}" for version, verdict in event.seen.items()]
    program = textwrap.indent(event.source.rstrip(), "    ")
    lines = [head, *(f"  {line}" for line in lines if line), "", program, "", f"  saved: {event.path}"]
    return "\n".join([*lines, *reproduce_lines(event.path, event.case, result.subject), ""])


def summarize(
    results: Results, stats: Statistics, *, waiting: int, new: int, bugs: Mapping[str, Bug] = MappingProxyType({})
) -> str:
    """The summary of a run: what was done, what was found, what is left.

    waiting: suspicions; new: findings of this run; bugs: entries of the ledger by the ids of their examples.
    """
    rows = results.findings()
    found = [row for row in rows if row.kind == "new"]
    of_eager: list[FindingRow] = []
    if stats.started and all(map(is_user_function, stats.started.subjects)):
        of_eager = [row for row in found if row.result.verdict is Verdict.EAGER_SUSPECT]
        found = [row for row in found if row not in of_eager]
    where = f"in {stats.started.out}" if stats.started else "in all"
    earlier = f", {new} of them from this run" if new != len(found) else ""
    internal = [row for row in rows if row.kind == "internal"]
    faults, mistakes = (format_count(len(stats.faults), "case"), format_count(len(of_eager), "mistake"))
    apart = "kept apart, since no public subject was chosen to show them (--subject inductor)"
    to_do = f"{format_count(waiting, 'suspicion')} not investigated yet"
    out = f"--out {shlex.quote(stats.started.out)}" if stats.started else "the same --out"
    sections = (
        (
            f"{faults} could not be judged because attnfuzz failed; please report it:",
            [
                f"  {one.text.splitlines()[-1]}: {one.path}, and the worker's output beside it"
                for one in stats.faults[:5]
            ],
        ),
        (f"{format_count(len(internal), 'internal finding')}, {apart}:", _list_rows(internal)),
        *_list_known_sections([row for row in rows if row.kind == "known" and row.count], bugs, stats),
        (
            f"{mistakes} of torch's own eager mode, not caused by your function, saved too:",
            [f"  {operation_of(row.result)}: {row.file}" for row in of_eager],
        ),
    )
    return "\n".join(
        [
            *_describe_work(results.outcomes(), stats),
            *([f"  {to_do}; to continue: --budget 10m {out}"] if waiting else []),
            *(line for head, lines in sections if lines for line in (head, *lines)),
            f"{format_count(len(found), 'finding')} {where}{earlier}" + (":" if found else ""),
            *_list_rows(found),
        ]
    )


_SET_ASIDE = (Outcome.INTERNAL_ONLY, Outcome.WITHIN_SAME, Outcome.UNCONFIRMED, Outcome.IN_BOTH, Outcome.NOT_COMPARED)


def _describe_work(outcomes: Mapping[str, int], stats: Statistics) -> list[str]:
    rejected = f"{stats.rejected / stats.cases:.1%}" if stats.cases else "none"
    times = f"{stats.torch_share:.0%} of worker time in torch ({stats.oracle_share:.0%} for the oracle)"
    cases = f"{format_count(stats.cases, 'case')} in {format_duration(stats.elapsed)}"
    lines = [f"{stats.ended}: {cases}, {stats.rate:.1f} checks/s, {times}, rejected {rejected}"]
    lines += [f"  rejected {count}x: {reason}" for reason, count in stats.reasons.most_common(5)]
    lines += filter(None, [_describe_coverage(subject, stats) for subject in sorted(stats.skipped)])
    lines += [f"  set aside: {outcomes[one]} {one.explanation}" for one in _SET_ASIDE if outcomes.get(one)]
    return lines


def _list_known_sections(
    rows: list[FindingRow], bugs: Mapping[str, Bug], stats: Statistics
) -> Iterator[tuple[str, list[str]]]:
    """Bugs of the ledger that were met again, most often first, and other known findings."""
    met = Counter[str]()
    for row in rows:
        if row.case_id in bugs:
            met[bugs[row.case_id].id] += row.count
    by_id = {bug.id: bug for bug in bugs.values()}
    lines = []
    for bug, count in ((by_id[bug_id], count) for bug_id, count in met.most_common()):
        about = f" ({bug.status.about})" if bug.status.about else ""
        if bug.status.kind == "fixed" and stats.started:
            about = f" ({bug.status.about}; this is {stats.started.torch})"
        lines.append(f"  {_STATUSES.get(bug.status.kind, bug.status.kind)}: {bug.title}{about}, met {count}x")
    yield f"{format_count(len(met), 'known bug')} of the ledger met again:", lines
    others = [row for row in rows if row.case_id not in bugs]
    lines = [f"  {row.result.verdict} {row.case_id}, met {row.count}x: {row.file}" for row in others]
    yield f"{format_count(len(others), 'known finding')} met again:", lines


_STATUSES = {"new": "not reported yet", "not_a_bug": "not a bug"}


def _describe_coverage(subject: str, stats: Statistics) -> str:
    """How many cases a subject took; "" for a built-in one that took some."""
    met = sum(count for key, count in stats.verdicts.items() if key.rpartition(" ")[0] == subject)
    reasons = stats.skipped[subject]
    taken = met - reasons.total()
    listed = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(5))
    shown = is_user_function(subject) or not taken
    return f"  {subject} took {taken} of {met} cases; the others: {listed}" if shown else ""


def _list_rows(rows: Iterable[FindingRow]) -> list[str]:
    lines = []
    for row in rows:
        case, result = corpus_entry.loads(row.entry, row.file).case, row.result
        operations = format_count(len(case.ops), "operation")
        lines.append(f"  {result.verdict} under {result.subject}, {operations}, met {row.count}x")
        lines.append(f"    {describe(result) or result.verdict.explanation}")
        lines += reproduce_lines(row.file, row.case_id, result.subject, "    ")
    return lines


def describe_start(event: CampaignStarted) -> str:
    """What runs where, and which coverage this torch lacks."""
    resumed = f" from case {event.index}" if event.index else ""
    known = f", {format_count(event.known, 'finding')} known" if event.known else ""
    pending = f", {format_count(event.pending, 'suspicion')} waiting" if event.pending else ""
    against = f" against torch {event.against}" if event.against else ""
    where = f"torch {event.torch}{against} on {event.device} ({event.device_name})"
    what = f"seed {event.seed}{resumed}, budget {event.budget}, {format_count(event.workers, 'worker')}, {where}"
    lines = [f"{what}, {', '.join(event.subjects)}; output in {event.out}{known}{pending}"]
    lines += [
        f"no coverage of {part}: torch {event.torch} has no {names}" for part, names in event.missing_hooks.items()
    ]
    return "\n".join(lines)


class LineScreen(Listener):
    """A line every few seconds, always with the same fields in the same order."""

    is_output = True

    def __init__(self, statistics: Statistics, budget: Budget) -> None:
        self._statistics, self._budget = statistics, budget
        self._last = time.monotonic()

    def on_event(self, event: Event, when: float) -> None:  # noqa: ARG002 - a listener's signature
        """Print the start, and findings on stdout as they are saved."""
        if isinstance(event, CampaignStarted):
            self._print(describe_start(event), sys.stderr)
        elif isinstance(event, FindingSaved):
            self._print(describe_finding(event), sys.stdout)

    def tick(self) -> None:
        """Print the line when it is time."""
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            self._print(self.format_line(), sys.stderr)

    def _print(self, text: str, stream: TextIO) -> None:
        stream.write(text + "\n")
        stream.flush()

    def format_line(self) -> str:
        """The state in one line."""
        return "; ".join(f"{name}: {value}" for name, value in list_rows(self._statistics, self._budget))


class QuietScreen(LineScreen):
    """Findings alone."""

    def on_event(self, event: Event, when: float) -> None:
        """Print findings."""
        if isinstance(event, FindingSaved):
            super().on_event(event, when)

    def tick(self) -> None:
        """No line."""


class VerboseScreen(LineScreen):
    """A line also for every case, and for what happens to workers and suspicions."""

    def on_event(self, event: Event, when: float) -> None:
        """Print the event."""
        super().on_event(event, when)
        if isinstance(event, CampaignStarted):
            text = f"logs of workers: {event.out}/workers"
        elif isinstance(event, CaseJudged):
            verdicts = ", ".join(f"{subject} {verdict}" for subject, verdict in event.verdicts.items())
            text = f"case {event.index} ({event.case}), {event.seconds:.2f} s: {event.rejected or verdicts}"
        elif isinstance(event, WorkerStarted):
            text = f"worker {event.worker}: process {event.pid} started in {event.seconds:.1f} s"
        elif isinstance(event, WorkerDied):
            text = f"worker {event.worker}: ended: {event.reason}"
        elif isinstance(event, SuspicionRaised):
            text = f"suspicion {event.suspicion}: {event.verdict} under {event.subject}: {event.message}"
        elif isinstance(event, SuspicionClosed):
            text = f"suspicion {event.suspicion}: {event.outcome}, {event.seconds:.1f} s: {event.message}"
        else:
            return
        self._print(text, sys.stderr)


class LiveScreen(LineScreen):
    """A block that is redrawn in place, with findings above it, or on stdout if that is no terminal."""

    def __init__(self, statistics: Statistics, budget: Budget) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(statistics, budget)
        self._console = Console(stderr=True, highlight=False)
        # Lines longer than the terminal are cut rather than wrapped, which would make the block jump.
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def on_event(self, event: Event, when: float) -> None:
        """Open the block at the start; print findings above it."""
        super().on_event(event, when)
        if isinstance(event, CampaignStarted):
            self._live.start()

    def _print(self, text: str, stream: TextIO) -> None:
        if stream.isatty():
            self._console.print(escape_controls(text), markup=False)
        else:
            super()._print(text, stream)

    def tick(self) -> None:
        """Redraw."""
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for row in list_rows(self._statistics, self._budget):
            table.add_row(*map(escape, map(escape_controls, row)))
        self._live.update(table, refresh=True)

    def close(self) -> None:
        """Leave the last block standing."""
        if self._live.is_started:
            self.tick()
            self._live.stop()


def list_rows(s: Statistics, budget: Budget) -> list[tuple[str, str]]:
    """The block's rows: name and value."""
    if budget.seconds is not None:
        left = f"{format_duration(s.elapsed)}, {format_duration(max(budget.seconds - s.elapsed, 0))} left"
    else:
        left = f"{format_duration(s.elapsed)}, {max((budget.cases or 0) - s.cases, 0)} cases left"
    share = f"{s.rejected / s.cases:.1%}" if s.cases else "none yet"
    by_verdict = ", ".join(f"{count} {verdict}" for verdict, count in s.findings.most_common()) or "none yet"
    found = f", the last {format_duration(time.time() - s.last_find)} ago" if s.last_find else ""
    attention = sum(name.startswith("_sfdp") for name in s.rewrites)
    memory = ", ".join(f"{rss:.0f}" for _, rss in sorted(s.rss_mib.items()))
    rewrites, others = format_count(len(s.rewrites), "rewrite"), format_count(len(s.reached), "other compiler event")
    table = [
        ("elapsed", left),
        ("cases", f"{s.cases}, {s.rate:.1f} checks/s, {s.torch_share:.0%} of worker time in torch"),
        ("rejected", f"{s.rejected} ({share})"),
        ("findings", by_verdict + found),
        ("suspicions", f"{s.raised} raised, {s.duplicates} explained by findings, {s.outcomes.total()} worked on"),
        ("coverage", f"{rewrites} ({attention} of attention), {others} reached"),
        ("workers", f"{memory or 0} MiB, {format_count(s.deaths, 'worker')} died"),
    ]
    return table + [(f"worker {worker}", text) for worker, text in sorted(s.working.items())]
