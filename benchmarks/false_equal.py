"""Blocks of released models that a plain script sees wrong, and what `fuzz.compare` says of them.

    python -m benchmarks.false_equal transformers/llama@eager ... --run "training, left padding" --json rows.json

Both judge the same blocks with the same inputs (benchmarks.plain_models). An answer of "equal" or "changed within
rounding" is false where the script sees compiled results more than 10 times as far from float64 as eager's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fuzz.ask.worker_config import ROOT
from fuzz.module_answer import Answer

_FACTOR = 10.0
_GOOD = {Answer.EQUAL.value, Answer.ROUNDING.value}


def run(command: list[str], seconds: float) -> str:
    """The output of a command, which has a cache of compiled code of its own."""
    with tempfile.TemporaryDirectory() as cache:
        variables = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", *command],
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
                cwd=ROOT,
                env=variables,
            )
        except subprocess.TimeoutExpired:
            return ""
    return str(done.stdout)


def judge(name: str, run_name: str, seconds: float) -> list[dict[str, Any]]:
    """A row for each block of a model: the errors that the script sees, and the worst answer of the tool."""
    began = time.monotonic()
    lines = run(["benchmarks.plain_models", name, "--run", run_name], seconds).splitlines()
    plain = [row for row in map(json.loads, lines) if "block" in row]
    middle = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        run(
            ["fuzz.compare", "--quiet", "--module", name, "--run", run_name, "--json", str(file), "--out", folder],
            seconds,
        )
        rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    took = {"plain_seconds": round(middle - began), "tool_seconds": round(time.monotonic() - middle)}
    return [{**row, **took, "answer": find_answer(row["block"], rows)} for row in plain]


def find_answer(block: str, rows: list[dict[str, Any]]) -> str:
    """The worst answer about a block, or about the smallest block around it that was judged."""
    order = [answer.value for answer in Answer]
    ends = [*(end for end, letter in enumerate(block) if letter == "."), len(block)]
    for path in (*(block[:end] for end in reversed(ends)), ""):
        answers = [row["answer"] for row in rows if row["block"] == path]
        if answers:
            return str(min(answers, key=order.index))
    return "no answer"


def is_wrong(row: dict[str, Any]) -> bool:
    """Whether the script sees that compiled code raises, or is further from float64 than rounding explains."""
    return "raised" in row or row.get("compiled", 0.0) > _FACTOR * max(row.get("eager", 0.0), 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--run", action="append", required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for a model, for each of both")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds until no further model begins")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    began, rows = time.monotonic(), list[dict[str, Any]]()

    def work(task: tuple[str, str]) -> None:
        if time.monotonic() - began < options.limit:
            rows.extend(judge(*task, options.timeout))
            options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(work, [(name, run_name) for run_name in options.run for name in options.names]))
    wrong = list(filter(is_wrong, rows))
    print(f"{len(rows)} blocks of {len({row['model'] for row in rows})} models; the script sees {len(wrong)} wrong")
    answers = [row["answer"] for row in rows]
    print(", ".join(f"{answers.count(one)} {one}" for one in dict.fromkeys(answers)))
    for row in wrong:
        print(f"{'FALSE ' if row['answer'] in _GOOD else ''}{row}")


if __name__ == "__main__":
    main()
