"""The output of a campaign: its state on stderr, findings and the summary on stdout.

On a terminal the state is a live block, elsewhere a line now and then.
"""

import shlex
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from corpus.ledger import NONE, Bug, spell_standing
from corpus.versions import spell_versions
from fuzz import events
from fuzz.bug_identity import operation_of
from fuzz.campaign.investigation_runner import InvestigationRunner
from fuzz.campaign.options import Options, StopReason
from fuzz.campaign.search import PATTERN_PREFIX
from fuzz.campaign.worker_thread import WorkerThread
from fuzz.cli import escape_controls, wrap
from fuzz.commands import format_python, reproduce_lines, shorten
from fuzz.durations import format_count, format_duration
from fuzz.events import Counts, SuspicionOutcome
from fuzz.protocol import NOISE, REFERENCE, CoverageKind, Verdict
from fuzz.protocol.render import describe
from fuzz.replay_result import describe_details
from fuzz.run_store import FindingRow
from fuzz.run_summary import FunctionSummary, RunSummary
from fuzz.subjects import get_spec, is_user_function
from fuzz.versions import spell_label

_LINE_SECONDS, _REDRAW_SECONDS = 30.0, 0.5
_STAGES = {"start": "", REFERENCE: "float64", NOISE: "measuring rounding"}


def describe_finding(event: events.FindingSaved, worker: str = sys.executable) -> str:
    """A saved finding: the failure, its numbers, the program, its file, and the commands that reproduce it."""
    if event.of_eager:
        mistake = f"{operation_of(event.result)} of torch's eager mode is wrong, not your function; saved: {event.path}"
        return "\n".join(wrap(mistake))
    kind, result = "internal finding" if event.internal else "finding", event.result
    head = f"{kind}: {event.verdict} under {result.subject}, {format_count(event.ops, 'operation')}"
    head += f", after {format_count(event.n_earlier, 'earlier case')} of its file" if event.n_earlier else ""
    lines = [event.verdict.label, describe(result), event.ledger, *describe_details(result, event.where)]
    lines += [f"a regression: {spell_label(version)} says {verdict}" for version, verdict in event.seen.items()]
    commands = reproduce_lines(
        event.path, event.case, result.subject, worker=worker, is_shrinking_cut=event.is_shrinking_cut
    )
    return _lay_out(head, lines, event.source, [f"saved: {event.path}"], commands)


def describe_known_bug(event: events.KnownBugMet, worker: str = sys.executable) -> str:
    """A bug of the ledger that is met, in the form of a finding: the failure, its smallest example, and its report."""
    result, path = event.result, shorten(event.path)
    head = f"known bug: {result.verdict} under {result.subject}, {format_count(event.ops, 'operation')}"
    known = f"not new: the ledger lists it as {event.bug} ({spell_standing(event.status, event.upstream)})"
    lines = [event.title, describe(result), f"versions with it: {spell_versions(event.versions)}", known]
    places = [f"report: {shorten(event.report)}" if event.report else "", f"example: {path}"]
    commands = reproduce_lines(path, event.example, result.subject, worker=worker, has_report=bool(event.report))
    return _lay_out(head, lines, event.source, places, commands)


def _lay_out(head: str, lines: Iterable[str], program: str, places: Iterable[str], commands: Iterable[str]) -> str:
    about, below = (wrap(*(f"  {line}" for line in some if line)) for some in (lines, places))
    return "\n".join([*wrap(head), *about, "", textwrap.indent(program.rstrip(), "    "), "", *below, *commands, ""])


