"""How fast a campaign judges, how much of it is torch's time, and whether the parent stays small.

    python benchmarks/throughput.py [--budget 10m] [--workers 2] [--seed 1] [--out DIR]

Runs a real campaign of random cases, which its events name by their numbers, and prints: cases and checks a second after the
first minute (a check is one answer of a worker, probes of shrinking included), the share of worker time inside torch, the median seconds of a case by kind, and the
parent's processor share and memory in the first and the last third. With --out naming a finished run, only the numbers
of its event log are printed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WARM_UP_SECONDS = 60.0
SAMPLE_SECONDS = 5.0


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    samples: list[tuple[float, float, float]] = []
    out = options.out or Path(tempfile.mkdtemp(prefix="attnfuzz-throughput-"))
    if not (out / "stats.json").exists():
        samples = run(options.budget, options.workers, options.seed, out)
    for line in (*rates(out), *medians(out), *parent(samples)):
        print(line)
    return 0


def run(budget: str, workers: int, seed: int, out: Path) -> list[tuple[float, float, float]]:
    """Run a campaign; gives (seconds since the start, processor seconds, MiB) of the parent, sampled."""
    command = [
        sys.executable,
        "-m",
        "fuzz.run",
        "--budget",
        budget,
        "--workers",
        str(workers),
        "--seed",
        str(seed),
        "--engine",
        "random",
        "--out",
        str(out),
        "--corpus",
        str(out / "found"),
    ]
    samples = []
    with (out.parent / f"{out.name}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        started = time.monotonic()
        while process.poll() is None:
            sample = _parent(process.pid)
            if sample is not None:
                samples.append((time.monotonic() - started, *sample))
            time.sleep(SAMPLE_SECONDS)
    if process.returncode not in (0, 1):
        raise SystemExit(f"the campaign ended with {process.returncode}; see {out.parent / f'{out.name}.log'}")
    return samples


def _parent(pid: int) -> tuple[float, float] | None:
    """Processor seconds and MiB of one process; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def events(out: Path) -> list[dict[str, Any]]:
    """The event log of a run, from its last start on."""
    with (out / "events.ndjson").open() as lines:
        log = [json.loads(line) for line in lines]
    started = max(i for i, event in enumerate(log) if event["event"] == "CampaignStarted")
    return log[started:]


def rates(out: Path) -> list[str]:
    """Cases and checks a second, and torch's share."""
    log = events(out)
    stats = json.loads((out / "stats.json").read_text())
    judged = [e for e in log if e["event"] in ("CaseJudged", "ProbeJudged")]
    begin = judged[0]["time"] + WARM_UP_SECONDS
    warm = [e for e in judged if e["time"] >= begin]
    cases = [e for e in warm if e["event"] == "CaseJudged"]
    seconds = max(stats["last_update"] - begin, 1e-9)
    busy = sum(e["seconds"] for e in cases) or 1e-9
    inside = sum(e["torch_seconds"] for e in cases) / busy
    return [
        f"{stats['cases_done']} cases and {len(judged) - stats['cases_done']} probes in {stats['run_time']:.0f} s",
        f"after warm-up: {len(warm) / seconds:.2f} checks/s, of them {len(cases) / seconds:.2f} new cases/s",
        f"workers while judging cases: {len(cases) / busy * stats['workers']:.2f} cases/s, {inside:.1%} inside torch",
        f"torch's share of all worker time: {stats['torch_share']:.1%}; the oracle's: {stats['oracle_share']:.1%}",
        f"rejected: {stats['rejected']}; memory of the workers: {stats['worker_rss_mib']} MiB",
    ]


def medians(out: Path) -> list[str]:
    """Median seconds of a case by kind, for cases that met the graph passes alone."""
    from generators.sampling.sample import sample

    seed = json.loads((out / "stats.json").read_text())["seed"]
    by_kind = defaultdict(list)
    for event in events(out):
        if event["event"] == "CaseJudged" and set(event["verdicts"]) == {"passes"}:
            case = sample(seed, event["index"])
            size = "module" if any(i.parameter for i in case.inputs) else "attention"
            by_kind[size, case.mode, "dynamic" if case.dynamic else "static"].append(event["seconds"])
    return [
        f"{' '.join(kind):32} median {statistics.median(times):.3f} s of {len(times)}"
        for kind, times in sorted(by_kind.items())
    ]


def parent(samples: list[tuple[float, float, float]]) -> list[str]:
    """The parent's processor share and memory, first and last third of the run."""
    third = len(samples) // 3
    if not third:
        return []
    lines = []
    for name, part in (("first", samples[:third]), ("last", samples[-third:])):
        share = (part[-1][1] - part[0][1]) / max(part[-1][0] - part[0][0], 1e-9)
        lines.append(f"parent, {name} third: {share:.1%} of one core, {part[-1][2]:.0f} MiB")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
