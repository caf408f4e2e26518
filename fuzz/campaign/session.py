"""A session of a campaign: threads judge cases and investigate suspicions until the budget is spent, and the summary
is printed."""

import fcntl
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from corpus.files import require_writable
from fuzz.campaign.campaign_state import CampaignState
from fuzz.campaign.investigation_runner import InvestigationRunner
from fuzz.campaign.libfuzzer import LibFuzzerThread
from fuzz.campaign.options import Options, StopReason, require_space, translate_disk_error
from fuzz.campaign.screen import Screen, describe_unused, summarize
from fuzz.campaign.search import AttentionSearch, CompilerSearch, Guided, Random
from fuzz.campaign.worker_thread import WorkerThread
from fuzz.cli import handle_signals, ignore_lost_output
from fuzz.events import Bus, CampaignEnded, CampaignStarted, Counts, Notice
from fuzz.protocol import Hello
from fuzz.run_database import LOCK_FILE, RESULTS_FILE
from fuzz.run_store import Results
from fuzz.run_summary import RunSummary
from fuzz.subjects import find_abilities, get_spec
from fuzz.versions import list_versions, public_version, spell_label
from generators.errors import UserError
from generators.program.case import Case
from generators.program.settings import list_available
from generators.sampling.sample import NO_LIMITS, Limits, sample

_TICK_SECONDS, _START_SECONDS = 0.1, 0.5
_SCAN_SECONDS = 5.0
"""The pause between two searches for findings of others. On a slow file system it is 50 times as long as the search."""

Sampler = Callable[..., Case]
"""Makes case `index` of a seed. `attention_only=True`: the case has a contract."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a session ended."""

    new: int  # findings
    interrupted: bool
    summary: str  # as printed
    unconfirmed: int = 0  # suspicions that fresh workers did not confirm
    faults: int = 0  # cases that attnfuzz failed to judge
    error: Exception | None = None  # ended the session early; raised after the summary


@contextmanager
def _enter_directory(path: Path) -> Iterator[None]:
    """Keeps other campaigns out of a run directory. At the end compiled code is removed.

        results.sqlite           results and events
        internal/                findings that no public subject shows
        faults/                  cases that attnfuzz failed to judge
        workers/*.log, cache/    output and compiled code of workers

    Raises `UserError` when it can't be written, is full, is in use, or holds other things.
    """
    if path.is_dir() and not (path / RESULTS_FILE).exists() and {one.name for one in path.iterdir()} - {LOCK_FILE}:
        raise UserError(f"--out {path}: holds other files and no run; give a directory of its own")
    require_writable(path, "--out")
    with (path / LOCK_FILE).open("ab") as lock:
        require_space(path)
        for is_last in (False, True):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if is_last:
                    raise UserError(f"--out {path}: another campaign is running there") from error
                time.sleep(0.1)  # `fuzz.status` holds it for a moment
        try:
            yield
        finally:
            shutil.rmtree(path / "cache", ignore_errors=True)


def run_campaign(options: Options, sampler: Sampler = sample) -> RunResult:
    """Run a campaign in its directory, and print its summary. Raises `UserError` when it can't begin."""
    try:
        with _enter_directory(options.out), Results(options.out) as results:
            try:
                require_writable(options.corpus, "--corpus")
                draw = options.models.sample if options.models is not None else sampler
                return _Session(_resolve_seed(options, results.counts), results, draw).run()
            finally:
                if not results.counts.runs:  # No campaign ever began here.
                    shutil.rmtree(options.out, ignore_errors=True)
    except (OSError, sqlite3.OperationalError) as error:
        raise translate_disk_error(error, options.out) from None


