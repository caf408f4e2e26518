"""What each engine reaches in the compiler, from nothing, against time.

    python -m benchmarks.search [--engine random] [--engine guided] [--engine atheris] [--seed 1] [--budget 10m] [--workers 2]
        [--json PATH]

Runs `python -m fuzz.run --engine E --seed N --subject passes --subject inductor` for every engine and seed, one after the
other and without seed files, and counts distinct rewrites and other things reached (lowerings, fallbacks, operations of the
graph, kernels; fuzz/check/coverage.py) by their first time. Prints a line for each run and the medians; --json keeps all.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuzz.campaign.budget import duration
from fuzz.campaign.search import ENGINES

PARTS = 6
"""Each run is told at so many moments, evenly spaced."""


@dataclass(frozen=True)
class Run:
    """One campaign. `rewrites` and `others`: distinct names reached by each moment; `patterns`: attention rewrites at its end;
    `findings`: saved, by verdict."""

    engine: str
    seed: int
    cases: int
    rejected: int
    rewrites: list[int]
    others: list[int]
    patterns: int
    findings: dict[str, int]


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds = duration(options.budget, "budget")
    runs: list[Run] = []
    for seed in options.seed or [1]:
        for engine in options.engine or ENGINES:
            runs.append(_measured(engine, seed, options.budget, seconds, options.workers))
            print(_line(runs[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    for engine in dict.fromkeys(run.engine for run in runs):
        own = [run for run in runs if run.engine == engine]
        told = {name: statistics.median(getattr(run, name)[-1] for run in own) for name in ("rewrites", "others")}
        patterns = statistics.median(run.patterns for run in own)
        print(f"{engine}: medians of {len(own)}: {told['rewrites']:g} rewrites, {patterns:g} of them of attention, "
              f"{told['others']:g} other things")
    return 0


def _measured(engine: str, seed: int, budget: str, seconds: float, workers: str) -> Run:
    with tempfile.TemporaryDirectory(prefix="attnfuzz-search-") as scratch:
        out = Path(scratch)
        (out / "none").mkdir()
        seeds = ["--seeds", str(out / "none")] if engine != "random" else []
        command = [sys.executable, "-m", "fuzz.run", "--engine", engine, *seeds, "--seed", str(seed), "--budget", budget,
                   "--workers", workers, "--subject", "passes", "--subject", "inductor",
                   "--out", str(out / "run"), "--corpus", str(out / "found"), "--ledger", "/dev/null"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        events = [json.loads(line) for line in (out / "run" / "events.ndjson").read_text().splitlines()]
    return _read(engine, seed, seconds, events)


def _read(engine: str, seed: int, seconds: float, events: list[dict[str, Any]]) -> Run:
    began = next(e["time"] for e in events if e["event"] == "CampaignStarted")
    judged = [e for e in events if e["event"] == "CaseJudged"]
    saved = [e["verdict"] for e in events if e["event"] == "FindingSaved" and not e["internal"]]
    found: dict[str, dict[str, float]] = {"fired": {}, "reached": {}}
    for event in judged:
        for kind, first in found.items():
            for name in event.get(kind, ()):
                first.setdefault(name, event["time"] - began)
    moments = [seconds * (part + 1) / PARTS for part in range(PARTS)]
    by_time = {kind: [sum(when <= moment for when in first.values()) for moment in moments] for kind, first in found.items()}
    return Run(
        engine,
        seed,
        len(judged),
        sum(e["rejected"] is not None for e in judged),
        by_time["fired"],
        by_time["reached"],
        sum("sfdp" in name for name in found["fired"]),
        {verdict: saved.count(verdict) for verdict in sorted(set(saved))},
    )


def _line(run: Run) -> str:
    findings = ", ".join(f"{count} {verdict}" for verdict, count in run.findings.items()) or "none"
    return (
        f"{run.engine} seed {run.seed}: {run.cases} cases, {run.rejected} rejected; rewrites {run.rewrites}, "
        f"{run.patterns} of attention; others {run.others}; findings: {findings}"
    )


if __name__ == "__main__":
    sys.exit(main())
