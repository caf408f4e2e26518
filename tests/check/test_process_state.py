"""State of the process that a call, an import or a compiler changes: which changes are told, and put back."""

import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._inductor.config as inductor_config
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

from fuzz.check.check import check
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.subject_builder import Subject, find
from fuzz.check.torch_api import process_state
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.protocol import Check, Verdict
from fuzz.protocol.failures import FailureKey, Raised, StateChanged
from tests.check.in_process import run_subject, source
from tests.check.test_called_functions import RIGHT, right


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
    "TORCHDYNAMO_DISABLE": lambda: os.environ.update(TORCHDYNAMO_DISABLE="1"),
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
    assert result.failure.place.startswith("test_process_state.py:") and "raise error" in result.failure.place


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
    run_subject(right)  # the first case imports what raises the limit
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
    lines = ["from torch import overrides, set_default_dtype", "def attend(q, k, v, *, scale): ..."]
    (tmp_path / "dtype_at_import.py").write_text("\n".join([*lines, "set_default_dtype(__import__('torch').half)"]))
    (tmp_path / "mode_at_import.py").write_text(
        "\n".join([*lines, "mode = overrides.BaseTorchFunctionMode()", "mode.__enter__()"])
    )
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
        result = check(request, subjects, "cpu")
        assert [one.verdict for one in result.results] == [verdict] and result.unfit
    finally:
        modes.close()


def enter(context: Any) -> Any:
    context.__enter__()
    return context


OPENED: dict[str, Callable[[], object]] = {
    "inference mode": lambda: enter(torch._C._InferenceMode(True)),
    "no autograd": lambda: enter(torch._C._AutoDispatchBelowAutograd()),
    "a transform": torch._C._functorch._grad_increment_nesting,
    "a level of forward derivatives": torch.autograd.forward_ad.enter_dual_level,
}


@pytest.mark.parametrize("name", OPENED)
def test_a_context_that_a_raising_call_leaves_open_is_closed(name: str) -> None:
    left: list[object] = []

    def leave_open(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        left.append(OPENED[name]())
        raise TypeError("incompatible function arguments")

    assert run_subject(leave_open).verdict is Verdict.RUNTIME_ERROR
    value = torch.ones(2, requires_grad=True)
    torch.autograd.backward((value * 2).sum())
    assert value.grad is not None and value.grad.tolist() == [2.0, 2.0]
    assert torch.func.jvp(torch.sin, (value.detach(),), (value.detach(),))[1].isfinite().all()


class LeftGuard:
    """Turns autograd off when it is destroyed, as guards of a jvp that torch 2.13 does not compile."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        key = torch._C._dispatch_key_parse("AutogradFunctionality")
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, True)


def test_what_a_call_that_raised_has_left_is_destroyed_before_the_next_call() -> None:
    def leave_guard(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        LeftGuard()
        raise TypeError("incompatible function arguments")

    run_subject(leave_guard)
    assert run_subject(right).verdict in RIGHT
    assert (torch.ones((), requires_grad=True) * 1).requires_grad


def test_what_an_exception_holds_until_its_case_has_ended_is_destroyed_before_the_next_case() -> None:
    left = [LeftGuard()]
    with suppress(TypeError), process_state.restore_state():
        raise TypeError
    with process_state.restore_state():
        left.clear()
    process_state.begin_case()
    with process_state.restore_state():
        gc.collect()
    assert not process_state.take_changes()[0]
