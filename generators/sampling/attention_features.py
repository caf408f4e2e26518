"""What newer models add to attention: a soft cap, ALiBi, sinks, sliding windows, causality from the last key."""

from dataclasses import dataclass

from generators.program.case import Values
from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.position_masks import Pattern, offset, position_indices


@dataclass(frozen=True, slots=True)
class AttentionFeatures:
    """What one attention has of these. `window` is two-sided unless `causal` names a corner."""

    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    causal: str | None = None
    window: bool = False

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self != AttentionFeatures()


@dataclass(frozen=True, slots=True)
class FeatureScores:
    """Scores after a step, the value a contract names for it, and whether a contract may: it asks no gradient of it."""

    scores: str
    value: str
    contractual: bool


SHARE = 0.07
"""The share of a campaign's cases with features: they are few in the code that compilers see, and slower to judge."""
_ONE = {"softcap": 2.0, "window": 2.0, "bottom_right": 1.0, "alibi": 1.5, "sinks": 1.5}
_CORNERS: dict[str | None, float] = {None: 3.0, "top_left": 4.0, "bottom_right": 3.0}


def draw_features(c: Choices) -> AttentionFeatures:
    """Mostly none, else one."""
    one = c.weighted(_ONE) if c.chance(SHARE) else ""
    window = one == "window"
    causal = c.weighted(_CORNERS) if window else "bottom_right" if one == "bottom_right" else None
    return AttentionFeatures(one == "softcap", one == "alibi", one == "sinks", causal, window)


def draw_many_features(c: Choices) -> AttentionFeatures:
    """Each often, together now and then: for campaigns that are about attention alone."""
    causal, window = c.weighted(
        {
            (None, False): 54.0,
            ("top_left", False): 20.0,
            ("bottom_right", False): 9.0,
            (None, True): 4.0,
            ("top_left", True): 5.0,
            ("bottom_right", True): 4.0,
        }
    )
    return AttentionFeatures(c.chance(0.12), c.chance(0.12), c.chance(0.13), causal, window)


def draw_pattern(b: Builder, c: Choices, features: AttentionFeatures, query: Size, key: Size) -> Pattern:
    """The causal mask or window of the features in numbers."""
    if not features.window:
        return Pattern(features.causal)
    longest = max(b.size(query), b.size(key), 1)
    sizes = [n for n in (0, 1, 2, 3, 7, 15, 31, 63, 64, 100) if n < longest]
    left = c.pick(sizes)
    right = 0 if features.causal else left if c.chance(0.6) else c.pick(sizes)
    return Pattern(features.causal, (left, right))


def spell_softcap(b: Builder, c: Choices, scores: str) -> tuple[str, float]:
    """Scores held below a cap, cap * tanh(scores / cap), as Gemma writes it; and the cap."""
    cap = c.pick((50.0, 30.0, 20.0, 5.0, 1.0))
    scores = b.op("div", scores, other=cap)
    scores = b.op("tanh", scores, form=c.pick(("function", "method")))
    return b.op("mul", scores, other=cap, reverse=c.chance(0.3)), cap


def spell_alibi(b: Builder, c: Choices, scores: str, pattern: Pattern) -> FeatureScores:
    """Slopes [H], given or a geometric row, times the distances, taken from the scores, [B, H, S, T] or [B, S, T]."""
    query, key = b.shape(scores)[-2:]
    heads = _num_heads(b, scores)
    contractual = True
    if c.chance(0.4):
        steps = b.op("arange", to="steps", start=1, stop=heads + 1, dtype="float32")
        slopes = b.op("exp", b.op("mul", steps, other=c.pick((-0.5, -1.0, -0.1))), to="slopes")
    else:
        slopes, contractual = _draw_per_head(
            b, c, "slopes", heads, Values("uniform", scale=c.pick((1.0, 0.2))), "float32"
        )
    rows, columns = position_indices(b, query, key, offset(pattern, query, key), c.pick(("int64", "float32")))
    ahead = c.chance(0.5)
    distance = b.op("sub", *((columns, rows) if ahead else (rows, columns)), to="distance")
    distance = b.op("abs", distance)
    sloped = b.op("mul", b.op("view", slopes, sizes=(heads, 1, 1)), distance, to="alibi")
    if b.dtype_of(scores) != "float32" and c.chance(0.5):
        sloped = b.op("cast", sloped, dtype=b.dtype_of(scores))
    if c.chance(0.5):
        return FeatureScores(b.op("sub", scores, sloped, to="scores"), slopes, contractual)
    return FeatureScores(b.op("add", scores, b.op("neg", sloped), to="scores"), slopes, contractual)


def add_sinks(b: Builder, c: Choices, scores: str) -> FeatureScores:
    """The scores with one more column, a number a head, as gpt-oss writes it: softmax, then drop the column."""
    heads = _num_heads(b, scores)
    dtype = c.pick((b.dtype, b.dtype_of(scores), "float32"))
    sinks, contractual = _draw_per_head(b, c, "sinks", heads, Values("normal", scale=c.pick((1.0, 1.0, 3.0))), dtype)
    lead = (1,) * (b.rank(scores) - 3)
    column = b.op(c.pick(("view", "reshape")), sinks, to="column", sizes=(*lead, heads, 1, 1))
    column = b.op("expand", column, sizes=(*b.shape(scores)[:-1], 1))
    if dtype != b.dtype_of(scores):
        column = b.op("cast", column, dtype=b.dtype_of(scores))
    joined = b.op("cat", scores, column, to="joined", dim=-1)
    if c.chance(0.3):
        joined = b.op("sub", joined, b.op("amax", joined, to="top", dim=-1, keepdim=True))
    return FeatureScores(joined, sinks, contractual)


def _num_heads(b: Builder, scores: str) -> Size:
    return b.shape(scores)[1] if b.rank(scores) == 4 else Size.of(1)


def _draw_per_head(b: Builder, c: Choices, hint: str, heads: Size, values: Values, dtype: str) -> tuple[str, bool]:
    """A tensor of one number a head from outside; in training mostly cut off from gradients."""
    value = b.input(hint, (heads,), values, dtype, parameter=c.chance(0.5))
    fixed = b.fixed(c, value)
    return fixed, b.mode != "training" or fixed != value
