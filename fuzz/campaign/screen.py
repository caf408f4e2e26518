"""What a campaign prints: its state on stderr, findings and the summary on stdout.

The state is a live block on a terminal, else a line now and then.
"""

import shlex
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

from corpus import entry as corpus_entry
from corpus.ledger import Bug
from fuzz import events
from fuzz.bug_identity import operation_of
from fuzz.campaign.campaign import Campaign
from fuzz.campaign.options import Options, StopReason
from fuzz.campaign.stats import Statistics
from fuzz.campaign.worker_thread import WorkerThread
from fuzz.cli import escape_controls
from fuzz.durations import format_count, format_duration
from fuzz.expectation import describe_details, format_python, reproduce_lines
from fuzz.protocol import EAGER, NOISE, REFERENCE, SETTING, UNGUARDED, Verdict
from fuzz.protocol.render import describe
from fuzz.run_store import FindingRow, Outcome, Results, describe_losses
from fuzz.subjects import get_spec, is_user_function

_LINE_SECONDS = 30.0
_LONG_SECONDS = 3.0
"""A stage that takes longer is explained."""
_STAGES = {"start": "", EAGER: "eager", REFERENCE: "float64", NOISE: "measuring rounding"}


def describe_finding(event: events.FindingSaved) -> str:
    """A saved finding: what fails, the program, the numbers, its file, and how to reproduce it."""
    if event.of_eager:
        return f"{operation_of(event.result)} of torch's eager mode is wrong, not your function; saved: {event.path}"
    kind, result = "internal finding" if event.internal else "finding", event.result
    head = f"{kind}: {event.verdict} under {result.subject}, {format_count(event.ops, 'operation')}"
    lines = [event.verdict.explanation, describe(result), event.ledger, *describe_details(result, event.where)]
    lines += [f"a regression: torch {version} says {verdict}" for version, verdict in event.seen.items()]
    about = [head, *(text for line in lines if line for text in _wrap(line))]
    program = textwrap.indent(event.source.rstrip(), "    ")
    commands = reproduce_lines(event.path, event.case, result.subject)
    return "\n".join([*about, "", program, "", f"  saved: {event.path}", *commands, ""])


def _wrap(text: str, hang: str = "") -> list[str]:
    """Indented lines for 80 columns; those after the first are indented by `hang` too. No path is broken."""
    lines = textwrap.wrap(text, 77 - len(hang), break_long_words=False, break_on_hyphens=False)
    return [f"  {hang * (number > 0)}{line}" for number, line in enumerate(lines)]


def summarize(
    results: Results, stats: Statistics, options: Options, *, waiting: int, new: int, bugs: Mapping[str, Bug]
) -> str:
    """The summary of a run that has begun: what was found, what is left, what was done.

    waiting: suspicions; new: findings of this run; bugs: entries of the ledger by the ids of their examples.
    """
    rows, out = results.findings(), options.out
    found = [row for row in rows if row.kind == "new"]
    of_eager = [row for row in found if row.result.verdict is Verdict.EAGER_SUSPECT and options.is_of_user]
    found = [row for row in found if row not in of_eager]
    head = f"{format_count(len(found), 'new finding')} in {out}"
    if new != len(found):
        head = f"{format_count(len(found), 'finding')} in {out}, {new or 'none'} of them new in this run"
    go_on = [f"  {format_python(*options.subjects)} -m fuzz.run --budget 10m {shlex.join(options.resume_arguments)}"]
    internal = [row for row in rows if row.kind == "internal"]
    known = _count_known([row for row in rows if row.kind == "known" and row.count], bugs)
    again = [line for text, count in known.most_common() for line in _wrap(f"{count}x {text}", "  ")]
    sections = (
        (head, _list_rows(found)),
        (f"{format_count(len(known), 'known bug')} met again, each with its id in the ledger", again),
        (
            f"{format_count(len(stats.faults), 'case')} could not be judged because attnfuzz failed; please report it",
            [f"  {one.text.splitlines()[-1]}: {one.path}, and the worker's output beside it" for one in stats.faults],
        ),
        (
            f"{format_count(len(internal), 'internal finding')}: no public subject ran that shows them (inductor)",
            _list_rows(internal),
        ),
        (
            f"{format_count(len(of_eager), 'mistake')} of torch's eager mode, not caused by your function, saved too",
            [f"  {operation_of(row.result)}: {row.file}" for row in of_eager],
        ),
        (
            f"{format_count(waiting, 'suspicion')} not investigated yet (unexplained failures); to continue",
            go_on if waiting else [],
        ),
        (f"{stats.ended}; to continue", go_on if stats.ended in _CUT and not waiting else []),
    )
    lines = [line for title, listed in sections if listed for line in (f"{title}:", *listed)]
    nothing = [] if found else [f"no new finding in {out}"]
    ending = _describe_next(stats, new, len(known), waiting)
    return "\n".join([*nothing, *lines, *_describe_work(results.outcomes(), stats), "", *ending])