def summarize(run: RunSummary, earlier: RunSummary, options: Options, *, new: int, bugs: Mapping[str, Bug]) -> str:
    """The summary of a session that has begun: the findings, the work that is left, and the work that was done.

    earlier: the run before the session; new: findings of the session; bugs: entries of the ledger by the ids of their
    examples.
    """
    counts, found = run.counts, run.list_findings("new")
    of_eager = [row for row in found if row.result.verdict is Verdict.EAGER_SUSPECT and options.is_of_user]
    found = [row for row in found if row not in of_eager]
    head = f"{format_count(len(found), 'new finding')} in {run.path}"
    if new != len(found):
        head = f"{format_count(len(found), 'finding')} in {run.path}, {new or 'none'} of them new in this run"
    internal, known = run.list_findings("internal"), run.count_known(bugs)
    of_functions = run.count_known(bugs, of_functions=True) if run.functions else Counter[str]()
    of_torch = known - of_functions
    lines = [] if found else wrap(f"no new finding in {run.path}")

    def add(title: str, texts: Sequence[str], whole: Sequence[str] = ()) -> None:
        lines.extend([*wrap(f"{title}:", *texts), *whole] if texts or whole else [])

    add(head, (), _list_rows(found, options.worker_config.python))
    for counted, owner in ((of_functions, " of your function"), (of_torch, " of torch" if run.functions else "")):
        met = [f"  {count}x {bug}" for bug, count in counted.most_common()]
        kind = format_count(len(counted), "known bug")
        add(f"{kind}{owner} met again (count, then entry of the ledger or case file)", met)
    failed = [
        f"  {fault.text.splitlines()[-1]}: {fault.path}, and the worker's output beside it" for fault in counts.faults
    ]
    add(f"{format_count(len(failed), 'case')} could not be judged because attnfuzz failed; please report it", failed)
    shown = _list_rows(internal, options.worker_config.python)
    why = "no public subject ran that shows them (inductor)"
    add(f"{format_count(len(internal), 'internal finding')}: {why}", (), shown)
    mistakes = [f"  {operation_of(row.result)}: {row.file}" for row in of_eager]
    add(
        f"{format_count(len(mistakes), 'mistake')} of torch's eager mode, not caused by your function, saved too",
        mistakes,
    )
    unconfirmed = [f"  {count} {verdict} under {subject}" for (verdict, subject), count in run.unconfirmed.items()]
    add(f"{format_count(run.n_unconfirmed, 'suspicion')} not confirmed by fresh workers, nor explained", unconfirmed)
    if run.waiting or counts.ended in (StopReason.INTERRUPTED, StopReason.KILLED):
        waiting = f"{format_count(run.waiting, 'suspicion')} not investigated yet (unexplained failures)"
        waiting += f", {run.not_examined} of these not examined: they look like known bugs" if run.not_examined else ""
        command = f"  {format_python(*options.subjects)} -m fuzz.run {shlex.join(options.resume)}"
        add(f"{waiting if run.waiting else counts.ended}; to continue", (), [command])
    return "\n".join([*lines, *_describe_work(run, earlier), "", *_describe_next(run, new, has_known=bool(known))])


_SET_ASIDE = (
    SuspicionOutcome.INTERNAL_ONLY,
    SuspicionOutcome.WITHIN_SAME,
    SuspicionOutcome.IN_BOTH,
    SuspicionOutcome.NOT_COMPARED,
)


def _list_rows(rows: Iterable[FindingRow], worker: str) -> list[str]:
    lines = []
    for row in rows:
        result, operations = row.result, format_count(len(row.entry.case.ops), "operation")
        lines += wrap(f"  {result.verdict} under {result.subject}, {operations}, met {row.count}x")
        lines += wrap(f"    {describe(result) or result.verdict.label}")
        case_id, is_shrinking_cut = row.case_id, row.entry.is_shrinking_cut
        lines += reproduce_lines(
            row.file, case_id, result.subject, "    ", worker=worker, is_shrinking_cut=is_shrinking_cut
        )
    return lines


def _describe_work(run: RunSummary, earlier: RunSummary) -> list[str]:
    counts = run.counts
    rejected = f"{counts.rejected.total() / run.cases:.1%}" if run.cases else "none"
    seconds = round(counts.seconds - earlier.counts.seconds)
    cases = f"{format_count(run.cases - earlier.cases, 'case')} in {format_duration(seconds)}"
    if earlier.cases:
        cases += f" ({run.cases} in {format_duration(round(counts.seconds))} with earlier runs)"
    lines = [f"{counts.ended}: {cases}, {run.rate(run.checks):.1f} checks/s; eager refused {rejected}"]
    lines += [f"  {run.describe_losses()}"] if counts.lost else []
    if counts.not_forked:
        started = f"{format_count(counts.not_forked, 'start')} of a worker took seconds instead of a fork"
        lines.append(f"  {started}: under this torch a fork is not safe, or its server fails (see workers/*.log)")
    lines += [f"  refused {count}x: {reason}" for reason, count in counts.rejected.most_common(5)]
    lines += [
        f"  {_describe_coverage(subject, counts)}"
        for subject in sorted(counts.skipped)
        if is_user_function(subject) or get_spec(subject).is_foreign or _is_unused(subject, counts)
    ]
    unguarded = sorted(item.name for item in run.coverage if item.kind is CoverageKind.UNGUARDED)
    lines += [f"  not in guarded memory, where a function does not run: {', '.join(unguarded)}"] if unguarded else []
    if counts.examined:
        share = counts.explaining / counts.seconds / counts.started.workers
        examined = format_count(counts.examined, "failure")
        lines.append(f"  {examined} examined by experiments of known bugs, in {share:.1%} of worker time")
    lines += [f"  set aside: {run.outcomes[how]} {how.label}" for how in _SET_ASIDE if how in run.outcomes]
    return wrap(*lines)


