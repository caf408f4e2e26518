"""The runtime of repro.py: wrong values, other forms, exceptions, and the exit codes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triage.report import repro_runtime

runtime: Any = repro_runtime  # it has no types
DRAWS = iter((1e-3, 2e-3))


class Program(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


class WithChange(Program):
    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(super().forward(x))


def raise_error(_: Tensor) -> Tensor:
    raise RuntimeError("no such tile")


@pytest.fixture
def accuse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the program, and a change of its result as the bug."""

    def setup(change: Any, **constants: object) -> None:
        constants |= {"Module": Program, "Plain": Program, "Accused": lambda: WithChange(change), "NAMES": ["x"]}
        constants["calls"] = lambda _: [[torch.arange(6.0).reshape(2, 3)]]
        for name, value in constants.items():
            monkeypatch.setattr(runtime, name, value)

    with torch.enable_grad():  # A run sets it for the whole process.
        yield setup


@pytest.mark.parametrize(
    ("change", "constants", "is_wrong"),
    [
        (lambda out: out, {}, False),
        (lambda out: out * (1 + 1e-7), {}, False),
        (lambda out: out * 1.001, {}, True),
        (lambda out: out * 1.001, {"IS_RANDOM": True}, False),
        (lambda out: out * torch.inf, {"IS_RANDOM": True}, True),
        (lambda out: out.log().log(), {}, True),
        (lambda out: out * 1.0, {"TRAINING": True}, False),
        (lambda out: out * 2.0 - out.detach(), {"TRAINING": True}, True),
        (lambda out: out + next(DRAWS), {"RUNS": 1, "SHARE": 1.0}, True),
    ],
)
def test_errors_beyond_rounding_are_wrong(accuse: Any, change: Any, constants: Any, is_wrong: bool) -> None:
    accuse(change, **constants)
    assert runtime.has_wrong_values() is is_wrong


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda out: out + 1.0, False),
        (lambda out: out.double(), True),
        (lambda out: out.t().contiguous().t(), True),
        (lambda out: out[None], True),
    ],
)
def test_a_form_is_dtype_shape_and_order_in_memory(accuse: Any, change: Any, differs: bool) -> None:
    accuse(change)
    assert runtime.has_other_forms() is differs


@pytest.mark.parametrize(("change", "code"), [(lambda out: out, 0), (raise_error, 1)])
def test_the_exit_code_is_1_where_the_accused_raises(accuse: Any, change: Any, code: int) -> None:
    accuse(change)
    with pytest.raises(SystemExit) as ended:
        runtime.main(runtime.raises)
    assert ended.value.code == code


def test_the_exit_code_is_125_where_the_program_itself_raises(accuse: Any) -> None:
    accuse(raise_error)
    with pytest.raises(SystemExit) as ended:
        runtime.main(runtime.has_other_forms)
    assert ended.value.code == 125


def test_a_program_is_exported_once_as_the_changes_before_its_first_call_leave_it(accuse: Any) -> None:
    exported: list[bool] = []

    def calls(module: Any) -> Any:
        module.is_changed = True
        yield from ([torch.ones(2)], [torch.ones(2)])

    def prepare(module: Any) -> Any:
        exported.append(module.is_changed)
        return nn.Sequential()  # it has a length, 0, and returns its argument

    accuse(None)
    runtime.calls = calls
    assert runtime.run(Program, prepare)["call 2: output 0"].equal(torch.ones(2)) and exported == [True]
