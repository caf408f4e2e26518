"""Mistakes planted in torch that programs of one form alone show: each is seen in its case, and in no other."""

from pathlib import Path

import pytest

from benchmarks.attribution import planted
from corpus.casefile import loads
from corpus.entry import Entry, Expectation, load
from corpus.ledger import LEDGER
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import AnswerCache, Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.decide import load_ledger
from fuzz.attribution.study import Study
from fuzz.known_bugs import find_decided, read_known_bugs
from fuzz.protocol import Verdict
from fuzz.protocol.failures import Raised
from generators.program.case import Case

pytestmark = [pytest.mark.worker, pytest.mark.compiles]

KNOWN = Path(__file__).parents[2] / "corpus" / "known"
_SQUARE = "{shape: [S, S], dtype: float32, values: {seed: 0}}"
CASES = {
    "number_cut": """
inputs: {x: SQUARE}
ops: [{name: out, op: mul, args: [x], other: 2.0}]
calls: [{numbers: [[factor, 1.5]]}, {numbers: [[factor, 0.5]]}]
numbers: {factor: {value: 2.0, uses: [{op: out, attribute: other}]}}
""",
    "flag_unguarded": """
inputs: {x: SQUARE}
ops: [{name: out, op: sum, args: [x], dim: 1, keepdim: true}]
calls: [{numbers: [[keeps, false]]}]
numbers: {keeps: {value: true, uses: [{op: out, attribute: keepdim}]}}
""",
    "clip_forgotten": """
mode: training
inputs: {x: SQUARE}
ops: [{name: big, op: mul, args: [x], other: 2.0}, {name: out, op: exp, args: [big]}]
regions: [{kind: autograd_function, ops: [out], option: clipped}]
""",
    "slots_swapped": """
mode: training
inputs: {x: SQUARE, y: SQUARE}
ops: [{name: out, op: mul, args: [x, y]}]
regions: [{kind: autograd_function, ops: [out], option: straight}]
""",
    "autocast_kept": """
inputs: {x: SQUARE}
ops: [{name: first, op: matmul, args: [x, x]}, {name: out, op: matmul, args: [x, x]}]
returns: [first, out]
regions: [{kind: autocast, ops: [first, out], option: bfloat16}, {kind: autocast, ops: [out], option: "off"}]
""",
    "inner_dtype_ignored": """
inputs: {x: SQUARE}
ops: [{name: first, op: matmul, args: [x, x]}, {name: out, op: matmul, args: [x, x]}]
returns: [first, out]
regions: [{kind: autocast, ops: [first, out], option: bfloat16}, {kind: autocast, ops: [out], option: float16}]
""",
    "first_body_reused": """
inputs: {x: SQUARE}
ops: [{name: first, op: exp, args: [x]}, {name: out, op: tanh, args: [first]}]
regions: [{kind: compile_region, ops: [first]}, {kind: compile_region, ops: [out], option: layer}]
""",
    "inner_region_skipped": """
inputs: {x: SQUARE, y: SQUARE}
ops: [{name: first, op: exp, args: [x]}, {name: out, op: sub, args: [first, y]}]
regions: [{kind: compile_region, ops: [first, out]}, {kind: compile_region, ops: [out], option: layer}]
""",
    "copy_back_lost": """
inputs: {x: SQUARE}
ops: [{name: written, op: mul_, args: [x], other: 2.0}, {name: out, op: exp, args: [x]}]
regions: [{kind: functionalize, ops: [written, out]}]
""",
    "view_not_replayed": """
inputs: {x: SQUARE}
ops:
- {name: base, op: exp, args: [x]}
- {name: row, op: transpose, args: [base]}
- {name: written, op: mul_, args: [row], other: 2.0}
returns: [base]
regions: [{kind: functionalize, ops: [base, row, written]}]
""",
}
"""By the name of the defect, two for each form: the case without its first lines."""


def make_case(name: str) -> Case:
    text = CASES[name].replace("SQUARE", _SQUARE)
    return loads(f"case_format: 1\ndims: {{S: 4}}\n{text}" + "returns: [out]\n" * ("returns" not in text))


@pytest.mark.parametrize("number", [0, 1])
def test_a_defect_is_seen_in_its_case_alone(number: int) -> None:
    names = [*CASES][number::2]
    with planted(",".join(names)), open_evaluator(WorkerConfig(timeout=120), repeat=1) as evaluator:
        for name in CASES:
            # torch.compile refuses functionalize.
            case = make_case(name)
            subject = "eager" if case.regions[:1] and case.regions[0].kind == "functionalize" else "passes"
            result = evaluator.ask(Question(case, (subject,))).only
            assert result.verdict.is_finding == (name in names), (name, result.failure)
            assert not isinstance(result.failure, Raised)


@pytest.mark.parametrize(
    ("plant", "case", "known"),
    [
        ("first_body_reused", make_case("first_body_reused"), None),
        ("inner_region_skipped", make_case("inner_region_skipped"), None),
        ("", load(KNOWN / "compile-region-in-another.case.yaml").case, "compile-region-of-another-layer"),
        ("", load(KNOWN / "compile-region-of-closures.case.yaml").case, "compile-region-of-another-layer"),
    ],
)
def test_only_regions_that_share_a_function_show_the_known_bug_of_these(
    plant: str, case: Case, known: str | None
) -> None:
    with planted(plant), open_evaluator(WorkerConfig(timeout=120), repeat=1) as evaluator:
        result = evaluator.ask(Question(case, ("passes",))).only
        assert result.verdict is Verdict.WRONG_RESULT
        entry = Entry(case, expect=Expectation("known", subject="passes"))
        known_bugs = read_known_bugs(load_ledger(LEDGER), evaluator.hello, {})
        study, alike = (
            Study(AnswerCache(evaluator), entry, "passes", result),
            known_bugs.list_alike(known_bugs.symptom(result, case)),
        )
        found = find_decided(alike, study, known_bugs)
        assert (found and found.bug and found.bug.id) == known
