"""The verdict on the calls that a case made of an attention function, and more calls that the verdict needs.

These calls have other arguments, or run under a mode that records the operations of the function. These operations
show which values it rounds, whether its results repeat, and whether an operation of torch is at fault.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.check.judge import constants
from fuzz.check.judge.attention import dropout_masks
from fuzz.check.judge.attention.judge import judge
from fuzz.check.judge.eager_audit import Audit
from fuzz.check.judge.verdict import conclude
from fuzz.check.run.attention.call import Call
from fuzz.check.run.attention.function import Attention, call_and_check
from fuzz.check.run.attention.guard import Guard
from fuzz.check.run.attention.layouts import arrange
from fuzz.check.torch_api.exceptions import DeviceLost, SubjectError, find_device_fault, is_out_of_memory
from fuzz.check.torch_api.process_state import restore_state
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import BiasedErrors, FaultyOperation, MissingGradient, Value, WrongValue

FLASH_ROUNDS = ("weights", "sums", "exponentials")
"""The roundings of flash attention on the CPU: dk and dv are added up in the inputs' dtype, block by block, and the
exponential is a cubic (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp)."""
_EFFICIENT_ROUNDS = ("weights", "backward_weights")
"""aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h: `attn_T` has the inputs' dtype."""
_FUSED = "_scaled_dot_product_"
_PRODUCTS = ("aten.bmm", "aten.mm", "aten.baddbmm", "aten.addmm")


def judge_calls(calls: Sequence[Call], attention: Attention, *, training: bool) -> SubjectResult:
    """The gravest verdict on the calls of one run. `training`: gradients were requested."""

    def judge_all() -> SubjectResult:
        return max(
            (_judge_call(call, attention, training=training) for call in calls),
            key=lambda judgement: (judgement.verdict.severity, judgement.numbers.get("ratio", 0.0)),
            default=conclude(Verdict.OK),
        )

    judgement = judge_all()
    if judgement.verdict.has_wrong_numbers and observe(attention, calls):
        judgement = judge_all()
    if isinstance(judgement.failure, (WrongValue, BiasedErrors)):
        return replace(judgement, failure=replace(judgement.failure, undeclared=_find_undeclared(calls, attention)))
    return judgement


def _find_undeclared(calls: Sequence[Call], attention: Attention) -> tuple[str, ...]:
    """The roundings that, if declared, would make all calls right; () if there are none."""
    for more in (
        ("backward_weights",),
        ("sums",),
        ("sums", "backward_weights"),
        FLASH_ROUNDS,
        ("scores",),
        ("scores", *FLASH_ROUNDS),
    ):
        rounds = tuple(dict.fromkeys((*attention.rounds, *more)))
        if not any(judge(call, rounds).verdict.is_finding for call in calls):
            return tuple(name for name in more if name not in attention.rounds)
    return ()


def _judge_call(call: Call, attention: Attention, *, training: bool) -> SubjectResult:
    is_empty = call.out is None or not (call.out.numel() and call.k.numel())
    if training and call.wanted and not call.differentiable and not is_empty:
        judgement = conclude(Verdict.WRONG_GRADIENT, MissingGradient(Value.of_result("out")))
    else:
        judgement = _judge_numbers(call, attention)
    if judgement.failure is None:
        return judgement
    return replace(judgement, failure=replace(judgement.failure, sequences=call.sequences))


def _judge_numbers(call: Call, attention: Attention) -> SubjectResult:
    """The verdict on the numbers of a call. Its dropout mask is found by more calls."""
    probability, _ = call.options.get("dropout") or (0.0, 0)
    rounds = attention.rounds
    if probability <= 0.0:
        return judge(call, rounds)
    lost = dropout_masks.find_nonfinite(call, rounds)
    if lost is not None:
        return lost
    attend = partial(call_again, attention)
    try:
        values = _widen_values(attend, call)
        if values is not None:
            mask, wrong = dropout_masks.check_dropout(attend, call.replace(v=values))
            return conclude(Verdict.WRONG_RESULT, wrong[0]) if wrong else judge(call, rounds, mask)
    except SubjectError:
        pass  # the function refuses the calls that show the mask
    return _judge_without_dropout(call, attention)


def _judge_without_dropout(call: Call, attention: Attention) -> SubjectResult:
    """The verdict on a call whose mask stays unknown, from the same call without dropout."""
    try:
        plain = repeat(attention, call.replace(dropout=None))
    except SubjectError:
        return conclude(Verdict.RANDOM_STREAM)
    judgement = judge(plain, attention.rounds)
    if judgement.failure is None or not judgement.verdict.is_finding:
        return conclude(Verdict.RANDOM_STREAM)
    return replace(judgement, failure=replace(judgement.failure, without_dropout=True))


