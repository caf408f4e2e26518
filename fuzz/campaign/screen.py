"""What a person watches: one live block on a terminal, a stable line every few seconds elsewhere. On stderr."""

import sys
import time
from typing import TextIO

from fuzz.campaign.events import CampaignStarted, Event, FindingSaved, Listener
from fuzz.campaign.options import Budget
from fuzz.campaign.stats import Statistics
from fuzz.campaign.summary import finding_text
from fuzz.durations import format_count, format_duration

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


class LineScreen(Listener):
    """One line every few seconds, its fields always the same and in the same order."""

    def __init__(self, statistics: Statistics, budget: Budget) -> None:
        self._statistics, self._budget = statistics, budget
        self._last = time.monotonic()

    def on_event(self, event: Event, when: float) -> None:  # noqa: ARG002 - a listener's signature
        """Print the start, and findings on stdout as they are saved."""
        if isinstance(event, CampaignStarted):
            self._print(started_text(event), sys.stderr)
        elif isinstance(event, FindingSaved):
            self._print(finding_text(event), sys.stdout)

    def tick(self) -> None:
        """Print the line when it is time."""
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            self._print(self.line(), sys.stderr)

    def _print(self, text: str, stream: TextIO) -> None:
        stream.write(text + "\n")
        stream.flush()

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


class LiveScreen(LineScreen):
    """A block that is redrawn in place, findings above it; they go to stdout if that is no terminal."""

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
            self._console.print(text, markup=False)
        else:
            super()._print(text, stream)

    def tick(self) -> None:
        """Redraw."""
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for row in list_rows(self._statistics, self._budget):
            table.add_row(*row)
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
        ("workers", f"{memory} MiB, {s.deaths} died, {s.recycled} recycled"),
    ]
    return table + [(f"worker {worker}", text) for worker, text in sorted(s.working.items())]
