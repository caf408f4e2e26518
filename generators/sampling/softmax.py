"""The softmax over scores, spelled in every form eager accepts."""

from dataclasses import dataclass

from generators.sampling.builder import Builder
from generators.sampling.choices import Choices


@dataclass(frozen=True, slots=True)
class Probabilities:
    """The probabilities, in the dtype of the values they meet, and whether they are a stable softmax over the keys."""

    value: str
    contractual: bool


def spell_softmax(b: Builder, c: Choices, scores: str, like: str) -> Probabilities:
    """Softmax of `scores` (last axis: keys), in the dtype of `like`, the values it will meet."""
    rank = b.rank(scores)
    axis = c.choose_default({-1: 80.0, rank - 1: 6.0, -2: 3.0, rank - 2: 2.0, 1: 1.5, 0: 0.7})
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
        form = c.weighted({"method": 5.0, "functional": 4.0, "torch": 3.0, "module": 0.0 if options else 2.0})
        probs = b.op("softmax", scores, to="probs", dim=axis, **options, form=form)
    elif spelling == "logsumexp":
        total = b.op("logsumexp", scores, to="lse", dim=axis, keepdim=True)
        probs = b.op("exp", b.op("sub", scores, total, to="log_probs"), to="probs")
    else:
        probs = _explicit(b, c, scores, axis, safe=spelling == "explicit")
    if b.dtype_of(probs) != b.dtype_of(like) or upcast == "float":
        back = c.choose("softmax.back", {"type_as": 1.0, "to": 2.0, "method": 1.0, "type": 1.0})
        if back == "type_as":
            probs = b.op("type_as", probs, like)
        else:
            probs = b.op("cast", probs, dtype=b.dtype_of(like), form=back)
        # Without the row maximum taken out first, a row of huge negative scores does not sum to 1.
    stable = spelling not in ("explicit_unsafe", "logsumexp")
    return Probabilities(probs, stable and axis in (-1, rank - 1))


def _explicit(b: Builder, c: Choices, scores: str, axis: int, *, safe: bool) -> str:
    shifted = scores
    if safe:
        top = b.op(c.weighted({"amax": 3.0, "max": 1.0}), scores, to="top", dim=axis, keepdim=True)
        shifted = b.op("sub", scores, top, to="shifted")
    exps = b.op("exp", shifted, to="exps")
    total = b.op("sum", exps, to="total", dim=axis, keepdim=True)
    return b.op("div", exps, total, to="probs")
