"""Compiled code is seen to run, also from caches, or no verdict is given and what switched a compiler off is named."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo.config as dynamo
from torch import nn

from benchmarks.planted_torch.torch_defects import FUNCTIONS
from fuzz.ask.question import Question, build_check
from fuzz.ask.transport import CompilersOff, PipeTransport
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import WorkerProcess
from fuzz.check.check import check
from fuzz.check.control import find_fault
from fuzz.check.run.subject_builder import Subject, available, find
from fuzz.check.torch_api import compilation, warm_caches
from fuzz.check.torch_api.process_state import hold_state
from fuzz.check.torch_api.settings import configure_torch
from fuzz.check.torch_api.torch_internals import wrap
from fuzz.experiments import Trial
from fuzz.protocol import Check, CoverageItem, CoverageKind, SubjectResult, Verdict
from fuzz.protocol.failures import NotTaken, Refusal
from generators.program.case import Case
from generators.sampling.choices import Choices
from generators.sampling.neighbours import list_near
from generators.sampling.sample import sample
from tests.campaign.test_history import HALVED, QUARTERED
from tests.check.in_process import EAGER, WRONG, is_failure, run_subject, source

RIGHT = (Verdict.OK, Verdict.ROUNDING)
TEXT = source(EAGER.format(scale=0.25))
OFF: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "TORCHDYNAMO_DISABLE": lambda: mock.patch.dict("os.environ", TORCHDYNAMO_DISABLE="1"),
    "TORCHDYNAMO_DEBUG_FUNCTION": lambda: mock.patch.dict("os.environ", TORCHDYNAMO_DEBUG_FUNCTION="elsewhere"),
    "torch._dynamo.config.disable": lambda: dynamo.patch(disable=True),
    "the stance of torch.compile": lambda: stance("force_eager"),
    "eager_on_recompile": lambda: stance("eager_on_recompile"),
    "recompile_limit": lambda: dynamo.patch(recompile_limit=0),
}
"""Ways to switch torch.compile off."""
REPLACED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "torch._dynamo.config.debug_backend_override": lambda: dynamo.patch(debug_backend_override=">=0:eager"),
    "the stance of torch.compile": lambda: stance("default", backend="eager"),
}
"""Ways to replace the backend of torch.compile."""


def stance(name: str, **options: Any) -> AbstractContextManager[None]:
    from torch._dynamo.eval_frame import DynamoStance

    return hold_state("the stance of torch.compile", DynamoStance(name, **options))


def is_not_compiled(result: SubjectResult) -> bool:
    failure = result.failure
    return result.verdict is Verdict.SKIPPED and isinstance(failure, NotTaken) and failure.why is Refusal.NOT_COMPILED


@contextmanager
def bisecting(directory: Path) -> Iterator[None]:
    status = directory / "bisect" / "bisect_status.txt"
    status.parent.mkdir()
    status.write_text("backend=eager\nsubsystem=\n")
    with mock.patch.dict("os.environ", TORCHINDUCTOR_CACHE_DIR=str(directory)):
        yield


@pytest.mark.parametrize("name", ["dynamo", "aot_eager", "passes", "export"])
def test_compiled_code_is_seen_to_run(name: str) -> None:
    subject = available()[name]
    assert run_subject(subject, text=TEXT).verdict in RIGHT
    assert not find_fault(subject, "cpu") and not compilation.find_switch()


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["inductor", "inductor_warm"])
def test_code_of_inductor_is_seen_to_run(name: str) -> None:
    assert run_subject(available()[name], text=TEXT).verdict in RIGHT


@pytest.mark.parametrize("name", OFF)
def test_no_verdict_is_about_eager(name: str) -> None:
    subject = available()["dynamo"]
    with OFF[name]():
        assert is_not_compiled(run_subject(subject, text=TEXT))
        assert find_fault(subject, "cpu").startswith("compiles nothing here")
        named = compilation.find_switch()
    assert named.startswith("the stance" if name == "eager_on_recompile" else name) or name == "recompile_limit"
    assert not find_fault(subject, "cpu")


@pytest.mark.parametrize("name", REPLACED)
def test_no_verdict_is_about_another_backend(name: str) -> None:
    with REPLACED[name]():
        assert is_not_compiled(run_subject(available()["inductor"], text=TEXT))
        assert compilation.find_switch().startswith(name)


def test_a_known_bug_is_not_gone_when_the_compiler_is_off() -> None:
    text = WRONG["softmax over queries"]
    if torch.__version__.startswith("2.13"):
        assert run_subject(available()["passes"], text=text).verdict is Verdict.WRONG_RESULT
    with OFF["torch._dynamo.config.disable"]():
        # Dynamo traces programs with symbolic sizes, and the graph passes never see this one.
        assert is_not_compiled(run_subject(available()["passes_dynamic"], text=text))


@pytest.mark.parametrize(
    ("make", "judged"),
    [
        (lambda module: torch.compile(module, backend="eager"), False),
        (lambda module: torch.compile(module.forward, backend="eager"), False),
        (lambda module: module.compile(backend="eager") or module, False),
        (lambda module: module, True),
    ],
    ids=["compiled", "compiled method", "compiled in place", "another compiler"],
)
def test_a_compiler_of_the_user_needs_compiled_code_if_it_is_torchs(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[nn.Module], Any], judged: bool
) -> None:
    monkeypatch.setattr("tests.check.planted.made_here", make, raising=False)
    subject = find("tests.check.planted:made_here")
    assert subject.compiles and run_subject(subject, text=TEXT).verdict in RIGHT
    with OFF["torch._dynamo.config.disable"]():
        result = run_subject(subject, text=TEXT)
    assert result.verdict in RIGHT if judged else is_not_compiled(result)


@pytest.mark.parametrize(("stances", "judged"), [(("force_eager",) * 2, False), (("default", "force_eager"), True)])
def test_a_case_is_judged_if_one_of_its_calls_is_compiled(stances: tuple[str, str], judged: bool) -> None:
    calls = [f'    with torch.compiler.set_stance("{stance}"):\n        yield inputs()' for stance in stances]
    text = "\n".join([TEXT, "def calls(module):", *calls, ""])
    result = run_subject(available()["dynamo"], text=text)
    assert result.verdict in RIGHT if judged else is_not_compiled(result)


@pytest.mark.parametrize("name", compilation.VARIABLES)
def test_a_variable_that_switches_compilers_off_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for value in ("", "0") if compilation.VARIABLES[name][0] is compilation._is_one else ("",):
        monkeypatch.setenv(name, value)
        assert not compilation.find_switch()
    monkeypatch.setenv(name, "1")
    # Only torch 2.15 reads TORCHINDUCTOR_LITE_MODE, and sets this. pytest's own patches of a configuration delete it.
    with torch._inductor.config.patch(fallback_by_default=name == "TORCHINDUCTOR_LITE_MODE"):
        switch = compilation.find_switch()
    assert switch.startswith(f"{name}=1 ") and switch.endswith(": unset it")


def test_what_torchs_bisector_leaves_behind_is_named(tmp_path: Path) -> None:
    with bisecting(tmp_path):
        assert compilation.find_switch().startswith(f"{tmp_path}/")
        assert is_not_compiled(run_subject(available()["inductor"], text=TEXT))
    assert not compilation.find_switch()


def test_a_call_that_switches_the_compiler_off_does_not_last() -> None:
    def switch_off(module: nn.Module, _dynamic: bool | None) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            os.environ["TORCHDYNAMO_DISABLE"] = "1"
            return module(*inputs)

        return run

    result = run_subject(Subject("asked", switch_off), text=TEXT)
    assert result.verdict is Verdict.STATE_CHANGED and is_failure(result.failure, "state_changed")
    assert not compilation.find_switch() and not find_fault(available()["dynamo"], "cpu")


@pytest.mark.worker
def test_a_worker_judges_what_needs_no_compiler_and_then_refuses() -> None:
    process = WorkerProcess(WorkerConfig(variables=(("TORCH_COMPILE_DISABLE", "1"),)), PipeTransport())
    try:
        assert process.start().switch == "TORCH_COMPILE_DISABLE=1 switches torch.compile off: unset it"
        process.send(
            Check(0, TEXT, ("eager", "sdpa_math"), attention_stub=source("return attend(q, k, v, scale=0.25)"))
        )
        assert [one.verdict for one in process.receive().results] == [Verdict.OK, Verdict.OK]
        process.send(Check(0, TEXT, ("eager", "passes")))
        with pytest.raises(CompilersOff, match="TORCH_COMPILE_DISABLE=1"):
            process.receive()
    finally:
        process.close()


HALVED, QUARTERED = (replace(case, contracts=()) for case in (HALVED, QUARTERED))
TRANSPOSED = replace(HALVED, inputs=(replace(HALVED.inputs[0], layout="transposed"), *HALVED.inputs[1:]))
HITS = {CoverageItem(CoverageKind.CACHE, name) for name in ("fxgraph_cache_hit", "autograd_cache_hit")}


@pytest.fixture(autouse=True)
def own_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_caches, "_homes", {})
    monkeypatch.setattr(warm_caches, "_artifacts", {})
    configure_torch()


def judge(case: Case, *experiments: Trial, name: str = "inductor_warm") -> SubjectResult:
    request = build_check(Question(case, (name,), experiments))
    return check(request, {name: find(name)}, "cpu").results[0]


@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_case_runs_what_the_caches_have(mode: str) -> None:
    result = judge(replace(HALVED, mode=mode))
    assert result.verdict in (Verdict.OK, Verdict.ROUNDING)
    assert {*result.coverage} >= HITS
    assert HITS.isdisjoint(judge(HALVED, name="inductor").coverage)
    assert not torch._inductor.config.fx_graph_cache


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("plant", "earlier", "verdict"),
    [
        ("key_without_numbers", QUARTERED, Verdict.WRONG_RESULT),
        ("key_without_strides", TRANSPOSED, Verdict.RUNTIME_ERROR),
    ],
)
def test_a_key_that_forgets_something_is_found(plant: str, earlier: Case, verdict: Verdict) -> None:
    path, make = FUNCTIONS[plant][1:]
    importing = "torch._functorch._aot_autograd.autograd_cache"
    also = wrap(importing, path, make) if plant == "key_without_strides" else nullcontext()
    with wrap(*FUNCTIONS[plant]), also:
        assert not judge(earlier).verdict.is_finding
        assert judge(HALVED).verdict is verdict
        assert not judge(HALVED, Trial("unfused")).verdict.is_finding  # experiments have caches of their own
    assert not judge(HALVED).verdict.is_finding


@pytest.mark.compiles
def test_near_cases_differ_in_one_thing() -> None:
    case = sample(0, 3)
    near = list_near(case, Choices("near"), 3)
    assert len({other.id for other in (case, *near)}) == 4
    assert all([op.kind for op in other.ops] == [op.kind for op in case.ops] for other in near)
