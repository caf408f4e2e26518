"""What attention functions may do wrong beside their numbers: each ends as its verdict, and none ends the worker."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fuzz.check.run.attention.function import Attention
from fuzz.check.run.subject_builder import Subject, find
from fuzz.protocol import CoverageItem, CoverageKind, Verdict
from fuzz.protocol.failures import NotTaken, OutOfBounds, Raised, Refusal, Value
from tests.check import planted_attention
from tests.check.faults import declares, with_gradient
from tests.check.in_process import is_failure, run_subject, source
from tests.kernels.reference import math_attention

RIGHT = (Verdict.OK, Verdict.ROUNDING)


def right(q: Tensor, k: Tensor, v: Tensor, *, dropout: tuple[float, int] | None = None, **options: Any) -> Tensor:
    """The reference, with a dropout stream of its own."""
    p, seed = dropout or (0.0, 0)
    drawn = torch.rand((*q.shape[:3], k.shape[2]), generator=torch.Generator().manual_seed(seed))
    return math_attention(q, k, v, dropout_p=p, dropout_mask=drawn >= p if dropout else None, **options)


def without_gradient_of(name: str, cut: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        given = {"q": q, "k": k, "v": v, **options}
        return right(**{**given, name: cut(given[name])})

    return attention


@pytest.mark.parametrize("cut", [Tensor.detach, lambda x: with_gradient(x, lambda _: None)])
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks"])
def test_a_gradient_that_does_not_come_is_a_wrong_one(name: str, cut: Callable[[Tensor], Tensor]) -> None:
    extra = {"bias": "torch.randn(1, H, S, S, generator=rng(4))", "sinks": "torch.randn(H, generator=rng(4))"}.get(
        name, "rng"
    )
    eager = {
        "bias": "return ((q @ k.transpose(-2, -1)) * 0.25 + rest[0]).softmax(-1) @ v",
        "sinks": "return torch.cat([q @ k.transpose(-2, -1) * 0.25, rest[0][:, None, None].expand(B, H, S, 1)], -1)"
        ".softmax(-1)[..., :-1] @ v",
    }.get(name, "return ((q @ k.transpose(-2, -1)) * 0.25).softmax(-1) @ v")
    keyword = f", {name}=rest[0]" if name in ("bias", "sinks") else ""
    text = source(eager, extra=extra)
    attention_stub = source(f"return attend(q, k, v, scale=0.25{keyword})", extra=extra)
    assert run_subject(right, training=True, text=text, attention_stub=attention_stub).verdict in RIGHT
    result = run_subject(without_gradient_of(name, cut), training=True, text=text, attention_stub=attention_stub)
    assert result.verdict is Verdict.WRONG_GRADIENT
    assert is_failure(result.failure, "wrong_value", value=Value.of_result(f"d{name}"), gradient_missing=True), (
        result.failure
    )


def plain(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Eager attention, which rounds scores."""
    return (q @ k.mT * scale).softmax(-1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """On the CPU flash attention, which rounds sums."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)


@torch.library.custom_op("tests::plain", mutates_args=())
def hidden_plain(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Eager attention that no dispatch mode sees into."""
    return plain(q, k, v, scale=scale)


def hidden(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """A kernel that rounds scores."""
    out: Tensor = hidden_plain(q, k, v, scale)
    return out


@pytest.mark.parametrize(("function", "training"), [(plain, False), (plain, True), (fused, True), (hidden, False)])
def test_what_a_function_rounds_is_read_off_what_it_calls(
    function: Callable[..., Tensor], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dims, scale = ("1, 2, 257, 16", 0.25) if function is fused else ("2, 2, 17, 64", 0.5)
    bodies = (f"return ((q @ k.transpose(-2, -1)) * {scale}).softmax(-1) @ v", f"return attend(q, k, v, scale={scale})")
    text, stub = (source(body, dims=dims, dtype="bfloat16") for body in bodies)
    undeclared = run_subject(function, training=training, text=text, attention_stub=stub)
    monkeypatch.setattr(function, "capabilities", {"rounds": ("weights",)}, raising=False)
    held = run_subject(function, training=training, text=text, attention_stub=stub)
    assert held.verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT)
    expected = ("sums",) if function is fused else ("scores",)
    assert getattr(held.failure, "undeclared", ()) == expected
    if function is hidden:
        assert (undeclared.verdict, undeclared.failure) == (held.verdict, held.failure)
    else:
        assert not undeclared.verdict.is_finding


def test_what_cannot_run_in_guarded_memory_runs_without() -> None:
    def needs_own_storage(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        if torch.zeros(3).storage_offset():
            raise ValueError("a view")
        return right(q, k, v, scale=scale)

    result = run_subject(needs_own_storage)
    assert (result.verdict in RIGHT, result.coverage) == (True, (CoverageItem(CoverageKind.UNGUARDED, "allocations"),))


def test_what_tracers_and_transforms_allocate_is_left_to_them() -> None:
    def maps(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        mapped = torch.vmap(lambda row: torch.zeros_like(row) + row)(q)
        functional = torch.func.functionalize(lambda x: torch.empty(x.shape).copy_(x) * 1)
        with FakeTensorMode():
            functional(torch.ones(3))
        return right(functional(mapped), k, v, scale=scale)

    result = run_subject(maps)
    assert (result.verdict in RIGHT, result.coverage) == (True, ())


@pytest.mark.parametrize(("factor", "scale", "is_accused"), [(1, -1.0, False), (1, 1.0, False), (1.5, 1.0, True)])
def test_torch_s_own_mistake_is_not_its_caller_s(factor: float, scale: float, is_accused: bool) -> None:
    def calls_torch(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: str) -> Tensor:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, is_causal=causal == "top_left", scale=factor * scale)

    kept = "torch.ones(S, S, dtype=torch.bool).tril()"
    eager = f"return ((q @ k.mT) * {scale}).masked_fill(~{kept}, -torch.inf).softmax(-1) @ v"
    stub = source(f"return attend(q, k, v, scale={scale}, causal='top_left')")
    name = "package.module:calls_torch"
    result = run_subject(
        Subject(name, attention=Attention(lambda: calls_torch)), text=source(eager), attention_stub=stub
    )
    assert result.verdict.is_finding is is_accused
    assert scale > 0 or isinstance(result.failure, NotTaken)


@pytest.mark.triton_interpreter
def test_a_wrong_gradient_of_the_sinks_is_seen() -> None:
    dtype = "bfloat16"

    def halving(q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor, **options: Any) -> Tensor:
        return right(q, k, v, sinks=with_gradient(sinks, lambda gradient: gradient / 2), **options)

    extra = "torch.randn(H, generator=rng(4))"
    text = source(
        "sink = rest[0][:, None, None].expand(B, H, S, 1).type_as(q)",
        "scores = torch.cat([q @ k.transpose(-2, -1) * 0.25, sink], -1)",
        "return scores.softmax(-1)[..., :-1] @ v",
        extra=extra,
        dtype=dtype,
    )
    attention_stub = source("return attend(q, k, v, scale=0.25, sinks=rest[0])", extra=extra, dtype=dtype)
    for subject in (right, find("triton")):
        result = run_subject(subject, training=True, text=text, attention_stub=attention_stub)
        assert result.verdict in RIGHT, result.failure
    result = run_subject(halving, training=True, text=text, attention_stub=attention_stub)
    assert result.verdict is Verdict.WRONG_GRADIENT and is_failure(
        result.failure, "wrong_value", value=Value.of_result("dsinks")
    )


@pytest.mark.parametrize("returned", [lambda _: None, lambda out: (out,), lambda out: out[:, :1]])
def test_a_second_call_that_returns_something_else_is_told(returned: Callable[[Tensor], Any]) -> None:
    calls = itertools.count()

    def fickle(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        out = right(q, k, v, **options)
        return out if next(calls) < 1 else returned(out)

    result = run_subject(fickle)
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert is_failure(result.failure, "raised", error="TypeError"), result.failure


def test_a_call_that_fails_when_the_mask_is_read_accuses_nobody() -> None:
    def dividing(q: Tensor, k: Tensor, v: Tensor, *, scale: float, **options: Any) -> Tensor:
        return right(q, k, v, scale=1 / (1 / scale), **options)

    assert run_subject(dividing, dropout=True).verdict is Verdict.RANDOM_STREAM


@pytest.mark.parametrize("error", [AssertionError, LookupError])
@pytest.mark.parametrize("training", [False, True])
def test_what_a_function_declares_to_refuse_by_is_no_finding(error: type[Exception], *, training: bool) -> None:
    def refuse(_gradient: Tensor) -> None:
        raise error

    calls = itertools.count()

    @declares(refuses=("AssertionError",))
    def picky(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if next(calls) > 0 and not training:
            raise error
        return with_gradient(right(q, k, v, **options), refuse)

    result = run_subject(picky, training=training)
    if error is AssertionError:
        assert result.verdict is Verdict.SKIPPED, result.failure
    else:
        assert result.verdict is Verdict.RUNTIME_ERROR
        assert isinstance(result.failure, Raised) and result.failure.place.startswith("test_called_functions.py:")
        assert result.failure.place.endswith(": raise error")


def test_writing_out_of_bounds_is_told_of_a_function_that_skips_the_case_after_it() -> None:
    def refuse(_gradient: Tensor) -> None:
        raise NotImplementedError("no backward pass yet")

    def late(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        out = torch.empty(q.shape)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(3.0)
        return with_gradient(right(q, k, v, scale=scale), refuse)

    result = run_subject(late, training=True)
    assert result.verdict is Verdict.OUT_OF_BOUNDS
    assert isinstance(result.failure, OutOfBounds)
    (write,) = result.failure.writes
    assert write.buffer.startswith("torch.empty at test_called_functions.py:")
    assert (write.place, write.count) == ("after", 1)


def test_text_that_needs_strides_of_eager_s_is_skipped_wherever_it_raises() -> None:
    text = source("return (q @ k.transpose(-2, -1) * 0.25).softmax(-1).matmul(v).transpose(1, 2).reshape(B, S, H * D)")
    attention_stub = source("return attend(q, k, v, scale=0.25).transpose(1, 2).view(B, S, H * D)")
    result = run_subject(find("triton"), text=text, attention_stub=attention_stub)
    assert result.verdict is Verdict.SKIPPED
    assert is_failure(result.failure, "not_taken", why=Refusal.TEXT_FAILS), result.failure


@pytest.mark.triton_interpreter
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("empty", ["B", "H", "S", "T", "D", "V"])
@pytest.mark.parametrize("name", ["math", "triton", "sdpa_math", "sdpa_flash", "passes"])
def test_sizes_of_0_are_judged_like_others(name: str, empty: str, training: bool) -> None:
    sizes = {axis: 0 if axis == empty else size for axis, size in zip("BHSTDV", (2, 2, 5, 7, 8, 4), strict=True)}
    text = "\n".join([
        "import torch", "from torch import nn", "",
        f"{', '.join(sizes)} = {', '.join(map(str, sizes.values()))}", "",
        "class Module(nn.Module):", "    def forward(self, q, k, v):", "        {body}", "",
        "def inputs():", "    return [torch.randn(B, H, S, D), torch.randn(B, H, T, D), torch.randn(B, H, T, V)]", "",
    ])  # fmt: skip
    result = run_subject(
        right if name == "math" else find(name),
        training=training,
        text=text.format(body="return (q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v"),
        attention_stub=text.format(body="return attend(q, k, v, scale=0.25)"),
    )
    assert result.verdict in (*RIGHT, Verdict.CONVENTION, Verdict.SKIPPED), result.failure


def test_rounding_of_gradients_that_are_zero_is_no_trend() -> None:
    constant = "v = 0 * v + 0.7"
    text, attention_stub = (
        source(constant, f"return {call}", dims="1, 2, 13, 64", dtype="bfloat16")
        for call in ("((q @ k.transpose(-2, -1)) * 0.1).softmax(-1) @ v", "attend(q, k, v, scale=0.1)")
    )
    assert (
        run_subject(planted_attention.right, training=True, text=text, attention_stub=attention_stub).verdict in RIGHT
    )
