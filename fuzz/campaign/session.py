"""A session of a campaign: its directory, store, listeners, signals and summary."""

import fcntl
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from corpus.files import require_writable
from fuzz.campaign.campaign import Campaign, Sampler
from fuzz.campaign.options import Options, StopReason, require_space, translate_disk_error
from fuzz.campaign.screen import Screen, describe_unused, summarize
from fuzz.campaign.share import DIRECTORIES
from fuzz.cli import handle_signals, ignore_lost_output
from fuzz.events import Bus, EventLog
from fuzz.run_store import LOCK_FILE, RESULTS_FILE, Results
from fuzz.run_summary import Recorder
from generators.errors import UserError
from generators.sampling.sample import sample


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a session ended."""

    new: int  # findings
    interrupted: bool
    summary: str  # as printed
    faults: int = 0  # cases that attnfuzz failed to judge
    error: Exception | None = None  # that ended it early, to be raised after the summary


@contextmanager
def _enter_directory(path: Path) -> Iterator[None]:
    """Keeps other campaigns out of a run directory. At the end compiled code is removed.

        results.sqlite, events.ndjson    results and events
        internal/                        findings that no public subject shows
        faults/                          cases that attnfuzz failed to judge
        workers/*.log, cache/            output and compiled code of workers

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
        with _enter_directory(options.out), closing(Results(options.out)) as results:
            try:
                require_writable(options.corpus, "--corpus")
                for name in DIRECTORIES:
                    if options.share is not None:
                        require_writable(options.share / name, "--share")
                return _run(_resolve_seed(options, results), results, sampler)
            finally:
                if results.meta("counts") is None:  # No campaign ever began here.
                    shutil.rmtree(options.out, ignore_errors=True)
    except (OSError, sqlite3.OperationalError) as error:
        raise translate_disk_error(error, options.out) from None


def _run(options: Options, results: Results, sampler: Sampler) -> RunResult:
    recorder = Recorder(results)
    bus = Bus([EventLog(options.out), recorder])
    campaign = Campaign(options, results, bus, sampler)
    bus.listeners.append(Screen(recorder, campaign))
    state, has_begun, signals = campaign.state, False, list[int]()
    errors: list[Exception] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        if not has_begun:
            raise KeyboardInterrupt
        if len(signals) == 1:
            state.stop.stop(StopReason.INTERRUPTED)
        else:
            state.stop.kill()

    with handle_signals(handle):
        try:
            campaign.prepare()
            has_begun = True
        finally:
            if not has_begun:
                campaign.close()
                bus.close()
        for step in (campaign.run, campaign.close, bus.close):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - raised after the summary
                errors.append(translate_disk_error(error, options.out))
        new = campaign.investigations.new
        summary = recorder.summarize()
        unused = describe_unused(options.named, summary.counts)
        if unused and not new and not signals:
            errors.append(UserError(unused))
        result = RunResult(
            new=new,
            interrupted=bool(signals),
            summary=summarize(summary, recorder.earlier, options, new=new, bugs=state.known_bugs.bugs),
            faults=len(summary.counts.faults) - len(recorder.earlier.counts.faults),
            error=errors[0] if errors else None,
        )
        if not options.quiet or result.faults:
            with ignore_lost_output():
                print(result.summary, flush=True)  # noqa: T201 - what a campaign ends with
    return result


def _resolve_seed(options: Options, results: Results) -> Options:
    """Options with the seed of the earlier sessions, or a new seed. Raises `UserError` when seeds differ."""
    stored = results.meta("seed")
    if stored is None:
        seed = options.seed if options.seed >= 0 else secrets.randbelow(2**31)
        results.set_meta({"seed": str(seed)})
        return replace(options, seed=seed)
    if options.seed not in (-1, int(stored)):
        raise UserError(f"--out {options.out} holds a run with seed {stored}; leave --seed out to continue it")
    return replace(options, seed=int(stored))
