"""How long a campaign takes to find each planted defect of `benchmarks.defects`, and what it makes of it.

    python -m benchmarks.planted [--torch] [--workers 2] [--budget 10m] [--seed 1] [NAME...]

For every defect runs `python -m fuzz.run --subject benchmarks.defects:NAME --fail-fast`, again where what it saves is
a bug without the defect too, and prints the seconds to the first suspicion and to the saved finding, its verdict,
operations and sizes, and where the error is. Exits with 1 when one is missed.

With `--torch` the defects are those of `benchmarks/planted_torch` that take writes, several calls or settings to show.
They are in torch's own functions, so that campaigns have their usual subjects; `mask_forgotten` needs `--device cuda`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.attribution import planted
from benchmarks.defects import DEFECTS
from benchmarks.planted_torch.sitecustomize import FUNCTIONS
from corpus import entry
from fuzz.durations import parse_duration
from fuzz.evaluator import WorkerConfig, open_evaluator
from fuzz.protocol import Verdict
from generators.program.ops import OPS

GRACE_SECONDS = 20.0
"""With less of the budget left no campaign begins."""


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--torch", action="store_true", help="plant them in torch's own functions")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    missed = 0
    for name in options.names or (FUNCTIONS if options.torch else DEFECTS):
        with tempfile.TemporaryDirectory(prefix="attnfuzz-planted-") as scratch:
            out = Path(scratch) / "run"
            command = [sys.executable, "-m", "fuzz.run", "--fail-fast"]
            command += [] if options.torch else [f"--subject=benchmarks.defects:{name}"]
            command += [f"--{key}={getattr(options, key)}" for key in ("workers", "seed", "device")]
            command += [f"--out={out}", f"--corpus={scratch}/found"]
            end, findings, others = time.monotonic() + parse_duration(options.budget, "budget"), 0, set[str]()
            while time.monotonic() < end - GRACE_SECONDS:
                with planted(name if options.torch else ""):
                    budget = f"--budget={end - time.monotonic():.0f}s"
                    subprocess.run([*command, budget], stdout=subprocess.DEVNULL, check=False)
                events = [json.loads(line) for line in (out / "events.ndjson").read_text().splitlines()]
                saved = [e for e in events if e["event"] == "FindingSaved"]
                if len(saved) == findings:
                    break
                findings = len(saved)
                if not (options.torch and shows_without_defect(saved[-1], options.device)):
                    break
                others.add(saved[-1]["path"])
            missed += not print_found(name, events, others)
    return 1 if missed else 0


def shows_without_defect(found: dict[str, Any], device: str) -> bool:
    """Whether a finding is one in a torch without the defect too."""
    subject = found["result"]["subject"]
    config = WorkerConfig.from_options(None, device, (subject,), "120s", 4096, 1)
    with open_evaluator(config) as evaluator:
        return evaluator.judge(entry.load(Path(found["path"])).case, subject).verdict.is_finding


def print_found(name: str, events: list[dict[str, Any]], others: set[str]) -> bool:
    """Print one line on a run; whether it found something. `others`: files of findings that are not the defect."""
    began = next(e["time"] for e in events if e["event"] == "CampaignStarted")
    # What eager gets wrong on the way is no planted defect.
    about_it = [e for e in events if e.get("verdict") != Verdict.EAGER_SUSPECT and e.get("path") not in others]
    found = next((e for e in about_it if e["event"] == "FindingSaved"), None)
    cases = sum(e["event"] == "CaseJudged" for e in events)
    seen = next((e["time"] for e in about_it if e["event"] == "SuspicionRaised"), began)
    if found is None:
        first = f"seen after {seen - began:.0f} s, " if seen > began else ""
        print(f"{name}: {first}not saved in {cases} cases", flush=True)
        return False
    where = found["where"] or found["result"]["failure"]["kind"]
    sizes = next((line for line in found["source"].splitlines() if " = " in line and line[0].isupper()), "all sizes 1")
    case = entry.load(Path(found["path"])).case
    calls, writes = 1 + len(case.calls), sum(OPS[op.kind].writes for op in case.ops)
    print(
        f"{name}: seen after {seen - began:.0f} s, saved after {found['time'] - began:.0f} s and {cases} cases: "
        f"{found['verdict']}, {calls} calls, {len(case.ops)} operations, {writes} writes, {sizes}, "
        f"settings {dict(case.settings)}; {where}",
        flush=True,
    )
    return True


if __name__ == "__main__":
    sys.exit(main())
