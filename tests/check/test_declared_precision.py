"""A compiler that declares a precision is right at that precision, and wrong beyond it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fuzz.check.judge.declared_precision import Narrowed, list_narrower
from fuzz.check.run.subject_builder import Subject, _as_compiler
from fuzz.compilers.table import COMPILERS
from fuzz.protocol import Verdict
from tests.check.faults import declares
from tests.check.in_process import is_failure, run_subject, source

ATTENTION = source("return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1) @ v")
PRODUCT = source("i = (q * 1e5).long()", "return i * i + i")


def compile_at(made: torch.dtype, of: torch.dtype, change: Callable[[Tensor], Tensor], **declared: Any) -> Subject:
    """A compiler whose tensors of a dtype are of another dtype from the inputs to the outputs."""

    @declares(**declared)
    def function(module: nn.Module) -> Callable[..., Any]:
        def run(*inputs: Tensor) -> Any:
            def cast(value: Any) -> Any:
                return value.to(made) if isinstance(value, Tensor) and value.dtype == of else value

            if of.is_floating_point:
                return change(module.to(made)(*tree_map(cast, inputs)).to(of))
            with Narrowed({of: made}):
                return change(module(*inputs))

        return run

    return _as_compiler("mine:compile", function, ["module"])


DECLARED = {"precisions": {"float32": ("bfloat16",), "int64": ("int32",)}}


def one_row(out: Tensor) -> Tensor:
    return torch.cat([out[..., :1, :] * 1.5, out[..., 1:, :]], -2)


def with_nan(out: Tensor) -> Tensor:
    return out.index_fill(-1, torch.tensor([2]), float("nan"))


@pytest.mark.parametrize(
    ("change", "declared", "verdict"),
    [
        (torch.clone, DECLARED, Verdict.PRECISION_POLICY),
        (torch.clone, {}, Verdict.WRONG_RESULT),
        (torch.clone, {"precisions": {"float32": ("float64",)}}, Verdict.WRONG_RESULT),
        (one_row, DECLARED, Verdict.WRONG_RESULT),
        (with_nan, DECLARED, Verdict.NONFINITE),
    ],
)
def test_bfloat16_is_right_where_it_is_declared(
    change: Callable[[Tensor], Tensor], declared: dict[str, Any], verdict: Verdict
) -> None:
    judged = run_subject(compile_at(torch.bfloat16, torch.float32, change, **declared), text=ATTENTION)
    assert judged.verdict is verdict, judged
    if verdict is Verdict.PRECISION_POLICY:
        assert is_failure(judged.failure, "right_at", precisions=("bfloat16",))
        assert judged.numbers["ratio"] > 1


@pytest.mark.parametrize(
    ("change", "declared", "verdict"),
    [
        (torch.clone, DECLARED, Verdict.PRECISION_POLICY),
        (torch.clone, {}, Verdict.WRONG_RESULT),
        (lambda out: out + 1, DECLARED, Verdict.WRONG_RESULT),
    ],
)
def test_integers_may_wrap_where_it_is_declared(
    change: Callable[[Tensor], Tensor], declared: dict[str, Any], verdict: Verdict
) -> None:
    judged = run_subject(compile_at(torch.int32, torch.int64, change, **declared), text=PRODUCT)
    assert judged.verdict is verdict, judged


def test_only_narrower_dtypes_explain_an_error() -> None:
    declared = {"float32": ("float16", "float64", "bfloat16"), "int64": ("int32", "float32"), "bfloat16": ("float16",)}
    assert list(list_narrower(declared)) == [
        {torch.float32: made, torch.int64: torch.int32} for made in (torch.float16, torch.bfloat16)
    ]
    assert list(list_narrower({})) == []


def test_each_built_in_declaration_names_dtypes() -> None:
    for row in COMPILERS.values():
        for dtype, made in row.capabilities.precisions.items():
            assert all(isinstance(getattr(torch, name), torch.dtype) for name in (dtype, *made))
