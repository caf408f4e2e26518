"""The answers of `fuzz.compare` for released models, in each way that people run them: a table of docs/models.md.

    python -m benchmarks.model_answers transformers/llama@eager ... --python OLD --python NEW --json answers.json
    python -m benchmarks.model_answers --json answers.json --markdown answers.md

The first interpreter needs the extra `models`. A run whose answer stands in the JSON file is not made again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuzz.ask.worker_config import ROOT
from fuzz.module_answer import Answer

_GOOD = (Answer.ROUNDING, Answer.EQUAL)
_WORST = [answer.value for answer in (*(answer for answer in Answer if answer not in _GOOD), *_GOOD)]
_TOLD = [answer.value for answer in (Answer.NEW_WRONG, Answer.REFUSED, Answer.BOTH_WRONG, Answer.OLD_WRONG)]
"""The answers that are listed block by block."""


def list_runs(model: str, python: str) -> list[str]:
    """The ways to run a model, the most telling first."""
    command = [python, "-m", "fuzz.check.module.released_models", model]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    return done.stdout.splitlines()


def compare(model: str, run: str, pythons: Sequence[str], seconds: float) -> dict[str, Any]:
    """The answers for a model in a run, as a row of the JSON file:

    model, run: which
    rows: those of `fuzz.compare --json`, one for each block, way and mode
    error: the reason if there are none
    seconds: how long it took
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        versions = [word for python in pythons for word in ("--python", python)]
        command = [sys.executable, "-m", "fuzz.compare", *versions, "--module", model, "--run", run]
        command += ["--accept-partial", "--quiet", "--json", str(file), "--out", folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds, cwd=ROOT)
            said = done.stderr.strip().splitlines()[-1:] if done.returncode not in {0, 1} else []
        except subprocess.TimeoutExpired:
            said = [f"not done after {seconds:.0f} s"]
        rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    took = round(time.monotonic() - began, 1)
    return {"model": model, "run": run, "rows": rows, "error": "".join(said), "seconds": took}


def summarize(answers: dict[str, Any]) -> str:
    """A run in a few words: its worst answer, and of how many rows it is the answer if others are better."""
    counts = Counter[str](row["answer"] for row in answers["rows"])
    if not counts:
        return "not judged"
    worst = next(answer for answer in _WORST if counts[answer])
    share = f" ({counts[worst]} of {counts.total()})" if len(counts) > 1 else ""
    return f"{worst}{share}{', rest not judged' if answers['error'] else ''}"


def format_answers(answered: Sequence[dict[str, Any]]) -> str:
    """The answers in Markdown: a table of models and runs, every wrong block, and what is not judged and why."""
    runs = list(dict.fromkeys(one["run"] for one in answered))
    cells = {(one["model"], one["run"]): summarize(one) for one in answered}
    models = sorted({one["model"] for one in answered})
    rows = [row for one in answered for row in one["rows"]]
    counts = Counter(row["answer"] for row in rows)
    told = ", ".join(f"{counts[answer]} {answer}" for answer in _WORST if counts[answer])
    lines = [
        f"{len(models)} models in {len(answered)} runs, {len(rows)} answers: {told}.",
        "A cell has the worst answer of a run, and in how many of its rows. It is empty where no model runs so.",
        "",
        f"| model | {' | '.join(runs)} |",
        f"|---|{'---|' * len(runs)}",
        *(f"| {model} | {' | '.join(cells.get((model, run), '') for run in runs)} |" for model in models),
    ]
    wrong = [(one, row) for one in answered for row in one["rows"] if row["answer"] in _TOLD]
    if wrong:
        lines += ["", f"Wrong or refused ({len(wrong)}):", "", *(_tell_block(*each) for each in wrong)]
    failed = [one for one in answered if one["error"]]
    if failed:
        lines += ["", f"Not judged to the end ({len(failed)}):", ""]
        lines += [f"- `{one['model']}`, {one['run']}: {one['error'][:160]}" for one in failed]
    return "\n".join([*lines, ""])


def _tell_block(answers: dict[str, Any], row: dict[str, Any]) -> str:
    sides = [
        f"{side['label']} {side['ratio']:.3g} times rounding" for side in (row["old"], row["new"]) if side["ratio"]
    ]
    name = f"`{answers['model']}`, {answers['run']}, {row['block'] or 'whole'} ({row['way']}, {row['mode']})"
    return f"- {name}: {'; '.join([row['answer'], *sides])}"


def main() -> None:
    """Add the answers of the models that are named, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="such as transformers/llama@eager")
    parser.add_argument("--python", action="append", default=[], help="as for fuzz.compare, the oldest torch first")
    parser.add_argument("--run", action="append", default=[], help="these alone; default: all that apply")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for a run of a model")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds until no further run begins")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    pythons = options.python or [sys.executable]
    answered = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else []
    known = {(one["model"], one["run"]) for one in answered}
    began = time.monotonic()
    for model in options.models:
        try:
            runs = [run for run in list_runs(model, pythons[0]) if not options.run or run in options.run]
        except ValueError as error:
            print(f"{model}: {error}", file=sys.stderr)
            continue
        for run in runs:
            if (model, run) in known or time.monotonic() - began > options.limit:
                continue
            answered.append(compare(model, run, pythons, options.timeout))
            options.json.write_text(json.dumps(answered, indent=1), encoding="utf-8")
            print(f"{model}, {run}: {summarize(answered[-1])}, {answered[-1]['seconds']} s", flush=True)
    if options.markdown is not None:
        options.markdown.write_text(format_answers(answered), encoding="utf-8")


if __name__ == "__main__":
    main()
