"""From options to a finished run: directory, store, listeners, signals and the summary."""

import errno
import secrets
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from fuzz.campaign.campaign import Campaign, Sampler
from fuzz.campaign.control import StopReason
from fuzz.campaign.directory import RunDirectory
from fuzz.campaign.events import Bus
from fuzz.campaign.log import EventLog
from fuzz.campaign.options import Options
from fuzz.campaign.screen import make_screen
from fuzz.campaign.stats import Statistics
from fuzz.campaign.store import Results
from fuzz.campaign.summary import summarize
from fuzz.protocol import Hello
from fuzz.subjects import get_spec
from generators.errors import UserError
from generators.sampling.sample import sample

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. `new`: findings it saved; `summary`: text for stdout; `faults`: cases that a fault of ours kept from
    being judged."""

    new: int
    interrupted: bool
    summary: str
    faults: int = 0


def run_campaign(options: Options, sampler: Sampler = sample) -> RunResult:
    """Run a campaign in its directory. Raises `UserError` for whatever a user can fix, a full disk included."""
    try:
        _require_writable(options.corpus)
        directory = RunDirectory.open(options.out)
        try:
            results = Results(options.out)
            try:
                return _run(_resolve_seed(options, results), results, sampler)
            finally:
                results.close()
        except _Refused as refused:
            directory.discard()
            raise UserError(str(refused)) from refused
        finally:
            directory.close()
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise UserError(f"{options.out}: {error.strerror}; all findings so far are saved") from error
    except sqlite3.OperationalError as error:
        if "disk" not in str(error):
            raise
        raise UserError(f"{options.out}: {error}; all findings so far are saved") from error


class _Refused(Exception):
    """The campaign can't begin; the text is a `UserError`'s."""


def _run(options: Options, results: Results, sampler: Sampler) -> RunResult:
    statistics = Statistics(options.out)
    bus = Bus([EventLog(options.out), statistics, make_screen(sys.stderr, statistics, options.budget)])
    try:
        campaign = Campaign(options, results, bus, sampler)
        with _handle_signals(campaign) as interrupted:
            try:
                try:
                    _require_compiler(campaign.prepare(), options)
                except UserError as error:
                    if interrupted:
                        raise KeyboardInterrupt from error
                    raise _Refused(str(error)) from error
                campaign.run()
            finally:
                campaign.close()
    finally:
        bus.close()
    new = campaign.investigations.new
    text = summarize(results, statistics, waiting=campaign.suspicions.waiting, new=new, bugs=campaign.known.bugs)
    return RunResult(new=new, interrupted=bool(interrupted), summary=text, faults=len(statistics.faults))


def _resolve_seed(options: Options, results: Results) -> Options:
    """Options with the seed of the run that is continued, or a new one. Raises `UserError` when they differ."""
    stored = results.meta("seed")
    if stored is None:
        seed = options.seed if options.seed >= 0 else secrets.randbelow(2**31)
        results.set_meta({"seed": str(seed)})
        return replace(options, seed=seed)
    if options.seed not in (-1, int(stored)):
        raise UserError(f"--out {options.out} holds a run with seed {stored}; leave --seed out to continue it")
    return replace(options, seed=int(stored))


def _require_compiler(hello: Hello, options: Options) -> None:
    compiled = [s for s in options.subjects if get_spec(s).needs_cxx]
    if hello.cxx is None and options.setup.device == "cpu" and compiled:
        raise UserError(
            f"no C++ compiler for {', '.join(compiled)}: install g++ or set CXX; or use --subject passes, which needs"
            " none (what it finds is kept in the run directory, as internal, until a public subject shows it)"
        )


def _require_writable(corpus: Path) -> None:
    try:
        corpus.mkdir(parents=True, exist_ok=True)
        probe = corpus / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"--corpus {corpus}: can't be written: {error.strerror}") from error


@contextmanager
def _handle_signals(campaign: Campaign) -> Iterator[list[int]]:
    """While entered the first SIGINT or SIGTERM lets cases in hand finish, the second ends the run at once."""
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            campaign.control.stop(StopReason.INTERRUPTED)
        else:
            campaign.kill()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
