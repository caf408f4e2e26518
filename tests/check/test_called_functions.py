"""What attention functions may do wrong beside their numbers: each ends as its verdict, and none ends the worker."""

import gc
import itertools
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._inductor.config as inductor_config
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import BaseTorchFunctionMode

from fuzz.check import process_state
from fuzz.check.attention.function import Attention
from fuzz.check.check import check
from fuzz.check.exceptions import SubjectError
from fuzz.check.subject_builder import Subject, find
from fuzz.protocol import Check, CoverageItem, CoverageKind, Verdict
from fuzz.protocol.failures import FailureKey, NotTaken, OutOfBounds, Raised, Refusal, StateChanged, Value
from tests.check import planted_attention
from tests.check.failures import is_failure
from tests.check.in_process import run_subject
from tests.check.sources import source
from tests.kernels.reference import math_attention

RIGHT = (Verdict.OK, Verdict.ROUNDING)


def right(q: Tensor, k: Tensor, v: Tensor, *, dropout: tuple[float, int] | None = None, **options: Any) -> Tensor:
    """The reference, with a dropout stream of its own."""
    p, seed = dropout or (0.0, 0)
    drawn = torch.rand((*q.shape[:3], k.shape[2]), generator=torch.Generator().manual_seed(seed))
    return math_attention(q, k, v, dropout_p=p, dropout_mask=drawn >= p if dropout else None, **options)


