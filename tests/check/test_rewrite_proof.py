"""A rewrite is proven wrong on the operands it took; a fused call is at fault where eager is wrong too."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.planted_torch.torch_defects import OPERATIONS
from corpus import entry
from fuzz.ask.question import Question, build_check
from fuzz.bug_identity import Symptom
from fuzz.campaign.investigation import Investigation
from fuzz.check.check import check
from fuzz.check.run.subject_builder import find
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import FaultyOperation, NotTaken, Raised, Refusal
from fuzz.protocol.rewrites import EMPTY_ROWS, SDPA, OtherConstant, WrongRewrite, are_all_known
from generators.program.case import Case
from generators.program.features import features
from generators.records import decode, encode
from tests.check.in_process import run_subject, source
from tests.fake_asker import FakeAsker

integer_mask = pytest.mark.torch("<2.14", "keeps keys where a mask of integers is 1")

CORPUS = Path(__file__).parents[2] / "corpus"
FLOAT_MASK = ("dtype: int64, values: {kind: small_counts", "dtype: float32, values: {kind: normal")
CAUSES = {
    "integer-mask": "attn_mask",
    "boolean-mask-added": "attn_mask",
    "boolean-mask-added-in-bfloat16": "attn_mask",
    "row-without-a-key": "causal_mask",
    "fill-of-one": "full",
    "factor-of-an-added-mask": "add",
    "fill-of-one-and-bias": "causal_mask",
    "softmax-over-dim-0": "amax+sum",
    "masked-softmax-over-queries": "amax+sum",
    "heads-and-batches-swapped": "permute",
    "permuted-sdpa": "permute",
    "permuted-compile-error": "permute",
    "key-of-other-rank": "permute",
    "strides-of-the-fused-call": "strides",
}
BUGS = [
    {"integer-mask"},
    {"boolean-mask-added", "boolean-mask-added-in-bfloat16"},
    {"row-without-a-key"},
    {
        "fill-of-one",
        "factor-of-an-added-mask",
        "softmax-over-dim-0",
        "masked-softmax-over-queries",
        "heads-and-batches-swapped",
        "permuted-sdpa",
        "permuted-compile-error",
        "key-of-other-rank",
    },
    {"fill-of-one-and-bias"},  # its mask has one element, so that it does not tell which
    {"strides-of-the-fused-call"},
]


def judge(case: Case) -> SubjectResult:
    request = build_check(Question(case, ("passes",)))
    return check(request, {"passes": find("passes")}, "cpu").results[0]


@pytest.mark.compiles
@pytest.mark.parametrize("last", [(), ("float(out.sum())",)])
def test_a_rewrite_is_measured_on_the_inputs_of_its_graph(last: tuple[str, ...]) -> None:
    text = source(
        "q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))",
        "scores = q @ k.transpose(-2, -1) / 4.0",
        "hidden = (rest[0] == 0).view(B, 1, 1, S).expand_as(scores)",
        "out = scores.masked_fill(hidden, float('-inf')).softmax(dim=-1) @ v",
        *last,
        "return out.tanh()",
        layout="B, S, H, D",
        extra="(torch.arange(S) % 3).repeat(B, 1)",
    )
    result = run_subject(find("passes"), text=text)
    assert [set(one.right) for one in result.wrong_rewrites] == [{"attn_mask"}]


@pytest.mark.compiles
def test_a_match_that_cannot_be_read_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> Any:
        raise AttributeError("a match of another torch")

    monkeypatch.setattr("fuzz.check.prove.rewrite_match.RewriteMatch.read", read)
    result = judge(entry.load(CORPUS / "seeds" / "patterns" / "sfdp-01-inference.case.yaml").case)
    assert result.verdict is not Verdict.COMPILE_ERROR
    assert [name for name in result.applied_rewrites if "sfdp" in name]
    assert not result.wrong_rewrites


@pytest.fixture(scope="module")
def measured() -> dict[str, tuple[Case, SubjectResult]]:
    cases = {name: entry.load(CORPUS / "known" / f"{name}.case.yaml").case for name in CAUSES}
    found = {name: (case, judge(case)) for name, case in cases.items()}
    return {name: both for name, both in found.items() if both[1].verdict.is_finding}


@pytest.mark.compiles
def test_what_makes_a_rewrite_right_names_the_cause(measured: dict[str, tuple[Case, SubjectResult]]) -> None:
    assert measured
    assert {name: [one.evidence_label for one in result.wrong_rewrites] for name, (_, result) in measured.items()} == {
        name: [CAUSES[name]] for name in measured
    }


@pytest.mark.compiles
def test_one_bug_explains_itself_in_other_patterns_and_no_other_bug(
    measured: dict[str, tuple[Case, SubjectResult]],
) -> None:
    symptoms = {name: Symptom.of(result, features(case)) for name, (case, result) in measured.items()}
    for one, symptom in symptoms.items():
        mine = next(bug for bug in BUGS if one in bug)
        assert {name for name, other in symptoms.items() if symptom.is_like(other)} == mine & symptoms.keys()


@pytest.fixture(scope="module")
def pair() -> list[tuple[Case, SubjectResult]]:
    """A mask compared with 0, which is kept where it is 1, and a fill that is ignored."""
    text = (CORPUS / "known" / "integer-mask.case.yaml").read_text().partition("found:")[0].replace("T: 3", "T: 5")
    filled = text.replace("kind: small_counts", "kind: zero_one").replace("expand]}", "expand], value: 1.0}")
    return [(case, judge(case)) for case in (entry.loads(one).case for one in (text, filled))]


@pytest.mark.compiles
@integer_mask
def test_two_bugs_of_one_pattern_do_not_explain_each_other(pair: list[tuple[Case, SubjectResult]]) -> None:
    one, other = (Symptom.of(result, features(case)) for case, result in pair)
    assert (one.is_like(one), one.is_like(other), other.is_like(one)) == (True, False, False)


@pytest.mark.compiles
@integer_mask
def test_one_bug_of_integer_and_float_masks_is_one() -> None:
    text = (CORPUS / "known" / "integer-mask.case.yaml").read_text().partition("found:")[0]
    found = [judge(entry.loads(text.replace(*change)).case) for change in (("", ""), FLOAT_MASK)]
    one, other = (result.wrong_rewrites for result in found)
    assert one != other and are_all_known(one, other) and are_all_known(other, one)


@pytest.mark.compiles
@pytest.mark.parametrize("number", [18, 19])
@pytest.mark.parametrize("shape", ["[1, 1, S, S]", "[S, 1]"])
def test_a_rewrite_that_is_wrong_in_rows_without_a_key_says_so(number: int, shape: str) -> None:
    text = (CORPUS / "seeds" / "patterns" / f"sfdp-{number}-inference.case.yaml").read_text()
    text = text.replace("[1, 1, S, S], dtype: bool", f"{shape}, dtype: bool").replace("kind: causal", "kind: empty_row")
    result = judge(entry.loads(text).case)
    assert [one.rows for one in result.wrong_rewrites] == [EMPTY_ROWS]
    assert are_all_known(result.wrong_rewrites, (WrongRewrite("_sfdp_pattern_18", rows=EMPTY_ROWS),))


@pytest.mark.compiles
@integer_mask
def test_shrinking_one_of_them_does_not_end_in_the_other(pair: list[tuple[Case, SubjectResult]]) -> None:
    judged: list[SubjectResult] = []

    def judge_and_count(case: Case, _: str) -> SubjectResult:
        judged.append(judge(case))
        return judged[-1]

    case, suspect = pair[1]
    concluded = Investigation(case, suspect, (), FakeAsker(judge_and_count), is_time_up=lambda: len(judged) > 60).run()
    assert concluded.case.id != case.id
    assert are_all_known(concluded.shown.wrong_rewrites, suspect.wrong_rewrites)


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["integer-mask", "softmax-over-dim-0"])
def test_symbolic_sizes_are_measured_as_numbers_are(name: str) -> None:
    case = entry.load(CORPUS / "known" / f"{name}.case.yaml").case
    result = judge(replace(case, dynamic=True))
    assert not result.verdict.is_finding or [one.evidence_label for one in result.wrong_rewrites] == [CAUSES[name]]


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["sfdp-01-inference", "sfdp-05-inference", "sfdp-15-inference"])
def test_a_right_rewrite_is_not_proven_wrong(name: str) -> None:
    result = judge(entry.load(CORPUS / "seeds" / "patterns" / f"{name}.case.yaml").case)
    assert (
        result.wrong_rewrites == ()
        and not result.verdict.is_finding
        and any("sfdp" in fired for fired in result.applied_rewrites)
    )


PLANTS: dict[str, Callable[..., Any]] = {
    "mask_dropped": lambda sdpa, q, k, v, attn_mask, **more: sdpa(q, k, v, attn_mask=None, **more),
    "mask_clamped": lambda sdpa, q, k, v, attn_mask, **more: sdpa(q, k, v, attn_mask=attn_mask.clamp(min=-1), **more),
    "scale_dropped": lambda sdpa, q, k, v, scale=None, **more: sdpa(q, k, v, scale=1.0, **more),
    "heads_rolled": lambda sdpa, q, k, v, **more: sdpa(q.roll(1, 1), k, v, **more),
    "queries_reversed": lambda sdpa, q, k, v, **more: sdpa(q.flip(2), k, v, **more),
    "values_reversed": lambda sdpa, q, k, v, **more: sdpa(q, k, v.flip(2), **more),
    "features_reversed": lambda sdpa, q, k, v, **more: sdpa(q, k, v.flip(3), **more),
}


@pytest.mark.compiles
def test_bugs_of_one_pattern_are_told_apart_in_two_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.fx_passes import fuse_attention

    sdpa = fuse_attention._scaled_dot_product_attention
    found: dict[str, list[WrongRewrite]] = {}
    for name, plant in PLANTS.items():
        monkeypatch.setattr(fuse_attention, "_scaled_dot_product_attention", partial(plant, sdpa))
        for form in ("sfdp-05-inference", "sfdp-05-half-inference"):
            case = entry.load(CORPUS / "seeds" / "patterns" / f"{form}.case.yaml").case
            found.setdefault(name, []).extend(judge(case).wrong_rewrites)
    assert [len(rewrites) for rewrites in found.values()] == [2] * len(PLANTS)
    for one, other in itertools.product(found, found):
        assert found[one][0].is_same_bug(found[other][1]) is (one == other), (one, other)


def rewrite(right: tuple[str, ...] = (), wrong: tuple[str, ...] = (), operand: str = "attn_mask") -> WrongRewrite:
    return WrongRewrite("_sfdp_pattern_15", {operand: right} if right else {}, {operand: wrong} if wrong else {})


@pytest.mark.compiles
def test_bugs_are_one_where_no_operand_mends_one_and_not_the_other() -> None:
    compared = rewrite(("all 1", "one 0 in 1"), ("all 2",))
    assert compared.is_same_bug(rewrite(("all 1",), ("all 2", "all 0.5", "one 2 in 0")))
    assert not compared.is_same_bug(rewrite(("all 1",), ("all 2", "all 0.5")))
    assert not compared.is_same_bug(rewrite(("all 1",), ("one 0 in 1",)))
    assert not compared.is_same_bug(rewrite(("all 1", "one 0 in 1"), ("all 2",), "inv_scale"))
    assert not compared.is_same_bug(WrongRewrite("_sfdp_pattern_15", constants=(OtherConstant("amax"),)))


@pytest.mark.compiles
def test_it_travels_as_data() -> None:
    sent = rewrite(("all 1",), ("all 2",))
    assert decode(WrongRewrite, encode(sent)) == sent


@pytest.mark.compiles
def test_a_gradient_of_zero_is_not_exact_in_float64() -> None:
    body = (
        "mask = torch.zeros(B, 1, 1, S).masked_fill(torch.arange(S) > 0, -torch.inf)",
        "return ((q * 256) @ (k * 256).transpose(-2, -1) / 4.0 + mask).softmax(-1) @ v",
    )
    result = run_subject(find("passes"), training=True, text=source(*body, dims="2, 1, 127, 6"))
    assert "_sfdp_pattern_5_training" in result.applied_rewrites
    assert not result.verdict.is_finding and not result.wrong_rewrites


ROOT = Path(__file__).parents[2]
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"


@contextmanager
def planted(name: str) -> Iterator[None]:
    """A defect of `benchmarks/planted_torch` in an operation of this process."""
    operation, key, kernel = OPERATIONS[name]
    make: Any = torch.library.Library
    library = make("aten", "IMPL")
    try:
        library.impl(operation, kernel, key)
        yield
    finally:
        library._destroy()


def judge_seed(seed: str, subject: str) -> SubjectResult:
    case = entry.load(ROOT / "corpus" / "seeds" / "patterns" / f"{seed}.case.yaml").case
    request = build_check(Question(case, (subject,)))
    return check(request, {subject: find(subject)}, "cpu").results[0]


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.parametrize(
    ("plant", "seed", "operation"),
    [
        ("last_key_ignored", "sfdp-05-training", FLASH),
        ("query_gradient_doubled", "sfdp-05-training", f"{FLASH}_backward"),
        ("scale_of_padded_size", "sfdp-05-training", SDPA),
        ("scale_of_padded_size", "sfdp-09-half-inference", SDPA),
    ],
)
def test_a_fault_of_the_fused_call_is_none_of_the_rewrite(plant: str, seed: str, operation: str) -> None:
    with planted(plant):
        compiled, alone, math = (judge_seed(seed, name) for name in ("passes", "sdpa_flash", "sdpa_math"))
    assert compiled.verdict.is_finding and compiled.right_rewrites
    assert [one.operation for one in compiled.wrong_rewrites] == [operation]
    assert isinstance(compiled.wrong_rewrites[0].faulty, FaultyOperation)
    # The case has no contract: its rewrite says what its attention is.
    assert alone.verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT)
    assert math.verdict in (Verdict.OK, Verdict.ROUNDING)


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_an_exception_of_the_backward_pass_is_of_the_fused_call_if_eager_raises_it() -> None:
    text = source("return (q @ k.transpose(-2, -1)).div(4.0).softmax(dim=-1) @ v", dims="1, 2, 6, 7")
    with planted("odd_sizes_refused"):
        result = run_subject(find("passes"), training=True, text=text)
    assert [one.operation for one in result.wrong_rewrites] == [SDPA]
    assert isinstance(result.wrong_rewrites[0].faulty, Raised)
    two_dtypes = judge_seed("sfdp-08-training", "passes")
    assert two_dtypes.verdict is Verdict.RUNTIME_ERROR and not two_dtypes.wrong_rewrites


@pytest.mark.compiles
def test_a_backend_takes_no_case_without_attention() -> None:
    assert judge_seed("sfdp-05-training", "sdpa_flash").verdict in (Verdict.OK, Verdict.ROUNDING)
    case = entry.load(ROOT / "corpus" / "known" / "amax-of-a-sum-in-training.case.yaml").case
    request = build_check(Question(case, ("sdpa_flash",)))
    result = check(request, {"sdpa_flash": find("sdpa_flash")}, "cpu").results[0]
    assert isinstance(result.failure, NotTaken) and result.failure.why is Refusal.NO_CONTRACT
