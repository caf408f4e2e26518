"""Ask implementations of attention for their conventions, and write docs/conventions.md.

    python -m benchmarks.conventions [--json FILE] [--markdown FILE]

A question is a call; its answer is the one whose result in float64 the call gives. Answers of implementations that are
not installed stay as they are in the JSON file. The extras jax, keras and mlx install some; onnxruntime and openvino
are installed for development.
"""

import argparse
import inspect
import json
import platform
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.conventions.implementations import IMPLEMENTATIONS, Attend, Implementation
from benchmarks.conventions.questions import NONE, QUESTIONS, Question
from fuzz.ask.worker_config import ROOT

NOT_TAKEN = "-"
MEASURED = Path(ROOT) / "benchmarks/measured/conventions.json"
PAGE = Path(ROOT) / "docs/conventions.md"

_HEAD = """# Conventions: where implementations of attention differ

A question is a small call. Its answer is measured: the call's result is that of the answer, computed in float64.
`{not_taken}` means that the implementation, or our way to call it, does not take the call. `{none}` means that no
answer of `benchmarks/conventions/questions.py` gives the result. Columns:

{columns}

<!-- Made by `python -m benchmarks.conventions`. -->
"""


def ask(implementation: Implementation, question: Question) -> str:
    """The answer of an implementation, one for each corner of causal that it takes. Raises ImportError."""
    load = implementation.load if question.result == "out" else implementation.load_logsumexp
    if load is None:
        return NOT_TAKEN
    function = load()
    corners = getattr(function, "capabilities", {}).get("causal", ("top_left", "bottom_right"))
    calls = [{"causal": corner} for corner in corners] if "causal" in question.call else [{}]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return " or ".join(dict.fromkeys(_ask(function, question, {**question.call, **call}) for call in calls))


def _ask(function: Attend, question: Question, call: dict[str, Any]) -> str:
    if not call.keys() <= inspect.signature(function).parameters.keys():
        return NOT_TAKEN
    q, k, v = (call.pop(name) for name in "qkv")
    try:
        result = function(q, k, v, **call)
    except (NotImplementedError, TypeError):
        return NOT_TAKEN
    except Exception as error:
        return f"raises {type(error).__name__}"
    return question.answer(result)


def measure(recorded: dict[str, Any]) -> dict[str, Any]:
    """The columns of the page by name, each with `versions`, `processor` and `answers` by question.

    Implementations that are not installed have the `recorded` column, if there is one.
    """
    columns = {}
    for implementation in IMPLEMENTATIONS:
        if implementation.is_installed:
            answers = {question.text: ask(implementation, question) for question in QUESTIONS}
            column = {"versions": implementation.tell_versions(), "processor": platform.machine(), "answers": answers}
            columns[implementation.name] = column
        elif implementation.name in recorded:
            columns[implementation.name] = recorded[implementation.name]
    return columns


def format_page(columns: dict[str, Any]) -> str:
    """docs/conventions.md: a table of questions and columns, and words of the documentation beside the answers."""
    notes = {implementation.name: implementation.note for implementation in IMPLEMENTATIONS}
    told = "\n".join(
        f"- {name}: {notes[name]}; {column['versions']}, {column['processor']}" for name, column in columns.items()
    )
    lines = [
        _HEAD.format(not_taken=NOT_TAKEN, none=NONE, columns=told),
        f"| question | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for question in QUESTIONS:
        cells = (column["answers"].get(question.text, "") for column in columns.values())
        lines.append(f"| {question.text} | {' | '.join(cells)} |")
    lines += ["", "## What the documentation says", "", "Word for word, and what was measured.", ""]
    for question in QUESTIONS:
        for name, words in question.said.items():
            measured = columns.get(name, {}).get("answers", {}).get(question.text, "")
            lines.append(f'- {question.text}, {name}: "{words}"; measured: {measured}')
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure what is installed, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=MEASURED)
    parser.add_argument("--markdown", type=Path, default=PAGE)
    options = parser.parse_args()
    recorded = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
    columns = measure(recorded)
    options.json.write_text(json.dumps(columns, indent=1) + "\n", encoding="utf-8")
    options.markdown.write_text(format_page(columns), encoding="utf-8")


if __name__ == "__main__":
    main()
