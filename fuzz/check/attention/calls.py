"""All that is held against an attention function for the calls a case made of it."""

from collections.abc import Sequence
from random import Random
from typing import Any

from torch import Tensor

from fuzz.check import failures
from fuzz.check.attention.function import Loaded, Unsupported
from fuzz.check.attention.guard import Guard
from fuzz.check.oracle.attention import identities, masks, relations
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.judge import judge
from fuzz.check.oracle.decide import SEVERITY, Judgement
from fuzz.protocol import Verdict

RELATIONS = 1
"""So many relations between its own outputs a call is tried on."""

PIECES = 2
"""A dropout mask is read off in pieces of value_dim keys or queries, several times each: in no more than so many."""


def judged(calls: Sequence[Call], loaded: Loaded, *, training: bool, again: bool = True) -> Judgement:
    """The gravest verdict on the calls of one run. `training`: gradients were asked for; `again`: the function may be called
    with other arguments."""
    judgements = [_one(call, loaded, training=training, again=again) for call in calls] or [Judgement(Verdict.OK)]
    return max(judgements, key=lambda item: (SEVERITY.index(item.verdict), item.numbers.get("ratio", 0.0)))


def _one(call: Call, loaded: Loaded, *, training: bool, again: bool) -> Judgement:
    if training and call.wants_gradients and not call.differentiable:
        return Judgement(Verdict.WRONG_GRADIENT, "out: has no gradient, though an argument wants one")
    asked = _Asked(loaded)
    try:
        judgement = _judged(call, loaded, asked if again else None)
        if judgement.verdict.is_finding:
            return judgement
        wrong = identities.broken(call)
        if wrong:
            return Judgement(Verdict.WRONG_GRADIENT, wrong[0], judgement.numbers)
        if not again:
            return judgement
        # A call always meets the same relations.
        chance = Random(str([*call.q.shape, *call.k.shape, *call.options]))
        breaches = relations.broken(asked, call, chance, RELATIONS)
    except _Failed as failure:
        return Judgement(failures.verdict(failure.error), f"called again with other arguments: {failures.line(failure.error)}")
    if asked.damage:
        return asked.verdict
    if not breaches:
        return judgement
    verdict = Verdict.NONFINITE if breaches[0].nonfinite else Verdict.WRONG_RESULT
    return Judgement(verdict, str(breaches[0]), judgement.numbers)


def _judged(call: Call, loaded: Loaded, asked: "_Asked | None") -> Judgement:
    """The verdict on the numbers of a call, whose dropout mask is read off the function where it can be asked."""
    probability, _ = call.options.get("dropout") or (0.0, 0)
    if probability <= 0.0:
        return judge(call, loaded.capabilities.rounds)
    if asked is None or max(call.q.size(2), call.k.size(2)) > PIECES * call.v.size(3):
        return Judgement(Verdict.RANDOM_STREAM)
    try:
        mask, wrong = masks.problems(
            asked, call.q, call.k, call.v, call.options, backward=call.differentiable and call.wants_gradients
        )
    except (Unsupported, NotImplementedError):  # it does not take the calls that show the mask
        return Judgement(Verdict.RANDOM_STREAM)
    if asked.damage:
        return asked.verdict
    if wrong:
        return Judgement(Verdict.WRONG_RESULT, f"dropout: {wrong[0]}")
    return judge(call, loaded.capabilities.rounds, mask)


class _Failed(Exception):
    """A function raised `error` when it was called again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(failures.line(error))
        self.error = error


class _Asked:
    """The function, called again with other arguments, in guarded memory. `Unsupported` is raised for calls outside of what
    it declares, and once it wrote where it should not; `_Failed` for what it raises, unless it refuses the call."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.damage: list[str] = []

    @property
    def verdict(self) -> Judgement:
        """That it wrote out of bounds."""
        return Judgement(Verdict.OUT_OF_BOUNDS, f"called again with other arguments, it wrote {'; '.join(self.damage)}")

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self._loaded.check(q, k, v, options, training=False)
        if self.damage:
            raise Unsupported(self.damage[0])
        guard = Guard()
        with guard:
            given = {
                name: guard.given(name, value) if isinstance(value, Tensor) else value
                for name, value in {"q": q, "k": k, "v": v, **options}.items()
            }
            try:
                out = self._loaded.function(**given)
            except (Unsupported, NotImplementedError):
                raise
            except Exception as error:
                if failures.verdict(error) is Verdict.OUT_OF_MEMORY:
                    raise
                raise _Failed(error) from error
            out = guard.returned(out)
        self.damage = guard.damage()
        return out
