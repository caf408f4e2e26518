"""Damage running campaigns at random and look at what is left.

    python -m benchmarks.chaos [--minutes 30] [--seed 1] [--workers 2] [--round 60] [--disk DIR] [--damage NAME]...

Two campaigns are begun and continued by turns: one over functions with known faults, one over torch. Each round is one
run of one of them with one kind of damage: the parent, workers (while they start, judge and shrink) or what workers
started are killed, a worker is stopped, signals are sent, or the disk is filled. The last needs `--disk`, a small file
system of its own; as root: `mount -t tmpfs -o size=300m none DIR`.

After each round: the exit code, the seconds past the budget, processes left, files lost or unreadable, findings that
are not what the functions do. Exits with 1 when anything was lost, left, doubled or made up.
"""

import argparse
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from benchmarks.faulty_functions import FUNCTIONS
from corpus import entry
from fuzz.ask.worker_process import START_SECONDS
from fuzz.run_database import RESULTS_FILE
from fuzz.run_summary import RunSummary
from generators.errors import UserError

MARK = "ATTNFUZZ_CHAOS"
"""In the environment of every process of a campaign, so that those left behind are found."""
LATE_SECONDS = 12.0
"""A run may end so long after its budget: what was begun gets 5 s of it."""
TARGETS = {
    "functions": [f"--subject=benchmarks.faulty_functions:{name}" for name in FUNCTIONS],
    "torch": ["--subject=passes", "--subject=inductor"],
}


class Round:
    """One run of a campaign, to be damaged while it runs."""

    def __init__(
        self,
        command: list[str],
        log: Path,
        out: Path,
        *,
        seconds: float,
        mark: str,
        rng: random.Random,
        disk: Path | None,
    ) -> None:
        self.mark, self.rng, self.disk = mark, rng, disk
        self._out, self._earlier, self._seconds = out, count_runs(out), seconds
        self._launched, self.began = time.monotonic(), 0.0
        with log.open("ab") as file:
            self.parent = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, MARK: mark})

    def wait(self, seconds: float) -> bool:
        """Let it run so long; whether it still runs."""
        try:
            self.parent.wait(max(seconds, 0.01))
        except subprocess.TimeoutExpired:
            return True
        return False

    def seconds_left(self) -> float:
        """Until it is late: its budget counts from its beginning, when the first worker has started."""
        if not self.began and count_runs(self._out) > self._earlier:
            self.began = time.monotonic()
        began = self.began or self._launched + START_SECONDS
        return began + self._seconds + LATE_SECONDS - time.monotonic()

    def processes(self) -> list[int]:
        """All processes of the campaign that live, without its parent."""
        word = f"{MARK}={self.mark}".encode()
        return [pid for pid, environment in read_environments() if word in environment and pid != self.parent.pid]

    def workers(self) -> list[int]:
        """The workers: each leads a session."""
        return [pid for pid in self.processes() if get_session(pid) == pid]

    def send(self, number: int, after: float) -> None:
        """Send a signal to the parent after so many seconds."""
        if self.wait(after):
            self.parent.send_signal(number)

    def send_to_worker(self, number: int) -> None:
        """Send a signal to the first worker as soon as it exists, which may be before its first word."""
        while not (workers := self.workers()) and self.wait(0.05):
            pass
        for worker in workers[:1]:
            os.kill(worker, number)

    def strike(self, pick: Callable[[], list[int]], number: int, mean_seconds: float) -> None:
        """Once the run has begun, send a signal to one of the processes that `pick` gives, again and again."""
        while not self.began and self.seconds_left() > LATE_SECONDS and self.wait(0.1):
            pass
        while self.seconds_left() > LATE_SECONDS and self.wait(self.rng.expovariate(1 / mean_seconds)):
            victims = pick()
            if victims:
                try:
                    os.kill(self.rng.choice(victims), number)
                except ProcessLookupError:
                    pass  # It has ended by itself.


def count_runs(out: Path) -> int:
    """How many runs of a campaign have begun."""
    with suppress(UserError):
        return RunSummary.load(out).counts.runs
    return 0


def read_environments() -> Iterator[tuple[int, bytes]]:
    """The environment of every process that can be read; a zombie has none."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                yield int(path.name), (path / "environ").read_bytes()
            except OSError:
                continue


def get_session(pid: int) -> int:
    """The session of a process; 0 when it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def fill_disk(run: Round) -> None:
    """Leave no byte free for some seconds."""
    assert run.disk is not None
    if not run.wait(run.rng.uniform(5, 20)):
        return
    filler = run.disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            while file.write(b"x" * (1 << 20)):
                pass
    except OSError:
        run.wait(10)
    finally:
        filler.unlink()


def interrupt_twice(run: Round) -> None:
    """Press Ctrl-C, and again half a second later."""
    run.send(signal.SIGINT, run.rng.uniform(1, 25))
    run.send(signal.SIGINT, 0.5)


DAMAGES: dict[str, tuple[Callable[[Round], None], set[int]]] = {
    "none": (lambda run: None, {0, 1}),
    "kill the parent": (lambda run: run.send(signal.SIGKILL, run.rng.uniform(0, 30)), {-signal.SIGKILL, 0, 1}),
    "interrupt": (lambda run: run.send(signal.SIGINT, run.rng.uniform(1, 25)), {130, 0, 1}),
    "interrupt twice": (interrupt_twice, {130, 0, 1}),
    "terminate": (lambda run: run.send(signal.SIGTERM, run.rng.uniform(1, 25)), {130, 0, 1}),
    "hang up": (lambda run: run.send(signal.SIGHUP, run.rng.uniform(1, 25)), {130, 0, 1}),
    "kill the first worker": (lambda run: run.send_to_worker(signal.SIGKILL), {0, 1, 2}),
    "kill workers": (lambda run: run.strike(run.workers, signal.SIGKILL, 6), {0, 1}),
    "kill starting workers": (lambda run: run.strike(run.workers, signal.SIGKILL, 2), {0, 1}),
    "kill helpers": (
        lambda run: run.strike(lambda: sorted({*run.processes()} - {*run.workers()}), signal.SIGKILL, 1),
        {0, 1},
    ),
    "stop a worker": (lambda run: run.strike(run.workers, signal.SIGSTOP, 15), {0, 1}),
    "fill the disk": (fill_disk, {0, 1, 2}),
}
"""By name: what is done to a run, and the exit codes it may end with. Damage to the first worker before its first word
gives 2."""


