"""How the answers for released models become a table."""

from typing import Any

from benchmarks.model_answers import format_answers, summarize
from benchmarks.models import format_table


def answer(text: str, block: str = "attn", ratio: float | None = None) -> dict[str, Any]:
    sides = {name: {"label": name, "ratio": ratio} for name in ("old", "new")}
    return {"block": block, "way": "inductor", "mode": "training", "answer": text, **sides}


def judged(model: str, run: str, *answers: dict[str, Any], error: str = "") -> dict[str, Any]:
    return {"model": model, "run": run, "rows": [*answers], "error": error, "seconds": 1.5}


def test_a_run_is_as_bad_as_its_worst_block() -> None:
    assert summarize(judged("a", "training", answer("equal"), answer("equal"))) == "equal"
    worse = (answer("changed within rounding"), answer("new wrong"), answer("new wrong"), answer("equal"))
    assert summarize(judged("a", "training", *worse)) == "new wrong (2 of 4)"
    assert summarize(judged("a", "training", answer("not judged"), answer("equal"))) == "not judged (1 of 2)"


def test_a_run_without_an_answer_is_not_equal() -> None:
    assert summarize(judged("a", "training", error="ValueError: no")) == "not judged"
    cut = judged("a", "training", answer("equal"), error="not done after 900 s")
    assert summarize(cut) == "equal, rest not judged"


def test_the_page_has_a_line_for_each_model_and_names_what_is_wrong() -> None:
    page = format_answers(
        [
            judged("t/bert", "training", answer("new wrong", ratio=312.0), answer("equal", "")),
            judged("t/bert", "inference", answer("equal")),
            judged("t/a", "inference", error="ValueError: no such thing"),
        ]
    ).splitlines()
    assert "| model | training | inference |" in page
    assert "| t/bert | new wrong (1 of 2) | equal |" in page
    assert "| t/a |  | not judged |" in page
    assert page.index("| t/a |  | not judged |") < page.index("| t/bert | new wrong (1 of 2) | equal |")
    wrong = "- `t/bert`, training, attn (inductor, training): new wrong; old 312 times rounding; new 312 times rounding"
    assert wrong in page
    assert "- `t/a`, inference: ValueError: no such thing" in page
    assert page[0].startswith("2 models in 3 runs, 3 answers: 1 new wrong, 2 equal.")


def test_the_page_of_models_begins_with_the_answers() -> None:
    answered = [judged("t/bert", "inference", answer("equal"))]
    root = {"calls": 12, "missing": {}, "different": "", "whole": True, "imported": True}
    rows = [{"name": "transformers/bert", "error": "", "blocks": [root], "verdicts": []}]
    page = format_table(rows, "torch 2.15.0", answered).splitlines()
    assert (
        page.index("| t/bert | equal |")
        < page.index("## As cases")
        < page.index("| transformers/bert | 12 |  | 1 |  |  |")
    )
    assert "| t/bert | equal |" not in format_table(rows, "torch 2.15.0", [])
