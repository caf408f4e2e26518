"""Other compilers leave the process as it is, refuse what they can't take, and, where installed, compute as eager."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fuzz.check.run import compiled_module
from fuzz.check.run.compiled_module import CompiledModule
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api.exceptions import CompilingFailed, SubjectError
from fuzz.compilers.interface import Package
from fuzz.compilers.table import COMPILERS
from fuzz.protocol import Check, Result, Verdict
from fuzz.protocol.render import describe
from tests.check.in_process import check_here, source

ATTENTION = source("return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1) @ v")
FOREIGN = tuple(
    name for name, row in COMPILERS.items() if row.is_foreign and row.takes == "program" and not row.find_problem()
)


def judge(*names: str) -> Result:
    return check_here(Check(1, ATTENTION, names, hashes=True), *map(find, names))


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


_NAMES = ("executorch", "executorch_xnnpack", "iree", "tvm")


@pytest.mark.parametrize(
    ("compiler", "text", "operator"),
    [
        (
            "executorch",
            "Failed to execute method forward, error: 0x14; kernel 'aten::linalg_qr.out' not found.",
            "aten::linalg_qr.out",
        ),
        ("executorch_xnnpack", "'FlexAttentionHOP' object has no attribute '_schema'", "FlexAttentionHOP"),
        ("tvm", "Unsupported function types ['amax.default', 'sort.stable']", "amax.default"),
        (
            "iree",
            "error: failed to legalize operation 'torch.operator': %0 = <{name = \"torch.aten.special_i0e\"}>",
            "aten.special_i0e",
        ),
        ("iree", "error: failed to legalize operation 'torch.aten.linalg_qr': %3:2 = ...", "aten.linalg_qr"),
        ("iree", "Higher-order operation 'flat_apply' not implemented in the FxImporter", "flat_apply"),
        (
            "aot_inductor",
            (
                "Encountered aliased inputs that are mutated in the graph you are trying to export."
                "\n        This functionality is currently not supported. If needed, please file a github issue."
            ),
            "",
        ),
        ("aot_inductor", "Encountered aliased inputs that are mutated in the graph, but at least one input", None),
        ("executorch", "Failed to execute method forward, error: 0x12; KernelCall failed at instruction 0:29", None),
        ("tvm", "Binary operators must have the same datatype for both operands.", None),
    ],
)
def test_a_refusal_names_the_operator_that_is_not_taken(compiler: str, text: str, operator: str | None) -> None:
    assert COMPILERS[compiler].capabilities.find_refused(text) == operator


class _Module(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, 4))
        self._function = function

    def forward(self, *inputs: Tensor) -> object:
        return self._function(self.bias, *inputs)


def _attend(bias: Tensor, q: Tensor, keep: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Outputs of two shapes and two dtypes, so that another order is seen."""
    out = functional.scaled_dot_product_attention(q, q, q + bias, attn_mask=keep)
    return out.sum(-1), (out, out.argmax(-1))


_QUERY = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
_PROGRAMS: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
    "attention with a row that keeps no key": (_attend, (_QUERY, torch.ones(5, 5).tril(-1).bool())),
    "inputs that are not contiguous": (
        _attend,
        (_QUERY.transpose(0, 1).contiguous().transpose(0, 1), torch.ones(5, 5).bool()),
    ),
    "an input that is repeated": (lambda bias, x: x * bias, (torch.ones(3, 1).expand(3, 4),)),
    "an input within another tensor": (lambda bias, x: x * bias, (torch.arange(5.0)[1:],)),
    "bfloat16": (lambda _, x: x.softmax(-1), (torch.arange(6.0).view(2, 3).bfloat16(),)),
    "booleans, integers and no dimension": (
        lambda _, x, n: (x > n, x.long() + 1, n * 2),
        (torch.arange(4.0), torch.tensor(2.0)),
    ),
    "no element": (lambda bias, x: (x * bias, x.sum()), (torch.ones(0, 4),)),
}


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore")  # those of other software
@pytest.mark.parametrize("name", _NAMES)
def test_a_compiler_that_is_installed_computes_what_eager_does(name: str) -> None:
    compiler = COMPILERS[name]
    if problem := compiler.find_problem():
        pytest.skip(problem)
    for title, (function, inputs) in _PROGRAMS.items():
        module = _Module(function).eval()
        with torch.no_grad():
            program = torch.export.export(module, inputs)
            run = compiler.compile(program, inputs, **compiler.keywords)
            expected = torch.utils._pytree.tree_leaves(module(*inputs))
            for _ in range(2):
                found = torch.utils._pytree.tree_leaves(run(*inputs))
                assert [value.dtype for value in found] == [value.dtype for value in expected], title
                torch.testing.assert_close([*found], expected)


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore")  # those of other software
@pytest.mark.parametrize("name", _NAMES)
def test_a_compiler_that_is_installed_names_what_it_does_not_take(name: str) -> None:
    compiler = COMPILERS[name]
    if problem := compiler.find_problem():
        pytest.skip(problem)
    module, inputs = _Module(lambda _, x: torch.linalg.qr(x)[1]).eval(), (torch.eye(3),)
    with torch.no_grad(), pytest.raises(Exception, match="qr") as refused:  # noqa: PT011, RUF100
        compiler.compile(torch.export.export(module, inputs), inputs, **compiler.keywords)(*inputs)
    assert "linalg_qr" in (compiler.capabilities.find_refused(str(refused.value)) or "")
