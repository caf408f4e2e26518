"""All that is held against an attention function for the calls a case made of it."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from torch import Tensor

from fuzz.check.attention.function import Loaded, Unsupported
from fuzz.check.oracle.attention import identities, masks, relations
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.judge import judge
from fuzz.check.oracle.decide import SEVERITY, Judgement
from fuzz.protocol import Verdict

RELATIONS = 1
"""So many relations between its own outputs a call is tried on."""


def judged(calls: Sequence[Call], loaded: Loaded, *, training: bool) -> Judgement:
    """The gravest verdict on the calls of one run. `training`: gradients were asked for."""
    judgements = [_one(call, loaded, training=training) for call in calls] or [Judgement(Verdict.OK)]
    return max(judgements, key=lambda item: (SEVERITY.index(item.verdict), item.numbers.get("ratio", 0.0)))


def _one(call: Call, loaded: Loaded, *, training: bool) -> Judgement:
    if training and call.wants_gradients and not call.differentiable:
        return Judgement(Verdict.WRONG_GRADIENT, "out: has no gradient, though an argument wants one")
    judgement = _judged(call, loaded)
    if judgement.verdict.is_finding:
        return judgement
    for verdict, lines in (
        (Verdict.WRONG_GRADIENT, identities.broken(call)),
        (Verdict.WRONG_RESULT, _unrelated(call, loaded)),
    ):
        if lines:
            return Judgement(verdict, lines[0], judgement.numbers)
    return judgement


def _judged(call: Call, loaded: Loaded) -> Judgement:
    """The verdict on the numbers of a call, whose dropout mask is read off the function."""
    probability, _ = call.options.get("dropout") or (0.0, 0)
    if probability <= 0.0:
        return judge(call, loaded.capabilities.rounds)
    try:
        mask, wrong = masks.problems(
            _asked(loaded), call.q, call.k, call.v, call.options, backward=call.differentiable and call.wants_gradients
        )
    except (Unsupported, NotImplementedError):  # it does not take the calls that show the mask
        return Judgement(Verdict.RANDOM_STREAM)
    if wrong:
        return Judgement(Verdict.WRONG_RESULT, f"dropout: {wrong[0]}")
    return judge(call, loaded.capabilities.rounds, mask)


def _unrelated(call: Call, loaded: Loaded) -> list[str]:
    # A call always meets the same relations.
    chance = Random(str([*call.q.shape, *call.k.shape, *call.options]))
    return relations.broken(_asked(loaded), call, chance, RELATIONS)


def _asked(loaded: Loaded) -> Callable[..., Tensor]:
    """The function; calls outside of what it declares raise `Unsupported`."""

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        loaded.check(q, k, v, options, training=False)
        out: Tensor = loaded.function(q, k, v, **options)
        return out

    return attend
