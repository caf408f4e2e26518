"""The fault below Inductor's graph passes, found from experiments whose outcomes are known."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from corpus.causes import Details, Mechanism, MechanismKind, details
from corpus.entry import Entry, Found
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.attribute import attribute
from fuzz.attribution.root_cause import describe_evidence
from fuzz.experiments import NO_PATTERNS, Outcome, Trial
from fuzz.protocol import Running, SubjectResult, Verdict
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import DeviceError, Failure, FailureKey, FormDiffers, Process, ProcessLost, Raised, Value
from generators.errors import UserError
from generators.program.case import Case
from tests.fake_asker import FakeEvaluator, limit_steps
from tests.programs import program
from tests.triage.conftest import ablation, known
from tests.triage.test_kernel import ATTENTION
from triage.cluster.findings import attributor

WRONG = SubjectResult("inductor", Verdict.WRONG_RESULT)
BEFORE = ("eager", "dynamo", "aot_eager", "aot_eager_decomp_partition", "passes")


OTHER_STRIDES, OTHER_DTYPE = (
    SubjectResult("", Verdict.METADATA, failure=FormDiffers(aspect, "a", "b", Value("output", 0)))
    for aspect in ("strides", "dtype")
)
STATIC = {"passes_dynamic": SubjectResult("", Verdict.OK)}
STEPS = STATIC | limit_steps(WRONG, "lowering", 9, first=0)
FORM = SubjectResult("export", Verdict.METADATA, failure=FormDiffers("structure", "FakeTensor", "tensor"))
REGION_RAISES = SubjectResult("export", Verdict.COMPILE_ERROR, failure=Raised("RuntimeError", "no storage"))
NUMBERS = SubjectResult("export", Verdict.WRONG_RESULT)
OTHERWISE = replace(WRONG, verdict=Verdict.METADATA)
PACKAGED = replace(WRONG, subject="aot_inductor")


@pytest.mark.parametrize(
    ("wrong", "right", "given", "expected"),
    [
        # Below the passes, plainer code is tried, and then lowerings.
        (WRONG, (*BEFORE, "unpadded", "unfused"), STEPS, {"who": "inductor", "stage": "codegen", "part": "fusion"}),
        (WRONG, (*BEFORE, "unfused", "unvectorized"), STEPS, {"who": "inductor", "stage": "codegen", "part": "fusion"}),
        (WRONG, (*BEFORE, "unvectorized"), STEPS, {"stage": "codegen", "part": "vectorisation"}),
        (WRONG, BEFORE, STATIC | limit_steps(WRONG, "lowering", 9, first=4), {"stage": "lowering", "part": "step 4"}),
        (WRONG, (*BEFORE, ""), STEPS, {"who": "inductor", "stage": "codegen", "part": ""}),
        # Values are right where strides alone differ.
        (WRONG, (*BEFORE[:-1], "unfused"), STATIC | {"passes": OTHER_STRIDES}, {"stage": "codegen"}),
        (WRONG, (*BEFORE[:-1], "unfused"), STATIC | {"passes": OTHER_DTYPE}, {"stage": "graph_passes"}),
        # The first stage that fails is at fault.
        (OTHERWISE, BEFORE[:1], {}, {"who": "dynamo"}),
        (OTHERWISE, BEFORE[:2], {}, {"who": "aot"}),
        (OTHERWISE, BEFORE[:4], {}, {"who": "inductor"}),
        # A package is at fault where compiled code and the exported program are right.
        (
            PACKAGED,
            (*BEFORE, "inductor", "inductor_dynamic", "export", "passes_dynamic", "unfused"),
            {},
            {"stage": "codegen", "part": "aot_inductor_package"},
        ),
        # Another failure of an earlier stage does not decide about an error of torch.export.
        *(
            (
                REGION_RAISES,
                (*BEFORE[:-1], "pattern_matcher_off"),
                {"passes": other, "inductor": other},
                {"part": "torch_export"},
            )
            for other in (FORM, NUMBERS)
        ),
    ],
)
def test_outcomes_of_experiments_name_the_part_at_fault(
    case: Case, wrong: SubjectResult, right: tuple[str, ...], given: dict[str, SubjectResult], expected: dict[str, str]
) -> None:
    found = attribute(known(case, wrong.subject, verdict=wrong.verdict), FakeEvaluator(wrong, *right, **given))
    assert {name: getattr(found, name) for name in expected} == expected


class OnGpu(FakeEvaluator):
    device = "cuda"


def test_experiments_that_the_time_is_too_short_for_are_named(case: Case) -> None:
    evaluator = FakeEvaluator(WRONG)
    ablated = ablation(**dict.fromkeys(("passes", "no_patterns"), Verdict.OK))
    cause = attribute(Entry(case), evaluator, ablated, deadline=-math.inf)
    left = {one.experiment for one in cause.evidence if one.outcome is Outcome.NOT_TRIED}
    assert {"lowering", NO_PATTERNS} <= left
    assert not evaluator.asked
    told = [line for line in describe_evidence(cause) if line.startswith("The time was too short")]
    assert any("lowering" in line for line in told)


def test_on_a_gpu_the_padding_of_strides_is_tried_first(case: Case) -> None:
    evaluator = OnGpu(WRONG, *BEFORE, "unpadded", "unfused", passes_dynamic=SubjectResult("", Verdict.OK))
    found = attribute(known(case), evaluator)
    assert (found.stage, found.part) == ("codegen", "padding")


@pytest.mark.parametrize(
    ("verdict", "how"),
    [
        (Verdict.TIMEOUT, Process.TIMEOUT),
        (Verdict.WORKER_DIED, Process.SIGNAL),
        (Verdict.OUT_OF_MEMORY, Process.OUT_OF_MEMORY),
    ],
)
@pytest.mark.parametrize(("subject", "stage"), [("passes", "graph_passes"), ("inductor", "codegen")])
def test_where_the_process_is_lost_no_control_is_tried_but_the_name_of_the_operation(
    case: Case, verdict: Verdict, how: Process, subject: str, stage: str
) -> None:
    failure = ProcessLost(how, "SIGSEGV", "relu (kernel.cpp)")
    evaluator = FakeEvaluator(
        SubjectResult("", verdict, failure=failure), *BEFORE[: BEFORE.index(subject)] if subject in BEFORE else BEFORE
    )
    found = attribute(known(case, subject), evaluator)
    assert (found.who, found.stage, found.part) == ("inductor", stage, "")
    key = failure.key() or FailureKey()
    assert found.mechanism == Mechanism(MechanismKind(verdict), details(error=key.text, lost=key.lost))
    assert {*BEFORE, "inductor", "inductor_dynamic", "pattern_matcher_off", "noted"} >= set(evaluator.asked)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [("passes", ("eager", "operation", "aten.bmm")), ("inductor", ("inductor", "codegen", "aten.bmm"))],
)
@pytest.mark.parametrize(
    ("verdict", "failure", "told"),
    [
        (Verdict.WORKER_DIED, ProcessLost(Process.SIGNAL, "SIGSEGV", "a (b.py)"), details(lost=["signal", "SIGSEGV"])),
        (Verdict.DEVICE_ERROR, DeviceError("misaligned address", "", "a line"), details(error="misaligned address")),
    ],
)
def test_the_operation_that_loses_the_process_is_at_fault_where_nothing_but_operations_run(
    case: Case, subject: str, expected: tuple[str, str, str], verdict: Verdict, failure: Failure, told: Details
) -> None:
    lost = SubjectResult("", verdict, failure=failure)
    right = BEFORE[:-1] if subject == "passes" else BEFORE
    evaluator = FakeEvaluator(lost, *right, noted=replace(lost, observations=(Running("aten.bmm"),)))
    found = attribute(known(case, subject), evaluator)
    assert (found.key.who, found.stage, found.part) == expected
    assert found.mechanism == Mechanism(MechanismKind(verdict), told)


def test_what_differs_from_run_to_run_is_judged_by_two_runs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def open_evaluator(_config: WorkerConfig, repeat: int = 1, **_: object) -> Iterator[FakeEvaluator]:
        differs = SubjectResult("", Verdict.NONDETERMINISTIC if repeat == 2 else Verdict.OK)
        yield FakeEvaluator(differs, *BEFORE)

    monkeypatch.setattr("triage.cluster.findings.open_evaluator", open_evaluator)
    with attributor(WorkerConfig()) as worker:
        found = Found("nondeterministic", "inductor", (), "2.13.0+cpu", "cpu", "")
        assert worker.find_cause(Entry(case, found=found)).mechanism.kind is MechanismKind.NONDETERMINISTIC
        with pytest.raises(UserError, match="shows no bug"):
            worker.find_cause(Entry(case, found=Found("wrong_result", "inductor", (), "2.13.0+cpu", "cpu", "")))


OF_A_VIEW = program(
    "T: 3, D: 4", {"x": "T, D", "end": "D, T"}, "turned = transpose x, dim0: 0, dim1: 1", "out = lerp_ turned end"
)
REFUSED = SubjectResult("inductor", Verdict.COMPILE_ERROR, failure=Raised("ValueError", "Cannot view a tensor"))


class OtherWrites(FakeEvaluator):
    """AOTAutograd alone fails if a write is by one of `by`. All later stages fail."""

    def __init__(self, wrong: SubjectResult, *by: str, **given: SubjectResult) -> None:
        super().__init__(wrong, *BEFORE[:2], **given)
        self.by = {*by}

    def judge(self, _case: Case, subject: str, *trials: Trial) -> SubjectResult:
        if subject != "aot_eager":
            return super().judge(_case, subject, *trials)
        return self._wrong if self.by & {op.kind for op in _case.ops} else SubjectResult(subject, Verdict.OK)


@pytest.mark.parametrize(
    ("wrong", "by", "part"),
    [
        (REFUSED, {"masked_fill_"}, ""),  # the decomposition of lerp has no part in it: any such write fails
        (REFUSED, {"masked_fill_", "lerp_"}, ""),
        (REFUSED, set(), "aten.lerp"),
        (
            SubjectResult("inductor", Verdict.METADATA),
            {"masked_fill_"},
            "aten.lerp",
        ),  # forms have no name, as errors do
    ],
)
def test_a_write_is_blamed_only_if_another_write_does_not_fail_alike(
    wrong: SubjectResult, by: set[str], part: str
) -> None:
    steps = limit_steps(wrong, "decomposition", 3, first=2, name="aten.lerp")
    found = attribute(known(OF_A_VIEW, verdict=wrong.verdict), OtherWrites(wrong, *by, **steps))
    assert (found.who, found.part) == ("aot", part)


OF_A_REGION = program("T: 3", {"x": "T"}, "out = mul x, other: 1.0", regions="[{kind: vjp, ops: [out]}]")


class Regions(FakeEvaluator):
    """torch.export fails if there is a region; `simplest`: what it does with a sine in a region."""

    def __init__(self, wrong: SubjectResult, **simplest: SubjectResult) -> None:
        super().__init__(wrong, *BEFORE, "inductor", "inductor_dynamic", "pattern_matcher_off")
        self.simplest = simplest

    def judge(self, _case: Case, subject: str, *trials: Trial) -> SubjectResult:
        if subject == "export" and not _case.regions:
            return SubjectResult(subject, Verdict.OK)
        if subject == "export" and _case.ops[0].kind == "sin":
            return self.simplest.get(_case.regions[0].kind, SubjectResult(subject, Verdict.OK))
        return super().judge(_case, subject, *trials)


@pytest.mark.parametrize(
    ("wrong", "simplest", "region"),
    [
        (FORM, {"grad": FORM, "vjp": FORM}, "grad"),
        (REGION_RAISES, {"grad": FORM, "vjp": FORM}, "grad"),
        (REGION_RAISES, {"vjp": FORM}, "vjp"),
        (FORM, {}, "vjp"),
        (FORM, {"grad": NUMBERS}, "vjp"),
        (REGION_RAISES, {}, None),
        (REGION_RAISES, {"grad": REGION_RAISES, "vjp": REGION_RAISES}, None),  # each such program raises this error
        (REGION_RAISES, {"grad": replace(FORM, verdict=Verdict.EAGER_SUSPECT)}, None),
    ],
)
def test_how_a_region_fails_does_not_matter_if_it_is_wrong_with_the_simplest_function(
    wrong: SubjectResult, simplest: dict[str, SubjectResult], region: str | None
) -> None:
    evaluator = Regions(wrong, **simplest)
    found = attribute(known(OF_A_REGION, "export", verdict=wrong.verdict), evaluator)
    raises = Mechanism(MechanismKind.COMPILING_RAISES, details(error="RuntimeError: no storage"))
    assert found.part == "torch_export"
    assert found.mechanism == (Mechanism(MechanismKind.REGION, details(region=region)) if region else raises)


class TwoRegions(Regions):
    """torch.export fails if there are two regions."""

    def judge(self, _case: Case, subject: str, *trials: Trial) -> SubjectResult:
        if subject == "export" and len(_case.regions) == 1:
            return SubjectResult(subject, Verdict.OK)
        return super().judge(_case, subject, *trials)


def test_a_function_that_fails_in_a_transform_alone_is_at_fault_with_it() -> None:
    both = OF_A_REGION.replace("]}]", "]}, {kind: autograd_function, ops: [out], option: straight+setup}]")
    found = attribute(known(both, "export", verdict=NUMBERS.verdict), TwoRegions(NUMBERS))
    assert found.mechanism == Mechanism(MechanismKind.REGION, details(region=["autograd_function", "vjp"]))


def test_an_attention_function_that_ends_the_process_has_a_cause() -> None:
    failure = ProcessLost(Process.SIGNAL, "SIGSEGV", "attention (attention/function.py)")
    lost = SubjectResult("sdpa_cudnn", Verdict.WORKER_DIED, failure=failure)
    evaluator = FakeEvaluator(lost, "eager")
    hello = evaluator.said = replace(evaluator.hello, attention={"sdpa_cudnn": Capabilities()})
    met = known(ATTENTION, "sdpa_cudnn")
    found = attribute(met, evaluator)
    assert (found.who, found.stage, found.part) == ("sdpa_cudnn", "kernel", "attention_forward")
    fused = "aten._scaled_dot_product_cudnn_attention"
    evaluator = FakeEvaluator(lost, "eager", noted=replace(lost, observations=(Running(fused),)))
    evaluator.said = hello
    assert attribute(met, evaluator).key.part == fused
