"""Which mistakes of an attention kernel does the oracle see, which do published criteria see, and what does each raise
on attention that is right?

    python -m benchmarks.oracle_power [--dtype float32] [--workers 2] [--device cuda] [--json PATH] [NAME...]
    python -m benchmarks.oracle_power --correct 10000 [--seed 1] [--workers 2] [--json PATH]

The first form tries the mistakes of `benchmarks.oracle_power.mistakes` (all, or those named) and prints a line for each
mistake and dtype: the oracle's verdict, the value and statistic that were too large and the configuration it took, then
what each criterion of `benchmarks.oracle_power.criteria` says. The second judges cases of `generators.sample(seed,
index, attention_only=True)` on implementations that are right, and prints what is raised. Two cases of three have
degenerate operands: equal values, constant rows, equal keys, zero or equal gradients of the output. --json writes
either with what it was made with. Ctrl-C prints what there is. Exits with 1 where the oracle raises something that is
right, or where a part of the work got lost, which is said.
"""

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.oracle_power import correct, table
from benchmarks.oracle_power.mistakes import ALL, MISTAKES
from benchmarks.oracle_power.processes import run_parts

FINDING = "FINDING {subject} seed {seed} index {index} {id}: {verdict}, {failure} {fired}"
CHUNK = 10
"""Cases handed to a process at once."""


def main() -> int:
    """Run and print. Returns the exit code."""
    options = _options()
    started = time.monotonic()
    lost: list[str] = []
    if options.correct:
        counts = correct.Counts()
        chunks = [range(at, min(at + CHUNK, options.correct)) for at in range(0, options.correct, CHUNK)]
        for part in run_parts(
            options.device,
            options.workers,
            lost,
            correct.judged,
            [(options.seed, chunk, options.device) for chunk in chunks],
        ):
            counts.add(part)
            for finding in part.findings:
                print(FINDING.format(**finding), flush=True)  # now, since a long run may be ended before its summary
            _progress(
                f"{counts.cases} cases, {counts.cases / (time.monotonic() - started):.2f} a second, "
                f"{len(counts.findings)} findings"
            )
        seconds = time.monotonic() - started
        rate = f"{counts.cases / seconds:.2f} a second; {counts.rejected} rejected"
        lines = [*counts.printed(), f"{counts.cases} cases of seed {options.seed} in {seconds:.0f} s, {rate}"]
        found: Any = counts.to_dict()
        raised = len(counts.findings)
    else:
        rows: list[table.Line] = []
        tasks = table.tasks(options.names or list(MISTAKES), options.dtype or list(ALL))
        for part in run_parts(
            options.device, options.workers, lost, table.looked_for, [(*task, options.device) for task in tasks]
        ):
            rows += part
            _progress(f"{len(rows)} of {sum(len(names) for _, _, names in tasks)} lines")
        seconds = time.monotonic() - started
        lines = [*table.printed(rows), f"{seconds:.0f} s"]
        found = [line.to_dict() for line in rows]
        raised = sum(line.seen for line in rows if line.mistake == table.RIGHT)
    lines += [f"LOST {what}" for what in lost]
    print("\n".join(lines))
    if options.json:
        made = {**_provenance(options.device), "seconds": round(seconds), "lost": lost, "found": found}
        options.json.write_text(json.dumps(made, indent=1))
    return 1 if raised or lost else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mistakes; all when none is named")
    parser.add_argument("--dtype", action="append", choices=ALL, help="all when none is given")
    parser.add_argument("--correct", type=int, default=0, metavar="N", help="judge N cases on right implementations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in MISTAKES]
    if unknown:
        parser.error(f"there is no mistake {unknown[0]!r}; there are {', '.join(MISTAKES)}")
    return options


def _progress(text: str) -> None:
    print(f"\r{text} ", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def _provenance(device: str) -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks.oracle_power", *sys.argv[1:]]),
    }


if __name__ == "__main__":
    sys.exit(main())
