"""The options of attention, in one table for generators, the shrinker, workers and reports.

A worker imports this module: it needs the standard library of Python 3.10 alone.
"""

from dataclasses import dataclass
from enum import Enum


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
    needs_axes: bool = False  # it has no meaning where sequences have no common axes
    keeps_values: bool = True  # a call of other sizes, or without it, has values that can be compared

    @property
    def is_tensor(self) -> bool:
        """Whether its value is a tensor; the contract names it."""
        return self.form in {Form.MASK, Form.BIAS, Form.PER_HEAD}

    @property
    def is_over_scores(self) -> bool:
        """Whether its value has the axes of the scores."""
        return self.form in {Form.MASK, Form.BIAS}


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
"""By name, in the order in which the shrinker leaves them out and a cause names them.

Semantics: `Contract` in case.py and `Exact` in fuzz/check/oracle/attention/call.py.
"""

KEYWORDS = sorted(OPTIONS, key=lambda name: list(Form).index(OPTIONS[name].form))
"""In the order in which a call gives them."""
TENSORS = tuple(name for name, option in OPTIONS.items() if option.is_tensor)
OVER_SCORES = tuple(name for name, option in OPTIONS.items() if option.is_over_scores)
PER_HEAD = tuple(name for name, option in OPTIONS.items() if option.form is Form.PER_HEAD)
COMPARABLE = tuple(name for name, option in OPTIONS.items() if option.keeps_values)
"""Options that can be left out of a wrong call to see whether it is right without them."""
