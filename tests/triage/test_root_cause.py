"""Root causes in words and as keys, and the place of each in torch's source."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from corpus import casefile
from corpus.causes import Mechanism, MechanismKind, Stage, details
from corpus.entry import Entry, load
from fuzz.attribution.ablation import EAGER, MATH, Ablation
from fuzz.attribution.attribute import attribute
from fuzz.attribution.decide import find_deciding
from fuzz.attribution.locate import locate
from fuzz.attribution.root_cause import RootCause, describe_evidence
from fuzz.attribution.study import Study
from fuzz.experiments import EXPERIMENTS, Outcome, Trial, Tried
from fuzz.protocol import Hello, StepsTaken, SubjectResult, Verdict
from fuzz.protocol.failures import EmptyRowsNotZero, FaultyOperation, NotFinite, Value
from fuzz.protocol.places import LocatedBy, Place
from fuzz.protocol.rewrites import CALL, DROPPED, EXPANDED, OtherConstant, WrongRewrite
from generators.program.case import Case, LaterCall
from generators.program.ops import VIEWS
from generators.records import decode, encode
from tests.check.test_sequences import products
from tests.fake_asker import FakeAsker, fail_where
from tests.programs import program
from tests.triage.conftest import ablation, known
from tests.triage.test_attribute import OVERLAPPING
from triage.report.wording import describe_place, link_source, quote_source

KNOWN = Path(__file__).parents[2] / "corpus" / "known"
WRITES = program(
    "B: 2",
    {"x": "B", "z": "B", "cache": "B; parameter: true, buffer: true"},
    "written = add_ cache z",
    "out = mul written x",
)
RULE = program(
    "D: 2",
    {"mask": "D; dtype: bool, values: {kind: random, seed: 0}", "x": "D"},
    "neg = neg x",
    "written = masked_scatter_ x mask neg",
    returns="[x]",
    regions="[{kind: grad_of_grad, ops: [neg]}, {kind: autograd_function, ops: [neg], option: scaled+setup}]",
)
MEASURED = WrongRewrite(
    "_sfdp_pattern_15_inference",
    {"attn_mask": ("all 1", "one 0 in 1", "one 1 in 0")},
    {"attn_mask": ("all -1", "one -1 in 0", "one -1 in 1", "one 2 in 0")},
)
EVIDENCE = (
    *(Tried(row, "mask", outcome) for row in EXPERIMENTS for outcome in Outcome),
    Tried("exact", "_sfdp_pattern_15_inference", Outcome.FAILS_ALIKE),
)
CONSTANTS = WrongRewrite(
    "_sfdp_pattern_1_inference",
    constants=(OtherConstant("amax", "-2", "-1"), OtherConstant("full", "1.0", "-inf"), OtherConstant("sum")),
)
CAUSE = RootCause(
    "inductor",
    Stage.JOINT_PASSES,
    "_sfdp_pattern_1",
    Mechanism(MechanismKind.COMPILING_RAISES, details(error="RuntimeError: no")),
    EVIDENCE,
    (MEASURED, CONSTANTS, WrongRewrite("_sfdp_pattern_1_inference", faulty=FaultyOperation("aten.bmm", 1.0, 2.0))),
)


def test_a_root_cause_survives_its_file() -> None:
    assert decode(RootCause, json.loads(json.dumps(encode(CAUSE)))) == CAUSE


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        {"who": "inductor", "stage": "", "part": "", "mechanism": "wrong", "evidence": ["It."]},
        encode(CAUSE) | {"evidence": [{"kind": "experiment", "passes": True, "subject": "passes"}]},
    ],
)
def test_a_file_of_an_older_version_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(RootCause, data)


def test_every_kind_of_evidence_has_words() -> None:
    said = describe_evidence(CAUSE)
    assert all(said) and not any("{" in sentence for sentence in said)


def test_experiments_with_one_outcome_share_a_sentence() -> None:
    evidence = (
        Tried("eager", "", Outcome.PASSES),
        Tried("sdpa_math", "", Outcome.PASSES),
        Tried("passes", "", Outcome.FAILS_OTHERWISE),
        Tried("unfused", "", Outcome.FAILS_ALIKE),
    )
    assert len(describe_evidence(replace(CAUSE, evidence=evidence))) == 2
    assert len(describe_evidence(replace(CAUSE, evidence=evidence), {"passes"})) == 1


def test_every_finding_has_a_mechanism_by_its_verdict() -> None:
    assert {MechanismKind(verdict) for verdict in Verdict if verdict.is_finding} < {*MechanismKind}


@pytest.mark.parametrize(
    ("case", "alone", "mechanism"),
    [
        (products(calls=(LaterCall(sizes=(("S", 5),)),)), Verdict.OK, "a later call with other sizes"),
        (products(calls=(LaterCall(sizes=(("S", 5),)),)), Verdict.WRONG_RESULT, "other values"),
        (products(calls=(LaterCall(),)), Verdict.OK, "a later call with nothing changed"),
        (casefile.loads(WRITES), Verdict.OK, "a write into a buffer by add_"),
    ],
)
def test_what_takes_a_later_call_or_a_write_is_a_cause_of_its_own(case: Case, alone: Verdict, mechanism: str) -> None:
    def fails(case: Case, subject: str) -> bool:
        return alone is Verdict.WRONG_RESULT or (subject == "aot_eager" and bool(case.calls))

    cause = attribute(Entry(case), fail_where(fails), ablation(aot_eager=Verdict.WRONG_RESULT))
    assert str(cause.mechanism) == str(cause.key.words) == mechanism


def _has_gaps(case: Case) -> bool:
    (windows,) = (dict(op.attrs) for op in case.ops if op.kind == "unfold")
    return str(windows["size"]) != str(windows["step"])


def _returns_a_view_of_shared_memory(case: Case) -> bool:
    return any(item.part for item in case.inputs) and any(case.makers[name].kind in VIEWS for name in case.returns)


@pytest.mark.parametrize(
    ("name", "fails", "mechanism"),
    [
        ("windows-apart-written", _has_gaps, Mechanism(MechanismKind.WRITTEN_THROUGH, details(view="unfold"))),
        (
            "view-of-shared-arguments",
            _returns_a_view_of_shared_memory,
            Mechanism(MechanismKind.SHARED_MEMORY, details(returned="views")),
        ),
    ],
)
def test_the_memory_that_a_failure_needs_is_its_cause_whatever_writes_into_it(
    name: str, fails: Callable[[Case], bool], mechanism: Mechanism
) -> None:
    listed = load(KNOWN / f"{name}.case.yaml")
    wrong = SubjectResult("aot_eager", Verdict.WRONG_RESULT)
    asker = fail_where(lambda case, subject: subject == "aot_eager" and fails(case))
    for kinds in ({}, {"add_": "mul_"}):
        ops = tuple(replace(op, kind=kinds.get(op.kind, op.kind)) for op in listed.case.ops)
        entry = Entry(replace(listed.case, ops=ops))
        cause = attribute(entry, asker, ablation(aot_eager=Verdict.WRONG_RESULT))
        deciding = dict(find_deciding(Study(asker, entry, "aot_eager", wrong), cause))
        assert cause.mechanism == mechanism
        assert deciding.keys() & {"unshared", "touching"}


def test_a_rule_that_is_lost_is_the_cause_though_its_result_is_written_into_what_is_returned() -> None:
    lost = casefile.loads(RULE)

    def is_lost(case: Case, _subject: str) -> bool:
        return {region.kind for region in case.regions} == {"autograd_function", "grad_of_grad"}

    cause = attribute(Entry(lost), fail_where(is_lost), ablation(aot_eager=Verdict.WRONG_RESULT))
    assert (cause.mechanism.kind, dict(cause.mechanism.details)) == (
        MechanismKind.REGION,
        {"region": ("autograd_function", "grad_of_grad")},
    )


def test_a_fused_call_that_fails_in_dynamos_run_alone_is_to_blame_and_not_dynamo() -> None:
    case = casefile.loads(OVERLAPPING)

    stages = ablation(dynamo=Verdict.WRONG_RESULT, aot_eager=Verdict.WRONG_RESULT)
    cause = attribute(Entry(case), fail_where(lambda other, _subject: other == case), stages)
    assert (cause.who, cause.mechanism.kind) == ("sdpa_flash", MechanismKind.OVERLAPPING_ROWS)


BIASED = program(
    "S: 5, T: 7, D: 16",
    {"q": "1, 1, S, D; dtype: float16", **dict.fromkeys("kv", "1, 1, T, D; dtype: float16"), "bias": "S, 1"},
    "kt = transpose k, dim0: -2, dim1: -1",
    "products = matmul q kt",
    "scores = mul products, other: 0.25",
    "biased = add scores bias",
    "weights = softmax biased, dim: -1",
    "low = cast weights, dtype: float16",
    "out = matmul low v",
    contracts="[{q: q, k: k, v: v, output: out, scale: 0.25, bias: bias}]",
)
NAN = SubjectResult("sdpa_cudnn", Verdict.NONFINITE, failure=NotFinite(Value.of_result("out"), 1, (0, 0, 0, 0)))


@pytest.mark.parametrize(
    ("result", "right_dtype", "mechanism"),
    [
        (replace(NAN, wrong_rewrites=(WrongRewrite(CALL, {"bias": (DROPPED, EXPANDED)}),)), None, "a broadcast bias"),
        (replace(NAN, wrong_rewrites=(WrongRewrite(CALL, {"bias": (DROPPED,)}),)), None, "not finite"),
        (NAN, "float16", "an operation is given tensors of two dtypes"),
        (NAN, "float32", "not finite in float16"),
        (
            replace(
                NAN, verdict=Verdict.WRONG_RESULT, failure=EmptyRowsNotZero(Value.of_result("out"), 1, (0, 0, 0, 0))
            ),
            "float32",
            "a row without a key",
        ),
    ],
)
def test_faults_of_one_backend_are_told_apart(result: SubjectResult, right_dtype: str | None, mechanism: str) -> None:
    def judge(case: Case, subject: str) -> SubjectResult:
        is_right = {item.dtype for item in case.inputs} == {right_dtype}
        return SubjectResult(subject, Verdict.OK) if is_right else result

    stages = {EAGER: SubjectResult(EAGER, Verdict.OK), MATH: SubjectResult(MATH, Verdict.OK), "sdpa_cudnn": result}
    entry = known(BIASED, "sdpa_cudnn", device="cuda")
    asker = FakeAsker(judge)
    asker.said = Hello("2.11.0", "3.12", "cuda", "", 1)
    cause = attribute(entry, asker, Ablation(asker.hello, stages, "sdpa_cudnn"))
    assert cause.part == "aten._scaled_dot_product_cudnn_attention"
    assert str(cause.mechanism) == mechanism


WRONG = SubjectResult("passes", Verdict.WRONG_RESULT)
OF_A_PASS = RootCause("inductor", Stage.GRAPH_PASSES, "fold", Mechanism(MechanismKind.MEMORY))
FOLD = Place("fx_passes/a.py", 10, "fold", LocatedBy.LEFT_OUT)


def find(case: Case, *, cause: RootCause = OF_A_PASS, result: SubjectResult = WRONG) -> tuple[Place, ...]:
    """The places if every program fails. A worker leaves out the pass `fold`."""

    def judge(_case: Case, _subject: str, *trials: Trial) -> SubjectResult:
        return replace(result, observations=(StepsTaken(3, "other", (FOLD,)),) if trials else ())

    return locate(Study(FakeAsker(judge), Entry(case), "passes", result), cause).places


def test_a_pass_is_named_by_its_function_and_a_stage_alone_by_none(case: Case) -> None:
    assert find(case) == (FOLD,)
    assert find(case, cause=replace(OF_A_PASS, part="")) == ()


@pytest.mark.parametrize("file", ["_refs/__init__.py", "fx_passes/a.py"])
def test_a_compile_error_is_where_the_step_raises_or_else_the_step(case: Case, file: str) -> None:
    raised = Place(file, 7, "view", LocatedBy.RAISED)
    result = SubjectResult("passes", Verdict.COMPILE_ERROR, raised_at=raised)
    assert find(case, result=result) == ((raised, FOLD) if file == FOLD.file else (FOLD, raised))
    assert find(case, cause=replace(OF_A_PASS, part=""), result=result) == (raised,)


def test_an_operation_of_aten_has_no_line(case: Case) -> None:
    cause = replace(
        OF_A_PASS, stage=Stage.OPERATION, part="aten.mm", evidence=(Tried("eager", "", Outcome.FAILS_ALIKE),)
    )
    (place,) = find(case, cause=cause)
    assert (place.function, place.found, place.line) == ("aten.mm", LocatedBy.KERNEL, 0)


@pytest.mark.parametrize(
    ("torch", "file", "link"),
    [
        ("2.15.0", "_inductor/ir.py", "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/ir.py#L3"),
        ("2.15.0+cu132", "_inductor/ir.py", "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/ir.py#L3"),
        ("2.16.0.dev20261101", "_inductor/ir.py", ""),
        ("2.16.0a0+git1234", "_inductor/ir.py", ""),
        ("2.15.0", "include/ATen/a.h", "https://github.com/pytorch/pytorch/blob/v2.15.0/aten/src/ATen/a.h#L3"),
        ("2.15.0", "sitecustomize.py", ""),
    ],
)
def test_only_lines_of_a_release_have_an_address(torch: str, file: str, link: str) -> None:
    place = Place(file, 3, "make", LocatedBy.LEFT_OUT)
    described = describe_place(place, torch)
    assert f"]({link})" in described if link else "](" not in described


def test_places_that_a_person_named_become_links_to_the_release() -> None:
    linked = link_source("Read in `torch/__init__.py:3` and torch/fx/node.py.", "2.15.0")
    assert [*re.findall(r"\((https\S+)\)", linked)] == [
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/__init__.py#L3",
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/fx/node.py",
    ]
    assert "https" not in link_source("Read in `torch/__init__.py:3`.", "2.16.0a0")


def test_a_report_quotes_the_line_where_the_source_is_readable(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("torch")
    (home / "ir.py").write_text("".join(f"line {number}\n" for number in range(1, 9)))
    place = Place("ir.py", 2, "make", LocatedBy.LEFT_OUT)
    assert quote_source(place, str(home)).splitlines() == ["  1 line 1", "> 2 line 2", "  3 line 3", "  4 line 4"]
    assert quote_source(replace(place, file="absent.py"), str(home)) == quote_source(place, "") == ""
