"""Single steps of attention: soft caps, ALiBi, sinks, the softmax, and steps that change nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from generators.program.case import Values
from generators.program.sizes import ONE, Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.masks import Visibility, offset, position_indices


@dataclass(frozen=True, slots=True)
class AttentionExtras:
    """Steps that few attentions have. `window` is two-sided unless `causal` names a corner."""

    steps: tuple[str, ...] = ()  # rows of `SCORE_STEPS`
    causal: str | None = None
    window: bool = False

    @property
    def options(self) -> dict[str, object]:
        """The options of an attention call, True for an option whose value is not drawn yet."""
        given = {**dict.fromkeys(self.steps, True), "causal": self.causal, "window": self.window}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True)
class ScoreStep:
    """How the option of attention of the same name changes the scores, [B, H, S, T] or [B, S, T]."""

    weight: float  # how often it is drawn alone, relative to other extras
    draw: Callable[[Builder, Choices, str], Any]
    """The value of the option for these scores: a number, or the name of a tensor."""
    spell: Callable[[Builder, Choices, str, Any, Visibility], str]
    """Writes the changed scores, and notes the value in the contract."""
    after_mask: bool = False


def draw_visibility(b: Builder, c: Choices, extras: AttentionExtras, query: Size, key: Size) -> Visibility:
    """The visibility of these extras, with random window sizes."""
    if not extras.window:
        return Visibility(extras.causal)
    longest = max(b.size(query), b.size(key), 1)
    sizes = [n for n in (0, 1, 2, 3, 7, 15, 31, 63, 64, 100) if n < longest]
    left = c.pick(sizes)
    right = 0 if extras.causal else left if c.chance(0.6) else c.pick(sizes)
    return Visibility(extras.causal, (left, right))


_CAPS = (50.0, 30.0, 20.0, 5.0, 1.0)


def _spell_softcap(b: Builder, c: Choices, scores: str, cap: float, _visibility: Visibility) -> str:
    """Scores held below a cap, cap * tanh(scores / cap), as Gemma writes it."""
    b.note_contract(softcap=cap)
    if cap == 1:
        return b.op("tanh", scores)
    scores = b.op("tanh", b.op("div", scores, other=cap))
    return b.op("mul", scores, other=cap, reverse=c.chance(0.3))


def _draw_slopes(b: Builder, c: Choices, scores: str) -> str:
    """Slopes of ALiBi, [H]: an input, or a geometric sequence."""
    heads = _count_heads(b, scores)
    if c.chance(0.4):
        steps = b.op("arange", to="steps", start=1, stop=heads + 1, dtype="float32")
        return b.op("exp", b.op("mul", steps, other=c.pick((-0.5, -1.0, -0.1))), to="slopes")
    return _draw_per_head(b, c, "slopes", heads, Values("uniform", scale=c.pick((1.0, 0.2))), "float32")


def _spell_alibi(b: Builder, c: Choices, scores: str, slopes: str, visibility: Visibility) -> str:
    """The scores minus slopes times distances."""
    query, key = b.shape(scores)[-2:]
    b.note_contract(alibi=slopes)
    rows, columns = position_indices(b, query, key, offset(visibility, query, key), c.pick(("int64", "float32")))
    ahead = c.chance(0.5)
    distance = b.op("sub", *((columns, rows) if ahead else (rows, columns)), to="distance")
    distance = b.op("abs", distance)
    sloped = b.op("mul", b.op("view", slopes, sizes=(*b.shape(slopes), 1, 1)), distance, to="alibi")
    if b.dtype_of(scores) != "float32" and c.chance(0.5):
        sloped = b.op("cast", sloped, dtype=b.dtype_of(scores))
    if c.chance(0.6):
        return b.op("sub", scores, sloped, to="scores")
    return b.op("add", scores, b.op("neg", sloped), to="scores")


def _draw_sinks(b: Builder, c: Choices, scores: str) -> str:
    """Sinks, [H], also in the dtype of the scores."""
    dtype, values = c.pick((b.dtype, b.dtype_of(scores), "float32")), Values("normal", scale=c.pick((1.0, 1.0, 3.0)))
    return _draw_per_head(b, c, "sinks", _count_heads(b, scores), values, dtype)


def _add_sinks(b: Builder, c: Choices, scores: str, sinks: str, _visibility: Visibility) -> str:
    """The scores with a further column, a number for each head, as gpt-oss writes it: softmax, then drop the column."""
    b.note_contract(sinks=sinks)
    column = b.op(c.pick(("view", "reshape")), sinks, to="column", sizes=(*b.shape(sinks), 1, 1))
    column = b.op("expand", column, sizes=(*b.shape(scores)[:-1], 1))
    if b.dtype_of(column) != b.dtype_of(scores):
        column = b.op("cast", column, dtype=b.dtype_of(scores))
    joined = b.op("cat", scores, column, to="joined", dim=-1)
    if c.chance(0.3):
        joined = b.op("sub", joined, b.op("amax", joined, to="top", dim=-1, keepdim=True))
    return joined


def _draw_per_head(b: Builder, c: Choices, hint: str, heads: Size, values: Values, dtype: str) -> str:
    """An outside tensor, [H]. Mostly detached in training: attention functions need not give its gradient."""
    value = b.input(hint, (heads,), values, dtype, parameter=c.chance(0.5))
    fixed = b.freeze(c, value)
    b.drop_contract_unless(b.mode != "training" or fixed != value)
    return fixed


def _count_heads(b: Builder, scores: str) -> Size:
    return b.shape(scores)[1] if b.rank(scores) == 4 else ONE


SCORE_STEPS: Mapping[str, ScoreStep] = {
    "softcap": ScoreStep(2.0, lambda _b, c, _scores: c.pick(_CAPS), _spell_softcap),
    "alibi": ScoreStep(1.5, _draw_slopes, _spell_alibi),
    "sinks": ScoreStep(1.5, _draw_sinks, _add_sinks, after_mask=True),
}
"""By option, in the order in which they are written."""


EXTRAS_SHARE = 0.07
"""The share of cases with such extras. Low, because compilers rarely see them and judging takes longer."""
_STEP_SHARE = 0.12
"""The share of each step in cases of campaigns of attention functions."""
_SINGLE: Mapping[AttentionExtras, float] = {
    **{AttentionExtras((name,)): step.weight for name, step in SCORE_STEPS.items()},
    AttentionExtras(window=True): 0.6,
    AttentionExtras(window=True, causal="top_left"): 0.8,
    AttentionExtras(window=True, causal="bottom_right"): 0.6,
    AttentionExtras(causal="bottom_right"): 1.0,
}
_MASKS: Mapping[AttentionExtras, float] = {
    AttentionExtras(): 54.0,
    AttentionExtras(causal="top_left"): 20.0,
    AttentionExtras(causal="bottom_right"): 9.0,
    AttentionExtras(window=True): 4.0,
    AttentionExtras(window=True, causal="top_left"): 5.0,
    AttentionExtras(window=True, causal="bottom_right"): 4.0,
}


def draw_extras(c: Choices) -> AttentionExtras:
    """Mostly none, else a single extra."""
    return c.draw(_SINGLE) if c.chance(EXTRAS_SHARE) else AttentionExtras()


def draw_many_extras(c: Choices) -> AttentionExtras:
    """For campaigns of attention functions: each extra is frequent, several at once are rare."""
    return replace(c.draw(_MASKS), steps=tuple(name for name in SCORE_STEPS if c.chance(_STEP_SHARE)))


def spell_softmax(b: Builder, c: Choices, scores: str, like: str) -> str:
    """Softmax of `scores` (last axis: keys), in the dtype of `like`, the values that the weights multiply."""
    rank = b.rank(scores)
    axis = c.choose_default({-1: 80.0, rank - 1: 6.0, -2: 3.0, rank - 2: 2.0, 1: 1.5, 0: 0.7}, "softmax.axis")
    spelling = c.choose_default(
        {"softmax": 84.0, "log": 4.0, "explicit": 8.0, "explicit_unsafe": 2.0, "logsumexp": 2.0}
    )
    upcast = c.choose("softmax.upcast", {"none": 8.0, "float": 2.0, "argument": 1.5})
    options = {}
    if upcast == "argument":
        options["dtype"] = c.choose_default({"float32": 5.0, b.dtype_of(scores): 1.0, "float64": 0.5})
    if upcast == "float":
        scores = b.op("cast", scores, dtype="float32", form=c.pick(("to", "method")))
    if spelling == "log":
        logs = b.op(
            "log_softmax", scores, to="log_probs", dim=axis, **options, form=c.pick(("method", "functional", "torch"))
        )
        probs = b.op("exp", logs, to="probs")
    elif spelling == "softmax":
        form = c.draw({"method": 5.0, "functional": 4.0, "torch": 3.0})
        probs = b.op("softmax", scores, to="probs", dim=axis, **options, form=form)
    elif spelling == "logsumexp":
        total = b.op("logsumexp", scores, to="lse", dim=axis, keepdim=True)
        probs = b.op("exp", b.op("sub", scores, total, to="log_probs"), to="probs")
    else:
        shifted = scores
        if spelling == "explicit":
            shifted = b.op("sub", scores, b.op("amax", scores, to="top", dim=axis, keepdim=True), to="shifted")
        exps = b.op("exp", shifted, to="exps")
        probs = b.op("div", exps, b.op("sum", exps, to="total", dim=axis, keepdim=True), to="probs")
    if b.dtype_of(probs) != b.dtype_of(like) or upcast == "float":
        back = c.choose("softmax.back", {"type_as": 1.0, "to": 2.0, "method": 1.0, "type": 1.0})
        if back == "type_as":
            probs = b.op("type_as", probs, like)
        else:
            probs = b.op("cast", probs, dtype=b.dtype_of(like), form=back)
    # Unless the row maximum is subtracted first, rows of very negative scores do not sum to 1.
    b.drop_contract_unless(spelling not in ("explicit_unsafe", "logsumexp") and axis in (-1, rank - 1))
    return probs


def _there_and_back(b: Builder, c: Choices, value: str) -> str:
    axis = c.below(b.rank(value) + 1)
    return b.op("squeeze", b.op("unsqueeze", value, dim=axis), dim=axis)


def _up_and_down(b: Builder, _c: Choices, value: str) -> str:
    dtype = b.dtype_of(value)
    return b.op("cast", b.op("cast", value, dtype="float64" if dtype == "float32" else "float32"), dtype=dtype)


_NOOPS: Mapping[Callable[[Builder, Choices, str], str], float] = {
    lambda b, _, x: b.op("contiguous", x): 3.0,
    lambda b, c, x: b.op("clone", x, memory_format=c.pick(("preserve", "contiguous"))): 2.0,
    _there_and_back: 2.0,
    lambda b, _, x: b.op("view", b.op("reshape", x, sizes=(Size.of(-1),)), sizes=b.shape(x)): 1.0,
    lambda b, c, x: b.op("add", x, other=c.pick((0, 0.0)), form=c.pick(("operator", "method", "function"))): 1.0,
    lambda b, c, x: b.op(c.pick(("mul", "div")), x, other=c.pick((1, 1.0)), reverse=False): 1.0,
    _up_and_down: 1.0,
    lambda b, _, x: b.op("transpose", b.op("transpose", x, dim0=-1, dim1=-2), dim0=-2, dim1=-1): 1.0,
}


def insert_noop(b: Builder, c: Choices, value: str) -> str:
    """The floating value, rarely after inserted steps that change nothing."""
    amount = c.deviation / 5
    while c.chance(amount):
        value = c.draw(_NOOPS)(b, c, value)
        amount /= 3
    return value
