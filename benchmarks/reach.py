"""What a search reaches with the same number of cases, under Inductor's graph passes alone and judging nothing.

    python -m benchmarks.reach [--engine random] [--engine guided] [--seed 1] [--cases 3000] [--at-once 2]
        [--json PATH] [--plot PATH]
    python -m benchmarks.reach --from PATH.json [--plot PATH]

Compiles case after case as the subjects `passes` and `passes_random` do, without seed files. No eager run is compared
and nothing is shrunk, so that a case takes a third of a second and engines that shrink more are not behind. Prints how
many distinct rewrites were reached after each twelfth of the cases, and where the cases came from.
"""

import argparse
import logging
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.curves import blank, read_runs, save, write_runs
from fuzz.campaign.schedule import Schedule
from fuzz.campaign.search import Guided, Random
from fuzz.check import settings
from fuzz.check.coverage import Coverage
from fuzz.check.program import Program, execute
from fuzz.check.subject_builder import find
from fuzz.protocol import Result, SubjectResult, Verdict
from fuzz.run_store import Results
from generators.program.case import Case
from generators.program.emit import source
from generators.sampling.sample import sample

SUBJECTS = ("passes", "passes_random")
STEPS = 12


@dataclass(frozen=True)
class Reach:
    """One search. `rewrites` and `patterns`: after each of `STEPS` equal parts of its cases; by source, `made`:
    cases, `found`: new rewrites."""

    engine: str
    seed: int
    cases: int
    refused: int
    seconds: float
    rewrites: tuple[int, ...]
    patterns: tuple[int, ...]
    made: dict[str, int]
    found: dict[str, int]


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reach", description=__doc__.splitlines()[0])
    parser.add_argument("--engine", action="append", choices=("random", "guided"))
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--from", dest="given", type=Path, help="print and draw the searches that --json kept")
    options = parser.parse_args()
    if options.given:
        runs = read_runs(Reach, options.given)
    else:
        wanted = [(engine, seed) for seed in options.seed or [1] for engine in options.engine or ("random", "guided")]
        with ProcessPoolExecutor(options.at_once, multiprocessing.get_context("spawn")) as pool:
            running = [pool.submit(run_search, engine, seed, options.cases) for engine, seed in wanted]
            runs = [one.result() for one in running]
    print("\n".join(map(line, runs)))
    if options.plot:
        plot(runs, options.plot)
    if options.json:
        write_runs(runs, options.json)
    return 0


def run_search(engine: str, seed: int, count: int) -> Reach:
    """What one search reaches with `count` cases, in a process where nothing else is compiled meanwhile."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    settings.configure_torch()
    with tempfile.TemporaryDirectory(prefix="attnfuzz-reach-") as scratch, closing(Results(Path(scratch))) as results:
        return _search(engine, seed, count, results)


def _search(engine: str, seed: int, count: int, results: Results) -> Reach:
    def draw(index: int) -> Case:
        return sample(seed, index)

    search = Guided(draw, seed, (), results) if engine == "guided" else Random(draw)
    schedule = Schedule(SUBJECTS)
    started, refused = time.monotonic(), 0
    fired: set[str] = set()
    made, found = Counter[str](), Counter[str]()
    rewrites, patterns = [], []
    for index in range(count):
        chosen = search.choose(index)
        case = chosen.case
        result = compile_case(index, case, schedule.subjects_for(case, targeted=chosen.is_targeted))
        schedule.add_time(result.seconds, {one.subject: one.seconds for one in result.results})
        search.record(case, result)
        refused += result.rejected is not None
        news = {name for one in result.results for name in one.fired} - fired
        fired |= news
        made[chosen.source] += 1
        found[chosen.source] += len(news)
        if (index + 1) * STEPS % count < STEPS:
            rewrites.append(len(fired))
            patterns.append(sum("sfdp" in name for name in fired))
            print(f"{engine} {seed}: {index + 1} cases, {len(fired)} rewrites", file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - started, 1)
    return Reach(engine, seed, count, refused, seconds, tuple(rewrites), tuple(patterns), dict(made), dict(found))


def compile_case(index: int, case: Case, subjects: tuple[str, ...]) -> Result:
    """What a case reaches under these subjects; all verdicts are `ok`."""
    started = time.perf_counter()
    try:
        program = Program(source(case), "cpu")
        execute(
            program.module(case.training), program.module(case.training), [program.inputs()], training=case.training
        )
    except Exception as error:
        return Result(index, f"{type(error).__name__}: {error}", ())
    told = []
    for name in subjects:
        subject, coverage, began = find(name), Coverage(), time.perf_counter()
        module = program.module(case.training)
        try:
            with coverage, subject.apply_settings():
                call = subject.compile(module, case.dynamic)
                execute(call, module, [program.inputs()], training=case.training)
        except Exception as error:
            print(f"{case.id} under {name}: {type(error).__name__}", file=sys.stderr)
        settings.reset_caches()
        seconds = time.perf_counter() - began
        told.append(
            SubjectResult(
                name, Verdict.OK, fired=tuple(coverage.fired), seconds=seconds, reached=tuple(coverage.reached)
            )
        )
    program.close()
    return Result(index, None, tuple(told), time.perf_counter() - started)


def line(run: Reach) -> str:
    """A search in one line."""
    ways = ", ".join(f"{run.found.get(way, 0)} by {count} {way}" for way, count in sorted(run.made.items()))
    return (
        f"{run.engine} seed {run.seed}: {run.cases} cases in {run.seconds / 60:.0f} min, {run.refused} refused; "
        f"rewrites {list(run.rewrites)}, of attention {list(run.patterns)}; {ways}"
    )


def plot(runs: list[Reach], path: Path) -> None:
    """Draw rewrites against cases. A line is a seed."""
    figure, (axis,) = blank(1, (6, 4))
    for engine, colour in (("guided", "black"), ("random", "0.55")):
        for number, run in enumerate(run for run in runs if run.engine == engine):
            cases = [run.cases * (part + 1) // len(run.rewrites) for part in range(len(run.rewrites))]
            axis.plot(cases, run.rewrites, color=colour, lw=1.4, label=engine if not number else None)
    save(figure, path, "cases", ["distinct rewrites reached"])


if __name__ == "__main__":
    sys.exit(main())
