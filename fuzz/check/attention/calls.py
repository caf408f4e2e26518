"""All that is held against an attention function for the calls a case made of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuzz.check import exceptions
from fuzz.check.attention.function import Attention, call_checked
from fuzz.check.attention.guard import Guard
from fuzz.check.attention.layouts import arrange
from fuzz.check.attention.observed import FLASH_ROUNDS, observe
from fuzz.check.exceptions import Failed, Unsupported
from fuzz.check.oracle import constants
from fuzz.check.oracle.attention import dropout_masks
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.judge import judge
from fuzz.check.oracle.verdict import DOUBTED, SEVERITY, Judgement
from fuzz.protocol import Verdict
from fuzz.protocol.failures import (
    FURTHER_CALL,
    WITHOUT_DROPOUT,
    BiasedErrors,
    MissingGradient,
    OutOfBounds,
    Write,
    WrongValue,
)


def judge_calls(calls: Sequence[Call], attention: Attention, *, training: bool, again: bool = True) -> Judgement:
    """The gravest verdict on the calls of one run.

    `training`: gradients were requested; `again`: the function may be called with other arguments.
    """

    def judge_all() -> Judgement:
        return max(
            (_judge_call(call, attention, training=training, again=again) for call in calls),
            key=lambda judgement: (SEVERITY.index(judgement.verdict), judgement.numbers.get("ratio", 0.0)),
            default=Judgement(Verdict.OK),
        )

    judgement = judge_all()
    if judgement.verdict in DOUBTED and observe(attention, calls):
        judgement = judge_all()
    if isinstance(judgement.failure, (WrongValue, BiasedErrors)) and not judgement.failure.is_of_further_call:
        return replace(judgement, failure=replace(judgement.failure, undeclared=_find_undeclared(calls, attention)))
    return judgement


def _find_undeclared(calls: Sequence[Call], attention: Attention) -> tuple[str, ...]:
    """What the function would have to round besides for all calls to be right; () where no rounding explains them."""
    for more in (("sums",), FLASH_ROUNDS, ("scores",), ("scores", *FLASH_ROUNDS)):
        rounds = tuple(dict.fromkeys((*attention.rounds, *more)))
        if not any(judge(call, rounds).verdict.is_finding for call in calls):
            return tuple(name for name in more if name not in attention.rounds)
    return ()


def _judge_call(call: Call, attention: Attention, *, training: bool, again: bool) -> Judgement:
    judgement = _judge_dense(call, attention, training=training, again=again)
    if judgement.failure is None:
        return judgement
    return replace(judgement, failure=replace(judgement.failure, sequences=call.sequences))


def _judge_dense(call: Call, attention: Attention, *, training: bool, again: bool) -> Judgement:
    is_empty = call.out is None or not (call.out.numel() and call.k.numel())
    if training and call.wanted and not call.differentiable and not is_empty:
        return Judgement(Verdict.WRONG_GRADIENT, MissingGradient("out"))
    attend = FurtherCalls(attention)
    try:
        judgement = _judge_numbers(call, attention, attend if again else None)
    except Failed as failure:
        return Judgement(*exceptions.blame(failure))
    return judgement if judgement.verdict.is_finding or not attend.damage else attend.verdict


def _judge_numbers(call: Call, attention: Attention, attend: "FurtherCalls | None") -> Judgement:
    """The verdict on the numbers of a call, whose dropout mask is read off the function where `attend` is given."""
    probability, _ = call.options.get("dropout") or (0.0, 0)
    rounds = attention.rounds
    if probability <= 0.0:
        return judge(call, rounds)
    lost = dropout_masks.find_nonfinite(call, rounds)
    if lost is not None:
        return lost
    if attend is None:
        return Judgement(Verdict.RANDOM_STREAM)
    try:
        values = _widen_values(attend, call)
        if values is None:
            return _judge_without_dropout(call, rounds, attend)
        mask, wrong = dropout_masks.check_dropout(attend, call.replace(v=values))
    except Unsupported:  # it does not take the calls that show the mask
        return attend.verdict if attend.damage else _judge_without_dropout(call, rounds, attend)
    if attend.damage:
        return attend.verdict
    if wrong:
        return Judgement(Verdict.WRONG_RESULT, wrong[0])
    return judge(call, rounds, mask)


def _judge_without_dropout(call: Call, rounds: tuple[str, ...], attend: "FurtherCalls") -> Judgement:
    """The verdict on a call whose mask stays unknown: on what the function gives for it without dropout."""
    try:
        plain = attend.repeat(call.replace(dropout=None), () if call.dout is None else call.wanted)
    except Unsupported:
        return attend.verdict if attend.damage else Judgement(Verdict.RANDOM_STREAM)
    judgement = judge(plain, rounds)
    if not judgement.verdict.is_finding:
        return Judgement(Verdict.RANDOM_STREAM)
    assert judgement.failure is not None
    return replace(judgement, failure=replace(judgement.failure, call=WITHOUT_DROPOUT))


def _widen_values(attend: "FurtherCalls", call: Call) -> Tensor | None:
    """The values of the call, or wider ones that show its dropout mask in a few pieces.

    None where the function refuses wider values or draws another mask for them. Raises `Unsupported`.
    """
    size = max(call.q.size(2), call.k.size(2))
    if size <= constants.PIECES[call.v.device.type] * call.v.size(3):
        return call.v
    wide = call.v.new_ones((*call.v.shape[:3], size))
    first = dropout_masks.extract_mask(attend, call, pieces=1)
    try:
        whole = dropout_masks.extract_mask(attend, call.replace(v=wide))
    except Failed:  # nobody asks for values this wide
        return None
    return wide if torch.equal(whole[..., : first.shape[-1]], first) else None


class FurtherCalls:
    """The function, called again with other arguments in guarded memory.

    Calls raise `Unsupported` for what the function does not declare or refuses and after an out-of-bounds write,
    `Failed` for any other error, and `DeviceLost`. `refuses`: names of the types of exceptions by which it refuses.
    """

    def __init__(self, attention: Attention) -> None:
        self._attention, self.refuses = attention, attention.capabilities.refuses
        self.damage: tuple[Write, ...] = ()

    @property
    def verdict(self) -> Judgement:
        """That it wrote out of bounds."""
        return Judgement(Verdict.OUT_OF_BOUNDS, OutOfBounds(self.damage, call=FURTHER_CALL))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """One call."""
        self._attention.check(q, k, v, options, training=False)
        if self.damage:
            raise Unsupported("it wrote out of bounds")
        layout = arrange(self._attention.capabilities, cut=False, q=q, k=k, v=v, **options)
        guard = Guard(self._attention.guarded)
        with guard:
            given = guard.protect_arguments(layout.arguments)
            with exceptions.accuse_function(self.refuses):
                out = call_checked(self._attention.function, **given)
            out = layout.join(guard.protect_result(out))
        self.damage = guard.damage()
        return out

    def repeat(self, call: Call, wanted: tuple[str, ...]) -> Call:
        """A call with its results: where gradients are `wanted` these, as far as it has the arguments, and all of q, k
        and v. Raises as a call does, and `Failed` for an error in the backward pass."""
        given: dict[str, Any] = {"q": call.q, "k": call.k, "v": call.v, **call.options}
        # Kernels may rely on the alignment of whole tensors.
        given = {name: value.contiguous() if isinstance(value, Tensor) else value for name, value in given.items()}
        call.wanted = tuple(name for name in wanted if name.removeprefix("d") in given)
        names = {"q", "k", "v", *(name.removeprefix("d") for name in call.wanted)} if wanted else set[str]()
        leaves = {name: given[name].detach().requires_grad_() for name in names}
        with torch.set_grad_enabled(bool(leaves)):
            out = self(**given | leaves)
        call.out = out.detach()
        if out.requires_grad:
            call.dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
            with exceptions.accuse_function(self.refuses):
                found: tuple[Tensor | None, ...] = torch.autograd.grad(
                    out, list(leaves.values()), call.dout, allow_unused=True
                )
            pairs = zip(leaves, found, strict=True)
            call.gradients.update({f"d{name}": gradient for name, gradient in pairs if gradient is not None})
        return call
