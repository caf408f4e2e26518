"""Other runtimes leave the process as it is, refuse what they can't take, and their loss is told."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuzz.check.check import check
from fuzz.check.run import compiled_module
from fuzz.check.run.compiled_module import CompiledModule
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api.exceptions import CompilingFailed, SubjectError
from fuzz.compilers.interface import Package
from fuzz.compilers.table import COMPILERS
from fuzz.protocol import Check, Result, Verdict
from fuzz.protocol.render import describe
from tests.check.in_process import source

ATTENTION = source("return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1) @ v")
FOREIGN = tuple(
    name for name, row in COMPILERS.items() if row.is_foreign and row.takes == "program" and not row.find_problem()
)


def judge(*names: str) -> Result:
    subjects = {name: find(name) for name in names}
    return check(Check(1, ATTENTION, names, hashes=True), subjects, "cpu")


def look_at_process() -> tuple[Any, ...]:
    """What a runtime may change: variables, directory, threads, random numbers, the rounding of small numbers."""
    small = torch.full((8,), 1e-40)
    is_kept = bool((small * torch.ones(8) != 0).all() and (small + small != 0).all())
    return dict(os.environ), Path.cwd(), torch.get_num_threads(), is_kept, torch.get_rng_state().tolist()


@pytest.mark.skipif(not FOREIGN, reason="no other compiler is installed")
def test_a_runtime_changes_no_other_subjects_answer(capfd: pytest.CaptureFixture[str]) -> None:
    """Beside them runs eager as a subject, and Inductor's passes before and after."""
    torch.manual_seed(7)
    (before,) = judge("passes").results
    process = look_at_process()
    foreign = judge(*FOREIGN)
    assert look_at_process() == process
    assert foreign.unfit == ""
    assert {one.verdict for one in foreign.results} <= {Verdict.OK, Verdict.ROUNDING}, foreign.results
    (after,) = judge("passes").results
    assert (after.hashes, after.verdict) == (before.hashes, before.verdict)
    assert capfd.readouterr().out == ""


def test_a_package_that_is_missing_is_no_finding() -> None:
    (judged,) = judge("tests.check.planted_compilers:needs_a_package").results
    assert judged.verdict is Verdict.SKIPPED
    assert "has no package not_installed_anywhere" in describe(judged)


def test_a_compiler_that_is_not_installed_skips_its_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a replay of a case about it, which names no subject."""
    monkeypatch.setattr(Package, "installed", property(lambda _: ""))
    (judged,) = judge("openvino").results
    assert judged.verdict is Verdict.SKIPPED
    assert "openvino is not installed: run " in describe(judged)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor, *, options: Any = None, other: Tensor | None = None) -> tuple[Tensor, None]:
        return x * self.weight, other  # type: ignore[return-value]


class Options:
    """No argument of a program."""


def compile_scaled(name: str = "export", **changes: Any) -> CompiledModule:
    return CompiledModule(replace(COMPILERS[name], **changes), Scaled().eval(), None)


@pytest.mark.parametrize(
    ("options", "again", "why"),
    [
        (Options(), None, "takes no Options among its arguments"),
        ([b"bytes"], None, "takes no bytes among its arguments"),
        ("a string", "another", "for other arguments"),
        ([torch.ones(2)], [torch.ones(2), torch.ones(2)], "for other arguments"),
    ],
)
def test_arguments_that_no_program_takes_are_refused(options: object, again: object, why: str) -> None:
    run = compile_scaled()

    def call_twice() -> None:
        for given in (options, again):
            run(torch.ones(64), options=given)

    with torch.no_grad(), pytest.raises(SubjectError, match=why):
        call_twice()


def test_constants_and_none_are_no_obstacle() -> None:
    run = compile_scaled()
    with torch.no_grad():
        for _ in range(2):
            out, nothing = run(torch.ones(64), options=["a string", 2.0, None])
            assert torch.equal(out, torch.ones(64)) and nothing is None


def test_a_model_above_the_limit_of_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_module, "LARGEST", 255)

    def fail(*_: object, **__: object) -> Any:
        raise AssertionError("it is not compiled")

    with torch.no_grad(), pytest.raises(SubjectError, match="GiB of weights"):
        compile_scaled("openvino", compile=fail)(torch.ones(64))
    monkeypatch.setattr(compiled_module, "LARGEST", 256)
    with torch.no_grad(), pytest.raises(CompilingFailed, match="openvino"):
        compile_scaled("openvino", compile=fail)(torch.ones(64))