class _Session:
    """A session in an open directory."""

    def __init__(self, options: Options, results: Results, sample: Sampler) -> None:
        self._options, self._results, self._sample = options, results, sample
        self._abilities: frozenset[str] | None = None  # of all subjects, if these are compilers that declare some
        self._earlier = RunSummary.read(results)  # the run directory before this session
        self._bus = Bus([results])
        if options.engine == "guided":
            search: Random = Guided(self._draw, options.seed, options.seeds, results)
        else:
            search = Random(self._draw, results.count_coverage())  # libFuzzer draws cases itself
        self._state = CampaignState(options, results, self._bus, search)
        self._investigations = InvestigationRunner(self._state)
        kind = LibFuzzerThread if options.engine == "atheris" else WorkerThread
        self._next_scan = 0.0
        self._threads = [kind(self._investigations, number) for number in range(options.workers)]
        self._bus.listeners.append(Screen(self._earlier, self._investigations, self._threads))

    def _draw(self, index: int, limits: Limits = NO_LIMITS) -> Case:
        """Case number `index` of the seed. If all subjects only compute attention, it has a contract."""
        seed, device = self._options.seed, self._options.worker_config.device
        form = {"attention_only": self._state.attention_only, "limits": limits, "device": device}
        if self._abilities is not None and self._options.models is None:
            form["abilities"] = self._abilities
        return self._sample(seed, index, **form)

    def run(self) -> RunResult:
        """Work, and print the summary before a signal can end the process. Raises `UserError` when it can't begin."""
        options, earlier, stop = self._options, self._earlier, self._state.stop
        has_begun, signals, errors = False, list[int](), list[Exception]()

        def handle(number: int, _frame: FrameType | None) -> None:
            signals.append(number)
            if not has_begun:
                raise KeyboardInterrupt
            if len(signals) == 1:
                stop.stop(StopReason.INTERRUPTED)
            else:
                stop.kill()

        with handle_signals(handle):
            try:
                self._prepare()
                has_begun = True
            finally:
                if not has_begun:
                    self._close()
                    self._bus.finish()
            for step in (self._work, self._close, self._bus.finish):
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - raised after the summary
                    errors.append(translate_disk_error(error, options.out))
            new, summary = self._investigations.findings.new, RunSummary.read(self._results)
            unused = describe_unused(options.named, summary.counts)
            if unused and not new and not signals:
                errors.append(UserError(unused))
            result = RunResult(
                new=new,
                interrupted=bool(signals),
                summary=summarize(summary, earlier, options, new=new, bugs=self._state.known_bugs.bugs),
                unconfirmed=summary.n_unconfirmed - earlier.n_unconfirmed,
                faults=len(summary.counts.faults) - len(earlier.counts.faults),
                error=errors[0] if errors else None,
            )
            if not options.quiet or result.faults:
                with ignore_lost_output():
                    print(result.summary, flush=True)  # noqa: T201 - the campaign's last output
        return result

    def _prepare(self) -> None:
        """Start the first worker and load known bugs. Raises `UserError` when the campaign can't run."""
        options, state, results = self._options, self._state, self._results
        with self._tell_of_start():
            against = self._investigations.baseline_version = self._threads[0].crew.start_baseline(options.subjects)
            hello = self._threads[0].crew.case_worker.hello
        state.known_bugs.attention = frozenset(hello.attention)
        state.attention_only = set(options.subjects) <= set(hello.attention)
        state.schedule.abilities = hello.abilities
        self._abilities = find_abilities(options.subjects, hello.abilities)
        _require_subjects(options, hello)
        if self._abilities is not None and options.models is None and not options.seeds:
            state.search = CompilerSearch(self._draw, options.seed, options.subjects, results.count_coverage())
        if state.attention_only:
            # Attention functions have no coverage in a compiler, and refuse most seeds.
            takes = {subject: hello.attention[subject] for subject in options.subjects}
            state.search = AttentionSearch(self._draw, options.seed, takes, state.known_bugs, device=hello.device)
        if any(get_spec(name).options for name in options.subjects):
            state.settings = list_available(hello.torch, hello.device)
        versions = list_versions(hello, options.subjects)
        _require_same_torch(results.counts, options.out, versions, against)
        self._investigations.findings.load(hello.packages)
        for suspicion in results.waiting():
            state.suspicions.put(suspicion)
        self._bus.emit(
            CampaignStarted(
                seed=options.seed,
                index=results.counts.cursor,
                subjects=options.subjects,
                workers=options.workers,
                torch=hello.torch,
                runtimes=tuple(versions[1:]),
                device=hello.device,
                device_name=hello.device_name,
                n_known=len(results.findings()),
                pending=state.suspicions.waiting,
                against=against,
                missing_hooks={} if state.attention_only else hello.missing_hooks,
                python=options.worker_config.python,
            )
        )

    @contextmanager
    def _tell_of_start(self) -> Iterator[None]:
        """Within it workers start. Tells of a start that takes long, since the screen shows nothing yet."""

        def tell() -> None:
            self._bus.emit(Notice(text=f"starting a worker: {self._threads[0].crew.process.stage}"))

        timer = threading.Timer(_START_SECONDS, tell)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _learn_findings(self) -> None:
        began = time.monotonic()
        if began >= self._next_scan:
            self._investigations.findings.learn_new()
            self._next_scan = began + max(_SCAN_SECONDS, 50 * (time.monotonic() - began))

    def _work(self) -> None:
        """Work until the budget is spent, or something stops it. Cases that do not finish within `GRACE_SECONDS` are
        left to the next session. Raises the exception of a thread."""
        stop, faults = self._state.stop, list[Exception]()
        stop.begin()
        for thread in self._threads:
            for evaluator in thread.crew.evaluators:
                evaluator.process.has_worked = True
            thread.start()
        while any(thread.is_alive() for thread in self._threads):
            try:
                self._bus.tick()
                self._learn_findings()
            except Exception as error:  # noqa: BLE001 - raised below, when all threads have ended
                faults.append(stop.fail(error, self._options.out))
            if stop.is_overdue:
                self._kill()
            time.sleep(_TICK_SECONDS)
        self._bus.emit(CampaignEnded(reason=stop.reason))
        faults += [thread.fault for thread in self._threads if thread.fault is not None]
        if faults:
            raise faults[0]

    def _kill(self) -> None:
        """End at once. The next session judges the cases in hand."""
        self._state.stop.kill()
        for thread in self._threads:
            thread.crew.kill()

    def _close(self) -> None:
        """End the workers that still run: after a fault all, else the workers of threads that never started."""
        for thread in self._threads:
            while thread.is_alive():
                self._kill()
                thread.join(_TICK_SECONDS)
            thread.crew.close()


