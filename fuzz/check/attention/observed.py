"""What the operations of torch that a function calls say of it: what it rounds, whether it repeats, who is at fault."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.check.attention.function import Attention, Observed, call_checked
from fuzz.check.attention.guard import Guard
from fuzz.check.attention.layouts import arrange
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.constants import LOW_PRECISION
from fuzz.check.oracle.operation_audit import Audit
from fuzz.protocol.failures import FaultyOperation

FLASH_ROUNDS = ("weights", "sums", "exponentials")
"""What flash attention on the CPU rounds: dk and dv are added up in the inputs' dtype, block by block, and the
exponential is a cubic (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp)."""
_FUSED = "_scaled_dot_product_"
_PRODUCTS = ("aten.bmm", "aten.mm", "aten.baddbmm", "aten.addmm")


def observe(attention: Attention, calls: Sequence[Call]) -> bool:
    """See what a function calls in turn; whether that explains more than was known. What it declares stands."""
    declared, before = getattr(attention.function, "capabilities", {}), attention.observed
    for call in calls:
        recorder = _Recorder(call)
        _call_again(attention, call, recorder, recorder.begin_backward)
        now = attention.observed
        rounds = () if "rounds" in declared else tuple(dict.fromkeys((*now.rounds, *recorder.rounds)))
        is_unordered = "deterministic" not in declared and (now.is_unordered or recorder.is_unordered)
        attention.observed = Observed(rounds, is_unordered)
    return attention.observed != before


def find_faulty(attention: Attention, calls: Sequence[Call]) -> FaultyOperation | None:
    """The first of torch's own fused attention operations that a function calls and that is wrong by itself."""
    for call in calls:
        audit = Audit()
        _call_again(attention, call, audit)
        if audit.faulty is not None and _FUSED in audit.faulty.operation:
            return audit.faulty
    return None


def _call_again(
    attention: Attention, call: Call, mode: TorchDispatchMode, begin_backward: Callable[[], None] = lambda: None
) -> None:
    """One call under a mode, with its backward pass where there was one. Its own kernels show nothing there; what it
    compiles runs in eager."""
    given: dict[str, Any] = {"q": call.q, "k": call.k, "v": call.v, **call.options}
    leaves = {name: given[name].detach().clone().requires_grad_() for name in call.differentiated}
    guard = Guard(attention.guarded)  # It may write out of bounds.
    with suppress(Exception), torch.compiler.set_stance("force_eager"), guard, mode:
        given |= leaves
        layout = arrange(attention.capabilities, cut=False, **given)
        out = layout.join(call_checked(attention.function, **guard.protect_arguments(layout.arguments)))
        begin_backward()
        if leaves and call.dout is not None:
            torch.autograd.grad(out, list(leaves.values()), call.dout, allow_unused=True)


class _Recorder(TorchDispatchMode):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.rounds: list[str] = []
        self.is_unordered = False
        self._is_forward = True
        self._head_dim = call.q.shape[3]

    def begin_backward(self) -> None:
        self._is_forward = False

    def __torch_dispatch__(self, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **kwargs or {})
        name = str(op)
        if _FUSED in name:
            self.rounds += FLASH_ROUNDS if "flash_attention_for_cpu" in name else ("weights",)
            # On CUDA the backward passes of fused attention add up dq with atomics, or may.
            self.is_unordered |= "backward" in name and "_for_cpu" not in name
        elif name.startswith(_PRODUCTS) and isinstance(result, Tensor) and result.dtype in LOW_PRECISION:
            # The product of q and k sums over features.
            is_of_scores = self._is_forward and args[-2].shape[-1] == self._head_dim
            self.rounds += ("scores", "weights") if is_of_scores else ("weights",)
        return result
