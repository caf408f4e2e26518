"""A subject whose own code does not decide its verdicts is never called right."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fuzz.check.control import find_fault, run_control
from fuzz.check.run.program import Program, execute
from fuzz.check.run.subject_builder import available, find, run_eager
from fuzz.check.torch_api.settings import configure_torch
from fuzz.protocol import EAGER, Verdict
from fuzz.subjects import SUBJECTS
from tests.command import ROOT, run_command

NOT_RUN = "is not run here: its verdicts compare eager with eager"
FUNCTION = "tests.check.planted_attention:right"
COMPILER = "tests.check.planted:made_here"
SLOW = {name for name, spec in SUBJECTS.items() if spec.needs_cxx or spec.sharded}


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.check.planted.made_here", lambda module: module, raising=False)
    configure_torch()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.compiles] if name in SLOW else [])
        for name in (*(name for name in SUBJECTS if name != EAGER), FUNCTION, COMPILER)
    ],
)
def test_every_subject_fails_its_control(name: str) -> None:
    if name in SUBJECTS and name not in available():
        pytest.skip("it needs a GPU")
    subject = find(name)
    if problem := subject.compiler.find_problem() if subject.compiler else "":
        pytest.skip(problem)
    assert run_control(subject, "cpu").verdict is Verdict.WRONG_RESULT


@pytest.mark.parametrize(
    "name", ["inductor", "aot_eager", "dynamo", "passes", "passes_random", "export", "aot_inductor", "openvino"]
)
def test_a_compiler_that_runs_eager_is_no_subject(name: str) -> None:
    assert find_fault(replace(available()[name], compile=run_eager), "cpu") == NOT_RUN


@pytest.mark.parametrize("name", [FUNCTION, COMPILER, "sdpa_math"])
def test_a_function_that_nobody_calls_is_no_subject(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Program, "compile", lambda _self, _compile, module, _dynamic: module)
    monkeypatch.setattr("fuzz.check.run.attention.function.call_and_check", call_eager)
    assert find_fault(find(name), "cpu") == NOT_RUN


def call_eager(_function: object, q: Any, k: Any, v: Any, **options: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(q, k, v, scale=options["scale"])


def test_inputs_that_nobody_splits_are_no_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_whole(part: Any) -> list[Any]:
        program = Program(part.request.source)
        module = program.module(False)
        return [(execute(module, module, program.calls(module), training=False), [])]

    monkeypatch.setattr("fuzz.check.run.ranks.run_on_ranks", run_whole)
    assert find_fault(available()["sharded"], "cpu") == NOT_RUN


@pytest.mark.worker
@pytest.mark.parametrize(("name", "code"), [("falls_back", 2), ("flattens", 0)])
def test_a_command_ends_before_it_calls_such_a_subject_right(name: str, code: int) -> None:
    subject = f"tests.check.planted_compilers:{name}"
    case = Path("corpus/seeds/bias-for-a-mask-of-a-folded-scale.case.yaml")
    done = run_command("fuzz.replay", case, "--subject", subject, cwd=ROOT)
    assert done.returncode == code, done.stderr
    assert (f"{subject} {NOT_RUN}" in done.stderr) == (code == 2)
