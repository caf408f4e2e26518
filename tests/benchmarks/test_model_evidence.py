"""Which models count as showing a bug, or as running its code."""

from dataclasses import replace
from typing import Any

from benchmarks.model_evidence import find_code, list_reaching, nearest
from benchmarks.models import merge
from corpus.causes import CauseKey, MechanismKind, Part, Stage
from corpus.ledger import Bug
from fuzz.protocol import SubjectResult, Verdict

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
