"""The table of attention options, which generators, the shrinker, workers and reports use; and `Contract`.

A worker imports this module: it needs the standard library of Python 3.10 alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from generators.records import NameOf

ValueName = Annotated[str, NameOf.VALUE]


class Form(Enum):
    """The value of an option. A call gives options in the order of their forms."""

    MASK = "boolean, broadcasts to [batch, heads, seq_len, kv_len]"
    BIAS = "floating, broadcasts to [batch, heads, seq_len, kv_len]"
    CORNER = "top_left or bottom_right"
    WINDOW = "(left, right), counts of keys, -1 for no bound"
    NUMBER = "a positive number"
    PER_HEAD = "floating, [heads]"
    PROBABILITY = "a probability; in a call (probability, seed)"


@dataclass(frozen=True)
class AttentionOption:
    """An option: a field of `Contract` and a keyword of attention functions, both of the same name."""

    form: Form
    absent: float | None = None  # the value of the field without the option
    has_gradient: bool = False  # attention functions may give its gradient
    needs_axes: bool = False  # undefined for packed and paged calls, whose sequences share no axes
    keeps_values: bool = True  # results stay comparable if a call gets other sizes or drops the option

    @property
    def is_tensor(self) -> bool:
        """Whether its value is a tensor; the contract names it."""
        return self.form in {Form.MASK, Form.BIAS, Form.PER_HEAD}


OPTIONS = {
    "alibi": AttentionOption(Form.PER_HEAD),
    "sinks": AttentionOption(Form.PER_HEAD, has_gradient=True),
    "window": AttentionOption(Form.WINDOW),
    "causal": AttentionOption(Form.CORNER),
    "softcap": AttentionOption(Form.NUMBER),
    "bias": AttentionOption(Form.BIAS, has_gradient=True, needs_axes=True),
    "mask": AttentionOption(Form.MASK, needs_axes=True),
    "dropout": AttentionOption(Form.PROBABILITY, 0.0, needs_axes=True, keeps_values=False),
}
"""Options by name, in the order in which the shrinker drops them and a cause lists them.

To add an option, add a row and a field of `Contract` here, its arithmetic in fuzz/check/run/attention/call.py, and a
row of `SCORE_STEPS` in generators/sampling/steps.py, by which campaigns draw it and the shrinker writes it.
"""

KEYWORDS = sorted(OPTIONS, key=lambda name: list(Form).index(OPTIONS[name].form))
"""The names of options, in the order of the keywords of a call."""
TENSORS = tuple(name for name, option in OPTIONS.items() if option.is_tensor)
OVER_SCORES = tuple(name for name, option in OPTIONS.items() if option.form in {Form.MASK, Form.BIAS})
"""Options whose values have the axes of the scores."""
PER_HEAD = tuple(name for name, option in OPTIONS.items() if option.form is Form.PER_HEAD)
COMPARABLE = tuple(name for name, option in OPTIONS.items() if option.keeps_values)
"""Options that can be left out of a wrong call to see whether it is right without them."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The attention that a part of the program computes, in these steps over the scores s[i, j] of query i and key j.

    1. s = scale * (q_i . k_j)
    2. s = softcap * tanh(s / softcap)
    3. s = s - alibi[h] * |i + off - j|; alibi: floating, [heads]
    4. s = `fill` where the boolean `mask` does not keep a key; True means `keep` or `drop`, as `mask_means` says
    5. s = s + bias; bias: floating
    6. s = -inf unless i + off - left <= j <= i + off + right; `window` is (left, right), -1 for no bound. `causal` sets
       right to 0; off is 0 for `top_left` and without `causal`, kv_len - seq_len for `bottom_right`
    7. p = softmax(s); sinks, floating, [heads], adds the term exp(sinks[h]) to the denominator only
    8. output = p v, with p dropped out with probability `dropout` and the rest divided by 1 - dropout

    `q`, `k`, `v`, `alibi`, `mask`, `bias`, `sinks` and `output` name values of the program. `layout` is the order of
    axes of q, k, v and output: `bhsd` is [batch, heads, seq_len, head_dim], `bshd` has heads and seq_len exchanged,
    `bsd` has no head axis. With fewer key heads than query heads, query head h reads key head h * kv_heads // heads.
    `mask` and `bias` broadcast to [batch, heads, seq_len, kv_len] (no head axis for `bsd`).
    """

    q: ValueName
    k: ValueName
    v: ValueName
    output: ValueName
    layout: str = "bhsd"
    scale: float = 1.0
    softcap: float | None = None
    alibi: ValueName | None = None
    mask: ValueName | None = None
    mask_means: str = "keep"
    fill: float = float("-inf")
    bias: ValueName | None = None
    causal: str | None = None
    window: tuple[int, int] | None = None
    sinks: ValueName | None = None
    dropout: float = 0.0

    @property
    def reads(self) -> Mapping[str, str]:
        """The values that it reads, by field: q, k, v and whichever of alibi, mask, bias and sinks it has."""
        named = {field: getattr(self, field) for field in ("q", "k", "v", *TENSORS)}
        return {field: name for field, name in named.items() if name is not None}