def _describe_next(run: RunSummary, new: int, *, has_known: bool) -> list[str]:
    """The result of the session, and a command that shows more."""
    if new:
        state = f"{format_count(new, 'new failure')} to be read and reported"
    elif run.waiting:
        state = "some failures are not investigated yet"
    elif run.unconfirmed:
        state = "some failures did not show again and are not explained"
    elif not run.counts.compared:
        state = "no case was taken"
    else:
        state = "all failures are known" if has_known else "nothing new failed; a longer run covers more"
    cases = format_count(run.counts.compared, "attention module")
    functions = [_describe_function(one) for one in run.functions]
    page = f"  {format_python()} -m triage.page {shlex.quote(str(run.path))}"
    about = wrap(
        f"{cases} compared with float64 under torch {run.counts.started.versions}:",
        f"{state}. The whole run as a page:",
    )
    return [*about, page, *wrap(*functions)]


def _describe_function(function: FunctionSummary) -> str:
    if not function.cases:
        told = "it took no case"
    elif function.is_right:
        told = f"no failure in {format_count(function.cases, 'case')}"
    else:
        failures = f"{format_count(function.failures, 'failure')}" if function.failures else ""
        undecided = f"{format_count(function.undecided, 'suspicion')} not decided" if function.undecided else ""
        told = ", ".join(filter(None, [failures, undecided])) + f" in {format_count(function.cases, 'case')}"
    return f"your function {function.subject}: {told}"


def _is_unused(subject: str, counts: Counts) -> bool:
    return subject in counts.skipped and counts.skipped[subject].total() == counts.verdicts[subject].total()


def _describe_coverage(subject: str, counts: Counts) -> str:
    met, skipped = counts.verdicts[subject].total(), counts.skipped[subject].total()
    return f"{subject} took {met - skipped} of {met} cases; not taken: {counts.list_refusals(subject)}"


def describe_unused(named: Iterable[str], counts: Counts) -> str:
    """The subjects among `named` that took none of their cases, and why, in a line; "" if each took some cases."""
    unused = "; ".join(_describe_coverage(subject, counts) for subject in named if _is_unused(subject, counts))
    return f"{unused}. docs/kernels.md says what cases need; a longer --budget meets more kinds" if unused else ""


def describe_start(event: events.CampaignStarted, options: Options) -> str:
    """The subjects, torch and device of a campaign, and the coverage that this torch lacks."""
    resumed = f" from case {event.index}" if event.index else ""
    pending = f"; {format_count(event.pending, 'suspicion')} waiting" if event.pending else ""
    against = f" against {spell_label(event.against)}" if event.against else ""
    places = ["the ledger"] if options.ledger is not None and options.ledger.path != NONE else []
    places += [shorten(directory) for directory in (*options.ignore_dirs, options.corpus)]
    place = f"on {event.device} ({event.device_name}), {format_count(event.workers, 'worker')}"
    lines = [
        f"torch {event.versions}{against} {place}",
        f"  compares {', '.join(event.subjects)} with float64",
        f"  seed {event.seed}{resumed}, budget {options.budget}{pending}",
        f"  knows {format_count(event.n_known, 'finding')} of {', '.join(places)}",
        f"  output in {options.out}",
    ]
    lines += [f"no coverage of {part}: torch {event.torch} has no {name}" for part, name in event.missing_hooks.items()]
    return "\n".join(wrap(*lines))


