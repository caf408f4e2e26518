"""Experiments on a call of an attention function that is wrong or raises: options left out, sizes cut down, another
dtype or scale."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuzz.check.judge.attention.judge import judge
from fuzz.check.judge.attention.judge_calls import repeat
from fuzz.check.run.attention.call import Call
from fuzz.check.run.attention.function import Attention
from fuzz.check.torch_api.exceptions import DeviceLost, SubjectError, as_failure
from fuzz.experiments import SMALL
from fuzz.protocol import SubjectResult
from fuzz.protocol.failures import Failure, Raised, WrongValue
from fuzz.protocol.rewrites import CALL, CONTIGUOUS, DROPPED, EXPANDED, WrongRewrite
from generators.program.attention_options import COMPARABLE, OVER_SCORES

SECONDS = 10.0
"""A measurement that takes longer stops without a result. Interpreted kernels take seconds for a call."""


def measure_calls(judgement: SubjectResult, attention: Attention, calls: Sequence[Call]) -> SubjectResult:
    """`judgement` on the calls of a function, with what makes each wrong call right."""
    raised = judgement.failure if isinstance(judgement.failure, Raised) else None
    measured = (measure_wrong_call(call, attention, raised) for call in calls)
    return replace(judgement, wrong_rewrites=tuple(one for one in measured if one is not None))


def measure_wrong_call(call: Call, attention: Attention, raised: Raised | None = None) -> WrongRewrite | None:
    """The experiments under which the function is right, and wrong. None if any of these holds:

    - The call by itself is no finding, or does not repeat the exception.
    - The call has dropout, whose mask changes with sizes.
    - Measuring takes longer than `SECONDS`, or loses the device.

    `raised`: the exception of the function. A call is then wrong if it raises the same, and right if it runs.
    """
    started = time.perf_counter()

    def fails(again: Call) -> bool:
        try:
            repeat(attention, again)
        except SubjectError as refused:
            if raised and refused.__cause__ and as_failure(refused.__cause__).key() == raised.key():
                return True
            raise
        return raised is None and judge(again, attention.rounds).verdict.is_finding

    def is_wrong(changed: Call) -> bool:
        return fails(_map(changed, Tensor.contiguous))  # Kernels may rely on the alignment of whole tensors.

    def repeats() -> bool:
        with suppress(SubjectError):
            return fails(call.replace())
        return False

    judgement = judge(call, attention.rounds)
    if call.options.get("dropout") or not (raised or judgement.verdict.is_finding):
        return None
    tried: dict[tuple[str, str], list[bool]] = {}
    try:
        if raised and not repeats():
            return None
        with suppress(SubjectError):
            if call.sequences and not is_wrong(call):
                return WrongRewrite(CALL, {"sequences": ("alone",)})
        for operand, experiment, changed in _change(call, judgement.failure):
            if time.perf_counter() - started > SECONDS:
                return None
            with suppress(SubjectError):
                tried.setdefault((operand, experiment), []).append(is_wrong(changed))
    except DeviceLost:
        return None
    right: dict[str, tuple[str, ...]] = {}
    wrong: dict[str, tuple[str, ...]] = {}
    for (operand, experiment), found in tried.items():
        kept = wrong if any(found) else right
        kept[operand] = (*kept.get(operand, ()), experiment)
    # Every changed call is contiguous. If that alone makes it right, other changes show nothing.
    return WrongRewrite(CALL, {"layout": right["layout"]} if "layout" in right else right, wrong)


def _change(call: Call, failure: Failure | None) -> Iterator[tuple[str, str, Call]]:
    """The operand, the id of the experiment, and the changed call."""
    value, index = (failure.value.name, failure.index) if isinstance(failure, WrongValue) else ("", ())
    tensors = [x for x in (call.q, call.k, call.v, *call.options.values()) if isinstance(x, Tensor)]
    if not all(x.is_contiguous() for x in tensors):
        yield "layout", CONTIGUOUS, call.replace()
    plain, wanted = call.replace(), ("dq", "dk", "dv")
    if call.is_inference:
        yield "inference_mode", DROPPED, replace(plain, is_inference=False)
    if call.is_dout_expanded:
        yield "expanded_dout", DROPPED, replace(plain, is_dout_expanded=False)
    if plain.wanted and not {*wanted} <= {*plain.wanted}:
        yield "constant_inputs", DROPPED, replace(plain, wanted=tuple(dict.fromkeys((*wanted, *plain.wanted))))
    whole = (*call.q.shape[:3], call.k.shape[2])
    for name in (name for name in COMPARABLE if call.options.get(name) is not None):
        yield name, DROPPED, call.replace(**{name: None})
        if name in OVER_SCORES and call.options[name].shape != whole:
            yield name, EXPANDED, call.replace(**{name: call.options[name].expand(whole)})
    default = 1 / math.sqrt(max(1, call.q.shape[-1]))
    if not math.isclose(call.options.get("scale", default), default):
        yield "scale", "default", call.replace(scale=default)
    if call.q.dtype != torch.float32:
        yield "dtype", "float32", _map(call, lambda value: value.float() if value.is_floating_point() else value)
    if call.group > 1:
        heads = {name: getattr(call, name).repeat_interleave(call.group, 1) for name in ("k", "v")}
        yield "group", "1", call.replace(**heads)
    for name, (tensor, axis, having, cut) in _SIZES.items():
        for part in _parts(getattr(call, tensor).shape[axis], index[axis] if value in having else None):
            yield name, str(SMALL), cut(call, part)


_SIZES: dict[str, tuple[str, int, tuple[str, str], Callable[[Call, slice], Call]]] = {
    "seq_len": ("q", 2, ("out", "dq"), lambda call, part: _cut(call.replace(q=call.q[:, :, part]), -2, part)),
    "kv_len": (
        *("k", 2, ("dk", "dv")),
        lambda call, part: _cut(call.replace(k=call.k[:, :, part], v=call.v[:, :, part]), -1, part),
    ),
    "head_dim": (*("q", 3, ("dq", "dk")), lambda call, part: call.replace(q=call.q[..., part], k=call.k[..., part])),
    "value_dim": ("v", 3, ("out", "dv"), lambda call, part: call.replace(v=call.v[..., part])),
}
"""Sizes: the operand and the axis that have it, the results that have it on this axis too, and a call with a part."""


def _parts(size: int, worst: int | None) -> list[slice]:
    """The parts that a size is cut down to: around the worst index, else both ends.

    The size is a reason only if the function is right on every part: a mistake in some rows stays in one of them.
    """
    if size <= SMALL:
        return []
    if worst is None:
        return [slice(SMALL), slice(-SMALL, None)]
    first = min(max(0, worst - SMALL // 2), size - SMALL)
    return [slice(first, first + SMALL)]


def _map(call: Call, change: Callable[[Tensor], Tensor]) -> Call:
    changed = {name: change(value) for name, value in call.options.items() if isinstance(value, Tensor)}
    return call.replace(q=change(call.q), k=change(call.k), v=change(call.v), **changed)


def _cut(call: Call, axis: int, part: slice) -> Call:
    cut: dict[str, Any] = {}
    for name in OVER_SCORES:
        value = call.options.get(name)
        if isinstance(value, Tensor) and value.dim() >= -axis and value.shape[axis] > SMALL:
            cut[name] = value[..., part] if axis == -1 else value[..., part, :]
    return call.replace(**cut)
