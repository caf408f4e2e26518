"""What a person watches: one live block on a terminal, a stable line every few seconds elsewhere. On stderr."""

import sys
import time
from typing import TYPE_CHECKING, TextIO

from fuzz.campaign.events import CampaignStarted, Event, FindingSaved
from fuzz.campaign.options import Budget
from fuzz.campaign.stats import Statistics
from fuzz.campaign.summary import finding_text
from fuzz.durations import format_count, format_duration

if TYPE_CHECKING:
    from rich.table import Table

_LINE_SECONDS = 5.0


def started_text(event: CampaignStarted) -> str:
    """What runs where, and what coverage this torch can't give."""
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


class LineScreen:
    """One line every few seconds, its fields always the same and in the same order."""

    def __init__(self, statistics: Statistics, budget: Budget) -> None:
        self._statistics, self._budget = statistics, budget
        self._last = time.monotonic()

    def on_event(self, event: Event, when: float) -> None:  # noqa: ARG002 - a listener's signature
        """Print the start, and findings on stdout as they are saved."""
        if isinstance(event, CampaignStarted):
            _print(sys.stderr, started_text(event))
        elif isinstance(event, FindingSaved):
            _print(sys.stdout, finding_text(event))

    def tick(self) -> None:
        """Print the line when it is time."""
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            _print(sys.stderr, self.line())

    def close(self) -> None:
        """Nothing is open."""

    def line(self) -> str:
        """The line."""
        s = self._statistics
        return (
            f"{format_duration(s.elapsed)} of {self._budget}: {s.cases} cases, {s.rate:.1f} checks/s,"
            f" {s.torch_share:.0%} in torch, {s.rejected} rejected, {format_count(s.raised, 'suspicion')},"
            f" {format_count(s.findings.total(), 'finding')}, {format_count(s.duplicates, 'duplicate')},"
            f" {format_count(len(s.rewrites), 'rewrite')},"
            f" {format_count(len(s.reached), 'other compiler event')} reached, {format_count(s.deaths, 'worker death')}"
        )


class LiveScreen:
    """A block that is redrawn in place, findings above it."""

    def __init__(self, statistics: Statistics, budget: Budget) -> None:
        from rich.console import Console
        from rich.live import Live

        self._statistics, self._budget = statistics, budget
        self._console = Console(stderr=True, highlight=False)
        # Lines longer than the terminal are cut rather than wrapped, which would make the block jump.
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def on_event(self, event: Event, when: float) -> None:  # noqa: ARG002 - a listener's signature
        """Open the block at the start; print findings above it, on stdout if that is no terminal."""
        if isinstance(event, CampaignStarted):
            self._console.print(started_text(event), markup=False)
            self._live.start()
        elif isinstance(event, FindingSaved):
            if sys.stdout.isatty():
                self._console.print(finding_text(event), markup=False)
            else:
                _print(sys.stdout, finding_text(event))

    def tick(self) -> None:
        """Redraw."""
        self._live.update(self._block(), refresh=True)

    def close(self) -> None:
        """Leave the last block standing."""
        if self._live.is_started:
            self._live.update(self._block(), refresh=True)
            self._live.stop()

    def _block(self) -> "Table":
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, value in list_rows(self._statistics, self._budget):
            table.add_row(name, value)
        return table


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
        ("workers", f"{memory} MiB, {s.deaths} died, {s.recycled} recycled"),
    ]
    return table + [(f"worker {worker}", text) for worker, text in sorted(s.working.items())]


def _print(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()


def make_screen(stream: TextIO, statistics: Statistics, budget: Budget) -> LineScreen | LiveScreen:
    """The live block when `stream` is a terminal, else lines."""
    return LiveScreen(statistics, budget) if stream.isatty() else LineScreen(statistics, budget)