class NoGradient(torch.autograd.Function):
    """The argument; its gradient is None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        return None


def without_gradient_of(name: str, cut: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        given = {"q": q, "k": k, "v": v, **options}
        return right(**{**given, name: cut(given[name])})

    return attention


@pytest.mark.parametrize("cut", [Tensor.detach, NoGradient.apply])
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

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, sinks: Tensor) -> Tensor:
            return sinks.clone()

        @staticmethod
        def backward(_ctx: Any, *gradients: Any) -> Any:
            return gradients[0] / 2

    def halving(q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor, **options: Any) -> Tensor:
        halved: Tensor = Halved.apply(sinks)  # type: ignore[no-untyped-call, unused-ignore]
        return right(q, k, v, sinks=halved, **options)

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
    class Picky(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(_ctx: Any, *gradients: Any) -> Any:
            raise error

    calls = itertools.count()

    def picky(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if next(calls) > 0 and not training:
            raise error
        out: Tensor = Picky.apply(right(q, k, v, **options))  # type: ignore[no-untyped-call, unused-ignore]
        return out

    picky.capabilities = {"refuses": ("AssertionError",)}  # type: ignore[attr-defined]
    result = run_subject(picky, training=training)
    if error is AssertionError:
        assert result.verdict is Verdict.SKIPPED, result.failure
    else:
        assert result.verdict is Verdict.RUNTIME_ERROR
        assert isinstance(result.failure, Raised) and result.failure.place.startswith("test_called_functions.py:")
        assert result.failure.place.endswith(": raise error")


def test_writing_out_of_bounds_is_told_of_a_function_that_skips_the_case_after_it() -> None:
    class Late(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, value: Tensor) -> Tensor:
            out = torch.empty(value.shape)
            out.copy_(value)
            out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(3.0)
            return out

        @staticmethod
        def backward(_ctx: Any, *gradients: Any) -> Any:
            raise NotImplementedError("no backward pass yet")

    def late(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        out: Tensor = Late.apply(right(q, k, v, scale=scale))  # type: ignore[no-untyped-call, unused-ignore]
        return out

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


def replace_matmul() -> None:
    original = torch.matmul
    torch.matmul = lambda *args, **options: original(*args, **options) + 1


def replace_method() -> None:
    torch.Tensor.softmax = torch.Tensor.log_softmax  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[], object]] = {
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's grad mode": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    "torch's autocast on cpu": lambda: torch.set_autocast_enabled("cpu", True),
    "torch's deterministic mode": lambda: torch.use_deterministic_algorithms(True),
    "torch's anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "torch's precision of float32": lambda: torch.set_float32_matmul_precision("high"),
    "torch.backends.mkldnn.enabled": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "torch's fast path": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "torch.backends.cuda.enable_flash_sdp": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "flushing of denormals": lambda: torch.set_flush_denormal(True),
    "the current directory": lambda: os.chdir("/"),
    "the handler of SIGTERM": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "the interval timer": lambda: signal.setitimer(signal.ITIMER_REAL, 3600.0),
    "the recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "the stance of torch.compile": lambda: torch.compiler.set_stance("force_eager"),
    "torch._inductor.config.fallback_random": lambda: setattr(inductor_config, "fallback_random", False),
    "torch._inductor.config.post_grad_fusion_options": lambda: inductor_config.post_grad_fusion_options.update(a={}),
    "torch._dynamo.config.recompile_limit": lambda: setattr(dynamo_config, "recompile_limit", 1),
    "garbage collection": gc.disable,
    "torch.matmul": replace_matmul,
    "torch.Tensor.softmax": replace_method,
    "sys.stdout": lambda: setattr(sys, "stdout", sys.__stderr__),
    "sys.path": sys.path.clear,
}


def test_a_call_that_raises_is_not_excused_by_the_state_that_it_leaves() -> None:
    mode = torch.inference_mode()

    def leave_inference_mode(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        mode.__enter__()
        raise TypeError("incompatible function arguments")

    with torch.enable_grad():  # leaving inference mode brings back the grad mode of its start
        try:
            result = run_subject(leave_inference_mode)
        finally:
            mode.__exit__(None, None, None)
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert isinstance(result.failure, Raised)
    assert torch.is_grad_enabled()


def test_state_that_a_call_changes_is_told_and_put_back() -> None:
    def changing(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        out = right(q, k, v, scale=scale)
        for change in CHANGES.values():
            change()
        return out

    run_subject(right)  # torch adds names to its modules when a part of it is first used
    before = process_state.read_state()
    result = run_subject(changing)
    after = process_state.read_state()
    assert result.verdict is Verdict.STATE_CHANGED
    assert isinstance(result.failure, StateChanged)
    assert {change.state: change.is_restored for change in result.failure.changes} == dict.fromkeys(CHANGES, True)
    assert result.failure.key() == FailureKey(states=tuple(sorted(CHANGES)))
    assert after == before
    assert run_subject(right).verdict in RIGHT


def test_state_that_a_backward_pass_or_an_exception_leaves_behind_is_put_back() -> None:
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(_ctx: Any, *gradients: Any) -> Any:
            torch.set_default_dtype(torch.float64)
            return gradients[0]

    def late(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        out: Tensor = Backward.apply(right(q, k, v, scale=scale))  # type: ignore[no-untyped-call, unused-ignore]
        return out

    def raising(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        torch.set_default_dtype(torch.float64)
        raise ValueError("no such tile")

    assert run_subject(late, training=True).verdict is Verdict.STATE_CHANGED
    assert run_subject(raising).verdict is Verdict.RUNTIME_ERROR
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("training", [False, True])
def test_an_exception_that_ends_programs_is_an_exception_of_the_function(
    error: type[BaseException], training: bool
) -> None:
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(_ctx: Any, *_gradients: Any) -> Any:
            raise error

    def ending(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        if not training:
            raise error
        out: Tensor = Backward.apply(right(q, k, v, scale=scale))  # type: ignore[no-untyped-call, unused-ignore]
        return out

    result = run_subject(ending, training=training)
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert isinstance(result.failure, Raised)
    assert result.failure.error == error.__name__
    assert result.failure.place.startswith("test_called_functions.py:") and "raise error" in result.failure.place


def test_a_function_that_replaces_a_standard_stream_changes_state_for_good() -> None:
    kept = os.dup(2)

    def muting(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        os.close(2)
        return right(q, k, v, scale=scale)

    try:
        result = run_subject(muting)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert result.verdict is Verdict.STATE_CHANGED
    assert isinstance(result.failure, StateChanged)
    (change,) = result.failure.changes
    assert (change.state, change.is_restored) == ("the standard streams", False)


def test_random_numbers_warnings_and_what_imports_set_are_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def importing(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        torch.manual_seed(int(torch.randint(100, ())))
        warnings.simplefilter("error")
        if "imported_here" not in sys.modules:
            sys.modules["imported_here"] = sys
            sys.setrecursionlimit(sys.getrecursionlimit() + 1)
        return right(q, k, v, scale=scale)

    monkeypatch.delitem(sys.modules, "imported_here", raising=False)
    limit = sys.getrecursionlimit()
    assert run_subject(importing).verdict in RIGHT
    assert sys.getrecursionlimit() == limit


def compile_changed(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return compile_or_fall_back(q, k, v, scale=scale)


def compile_or_fall_back(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    torch.compile(lambda x: (x * scale).relu())(q)
    with pytest.raises(Exception, match="no such loop"), inductor_config.patch(post_grad_custom_post_pass=no_loop):
        torch.compile(lambda x: (x + scale).relu())(q)
    return right(q, k, v, scale=scale)


def no_loop(_graph: object) -> None:
    raise ValueError("no such loop")


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Inductor, when first used
def test_what_compilers_change_themselves_is_no_finding() -> None:
    compile_or_fall_back(*torch.randn(3, 1, 1, 4, 4), scale=1.0)  # imports what compilers need
    torch._dynamo.reset()
    assert run_subject(compile_or_fall_back).verdict in RIGHT
    assert run_subject(compile_changed).verdict is Verdict.STATE_CHANGED


def test_an_import_that_changes_what_cannot_be_put_back_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["from torch import inference_mode, set_default_dtype", "def attend(q, k, v, *, scale): ..."]
    (tmp_path / "dtype_at_import.py").write_text("\n".join([*lines, "set_default_dtype(__import__('torch').half)"]))
    (tmp_path / "mode_at_import.py").write_text("\n".join([*lines, "mode = inference_mode()", "mode.__enter__()"]))
    monkeypatch.syspath_prepend(tmp_path)
    find("dtype_at_import:attend")
    try:
        with pytest.raises(SubjectError):
            find("mode_at_import:attend")
    finally:
        sys.modules["mode_at_import"].mode.__exit__(None, None, None)
    assert run_subject(right).verdict in RIGHT


@pytest.mark.parametrize("verdict", [Verdict.WRONG_RESULT, Verdict.SKIPPED, Verdict.STATE_CHANGED])
def test_state_that_cannot_be_put_back_costs_the_process(verdict: Verdict) -> None:
    modes = ExitStack()

    def entering(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        modes.enter_context(BaseTorchFunctionMode())
        if verdict is Verdict.SKIPPED:
            raise NotImplementedError
        return right(q, k, v, scale=scale) + (verdict is Verdict.WRONG_RESULT)

    request = Check(
        id=0,
        source=source("return (q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v"),
        subjects=("entering", "right"),
        attention_stub=source("return attend(q, k, v, scale=0.25)"),
    )
    subjects = {one: Subject(one, attention=Attention(lambda: entering)) for one in request.subjects}
    try:
        result = check(request, subjects, "cpu", lambda _: None, lambda: 0.0)
        assert [one.verdict for one in result.results] == [verdict] and result.unfit
    finally:
        modes.close()


def test_rounding_of_gradients_that_are_zero_is_no_trend() -> None:
    constant = "v = 0 * v + 0.7"
    text, attention_stub = (
        source(constant, f"return {call}", dims="1, 2, 13, 64", dtype="bfloat16")
        for call in ("((q @ k.transpose(-2, -1)) * 0.1).softmax(-1) @ v", "attend(q, k, v, scale=0.1)")
    )
    assert (
        run_subject(planted_attention.right, training=True, text=text, attention_stub=attention_stub).verdict in RIGHT
    )
