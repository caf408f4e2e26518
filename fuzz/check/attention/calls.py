"""All that is held against an attention function for the calls a case made of it."""

from collections.abc import Sequence

from fuzz.check.attention.function import Loaded
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.judge import judge
from fuzz.check.oracle.decide import SEVERITY, Judgement
from fuzz.protocol import Verdict


def judged(calls: Sequence[Call], loaded: Loaded, *, training: bool) -> Judgement:
    """The gravest verdict on the calls of one run. `training`: gradients were asked for."""
    judgements = [_one(call, loaded, training=training) for call in calls] or [Judgement(Verdict.OK)]
    return max(judgements, key=lambda item: (SEVERITY.index(item.verdict), item.numbers.get("ratio", 0.0)))


def _one(call: Call, loaded: Loaded, *, training: bool) -> Judgement:
    if training and call.wants_gradients and not call.differentiable:
        return Judgement(Verdict.WRONG_GRADIENT, "out: has no gradient, though an argument wants one")
    probability, _ = call.options.get("dropout") or (0.0, 0)
    if probability > 0.0:
        return Judgement(Verdict.RANDOM_STREAM)
    return judge(call, loaded.capabilities.rounds)