def _require_subjects(options: Options, hello: Hello) -> None:
    """Raises `UserError` unless the worker can run the subjects."""
    specs = {name: get_spec(name) for name in options.subjects if name not in hello.attention}
    if options.engine == "atheris" and not any(spec.uses_inductor for spec in specs.values()):
        raise UserError("--engine atheris follows Inductor: name a --subject that compiles the case")
    if options.draws and not specs:
        raise UserError(f"--draw needs a --subject that compiles modules; {options.subjects[0]} computes attention")
    if hello.switch and any(spec.backend for spec in specs.values()):
        raise UserError(hello.switch)
    needy = [name for name in options.subjects if get_spec(name).needs_cxx]
    if hello.cxx is None and options.worker_config.device == "cpu" and needy:
        raise UserError(
            f"no C++ compiler for {', '.join(needy)}: install g++ or set CXX; or use --subject passes, which needs"
            " none (its findings stay in the run directory, as internal, until a public subject shows them)"
        )


def _require_same_torch(counts: Counts, out: Path, versions: Sequence[str], against: str) -> None:
    """Raises `UserError` if a run that goes on began with another torch. Another path to the same torch is fine."""
    before = replace(counts.started, torch=public_version(counts.started.torch))
    for option, given, torch in (
        ("--python", before.versions, ", ".join(versions)),
        ("--against", before.against, against),
    ):
        if counts.runs and given != torch:
            told = f"{option} {spell_label(given)}" if given else f"no {option}"
            raise UserError(f"--out {out} holds a run with {told}: continue with that, or give another --out")


def _resolve_seed(options: Options, counts: Counts) -> Options:
    """Options with the seed of the earlier sessions, or a new seed. Raises `UserError` when seeds differ."""
    seed = counts.started.seed
    if not counts.runs:
        return replace(options, seed=options.seed if options.seed >= 0 else secrets.randbelow(2**31))
    if options.seed not in (-1, seed):
        raise UserError(f"--out {options.out} holds a run with seed {seed}; leave --seed out to continue it")
    return replace(options, seed=seed)
