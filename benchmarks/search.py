"""What each engine reaches in the compiler, from nothing, against time.

    python -m benchmarks.search [--engine random] [--engine guided] [--engine atheris] [--seed 1] [--budget 10m]
        [--workers 2] [--device cpu] [--at-once 1] [--out DIR] [--json PATH] [--plot PATH]
    python -m benchmarks.search --from PATH.json [--plot PATH]

Runs `python -m fuzz.run --engine E --seed N --subject passes ...` for every engine and seed, so many at once and
without seed files, and counts distinct rewrites, lowerings (fallbacks among them) and other things reached (operations
of the graph, kernels; fuzz/check/coverage.py) by their first time. Run directories in --out are gone on with: their
budgets add up. Prints a line for each run and a table of medians; --json keeps the curves, --plot draws them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.curves import blank, save
from fuzz.campaign.search import ENGINES

MOMENTS = 60
"""A curve has so many points, evenly spaced."""
TOLD = 6
"""And so many of them are printed."""
SUBJECTS = ("--subject", "passes", "--subject", "passes_random", "--subject", "inductor")
KINDS = ("rewrites", "patterns", "lowerings", "others")


@dataclass(frozen=True)
class Run:
    """One campaign. `seconds`: its length; `curves`: by kind, how many distinct names were reached by each moment,
    `patterns` being the rewrites of attention; `findings`: saved, by verdict; `torch`: its version."""

    engine: str
    seed: int
    workers: int
    torch: str
    cases: int
    rejected: int
    seconds: float
    curves: dict[str, list[int]]
    findings: dict[str, int]


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__.splitlines()[0])
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--from", dest="given", type=Path, help="runs that --json kept, to tell or draw again")
    options = parser.parse_args()
    if options.given:
        runs = [Run(**run) for run in json.loads(options.given.read_text())]
        print("\n".join(map(line, runs)))
    else:
        runs = _all(options)
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in runs], indent=None).replace("}, {", "},\n{") + "\n")
    if options.plot:
        plot(runs, options.plot)
    print("\n".join(table(runs)))
    return 0


def _all(options: argparse.Namespace) -> list[Run]:
    wanted = [(engine, seed) for seed in options.seed or [1] for engine in options.engine or ENGINES]
    with tempfile.TemporaryDirectory(prefix="attnfuzz-search-") as scratch, ThreadPoolExecutor(options.at_once) as pool:
        out = options.out or Path(scratch)

        def one(engine_seed: tuple[str, int]) -> Run:
            run = campaign(*engine_seed, options.budget, options.workers, options.device, out)
            print(line(run), flush=True)
            return run

        return list(pool.map(one, wanted))


def campaign(engine: str, seed: int, budget: str, workers: int, device: str, out: Path) -> Run:
    """Run one campaign in its directory below `out`, or go on with it."""
    here = (out / f"{engine}-{seed}").absolute()
    (here / "none").mkdir(parents=True, exist_ok=True)
    seeds = ["--seeds", str(here / "none")] if engine != "random" else []
    command = [
        sys.executable,
        "-m",
        "fuzz.run",
        "--engine",
        engine,
        *seeds,
        "--seed",
        str(seed),
        "--budget",
        budget,
        "--workers",
        str(workers),
        "--device",
        device,
        *SUBJECTS,
        "--out",
        str(here / "run"),
        "--corpus",
        str(here / "found"),
        "--ledger",
        "/dev/null",
    ]
    with (here / "log").open("ab") as log:
        subprocess.run(command, stdout=log, stderr=log, check=False)
    return read(engine, seed, map(json.loads, (here / "run" / "events.ndjson").read_text().splitlines()))


def read(engine: str, seed: int, events: Iterable[dict[str, Any]]) -> Run:
    """A campaign's events, of one run or several after each other, as curves over the time they took together."""
    elapsed = before = 0.0
    began = None
    cases = rejected = workers = 0
    torch = ""
    saved: list[str] = []
    first: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for event in events:
        if event["event"] == "CampaignStarted":
            before, began, workers, torch = elapsed, event["time"], event["workers"], event["torch"]
        if began is None:
            continue
        elapsed = before + event["time"] - began
        if event["event"] == "CampaignEnded":
            began = None
        if event["event"] == "FindingSaved" and not event["internal"]:
            saved.append(event["verdict"])
        if event["event"] != "CaseJudged":
            continue
        cases, rejected = cases + 1, rejected + (event["rejected"] is not None)
        for name in event["fired"]:
            first["rewrites"].setdefault(name, elapsed)
            if "sfdp" in name:
                first["patterns"].setdefault(name, elapsed)
        for name in event["reached"]:
            kind = "lowerings" if name.startswith(("lowering ", "fallback ")) else "others"
            first[kind].setdefault(name, elapsed)
    moments = [elapsed * (part + 1) / MOMENTS for part in range(MOMENTS)]
    curves = {
        kind: [sum(when <= moment for when in names.values()) for moment in moments] for kind, names in first.items()
    }
    findings = {verdict: saved.count(verdict) for verdict in sorted(set(saved))}
    return Run(engine, seed, workers, torch, cases, rejected, round(elapsed, 1), curves, findings)


def line(run: Run) -> str:
    """A run in one line: what it reached by some moments."""
    findings = ", ".join(f"{count} {verdict}" for verdict, count in run.findings.items()) or "none"
    every = MOMENTS // TOLD
    curves = "; ".join(f"{kind} {run.curves[kind][every - 1 :: every]}" for kind in KINDS)
    return (
        f"{run.engine} seed {run.seed}, torch {run.torch}, {run.workers} workers for {run.seconds / 60:.0f} min:"
        f" {run.cases} cases, {run.rejected} rejected; {curves}; findings: {findings}"
    )


def table(runs: list[Run]) -> list[str]:
    """Medians over the seeds at the end, an engine a line, in Markdown."""
    lines = [f"| engine | seeds | cases | {' | '.join(KINDS)} | findings |", "|---" * (len(KINDS) + 4) + "|"]
    for engine in dict.fromkeys(run.engine for run in runs):
        own = [run for run in runs if run.engine == engine]
        told = [f"{statistics.median(run.curves[kind][-1] for run in own):g}" for kind in KINDS]
        cases = statistics.median(run.cases for run in own)
        found = statistics.median(sum(run.findings.values()) for run in own)
        lines.append(f"| {engine} | {len(own)} | {cases:g} | {' | '.join(told)} | {found:g} |")
    return lines


def plot(runs: list[Run], path: Path) -> None:
    """Draw rewrites and lowerings against minutes on one machine of two cores: worker time over two. A line is a
    seed."""
    styles = {"guided": ("black", "-"), "random": ("0.55", "-"), "atheris": ("0.3", ":")}
    kinds = ("rewrites", "lowerings")
    figure, axes = blank(len(kinds), (10, 4))
    for axis, kind in zip(axes, kinds, strict=True):
        for engine, (colour, style) in styles.items():
            own = [run for run in runs if run.engine == engine]
            for number, run in enumerate(own):
                minutes = [run.seconds * run.workers / 120 * (part + 1) / MOMENTS for part in range(MOMENTS)]
                axis.plot(minutes, run.curves[kind], style, color=colour, lw=1.4, label=engine if not number else None)
    save(figure, path, "minutes of two workers", [f"distinct {kind} reached" for kind in kinds])


if __name__ == "__main__":
    sys.exit(main())