class Campaign:
    """A campaign that is continued: its directory, its findings, and what they have been."""

    def __init__(self, target: str, directory: Path) -> None:
        self.target, self.out, self.found = target, directory / target / "run", directory / target / "found"
        self.log = directory / f"{target}.log"
        self.seen: set[str] = set()

    def command(self, options: argparse.Namespace) -> list[str]:
        """The command line of its next run."""
        command = [sys.executable, "-m", "fuzz.run", f"--budget={options.round:g}s", "--timeout=20s"]
        command += [f"--workers={options.workers}", f"--out={self.out}", f"--corpus={self.found}", "--shrink-time=15s"]
        return [*command, *TARGETS[self.target]]

    def inspect(self) -> Iterator[str]:
        """What is wrong with what it left."""
        names = {path.name for path in self.found.glob("*")}
        for name in self.seen - names:
            yield f"lost the finding {name}"
        for name in sorted(names - self.seen):
            if not name.endswith(entry.CASE_SUFFIX):
                yield f"left {name}"
                continue
            try:
                self.seen.add(name)
                saved = entry.load(self.found / name).found
            except UserError as error:
                yield f"unreadable: {error}"
                continue
            function = saved.subject.rpartition(":")[2] if saved else ""
            if saved is None or FUNCTIONS.get(function, saved.verdict) != saved.verdict:
                yield f"made up: {saved and saved.verdict} under {function}: {name}"
        if (self.out / RESULTS_FILE).exists():
            with closing(sqlite3.connect(self.out / RESULTS_FILE)) as store:
                verdict = store.execute("PRAGMA integrity_check").fetchone()[0]
                if verdict != "ok":
                    yield f"store: {verdict}"
                stored = {Path(row[0]).name for row in store.execute("SELECT file FROM findings WHERE kind = 'new'")}
                for name in self.seen - stored:
                    yield f"not in the store: {name}"

    def list_doubles(self) -> Iterator[str]:
        """Findings of one function that say the same."""
        counted = Counter(name.partition("-")[0] for name in self.seen) if self.target == "functions" else Counter()
        for verdict, count in counted.items():
            if count > 1:
                yield f"{count} findings: {verdict}"


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--round", type=float, default=60.0, help="seconds of one run")
    parser.add_argument("--disk", type=Path)
    parser.add_argument("--damage", choices=DAMAGES, action="append", help="do this alone; may be repeated")
    options = parser.parse_args()
    directory = options.disk or Path(tempfile.mkdtemp(prefix="attnfuzz-chaos-"))
    campaigns = [Campaign(target, directory) for target in TARGETS]
    rng, ends = random.Random(options.seed), time.monotonic() + 60 * options.minutes
    damages = options.damage or [name for name in DAMAGES if options.disk is not None or name != "fill the disk"]
    wrong: list[str] = []
    number = 0
    while time.monotonic() < ends:
        if number % len(damages) == 0:
            rng.shuffle(damages)
        damage, campaign = damages[number % len(damages)], campaigns[number % 2]
        number += 1
        faults = run_round(campaign, damage, options, f"{os.getpid()}-{number}", rng)
        wrong += [f"round {number}, {campaign.target}, {damage}: {fault}" for fault in faults]
    wrong += [fault for campaign in campaigns for fault in campaign.list_doubles()]
    for campaign in campaigns:
        print(f"{campaign.target}: {len(campaign.seen)} findings: {', '.join(sorted(campaign.seen)) or 'none'}")
    print(f"{number} rounds, {len(wrong)} faults", *wrong, sep="\n  ")
    if not wrong and options.disk is None:
        shutil.rmtree(directory)
    return 1 if wrong else 0


def run_round(campaign: Campaign, damage: str, options: argparse.Namespace, mark: str, rng: random.Random) -> list[str]:
    """Run a campaign once, damage it, print a line; gives what is wrong afterwards."""
    do_damage, codes = DAMAGES[damage]
    began, before = time.monotonic(), len(campaign.seen)
    run = Round(
        campaign.command(options),
        campaign.log,
        campaign.out,
        seconds=options.round,
        mark=mark,
        rng=rng,
        disk=options.disk,
    )
    do_damage(run)
    faults = []
    while run.wait(1.0) and run.seconds_left() > 0:
        pass
    if run.parent.poll() is None:
        faults.append(f"still runs {LATE_SECONDS:g} s after its budget")
        run.parent.kill()
    code = run.parent.wait()
    seconds = time.monotonic() - began
    for _ in range(20):
        left = run.processes()
        if not left:
            break
        time.sleep(0.1)
    if left:
        faults.append(f"{len(left)} processes left")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    if code not in codes and not faults:
        faults.append(f"exit code {code}")
    faults += campaign.inspect()
    print(
        f"{campaign.target}, {damage}: exit code {code} after {seconds:.0f} s, {len(left)} processes left,"
        f" findings {before} -> {len(campaign.seen)}" + "".join(f"; WRONG: {fault}" for fault in faults),
        flush=True,
    )
    return faults


if __name__ == "__main__":
    sys.exit(main())
