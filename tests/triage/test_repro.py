"""repro.py: which values a script compares, and when it exits with 0, 1 or 125."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from corpus import casefile
from fuzz.protocol import FINDINGS, SubjectResult, Verdict
from fuzz.protocol.failures import StateChange, StateChanged
from generators.program.case import Case, LaterCall
from generators.program.emit import source
from generators.program.state import is_written
from generators.program.type_check import check as check_case
from generators.sampling.sample import sample
from tests.check.test_sequences import CALLS, of_first_size, products
from triage.report import repro
from triage.report.repro import Bug, write_script


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("verdict", sorted(FINDINGS - {Verdict.OUT_OF_MEMORY}))
def test_repro_is_one_short_file_that_imports_torch_alone(case: Case, verdict: Verdict, mode: str) -> None:
    text = script(replace(case, mode=mode), verdict, 'a "title" with \\ in it')
    assert imported(text) - set(sys.stdlib_module_names) == {"torch"}
    assert len(text.splitlines()) < 100


@pytest.mark.parametrize("verdict", [Verdict.WRONG_RESULT, Verdict.EAGER_SUSPECT])
def test_repro_has_one_thread_and_says_where_it_cannot_run(tmp_path: Path, case: Case, verdict: Verdict) -> None:
    text = script(case, verdict)
    assert "\ntorch.set_num_threads(1)" in text
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so is broken')")
    (tmp_path / "repro.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "repro.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (repro.CANT_RUN, "", 1)
    assert "OSError('libtorch.so is broken')" in done.stderr


@pytest.mark.samples
def test_repro_has_the_text_that_ran() -> None:
    for index in range(30):
        drawn = sample(7, index)
        text = script(drawn)
        assert source(drawn).strip() in text
        assert imported(text) - set(sys.stdlib_module_names) == {"torch"}


WRITES = """
case_format: 1
dims: {B: 2}
inputs:
  x: {shape: [B], dtype: float32, values: {seed: 0}}
  z: {shape: [B], dtype: float32, values: {seed: 2}}
  cache: {shape: [B], dtype: float32, values: {seed: 1}, parameter: true, buffer: true}
ops:
  - {name: written, op: add_, args: [cache, z]}
  - {name: out, op: mul, args: [written, x]}
returns: [out]
"""


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        (products(calls=CALLS), "call 3: output 0"),
        (products("inference", (*CALLS[:2], LaterCall(under="training"))), "call 3: output 0"),
        (casefile.loads(WRITES), "cache afterwards"),
        (casefile.loads(WRITES.replace("cache, z", "x, z").replace("written, x", "written, z")), "x afterwards"),
        (replace(casefile.loads(WRITES), calls=(LaterCall(),)), "call 2: output 0"),
    ],
)
def test_repro_shows_which_value_of_which_call_is_off(
    case: Case, wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_case(case)
    names: dict[str, Any] = {"__name__": "repro"}
    exec(script(case), names)
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    with torch.enable_grad():  # A script sets that for its whole process.
        assert not names["shows_bug"]()
    capsys.readouterr()
    compile_module = without_writes if is_written(case) else of_first_size
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_module(module, False))
    with torch.enable_grad():
        assert names["shows_bug"]()
    off = {line.partition(": values")[0] for line in capsys.readouterr().out.splitlines() if line.endswith("; wrong")}
    assert wrong in off


def without_writes(module: nn.Module, _dynamic: bool) -> Any:
    def call(*inputs: Tensor) -> Tensor:
        state = [(value, value.clone()) for value in (*inputs, *module.buffers())]
        out: Tensor = module(*inputs).clone()
        for value, before in state:
            value.copy_(before)
        return out

    return call


@pytest.mark.compiles
@pytest.mark.parametrize("subject", ["export", "aot_inductor"])
def test_repro_exports_what_was_exported(subject: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "repro"}
    exec(script(case, subject=subject), names)
    package = Mock(side_effect=lambda one: one)
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", package)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda one: one.module())
    with torch.enable_grad():
        assert not names["shows_bug"]()
    assert package.called == (subject == "aot_inductor")
    run_program = ExportedProgram.module
    monkeypatch.setattr(ExportedProgram, "module", lambda one: lambda *inputs: -run_program(one)(*inputs))
    with torch.enable_grad():
        assert names["shows_bug"]()


@pytest.mark.parametrize("kind", [None, "nan", "large"])
def test_repro_compiles_under_options_and_fills_what_compiled_code_allocates(
    kind: str | None, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards: Any = torch._C._dynamo.guards
    given = []
    monkeypatch.setattr(guards, "_empty_strided_cpu", lambda *form: torch.zeros(form[0], dtype=form[2]))

    def compile_module(module: nn.Module, **options: Any) -> Any:
        given.append(options["options"])
        return lambda *inputs: module(*inputs) + guards._empty_strided_cpu((4, 1), (1, 1), torch.float32)[0]

    monkeypatch.setattr(torch, "compile", compile_module)
    poison = (("poison", kind),) if kind else ()
    names: dict[str, Any] = {"__name__": "repro"}
    exec(script(replace(case, settings=(("cpp.threads", 2), *poison)), subject="inductor_options"), names)
    with torch.enable_grad():
        assert names["shows_bug"]() == (kind is not None)
    assert given == [{"cpp.threads": 2}]


def test_a_plain_script_prints_the_state_that_compiling_changes(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "torch._inductor.config.deterministic"
    failure = StateChanged((StateChange(option, "True", "its default"),))
    result = SubjectResult("inductor_options", Verdict.STATE_CHANGED, failure=failure)
    names: dict[str, Any] = {"__name__": "repro"}
    tuned = replace(case, settings=(("deterministic", True),))
    # `monkeypatch` would delete the option at the end, as it is not in the `__dict__` of its module.
    with torch._inductor.config.patch(deterministic=False), torch.enable_grad():
        exec(write_script(Bug(case=tuned, result=result, title="title")), names)
        monkeypatch.setattr(torch, "compile", lambda module, **_: module)
        assert not names["shows_bug"]()

        def compile_module(module: nn.Module, **_: Any) -> nn.Module:
            torch._inductor.config.deterministic = False
            return module

        monkeypatch.setattr(torch, "compile", compile_module)
        assert names["shows_bug"]()
    assert capsys.readouterr().out.splitlines()[-1] == f"{option}: True before compiling, False afterwards"
    odd = StateChanged((StateChange("torch's number of threads", "1", "2"),))
    assert not write_script(Bug(case=tuned, result=replace(result, failure=odd), title="title"))


def script(case: Case, verdict: Verdict = Verdict.WRONG_RESULT, title: str = "title", subject: str = "inductor") -> str:
    return write_script(Bug(case=case, result=SubjectResult(subject, verdict), title=title))


def imported(text: str) -> set[str]:
    names = [
        name
        for node in ast.walk(ast.parse(text))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    ]
    return {name.partition(".")[0] for name in names}