def _describe_next(stats: Statistics, new: int, known: int, waiting: int) -> list[str]:
    """What this run did, and a command that shows more."""
    assert stats.started is not None
    cases = format_count(stats.compared, "attention module")
    failed = "all that failed is known" if known else "nothing new failed; a longer run covers more"
    failed = failed if stats.compared else "no case was taken"
    failed = "not all that failed is investigated yet" if waiting else failed
    failed = f"{format_count(new, 'new failure')} to be read and reported" if new else failed
    about = f"{cases} compared with float64 under torch {stats.started.torch}:"
    page = f"  {format_python()} -m triage.page {shlex.quote(stats.started.out)}"
    return [about, f"{failed}. The whole run as a page:", page]


_CUT = (StopReason.INTERRUPTED, StopReason.KILLED)
_SET_ASIDE = (Outcome.INTERNAL_ONLY, Outcome.WITHIN_SAME, Outcome.UNCONFIRMED, Outcome.IN_BOTH, Outcome.NOT_COMPARED)


def _describe_work(outcomes: Mapping[str, int], stats: Statistics) -> list[str]:
    rejected = f"{stats.rejected.total() / stats.cases:.1%}" if stats.cases else "none"
    cases = f"{format_count(stats.cases - stats.earlier_cases, 'case')} in {format_duration(round(stats.elapsed))}"
    if stats.earlier_cases:
        cases += f" ({stats.cases} in {format_duration(round(stats.seconds))} with earlier runs)"
    lines = [f"{stats.ended}: {cases}, {stats.rate:.1f} checks/s; eager refused {rejected}"]
    lines += [f"  {describe_losses(stats.losses)}"] if stats.losses else []
    lines += [f"  refused {count}x: {reason}" for reason, count in stats.rejected.most_common(5)]
    lines += filter(None, [_describe_coverage(subject, stats) for subject in sorted(stats.skipped)])
    unguarded = sorted(name.removeprefix(UNGUARDED) for name in stats.reached if name.startswith(UNGUARDED))
    lines += [f"  not in guarded memory, where a function does not run: {', '.join(unguarded)}"] if unguarded else []
    settings = sum(name.startswith(SETTING) for name in stats.reached)
    lines += [f"  settings: {settings}"] if settings else []
    lines += [f"  set aside: {outcomes[one]} {one.explanation}" for one in _SET_ASIDE if outcomes.get(one)]
    return lines


def _count_known(rows: list[FindingRow], bugs: Mapping[str, Bug]) -> Counter[str]:
    """How often each known bug was met, by its id and title in the ledger, else by file."""
    met = Counter[str]()
    for row in rows:
        bug = bugs.get(row.case_id)
        met[f"{bug.id}: {bug.title} ({bug.status.words})" if bug else f"{row.result.verdict}: {row.file}"] += row.count
    return met


