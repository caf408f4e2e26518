"""An evaluator completes results, remembers them, replaces its worker, and refuses subjects that no worker has."""

from typing import Any

import pytest

from corpus import casefile
from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.ask.question import AnswerCache, ProcessState, Question, ask_each, ask_or_raise
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import Stopped, WorkerFault, WorkerProcess
from fuzz.bug_identity import compare_outcome
from fuzz.experiments import Outcome
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import DeviceError, Failure, FormDiffers, NotTaken, ProcessLost, Raised
from generators.errors import UserError
from generators.program.case import Case
from tests.campaign.fakes import case, setup
from tests.fake_asker import FakeAsker
from tests.programs import program

pytestmark = pytest.mark.worker

SOFTMAX, TANH = case("exp", "softmax"), case("tanh")
BOTH = ("passes", "inductor")


def rules(**given: Any) -> dict[str, Any]:
    return {"rules": [{"match": "softmax", "subjects": ["inductor"], **given}]}


def test_the_verdicts_that_went_with_a_lost_process_are_asked_for_again() -> None:
    with open_evaluator(setup(**rules(do="die"))) as evaluator:
        results = evaluator.ask(Question(SOFTMAX, BOTH)).results
    assert [(r.subject, r.verdict) for r in results] == [("passes", Verdict.OK), ("inductor", Verdict.WORKER_DIED)]
    assert isinstance(results[1].failure, ProcessLost)


@pytest.mark.parametrize("repeats", [True, False])
def test_a_kernel_that_broke_the_gpu_is_named_by_a_process_with_synchronous_launches(
    monkeypatch: pytest.MonkeyPatch, *, repeats: bool
) -> None:
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    broken: dict[str, Any] = {"verdict": "device_error", "failure": {"kind": "device_error", "fault": "misaligned"}}
    named = {"failure": broken["failure"] | {"kernel": "scale_rows"}} if repeats else {"verdict": "ok"}
    rule = {"match": "softmax", "subjects": ["inductor", "spent"], **broken, "synchronous": named}
    with open_evaluator(setup(rules=[rule])) as evaluator:
        first = evaluator.hello.pid
        for _ in range(2):
            results = evaluator.ask(Question(SOFTMAX, BOTH)).results
            assert [(r.subject, r.verdict) for r in results] == [
                ("passes", Verdict.OK),
                ("inductor", Verdict.DEVICE_ERROR),
            ]
            assert results[1].failure == DeviceError("misaligned", "scale_rows" if repeats else "")
        assert evaluator.ask(Question(TANH, ("inductor",))).only.verdict is Verdict.OK
        assert evaluator.hello.pid != first


def test_a_killed_evaluator_asks_nothing_again() -> None:
    with open_evaluator(setup(**rules(do="hang"))) as evaluator:
        assert evaluator.hello.pid
        with pytest.raises(Stopped):
            evaluator.ask(Question(SOFTMAX, BOTH), meanwhile=evaluator.process.kill)
        with pytest.raises(Stopped):
            evaluator.ask(Question(TANH, BOTH))


def test_a_fault_of_attnfuzz_is_raised_and_the_next_case_is_judged() -> None:
    with open_evaluator(setup(**rules(do="fail"))) as evaluator:
        with pytest.raises(WorkerFault):
            evaluator.ask(Question(SOFTMAX, BOTH))
        assert evaluator.ask(Question(TANH, ("inductor",))).only.verdict is Verdict.OK


def test_with_memory_the_same_case_is_evaluated_once() -> None:
    with open_evaluator(setup(**rules(from_check=2, verdict="wrong_result"))) as evaluator:
        memory = AnswerCache(evaluator)
        assert memory.ask(Question(SOFTMAX, ("inductor",))).only.verdict is Verdict.OK
        assert memory.ask(Question(SOFTMAX, ("inductor",))).only.verdict is Verdict.OK
        assert evaluator.process.checks == 1
        # The fake worker fails from the second check on.
        assert memory.ask(Question(case("exp", "softmax", rows=4), ("inductor",))).only.verdict.is_finding


def test_a_fresh_evaluation_has_a_process_of_its_own_and_remembers_nothing() -> None:
    with open_evaluator(setup()) as evaluator:
        memory = AnswerCache(evaluator)
        memory.ask(Question(TANH, BOTH))
        first = evaluator.hello.pid
        memory.ask(Question(TANH, BOTH, process=ProcessState.FRESH))
        assert evaluator.hello.pid != first
        assert evaluator.process.checks == 1


def test_workers_are_asked_at_the_same_time_and_answer_in_order() -> None:
    judged = list[Case]()

    def judge(case: Case, subject: str) -> SubjectResult:
        judged.append(case)
        return SubjectResult(subject, Verdict.OK)

    asked = [(FakeAsker(judge), Question(one, (name,))) for one, name in zip((SOFTMAX, TANH), BOTH, strict=True)]
    assert [result.only.subject for result in ask_each(asked)] == [*BOTH]
    assert judged == [TANH, SOFTMAX]  # while the first worker is busy, the second is asked
    assert ask_each([]) == []


