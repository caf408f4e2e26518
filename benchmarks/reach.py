"""What a search reaches with the same number of cases, under Inductor's graph passes alone and judging nothing.

    python -m benchmarks.reach [--engine random] [--engine guided] [--seed 1] [--cases 3000] [--at-once 2]
        [--json PATH] [--plot PATH]
    python -m benchmarks.reach --from PATH.json [--plot PATH]
    python -m benchmarks.reach --against-dynamo [--seed 1] [--cases 1000] [--device cuda]

Compiles case after case as the subjects `passes` and `passes_random` do, without seed files. No eager run is compared
and nothing is shrunk, so that a case takes a third of a second and engines that shrink more are not behind. Prints how
many distinct rewrites were reached after each twelfth of the cases, and where the cases came from.

With `--against-dynamo` random cases are judged twice, in turn: with the graph that one run records
(fuzz/check/run/graph_passes.py) and with Dynamo's. Prints every difference in verdicts, errors, rewrites and how often
each fired, and what else was reached, then how many cases were left to Dynamo and the processor time of the others.
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
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.curves import blank, read_runs, save, write_runs
from fuzz.ask.question import Question, build_check
from fuzz.campaign.schedule import Schedule
from fuzz.campaign.search import Guided, Random
from fuzz.check.check import check
from fuzz.check.run import graph_passes
from fuzz.check.run.graph_passes import backend
from fuzz.check.run.program import Program, execute
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api import settings
from fuzz.check.torch_api.coverage import PARTS, Coverage, rewrite_name
from fuzz.check.torch_api.torch_internals import wrap
from fuzz.protocol import Check, CoverageItem, Result, SubjectResult, Verdict
from fuzz.run_store import Results
from generators.program.case import Case
from generators.program.emit import is_random, source
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
    parser.add_argument("--against-dynamo", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="with --against-dynamo")
    options = parser.parse_args()
    if options.against_dynamo:
        for seed in options.seed or [1]:
            compare_captures(seed, options.cases, options.device)
        return 0
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
    with tempfile.TemporaryDirectory(prefix="attnfuzz-reach-") as scratch, Results(Path(scratch)) as results:
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
        schedule.add_time((), result.seconds, {one.subject: one.seconds for one in result.results})
        search.record(case, result)
        refused += result.rejected is not None
        news = {name for one in result.results for name in one.applied_rewrites} - fired
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
        torch.compiler.reset()
        seconds = time.perf_counter() - began
        told.append(
            SubjectResult(
                name,
                Verdict.OK,
                applied_rewrites=tuple(coverage.applied_rewrites),
                seconds=seconds,
                coverage=tuple(coverage.items),
            )
        )
    program.close()
    return Result(index, None, tuple(told), time.perf_counter() - started)


def compare_captures(seed: int, count: int, device: str) -> None:
    """Judge random cases with the recorded graph and with Dynamo's, and print what differs."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    settings.configure_torch()
    compared, left, different, fired, seconds = 0, 0, 0, Counter[str](), [0.0, 0.0]
    for index in range(count):
        case = sample(seed, index, device=device)
        subjects = ["passes", *["passes_random"] * is_random(case), *["passes_recomputing"] * case.training]
        for name in subjects:
            request = build_check(Question(case, (name,)))
            pair, took = [Seen(), Seen()], [0.0, 0.0]
            for place in (0, 1) if index % 2 else (1, 0):
                pair[place], took[place] = _see(request, name, device, traced=bool(place))
            if not pair[0].is_recorded:
                left += 1
                continue
            compared += 1
            seconds = [total + one for total, one in zip(seconds, took, strict=True)] if index >= 10 else seconds
            fired.update(dict(pair[0].rewrites))
            fired.subtract(dict(pair[1].rewrites))
            if pair[0] != pair[1]:
                different += 1
                print(f"{seed} {index} under {name}: recorded {pair[0]}, traced {pair[1]}", flush=True)
    changed = ", ".join(f"{name} {times:+}" for name, times in fired.items() if times)
    print(
        f"torch {torch.__version__}, {device}, seed {seed}: {compared} compared, {different} differ,"
        f" {left} left to Dynamo;"
        f" rewrites that fire more or less often: {changed or 'none'};"
        f" processor time {seconds[0]:.0f} s recorded, {seconds[1]:.0f} s traced"
    )


@dataclass(frozen=True)
class Seen:
    """What a case showed: verdict and errors, rewrites and how often each fired, and what else was reached."""

    judged: str = ""
    rewrites: tuple[tuple[str, int], ...] = ()
    coverage: tuple[CoverageItem, ...] = ()
    is_recorded: bool = field(default=False, compare=False)


def _see(request: Check, name: str, device: str, *, traced: bool) -> tuple[Seen, float]:
    """What the case shows, compiled with Dynamo if `traced`, and the processor time in seconds."""
    subject, counts, recorded = find(name), Counter[str](), list[Any]()
    if traced:
        subject = replace(
            subject, compile=lambda module, dynamic: torch.compile(module, backend=backend(), dynamic=dynamic)
        )
    FakeTensorMode.cache_clear()  # which the other road filled with the same shapes

    def count(apply: Any) -> Any:
        def apply_and_count(entry: Any, *rest: Any) -> None:
            counts[rewrite_name(entry)] += 1
            apply(entry, *rest)

        return apply_and_count

    def note(compile_recording: Any) -> Any:
        def note_and_compile(*given: Any) -> Any:
            recorded.append(given)
            return compile_recording(*given)

        return note_and_compile

    started = time.process_time()
    with ExitStack() as stack:
        for module, path in PARTS["rewrites"]:
            stack.enter_context(wrap(module, path, count))
        stack.enter_context(wrap(graph_passes.__name__, "Recording.compile", note))
        result = check(request, {name: subject}, device)
    took = time.process_time() - started
    if not result.results:
        return Seen(str(result.rejected)), took
    (one,) = result.results
    text = getattr(one.failure, "text", one.failure)
    judged = f"{one.verdict} {one.numbers} {text} {one.right_rewrites} {one.wrong_rewrites}"
    return Seen(judged, tuple(sorted(counts.items())), one.coverage, bool(recorded)), took


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