def _describe_coverage(subject: str, stats: Statistics) -> str:
    """How many cases a subject took; "" for a built-in one that took some."""
    met, reasons = stats.verdicts[subject].total(), stats.skipped[subject]
    taken = met - reasons.total()
    listed = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(5))
    shown = is_user_function(subject) or not taken
    return f"  {subject} took {taken} of {met} cases; the others: {listed}" if shown else ""


def describe_unused(named: Iterable[str], stats: Statistics) -> str:
    """Which of these subjects took none of the cases they met, and why, in one line; "" where all took some."""
    unused = [
        one for one in named if one in stats.skipped and stats.skipped[one].total() == stats.verdicts[one].total()
    ]
    said = "; ".join(_describe_coverage(one, stats).strip() for one in unused)
    return f"{said}. docs/kernels.md says what cases need; a longer --budget meets more kinds" if unused else ""


def _list_rows(rows: Iterable[FindingRow]) -> list[str]:
    lines = []
    for row in rows:
        case, result = corpus_entry.loads(row.entry, row.file).case, row.result
        operations = format_count(len(case.ops), "operation")
        lines.append(f"  {result.verdict} under {result.subject}, {operations}, met {row.count}x")
        lines += [f"  {line}" for line in _wrap(describe(result) or result.verdict.explanation)]
        lines += reproduce_lines(row.file, row.case_id, result.subject, "    ")
    return lines


def describe_start(event: events.CampaignStarted) -> str:
    """What runs where, and which coverage this torch lacks."""
    resumed = f" from case {event.index}" if event.index else ""
    known = f"knows {format_count(event.known, 'finding')} of the ledger, corpus/known and {event.corpus}"
    pending = f"; {format_count(event.pending, 'suspicion')} waiting" if event.pending else ""
    against = f" against torch {event.against}" if event.against else ""
    workers = format_count(event.workers, "worker")
    lines = [
        f"torch {event.torch}{against} on {event.device} ({event.device_name}), {workers}",
        *_wrap(f"compares {', '.join(event.subjects)} with float64", "  "),
        f"  seed {event.seed}{resumed}, budget {event.budget}{pending}",
        *(_wrap(known, "  ") if event.known else ()),
        f"  output in {event.out}",
    ]
    lines += [
        f"no coverage of {part}: torch {event.torch} has no {names}" for part, names in event.missing_hooks.items()
    ]
    return "\n".join(lines)