def test_a_case_that_eager_refuses_has_no_verdict() -> None:
    refuses: dict[str, Any] = {
        "rules": [{"match": "softmax", "subjects": ["eager"], "rejected": "shapes do not match"}]
    }
    with open_evaluator(setup(**refuses)) as evaluator:
        result = evaluator.ask(Question(SOFTMAX, ("inductor",))).only
        assert (result.verdict, type(result.failure)) == (Verdict.SKIPPED, NotTaken)
        with pytest.raises(UserError, match="shapes do not match"):
            ask_or_raise(evaluator, Question(SOFTMAX, ("inductor",)))


@pytest.mark.parametrize(
    ("given", "checks", "expected"),
    [({}, 2, 2), ({"rss": 100.0, "growth": 1000.0}, 100, 2), ({"rss": 2500.0, "growth": 0.0}, 100, 1)],
)
def test_a_process_is_replaced_for_its_age_and_its_growth(given: dict[str, Any], checks: int, expected: int) -> None:
    started: list[object] = []
    process = WorkerProcess(setup(memory_mib=4096, **given), PipeTransport(), on_start=started.append)
    with Evaluator(process, recycle_checks=checks) as evaluator:
        for _ in range(4):
            evaluator.ask(Question(TANH, BOTH))
    assert len(started) == expected


def test_each_device_has_a_worker_that_ends_with_the_evaluator() -> None:
    with open_evaluator(setup()) as evaluator:
        cuda = evaluator.on("cuda")
        assert (cuda.config.device, evaluator.config.device) == ("cuda", "cpu")
        assert evaluator.on("cuda") is cuda
        assert evaluator.on("cpu") is evaluator
        assert cuda.hello.pid != evaluator.hello.pid
    assert cuda.process.hello is None


def test_a_subject_that_no_worker_has_is_an_error() -> None:
    with open_evaluator(setup()) as evaluator:
        evaluator.require("inductor")
        with pytest.raises(UserError, match="unknown subject"):
            evaluator.require("inductr")


WRONG = SubjectResult("s", Verdict.WRONG_RESULT)
RAISED = SubjectResult("s", Verdict.COMPILE_ERROR, failure=Raised("IndexError", "index 3"))
STRIDES = SubjectResult("s", Verdict.METADATA, failure=FormDiffers("strides", "(1,)", "(2,)"))


@pytest.mark.parametrize(
    ("failure", "verdict", "given", "outcome"),
    [
        (WRONG, Verdict.ROUNDING, None, Outcome.PASSES),
        (WRONG, Verdict.WRONG_GRADIENT, None, Outcome.FAILS_ALIKE),
        (WRONG, Verdict.NONDETERMINISTIC, None, Outcome.FAILS_OTHERWISE),
        (WRONG, Verdict.METADATA, STRIDES.failure, Outcome.PASSES),
        (WRONG, Verdict.METADATA, FormDiffers("dtype", "a", "b"), Outcome.FAILS_OTHERWISE),
        (STRIDES, Verdict.METADATA, STRIDES.failure, Outcome.FAILS_ALIKE),
        (RAISED, Verdict.COMPILE_ERROR, Raised("IndexError", "index 4"), Outcome.FAILS_ALIKE),
        (RAISED, Verdict.COMPILE_ERROR, Raised("KeyError", "index 3"), Outcome.FAILS_OTHERWISE),
        (WRONG, Verdict.SKIPPED, None, Outcome.DOES_NOT_APPLY),
        (WRONG, Verdict.ILL_CONDITIONED, None, Outcome.DOES_NOT_APPLY),
    ],
)
def test_an_outcome_compares_a_result_with_the_failure(
    failure: SubjectResult, verdict: Verdict, given: Failure | None, outcome: Outcome
) -> None:
    assert compare_outcome(SubjectResult("s", verdict, failure=given), failure) is outcome


def test_an_outcome_needs_a_result_that_applies() -> None:
    assert compare_outcome(None, WRONG) is compare_outcome(WRONG, WRONG, applies=False) is Outcome.DOES_NOT_APPLY


LAYER_NORM = casefile.loads(
    program(
        "D: 2",
        {"x": "D", "z": "D", "weight": "D; parameter: true"},
        "out = layer_norm x z weight",
        regions="[{kind: jvp, ops: [out]}]",
    )
)
EXP_OF_ROWS = casefile.loads(
    program("S: 2", {"x": "S, 3"}, "out = exp x", regions="[{kind: vmap, ops: [out], over: S}]")
)


SOFTMAX_DERIVED = casefile.loads(
    program("S: 63, T: 32", {"scores": "S, T"}, "out = softmax scores", regions="[{kind: jacrev, ops: [out]}]")
)


@pytest.mark.worker
def test_a_derivative_of_0_may_be_the_rounding_of_its_terms() -> None:
    with open_evaluator(WorkerConfig(timeout=120), repeat=1) as evaluator:
        assert evaluator.ask(Question(SOFTMAX_DERIVED, ("passes",))).only.verdict is Verdict.ROUNDING


@pytest.mark.worker
def test_a_transform_that_torch_does_not_compile_spoils_no_later_case() -> None:
    """torch 2.13 then refuses all transforms in the process."""
    with open_evaluator(WorkerConfig(timeout=120), repeat=1) as evaluator:
        evaluator.ask(Question(LAYER_NORM, ("passes",)))
        assert evaluator.ask(Question(EXP_OF_ROWS, ("passes",))).only.verdict is Verdict.OK
