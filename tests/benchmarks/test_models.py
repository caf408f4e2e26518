"""Answers for released models become a table, and which models count as showing a bug."""

from dataclasses import replace
from typing import Any

from benchmarks.model_answers import format_answers, summarize
from benchmarks.model_evidence import find_code, list_reaching, nearest
from benchmarks.models import format_table, merge
from corpus.causes import CauseKey, MechanismKind, Part, Stage
from corpus.ledger import Bug
from fuzz.protocol import SubjectResult, Verdict


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


PATTERN = CauseKey("inductor", Stage.JOINT_PASSES, Part.ATTENTION_PATTERNS, MechanismKind.COMPILING_RAISES)
BUG = Bug("bug", "fails", cause=PATTERN, decided_by=())
FAILS = SubjectResult("passes", Verdict.COMPILE_ERROR, applied_rewrites=("_sfdp_pattern_5_training", "mul_softmax"))


def row(name: str, *rewrites: str, error: str = "") -> dict[str, Any]:
    result = {"torch": "2.15.0", "rewrites": [*rewrites], "coverage": ["aten.bmm"]}
    return {"name": name, "error": error, "verdicts": [{"case": "attn", "results": [result]}]}


def test_the_code_of_a_bug_is_what_its_failing_examples_ran() -> None:
    assert find_code(BUG, [FAILS, replace(FAILS, verdict=Verdict.OK, applied_rewrites=("_sfdp_pattern_7",))]) == {
        "sfdp_pattern_5"
    }
    operation = replace(PATTERN, stage=Stage.OPERATION, part="aten.bmm")
    assert find_code(replace(BUG, cause=operation), []) == {"aten.bmm"}
    assert find_code(replace(BUG, cause=replace(PATTERN, stage=Stage.DYNAMO, part="")), [FAILS]) == frozenset()


def test_models_reach_code_in_any_spelling_of_their_attention() -> None:
    rows = [row("transformers/bert@eager", "sfdp_pattern_5"), row("transformers/bert@sdpa"), row("timm/vit")]
    assert list_reaching(rows, frozenset(["sfdp_pattern_5"])) == ("transformers/bert",)
    assert list_reaching(rows, frozenset(["aten.bmm"])) == ("timm/vit", "transformers/bert")


def test_the_variant_nearest_to_each_model_is_kept() -> None:
    lines = [
        "a/b@sdpa, attn with bfloat16",
        "a/b@eager, attn",
        "a/c, attn with S = 3, training",
        "a/c, attn with S = 3",
    ]
    assert nearest(lines) == ("a/b@eager, attn", "a/c, attn with S = 3")


def test_surveys_add_up() -> None:
    (one,) = merge([row("a/b", "x"), row("a/b", "y"), row("a/b", error="no memory")])
    assert (one["error"], len(one["verdicts"])) == ("", 3)
