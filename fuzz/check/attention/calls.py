"""All that is held against an attention function for the calls a case made of it."""

from collections.abc import Sequence
from random import Random
from typing import Any

from torch import Tensor

from fuzz.check.attention.function import Loaded
from fuzz.check.oracle.attention import identities, relations
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
    probability, _ = call.options.get("dropout") or (0.0, 0)
    judgement = Judgement(Verdict.RANDOM_STREAM) if probability > 0.0 else judge(call, loaded.capabilities.rounds)
    if judgement.verdict.is_finding:
        return judgement
    for verdict, lines in (
        (Verdict.WRONG_GRADIENT, identities.broken(call)),
        (Verdict.WRONG_RESULT, _unrelated(call, loaded)),
    ):
        if lines:
            return Judgement(verdict, lines[0], judgement.numbers)
    return judgement


def _unrelated(call: Call, loaded: Loaded) -> list[str]:
    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        loaded.check(q, k, v, options, training=False)
        out: Tensor = loaded.function(q, k, v, **options)
        return out

    # A call always meets the same relations.
    return relations.broken(attend, call, Random(str([*call.q.shape, *call.k.shape, *call.options])), RELATIONS)
