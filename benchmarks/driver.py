"""How many workers one campaign can feed: what the parent process costs for each case.

    python -m benchmarks.driver [--workers 256] [--seconds 30] [--ray]

Runs a campaign whose workers answer at once, with results that a worker gave under `passes` before: in this process, or
with --ray in a few actors that all workers share. Prints cases a second, and CPU milliseconds of this process a case.
"""

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import Question, build_check
from fuzz.ask.worker_config import ROOT, WorkerConfig
from fuzz.ask.worker_process import WorkerProcess
from fuzz.campaign.options import Budget, Options
from fuzz.campaign.search import load_seeds
from fuzz.campaign.session import run_campaign
from fuzz.protocol import Hello, Result
from fuzz.run_summary import RunSummary
from generators.sampling.sample import sample

ACTORS = 4
"""They answer for all workers: this machine has no room for more."""
SAMPLES = 12


class InstantTransport:
    """A transport to no process: each check is answered at once with the next of the results."""

    machine = ""
    stage = "start"

    def __init__(self, hello: Hello, results: list[Result]) -> None:
        self._hello, self._results = hello, itertools.cycle(results)
        self._answer = b""

    def is_placed(self) -> bool:
        """True."""
        return True

    def start(self, _: WorkerConfig) -> None:
        """Nothing to start."""
        self._answer = self._hello.to_json().encode()

    def write(self, line: bytes) -> None:
        """Take a check."""
        self._answer = build_answer(line, next(self._results))

    def read(self, _: float) -> bytes:
        """The answer to the last check."""
        return self._answer

    def wait(self, *_: object, **__: object) -> tuple[int, list[str]]:
        """A process that has ended."""
        return 0, []

    def end(self) -> None:
        """Nothing to end."""

    def kill(self) -> None:
        """Nothing to end."""


def build_answer(line: bytes, result: Result) -> bytes:
    """`result` as the answer to the check in a line."""
    return replace(result, id=json.loads(line).get("id", 0)).to_json().encode()


def open_here(
    hello: Hello, results: list[Result], config: WorkerConfig, *listeners: Callable[..., None]
) -> WorkerProcess:
    """A worker that answers at once, in this process."""
    return WorkerProcess(config, InstantTransport(hello, results), *listeners)


def open_remote(hello: Hello, results: list[Result]) -> Callable[..., WorkerProcess]:
    """Return a function that opens workers in actors that answer at once; join or start a Ray cluster."""
    import ray

    from fuzz.campaign import ray_workers

    class InstantHost:
        """Answers as `WorkerHost` does."""

        def start(self, _: WorkerConfig) -> None:
            """Nothing to start."""

        def wait(self, *_: object, **__: object) -> tuple[int, list[str]]:
            """A process that has ended."""
            return 0, []

        def end(self) -> None:
            """Nothing to end."""

        def exchange(self, line: bytes | None, _: float) -> list[bytes]:
            """The hello, or the answer to a check."""
            return [hello.to_json().encode() if line is None else build_answer(line, random.choice(results))]

    cluster = ray_workers.RayCluster("auto", WorkerConfig(), 1, each=1)
    actors = itertools.cycle([ray.remote(num_cpus=0.1)(InstantHost).remote() for _ in range(ACTORS)])

    class InstantRayTransport(ray_workers.RayTransport):
        """Has an actor that it shares with other workers."""

        def is_placed(self) -> bool:
            """True."""
            self._actor = self._actor or next(actors)
            return True

        def kill(self) -> None:
            """The actor serves others."""

    return lambda config, *listeners: WorkerProcess(config, InstantRayTransport(cluster), *listeners)


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    cases = [sample(1, index) for index in range(SAMPLES)]
    with open_evaluator(WorkerConfig()) as evaluator:
        hello = evaluator.hello
        results = [evaluator.ask(Question(case, ("passes",))) for case in cases]
    # What fails would be investigated.
    results = [result for result in results if not any(one.verdict.is_finding for one in result.results)]
    results = [replace(result, unfit="") for result in results]
    opener = open_remote(hello, results) if options.ray else partial(open_here, hello, results)
    directory = Path(tempfile.mkdtemp(prefix="attnfuzz-driver-"))
    given = Options(
        budget=Budget(seconds=options.seconds),
        seed=1,
        workers=options.workers,
        subjects=("passes",),
        out=directory / "run",
        corpus=directory / "found",
        ignore_dirs=(),
        worker_config=WorkerConfig(),
        engine="guided",
        seeds=load_seeds(ROOT / "corpus" / "seeds"),
        quiet=True,
        open_remote=opener,
    )
    cpu, began = time.process_time(), time.monotonic()
    ended = run_campaign(given)
    cpu, seconds = time.process_time() - cpu, time.monotonic() - began
    if ended.error is not None:
        raise ended.error
    judged = RunSummary.load(directory / "run").cases
    store = sum(path.stat().st_size for path in (directory / "run").glob("results.sqlite*")) / judged
    checks = sum(len(build_check(Question(case, ("passes",))).to_json()) for case in cases) / len(cases)
    answers = sum(len(result.to_json()) for result in results) / len(results)
    print(f"{options.workers} workers{' through Ray' if options.ray else ''}: {judged} cases in {seconds:.0f} s")
    print(
        f"{judged / seconds:.1f} cases a second, {1000 * cpu / judged:.2f} ms CPU a case, {cpu / seconds:.0%} of a CPU"
    )
    print(f"bytes a case: check {checks:.0f}, result {answers:.0f}, store {store:.0f}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
