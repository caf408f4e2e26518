"""Every kind of fault, planted in a subject, ends as its verdict; after a broken GPU nothing is checked."""

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
from fuzz.protocol import Check, Result, SubjectResult, Verdict
from fuzz.protocol.failures import DeviceError, FailureKey, Raised, Value
from tests.check.client import Asker
from tests.check.in_process import is_failure, plain, source
from tests.kernels.reference import math_attention

FORMS: list[tuple[str, Verdict, str, dict[str, Any]]] = [
    ("zeroed_row", Verdict.WRONG_RESULT, "wrong_value", {"value": Value("output", 0)}),
    ("nan_column", Verdict.NONFINITE, "not_finite", {"value": Value("output", 0), "count": 136, "first": (0, 0, 0, 2)}),
    ("double", Verdict.METADATA, "form_differs", {"aspect": "dtype", "actual": "float64", "expected": "float32"}),
    ("transposed", Verdict.METADATA, "form_differs", {"aspect": "shape", "actual": "[2, 4, 16, 17]"}),
    (
        "overwrites_input",
        Verdict.METADATA,
        "form_differs",
        {"aspect": "mutation", "value": Value("input", 0, is_written=True)},
    ),
    ("relaid", Verdict.METADATA, "form_differs", {"aspect": "strides", "actual": "[1088, 16, 64, 1]"}),
    ("in_a_tuple", Verdict.METADATA, "form_differs", {"aspect": "structure", "actual": "(tensor)"}),
    (
        "in_an_input",
        Verdict.METADATA,
        "form_differs",
        {"aspect": "memory", "value": Value("output", 0), "actual_owner": Value("input", 0)},
    ),
    ("restless", Verdict.NONDETERMINISTIC, "nondeterministic", {"value": Value("output", 0)}),
    ("hungry", Verdict.OUT_OF_MEMORY, "raised", {"error": "RuntimeError"}),
    ("failing", Verdict.RUNTIME_ERROR, "raised", {"error": "ValueError", "text": "no kernel for torch.float32"}),
    ("talking", Verdict.OK, "", {}),
]
RELUS = {
    "relu_accuracy": Verdict.WRONG_RESULT,
    "relu_compile_error": Verdict.COMPILE_ERROR,
    "relu_runtime_error": Verdict.RUNTIME_ERROR,
}


def subject(name: str) -> str:
    return f"tests.check.planted:{name}"


def run_subject(worker: Asker, name: str, text: str, *, training: bool = False, random: bool = False) -> SubjectResult:
    return worker.one(text, subject(name), training=training, random=random)


def test_named_subjects_are_there(worker: Asker) -> None:
    assert subject("zeroed_row") in worker.hello.subjects


@pytest.mark.parametrize(("name", "verdict", "kind", "fields"), FORMS, ids=[form[0] for form in FORMS])
def test_a_fault_ends_as_its_verdict(
    worker: Asker, name: str, verdict: Verdict, kind: str, fields: dict[str, Any]
) -> None:
    result = run_subject(worker, name, plain())
    assert result.verdict == verdict
    assert is_failure(result.failure, kind, **fields) if kind else result.failure is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_one_lost_row_is_seen_in_any_precision(worker: Asker, dtype: str) -> None:
    result = run_subject(worker, "zeroed_row", plain(dtype))
    assert result.verdict == Verdict.WRONG_RESULT
    assert result.numbers["rows_wrong"] == 1
    assert result.numbers["rows_total"] == 2 * 4 * 17
    assert result.numbers["index"] // 16 == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_ulp_is_rounding(worker: Asker, dtype: str) -> None:
    assert run_subject(worker, "one_ulp_up", plain(dtype)).verdict in (Verdict.OK, Verdict.ROUNDING)


def test_a_wrong_gradient_shows_in_training_only(worker: Asker) -> None:
    assert run_subject(worker, "wrong_gradient", plain()).verdict == Verdict.OK
    result = run_subject(worker, "wrong_gradient", plain(), training=True)
    assert result.verdict == Verdict.WRONG_GRADIENT
    assert is_failure(result.failure, "wrong_value", value=Value("input", 0, is_gradient=True))


def test_nan_by_design_is_a_convention(worker: Asker) -> None:
    empty_rows = source(
        "scores = (q @ k.transpose(-2, -1)).masked_fill(~rest[0], float('-inf'))",
        "return scores.softmax(dim=-1) @ v",
        extra="torch.ones(S, S).tril(-1).bool()",
    )
    assert run_subject(worker, "finite", empty_rows).verdict == Verdict.CONVENTION


def test_values_under_another_random_stream_are_compared_by_their_distribution(worker: Asker) -> None:
    dropped = source("return F.dropout((q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1), 0.1, True) @ v")
    assert run_subject(worker, "reseeded", dropped, random=True).verdict == Verdict.RANDOM_STREAM
    assert run_subject(worker, "nan_column", dropped, random=True).verdict == Verdict.NONFINITE
    assert run_subject(worker, "zeroed_row", dropped, random=True).verdict == Verdict.WRONG_RESULT


@pytest.mark.compiles
@pytest.mark.parametrize("name", RELUS)
def test_bugs_inductor_plants_itself(worker: Asker, name: str) -> None:
    if worker.hello.cxx is None:
        pytest.skip("no C++ compiler")
    result = run_subject(worker, name, source("return F.relu(q @ k.transpose(-2, -1)) @ v"))
    assert result.verdict == RELUS[name]
    if result.verdict == Verdict.COMPILE_ERROR:
        assert isinstance(result.failure, Raised) and result.failure.error == "CppCompileError"
        assert "declared" in result.failure.text


def test_a_lost_row_that_pytorchs_own_check_misses(worker: Asker) -> None:
    large = source("return (q @ k.transpose(-2, -1) / 8.0).softmax(dim=-1) @ v", dims="2, 8, 512, 64", dtype="bfloat16")
    result = run_subject(worker, "zeroed_row", large)
    assert result.dynamo_same is True
    assert result.verdict == Verdict.WRONG_RESULT and result.numbers["rows_wrong"] == 1


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
    return check(request, {"first": first, "second": second}, "cpu")


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
    assert one.failure.place.startswith("test_planted.py:")
    assert failure_key(one) == FailureKey(f"{ILLEGAL} in scale_rows")


def test_eager_that_breaks_it_accuses_nobody(break_gpu: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "sin", lambda _: break_gpu())
    result = judge(math_attention, replace(REQUEST, source=IN_EAGER))
    assert result.rejected and not result.results and result.unfit