class Screen(events.Listener):
    """Prints findings on stdout as they are saved, known bugs as they are first met, and the state on stderr.

    On a terminal the state is a block that is redrawn in place. Elsewhere it is a line with fields in a fixed order,
    every half minute and after every finding or loss, which a dumb terminal gets in several lines. With `--quiet` only
    findings are printed.
    """

    is_output = True

    def __init__(
        self, earlier: RunSummary, investigations: InvestigationRunner, threads: Sequence[WorkerThread]
    ) -> None:
        """earlier: the run before this session"""
        self._earlier, self._investigations, self._threads = earlier, investigations, threads
        self._options = investigations.state.options
        self._last, self._news = time.monotonic(), (0, 0, 0)
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        if sys.stderr.isatty() and not (self._options.quiet or self._console.is_dumb_terminal):
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def on_event(self, event: events.Event, when: float) -> None:  # noqa: ARG002 - a listener's signature
        if isinstance(event, events.FindingSaved):
            self._print(describe_finding(event, self._options.worker_config.python), sys.stdout)
        elif isinstance(event, events.KnownBugMet) and not self._options.quiet:
            self._print(describe_known_bug(event, self._options.worker_config.python), sys.stdout)
        elif isinstance(event, events.CampaignStarted) and not self._options.quiet:
            self._print(describe_start(event, self._options), sys.stderr)
        elif isinstance(event, events.Notice) and not self._options.quiet:
            self._print("\n".join(wrap(event.text)), sys.stderr)

    def _print(self, text: str, stream: TextIO) -> None:
        if self._live is not None and stream.isatty():
            # The terminal wraps, so that a copied command is a single line.
            self._console.print(escape_controls(text), markup=False, soft_wrap=True)
        else:
            print(text, file=stream, flush=True)

    def tick(self) -> None:
        """Show the state when it is time."""
        counts, since = self._investigations.state.results.counts, time.monotonic() - self._last
        news = (counts.closed, counts.lost, len(counts.faults))
        if self._live is not None:
            if since >= _REDRAW_SECONDS:
                self._redraw(self._live)
        elif not self._options.quiet and (news != self._news or since >= _LINE_SECONDS):
            self._last, self._news = time.monotonic(), news
            line = "; ".join(f"{name}: {value}" for name, value in self.list_rows())
            self._print("\n".join(wrap(line)) if sys.stderr.isatty() else line, sys.stderr)

    def _redraw(self, live: Live) -> None:
        self._last = time.monotonic()
        table = Table.grid(Column(style="bold", no_wrap=True), Column(), padding=(0, 2))
        for row in self.list_rows():
            # Lines longer than the terminal are cut rather than wrapped, which would make the block jump.
            table.add_row(*(Text(escape_controls(text), no_wrap=True, overflow="ellipsis") for text in row))
        live.start()
        live.update(table, refresh=True)

    def finish(self) -> None:
        """Leave the last block standing."""
        if self._live is not None and self._live.is_started:
            self._redraw(self._live)
            self._live.stop()
            self._console.line()

    def list_rows(self) -> Iterator[tuple[str, str]]:
        """The state: names and values. The elapsed time is of this session, other numbers are of all sessions."""
        state = self._investigations.state
        run = RunSummary.read(state.results)
        counts = run.counts
        spent = (
            f"{format_duration(round(counts.seconds - self._earlier.counts.seconds))} (budget {self._options.budget})"
        )
        late = "; ends with what was begun" if state.stop.is_over and not counts.ended else ""
        late += ", a second Ctrl-C ends at once" if late and state.stop.reason is StopReason.INTERRUPTED else ""
        yield "elapsed", spent + late
        yield "cases", f"{run.cases}; {run.rate(run.checks):.1f} checks/s; eager refused {counts.rejected.total()}"
        verdicts = Counter(row.result.verdict for row in run.list_findings("new"))
        yield "new", ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()) or "none yet"
        met = run.count_known(state.known_bugs.bugs)
        yield "known", f"{format_count(len(met), 'bug')} met, {met.total()}x" if met else "none met yet"
        working = self._investigations.open
        waiting = f"{state.suspicions.waiting} waiting"
        waiting += f" ({run.not_examined} not examined: like known bugs)" if run.not_examined else ""
        settled = f"{counts.closed} settled, {run.n_unconfirmed} of them not confirmed"
        yield "suspicions", f"{working} being investigated, {waiting}, {settled}"
        if not state.attention_only:
            kinds = run.count_coverage()
            counted = (CoverageKind.REWRITE, CoverageKind.OP, CoverageKind.LOWERING)
            rewrites, operators, lowerings = (kinds.pop(kind, 0) for kind in counted)
            attention = sum(item.name.startswith(PATTERN_PREFIX) for item in run.coverage)
            known = f"{rewrites} rewrites ({attention} of attention), {operators} operators, {lowerings} lowerings"
            yield "coverage", f"{known}, {kinds.total()} other"
        yield "workers", f"{len(self._threads)}; {counts.lost} died"
        for thread in self._threads:
            yield f"worker {thread.crew.number}", _describe_worker(thread)


def _describe_worker(thread: WorkerThread) -> str:
    if not thread.is_alive():
        return "done"
    stage, seconds = thread.crew.process.stage, time.monotonic() - thread.crew.process.stage_began
    words = _STAGES.get(stage, stage) or ("starting" if thread.crew.process.hello is None else "")
    words += f" for {seconds:.0f}s" if words and seconds >= 1 else ""
    return ": ".join(filter(None, [thread.crew.task, words]))
