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
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import StateChange, StateChanged
from generators.program.case import Case, LaterCall
from generators.program.emit import source
from generators.program.type_check import check as check_case
from generators.program.writes import is_written
from generators.sampling.sample import sample
from tests.check.test_sequences import CALLS, of_first_size, products
from triage.report import repro
from triage.report.repro import ScriptedFailure, write_script


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    "verdict", [v for v in Verdict if v.is_finding and v not in (Verdict.OUT_OF_MEMORY, Verdict.OUT_OF_BOUNDS)]
)
def test_repro_is_one_short_file_that_imports_torch_alone(case: Case, verdict: Verdict, mode: str) -> None:
    text = script(replace(case, mode=mode), verdict, 'a "title" with \\ in it')
    assert imported(text) - set(sys.stdlib_module_names) == {"torch"}
    assert len(text.splitlines()) < 160


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
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    with torch.enable_grad():  # A script sets that for its whole process.
        assert not shows_bug(script(case))
    capsys.readouterr()
    compile_module = without_writes if is_written(case) else of_first_size
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_module(module, False))
    with torch.enable_grad():
        assert shows_bug(script(case))
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
    text = script(case, subject=subject)
    package = Mock(side_effect=lambda one: one)
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", package)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda one: one.module())
    with torch.enable_grad():
        assert not shows_bug(text)
    assert package.called == (subject == "aot_inductor")
    run_program = ExportedProgram.module
    monkeypatch.setattr(ExportedProgram, "module", lambda one: lambda *inputs: -run_program(one)(*inputs))
    with torch.enable_grad():
        assert shows_bug(text)


def test_repro_compiles_under_options(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def compile_module(module: nn.Module, **options: Any) -> Any:
        given.append(options["options"])
        return module

    monkeypatch.setattr(torch, "compile", compile_module)
    with torch.enable_grad():
        tuned = replace(case, settings=(("cpp.threads", 2),))
        assert not shows_bug(script(tuned, subject="inductor_options"))
    assert given == [{"cpp.threads": 2}]


@pytest.mark.parametrize(
    ("verdict", "settings"), [(Verdict.WRONG_RESULT, (("poison", "nan"),)), (Verdict.OUT_OF_BOUNDS, ())]
)
def test_memory_that_is_filled_or_guarded_takes_a_worker(case: Case, verdict: Verdict, settings: Any) -> None:
    assert not script(replace(case, settings=settings), verdict, subject="inductor_options")


def test_a_plain_script_prints_the_state_that_compiling_changes(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "torch._inductor.config.deterministic"
    failure = StateChanged((StateChange(option, "True", "its default"),))
    result = SubjectResult("inductor_options", Verdict.STATE_CHANGED, failure=failure)
    tuned = replace(case, settings=(("deterministic", True),))
    # `monkeypatch` would delete the option at the end, as it is not in the `__dict__` of its module.
    with torch._inductor.config.patch(deterministic=False), torch.enable_grad():
        text = write_script(ScriptedFailure(case=tuned, result=result, title="title"))
        monkeypatch.setattr(torch, "compile", lambda module, **_: module)
        assert not shows_bug(text)

        def compile_module(module: nn.Module, **_: Any) -> nn.Module:
            torch._inductor.config.deterministic = False
            return module

        monkeypatch.setattr(torch, "compile", compile_module)
        assert shows_bug(text)
    assert capsys.readouterr().out.splitlines()[-1] == f"{option}: eager True, inductor False"
    odd = StateChanged((StateChange("torch's number of threads", "1", "2"),))
    assert not write_script(ScriptedFailure(case=tuned, result=replace(result, failure=odd), title="title"))


def shows_bug(text: str) -> bool:
    """Whether a script shows its bug, run in this process."""
    with pytest.raises(SystemExit) as ended:
        exec(text, {"__name__": "__main__"})
    assert ended.value.code in (0, 1)
    return ended.value.code == 1


def script(case: Case, verdict: Verdict = Verdict.WRONG_RESULT, title: str = "title", subject: str = "inductor") -> str:
    return write_script(ScriptedFailure(case=case, result=SubjectResult(subject, verdict), title=title))


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


RUNNING_SUM = """
case_format: 1
dims: {S: 3}
inputs:
  x: {shape: [S], dtype: float32, values: {seed: 0}}
  decay: {shape: [S], dtype: float32, values: {seed: 1}}
ops:
  - {name: out, op: decayed_sum, args: [x, decay], form: scan}
returns: [out]
"""


def test_a_scan_has_a_loop_of_its_own_in_the_script() -> None:
    case, names = casefile.loads(RUNNING_SUM), dict[str, Any]()
    exec(f"{source(case)}\n\n{repro.spell_plain(case)}", names)
    given = names["inputs"]()
    torch.testing.assert_close(names["Module"]()(*given), names["Plain"]()(*given))
