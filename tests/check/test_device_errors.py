"""A subject that breaks the GPU, which is fake here, is accused of that, and nothing is checked after it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.bug_identity import failure_key
from fuzz.check.check import check
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.subject_builder import Subject, run_eager
from fuzz.protocol import Check, Result, Verdict
from fuzz.protocol.failures import DeviceError, FailureKey
from tests.check.sources import source
from tests.kernels.reference import math_attention

ILLEGAL = "an illegal memory access was encountered"
REQUEST = Check(
    id=0,
    source=source("return (q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v"),
    subjects=("first", "second"),
    attention_stub=source("return attend(q, k, v, scale=0.25)"),
)
IN_EAGER = source("return torch.sin(q)")

Break = Callable[..., None]


@pytest.fixture
def break_gpu(monkeypatch: pytest.MonkeyPatch) -> Break:
    """After it has been called CUDA refuses all work; `silently`: without raising at once."""
    broken = False

    def refuse() -> None:
        if broken:
            raise torch.AcceleratorError(f"CUDA error: {ILLEGAL}\nSearch for `cudaErrorIllegalAddress'")

    def break_it(*, silently: bool = False) -> None:
        nonlocal broken
        broken = True
        if not silently:
            raise RuntimeError(f"Triton Error [CUDA]: {ILLEGAL}")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: broken)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    return break_it


def judge(first: Callable[..., Any] | Subject, request: Check = REQUEST) -> Result:
    if not isinstance(first, Subject):
        function = first
        first = Subject("first", attention=Attention(lambda: function))
    second = Subject("second", compile=run_eager)
    return check(request, {"first": first, "second": second}, "cpu", lambda _: None, lambda: 0.0)


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, call: Break) -> Tensor:
        ctx.call = call
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.call()
        return gradients[0], None


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("refuses", [(), ("RuntimeError",)])
def test_it_is_one_finding_about_the_function(
    break_gpu: Break, when: str, refuses: tuple[str, ...], *, silently: bool
) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if when == "forward":
            break_gpu(silently=silently)
        out = math_attention(q, k, v, **options)
        if when == "backward":
            out = Backward.apply(out, lambda: break_gpu(silently=silently))  # type: ignore[no-untyped-call, unused-ignore]
        return out

    attention.capabilities = {"refuses": refuses}  # type: ignore[attr-defined]
    result = judge(attention, replace(REQUEST, training=when == "backward"))
    (one,) = result.results
    assert (one.verdict, result.rejected) == (Verdict.DEVICE_ERROR, None) and result.unfit
    assert isinstance(one.failure, DeviceError)
    assert (one.failure.fault, one.failure.kernel, one.failure.place) == (ILLEGAL, "", "")


def test_synchronous_launches_tell_the_kernel_and_the_line(break_gpu: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    def scale_rows() -> None:
        break_gpu()

    class JITFunction:
        __module__ = "triton.runtime.jit"
        fn = staticmethod(scale_rows)

        def run(self) -> None:
            self.fn()

    def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        JITFunction().run()
        return math_attention(q, k, v, scale=scale)

    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    (one,) = judge(attention).results
    assert isinstance(one.failure, DeviceError)
    assert one.failure.kernel == "scale_rows"
    assert one.failure.place.startswith("test_device_errors.py:")
    assert failure_key(one) == FailureKey(f"{ILLEGAL} in scale_rows")


def test_eager_that_breaks_it_accuses_nobody(break_gpu: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "sin", lambda _: break_gpu())
    result = judge(math_attention, replace(REQUEST, source=IN_EAGER))
    assert result.rejected and not result.results and result.unfit