def _widen_values(attend: dropout_masks.TensorFunction, call: Call) -> Tensor | None:
    """The values of the call, or wider values from which fewer calls read its dropout mask.

    None if the function draws another mask for wider values. Raises `SubjectError`.
    """
    size = max(call.q.size(2), call.k.size(2))
    if size <= constants.PIECES[call.v.device.type] * call.v.size(3):
        return call.v
    wide = call.v.new_ones((*call.v.shape[:3], size))
    first = dropout_masks.extract_mask(attend, call, pieces=1)
    whole = dropout_masks.extract_mask(attend, call.replace(v=wide))
    return wide if torch.equal(whole[..., : first.shape[-1]], first) else None


def call_again(attention: Attention, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Call the function with other arguments, in guarded memory.

    Raises `SubjectError` if it refuses them, raises, or writes out of bounds, and `DeviceLost`.
    """
    attention.check(q, k, v, options, training=False)
    layout = arrange(attention.capabilities, cut=False, q=q, k=k, v=v, **options)
    guard = Guard(attention.guarded)
    with guard, _accuse_nobody():
        out = call_and_check(attention.function, **guard.protect_arguments(layout.arguments))
        out = layout.join(guard.protect_result(out))
    if guard.damage():
        raise SubjectError("it wrote out of bounds")
    return out


def repeat(attention: Attention, call: Call) -> Call:
    """Run a fresh `call` in its state and keep its results in it. Raises as `call_again`, in the backward pass too."""
    given: dict[str, Any] = {"q": call.q, "k": call.k, "v": call.v, **call.options}
    call.wanted = tuple(name for name in call.wanted if name.removeprefix("d") in given)
    leaves = {name: given[name].detach().requires_grad_() for name in (one.removeprefix("d") for one in call.wanted)}
    with torch.set_grad_enabled(bool(leaves)), torch.inference_mode() if call.is_inference else nullcontext():
        out = call_again(attention, **given | leaves)
    call.out = out.detach()
    if out.requires_grad:
        drawn = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
        call.dout = out.new_ones(()).expand(out.shape) if call.is_dout_expanded else drawn
        with _accuse_nobody(), restore_state():
            found: Any = torch.autograd.grad(out, list(leaves.values()), call.dout, allow_unused=True)
        pairs = zip(leaves, found, strict=True)
        call.gradients.update({f"d{name}": gradient for name, gradient in pairs if gradient is not None})
    return call


@contextmanager
def _accuse_nobody() -> Iterator[None]:
    # Only a case's own calls may accuse the function.
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise (DeviceLost if find_device_fault() else SubjectError)(str(error)) from error


def observe(attention: Attention, calls: Sequence[Call]) -> bool:
    """Record the operations that a function calls. Returns whether these add to its roundings or unordered sums.

    Declared capabilities stay.
    """
    declared = getattr(attention.function, "capabilities", {})
    before = attention.rounds, attention.is_unordered
    for call in calls:
        recorder = _Recorder(call)
        _watch(attention, call, recorder)
        if "rounds" not in declared:
            attention.seen_rounds = tuple(dict.fromkeys((*attention.seen_rounds, *recorder.rounds)))
        attention.is_unordered |= recorder.is_unordered and "deterministic" not in declared
    return (attention.rounds, attention.is_unordered) != before


def find_faulty(attention: Attention, calls: Sequence[Call]) -> FaultyOperation | None:
    """The first of torch's fused attention operations that a function calls and that is wrong by itself."""
    for call in calls:
        audit = Audit()
        _watch(attention, call, audit)
        if audit.faulty is not None and _FUSED in audit.faulty.operation:
            return audit.faulty
    return None


def _watch(attention: Attention, call: Call, mode: TorchDispatchMode) -> None:
    """Repeat the call under a mode, which can't see the function's own kernels. Compiled parts run in eager mode."""
    with suppress(SubjectError), torch.compiler.set_stance("force_eager"), mode:
        repeat(attention, call.replace())


class _Recorder(TorchDispatchMode):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.rounds: list[str] = []
        self.is_unordered = False
        self._head_dim = call.q.shape[3]

    def __torch_dispatch__(self, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **kwargs or {})
        name = str(op)
        if _FUSED in name:
            of_cpu, efficient = "flash_attention_for_cpu" in name, "_efficient_attention" in name
            self.rounds += FLASH_ROUNDS if of_cpu else _EFFICIENT_ROUNDS if efficient else ("weights",)
            # On CUDA the backward pass of fused attention may sum dq with atomics.
            self.is_unordered |= "backward" in name and "_for_cpu" not in name
        elif (
            name.startswith(_PRODUCTS) and isinstance(result, Tensor) and result.dtype in constants.LOW_PRECISION_DTYPES
        ):
            # A product that sums over features is q @ k.mT, or a product of the backward pass.
            is_forward = torch._C._current_autograd_node() is None
            is_of_scores = is_forward and args[-2].shape[-1] == self._head_dim
            self.rounds += ("scores", "weights") if is_of_scores else ("weights",)
        return result
