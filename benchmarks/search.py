"""What each engine reaches in the compiler, from nothing, against time.

    python -m benchmarks.search [--engine random] [--engine guided] [--engine atheris] [--seed 1] [--budget 10m]
        [--workers 2] [--device cpu] [--json PATH] [--plot PATH]
    python -m benchmarks.search --from PATH.json [--plot PATH]

Runs `python -m fuzz.run --engine E --seed N --subject passes ...` for every engine and seed, without seed files, and
counts distinct rewrites, lowerings (fallbacks among them) and other things reached (operations of the graph, kernels;
fuzz/check/torch_api/coverage.py) by their first time. Prints a table of medians; --json keeps the curves, --plot draws
them.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.curves import blank, read_runs, save, write_runs
from fuzz.campaign.search import ENGINES
from fuzz.run_store import read_events

MOMENTS = 60
"""A curve has so many points, evenly spaced."""
SUBJECTS = ("passes", "passes_random", "inductor")
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
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--from", dest="given", type=Path, help="print and draw the campaigns that --json kept")
    options = parser.parse_args()
    if options.given:
        runs = read_runs(Run, options.given)
    else:
        wanted = [(engine, seed) for seed in options.seed or [1] for engine in options.engine or ENGINES]
        runs = [run_campaign(*one, options.budget, options.workers, options.device) for one in wanted]
    print("\n".join(table(runs)))
    if options.json:
        write_runs(runs, options.json)
    if options.plot:
        plot(runs, options.plot)
    return 0


def run_campaign(engine: str, seed: int, budget: str, workers: int, device: str) -> Run:
    """Run one campaign in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="attnfuzz-search-") as scratch:
        here = Path(scratch)
        (here / "none").mkdir()
        options = {"engine": engine, "seed": seed, "budget": budget, "workers": workers, "device": device,
                   "out": here / "run", "corpus": here / "found", "ledger": "/dev/null"}  # fmt: skip
        if engine != "random":
            options["seeds"] = here / "none"
        command = [sys.executable, "-m", "fuzz.run", *(f"--{name}={value}" for name, value in options.items())]
        command += [f"--subject={subject}" for subject in SUBJECTS]
        subprocess.run(command, stdout=sys.stderr, check=False)
        return follow(engine, seed, read_events(here / "run"))


def follow(engine: str, seed: int, events: Iterable[dict[str, Any]]) -> Run:
    """A campaign's events as curves over its time."""
    elapsed = began = 0.0
    cases = rejected = workers = 0
    torch = ""
    findings = Counter[str]()
    first: dict[str, dict[tuple[str, str], float]] = {kind: {} for kind in KINDS}
    for event in events:
        if event["event"] == "CampaignStarted":
            began, workers, torch = event["time"], event["workers"], event["torch"]
        elapsed = event["time"] - began
        if event["event"] == "FindingSaved" and not event["internal"]:
            findings[event["verdict"]] += 1
        if event["event"] != "CaseJudged":
            continue
        cases, rejected = cases + 1, rejected + (event["rejected"] is not None)
        for item in event["coverage"]:
            kind = {"rewrite": "rewrites", "lowering": "lowerings", "fallback": "lowerings"}.get(item["kind"], "others")
            named = (item["kind"], item["name"])
            first[kind].setdefault(named, elapsed)
            if kind == "rewrites" and "sfdp" in item["name"]:
                first["patterns"].setdefault(named, elapsed)
    moments = [elapsed * (part + 1) / MOMENTS for part in range(MOMENTS)]
    curves = {
        kind: [sum(when <= moment for when in names.values()) for moment in moments] for kind, names in first.items()
    }
    return Run(engine, seed, workers, torch, cases, rejected, round(elapsed, 1), curves, dict(findings))


def table(runs: list[Run]) -> list[str]:
    """Medians over the seeds at the end, an engine a line, in Markdown."""
    lines = [f"| engine | seeds | cases | {' | '.join(KINDS)} | findings |", "|---" * (len(KINDS) + 4) + "|"]
    for engine in dict.fromkeys(run.engine for run in runs):
        own = [run for run in runs if run.engine == engine]
        reached = [f"{statistics.median(run.curves[kind][-1] for run in own):g}" for kind in KINDS]
        cases = statistics.median(run.cases for run in own)
        found = statistics.median(sum(run.findings.values()) for run in own)
        lines.append(f"| {engine} | {len(own)} | {cases:g} | {' | '.join(reached)} | {found:g} |")
    return lines


def plot(runs: list[Run], path: Path) -> None:
    """Draw rewrites and lowerings against minutes of two workers. A line is a seed."""
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