class LineScreen(events.Listener):
    """A line every half minute and whenever something was found or lost, with the same fields in the same order; with
    `--quiet` findings alone."""

    is_output = True

    def __init__(self, statistics: Statistics, campaign: Campaign) -> None:
        self._statistics, self._campaign = statistics, campaign
        self._last, self._news = time.monotonic(), (0, 0, 0)

    def on_event(self, event: events.Event, when: float) -> None:  # noqa: ARG002 - a listener's signature
        """Print the start and notices, and findings on stdout as they are saved."""
        if isinstance(event, events.CampaignStarted):
            self._print(describe_start(event), sys.stderr)
        elif isinstance(event, events.FindingSaved):
            self._print(describe_finding(event), sys.stdout)
        elif isinstance(event, events.Notice):
            self._print(event.text, sys.stderr)

    def tick(self) -> None:
        """Print the line when it is time."""
        s = self._statistics
        news = (s.outcomes.total(), s.losses.total(), len(s.faults))
        if news != self._news or time.monotonic() - self._last >= _LINE_SECONDS:
            self._last, self._news = time.monotonic(), news
            self._print("; ".join(f"{name}: {value}" for name, value in self.list_rows()), sys.stderr)

    def _print(self, text: str, stream: TextIO) -> None:
        if stream is sys.stdout or not self._campaign.options.quiet:
            stream.write(text + "\n")
            stream.flush()

    def list_rows(self) -> Iterator[tuple[str, str]]:
        """The state: names and values. Numbers are of all runs in the directory, except where one says otherwise."""
        s, shared = self._statistics, self._campaign.shared
        spent = f"{format_duration(round(s.elapsed))} (budget {shared.options.budget})"
        late = "; ends with what was begun" if shared.control.is_over and not s.ended else ""
        late += ", a second Ctrl-C ends at once" if late and shared.control.reason is StopReason.INTERRUPTED else ""
        everything = f"; {format_duration(round(s.seconds))} in all" if s.earlier_seconds else ""
        yield "elapsed", spent + everything + late
        everything = f", {s.cases} in all" if s.earlier_cases else ""
        yield (
            "cases",
            f"{s.cases - s.earlier_cases}{everything}; {s.rate:.1f} checks/s; eager refused {s.rejected.total()}",
        )
        listed = ", ".join(f"{count} {verdict}" for verdict, count in s.findings.most_common()) or "none yet"
        yield "new", listed
        met = Counter({case_id: count for case_id, count in s.known.items() if count})
        bugs = {bug.id if (bug := shared.known.bugs.get(case_id)) else case_id for case_id in met}
        yield "known", f"{format_count(len(bugs), 'bug')} met, {met.total()}x" if met else "none met yet"
        working, waiting = self._campaign.investigations.open, shared.suspicions.waiting
        yield "suspicions", f"{working} being investigated, {waiting} waiting, {s.outcomes.total()} settled in this run"
        kinds, attention = Counter(name.partition(" ")[0] for name in s.reached), "_sfdp"
        rewrites = f"{len(s.fired)} rewrites ({sum(name.startswith(attention) for name in s.fired)} of attention)"
        operators, lowerings = kinds.pop("op", 0), kinds.pop("lowering", 0)
        if not self._campaign.attention_only:
            yield "coverage", f"{rewrites}, {operators} operators, {lowerings} lowerings, {kinds.total()} other"
        yield "workers", f"{len(self._campaign.threads)}; {s.losses.total()} died"
        for thread in self._campaign.threads:
            yield f"worker {thread.number}", _describe_worker(thread)


class LiveScreen(LineScreen):
    """A block that is redrawn in place, with findings above it, or on stdout if that is no terminal."""

    def __init__(self, statistics: Statistics, campaign: Campaign) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(statistics, campaign)
        self._console = Console(stderr=True, highlight=False)
        # Lines longer than the terminal are cut rather than wrapped, which would make the block jump.
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def _print(self, text: str, stream: TextIO) -> None:
        if stream.isatty():
            # The terminal wraps, so that a command is one line when it is copied.
            self._console.print(escape_controls(text), markup=False, soft_wrap=True)
        else:
            super()._print(text, stream)

    def tick(self) -> None:
        """Redraw."""
        from rich.table import Column, Table
        from rich.text import Text

        table = Table.grid(Column(style="bold", no_wrap=True), Column(), padding=(0, 2))
        for row in self.list_rows():
            table.add_row(*(Text(escape_controls(text), no_wrap=True, overflow="ellipsis") for text in row))
        self._live.start()
        self._live.update(table, refresh=True)

    def close(self) -> None:
        """Leave the last block standing."""
        if self._live.is_started:
            self.tick()
            self._live.stop()
            self._console.line()


def _describe_worker(thread: WorkerThread) -> str:
    process = thread.process
    stage, seconds = process.stage, time.monotonic() - process.stage_began
    if not thread.is_alive():
        return "done"
    words = _STAGES.get(stage, stage) or ("starting" if process.hello is None else "")
    words += f" for {seconds:.0f}s" if words and seconds >= 1 else ""
    if seconds >= _LONG_SECONDS and get_spec(stage).backend in ("inductor", "unknown"):
        words += " (compiling: 10 to 20s on an idle machine)"
    return ": ".join(filter(None, [thread.task, words]))
