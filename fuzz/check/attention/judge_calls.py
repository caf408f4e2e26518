"""The verdict on an attention function, from the calls that a case made of it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fuzz.check.attention.function import Attention
from fuzz.check.attention.repeat_calls import FLASH_ROUNDS, call_again, observe, repeat
from fuzz.check.exceptions import Unsupported
from fuzz.check.oracle import constants
from fuzz.check.oracle.attention import dropout_masks
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.judge import judge
from fuzz.check.oracle.verdict import RECHECKED_VERDICTS, SEVERITY, Judgement
from fuzz.protocol import Verdict
from fuzz.protocol.failures import BiasedErrors, MissingGradient, Value, WrongValue


def judge_calls(calls: Sequence[Call], attention: Attention, *, training: bool) -> Judgement:
    """The gravest verdict on the calls of one run. `training`: gradients were requested."""

    def judge_all() -> Judgement:
        return max(
            (_judge_call(call, attention, training=training) for call in calls),
            key=lambda judgement: (SEVERITY.index(judgement.verdict), judgement.numbers.get("ratio", 0.0)),
            default=Judgement(Verdict.OK),
        )

    judgement = judge_all()
    if judgement.verdict in RECHECKED_VERDICTS and observe(attention, calls):
        judgement = judge_all()
    if isinstance(judgement.failure, (WrongValue, BiasedErrors)):
        return replace(judgement, failure=replace(judgement.failure, undeclared=_find_undeclared(calls, attention)))
    return judgement


def _find_undeclared(calls: Sequence[Call], attention: Attention) -> tuple[str, ...]:
    """The undeclared roundings with which all calls would be right; () if no rounding explains them."""
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


def _judge_call(call: Call, attention: Attention, *, training: bool) -> Judgement:
    is_empty = call.out is None or not (call.out.numel() and call.k.numel())
    if training and call.wanted and not call.differentiable and not is_empty:
        judgement = Judgement(Verdict.WRONG_GRADIENT, MissingGradient(Value.of_result("out")))
    else:
        judgement = _judge_numbers(call, attention)
    if judgement.failure is None:
        return judgement
    return replace(judgement, failure=replace(judgement.failure, sequences=call.sequences))


def _judge_numbers(call: Call, attention: Attention) -> Judgement:
    """The verdict on the numbers of a call, whose dropout mask is read off the function."""
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
            return Judgement(Verdict.WRONG_RESULT, wrong[0]) if wrong else judge(call, rounds, mask)
    except Unsupported:
        pass  # the function refuses the calls that show the mask
    return _judge_without_dropout(call, attention)


def _judge_without_dropout(call: Call, attention: Attention) -> Judgement:
    """The verdict on a call whose mask stays unknown, from the same call without dropout."""
    try:
        plain = repeat(attention, call.replace(dropout=None), () if call.dout is None else call.wanted)
    except Unsupported:
        return Judgement(Verdict.RANDOM_STREAM)
    judgement = judge(plain, attention.rounds)
    if judgement.failure is None or not judgement.verdict.is_finding:
        return Judgement(Verdict.RANDOM_STREAM)
    return replace(judgement, failure=replace(judgement.failure, without_dropout=True))


def _widen_values(attend: dropout_masks.Function, call: Call) -> Tensor | None:
    """The values of the call, or wider ones that show its dropout mask in a few pieces.

    None where the function refuses wider values or draws another mask for them. Raises `Unsupported`.
    """
    size = max(call.q.size(2), call.k.size(2))
    if size <= constants.PIECES[call.v.device.type] * call.v.size(3):
        return call.v
    wide = call.v.new_ones((*call.v.shape[:3], size))
    first = dropout_masks.extract_mask(attend, call, pieces=1)
    whole = dropout_masks.extract_mask(attend, call.replace(v=wide))
    return wide if torch.equal(whole[..., : first.shape[-1]], first) else None
