"""Failures in words, only for people."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from fuzz.protocol import SubjectResult, Verdict, failures
from fuzz.protocol.failures import Failure, Refusal, Sequences, Value, Write

_PLACES = {"itself": "of {} itself", "between": "between the rows of {}"}
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_PLURALS = {"batch": "batches", "head": "heads", "query": "queries", "key": "keys"}

_BIASED = " ({deviations:.0f} standard deviations from {kernels} right kernels)"
_AGREE = "agree in {seen:.0%} of {total} elements, independent ones do in {expected:.0%}"
_SENTENCES = {
    "different_elements": "{value}: {count} of {total} {dtype} elements differ from eager",
    "not_finite": "{value}: {count} elements not finite, first at {first}",
    "empty_rows_not_zero": "{value}: {count} rows that keep no key are not 0, first at {first}",
    "biased_errors scale": "{value}: on average as if the scale were {amount:.6f} times as large" + _BIASED,
    "biased_errors bias": "{value}: on average {amount:.6f} times what it should be" + _BIASED,
    "biased_errors row": "{value}: the errors of the worst row are {amount:.2g} times those of right kernels" + _BIASED,
    "biased_errors rms": "{value}: errors are {amount:.2g} times those of right kernels" + _BIASED,
    "missing_gradient": "{value}: has no gradient, though an argument requires one",
    "dropout_statistic slope": "gradients: with {effect:.0%} of {seeds} seeds they are not the slope of the outputs, "
    "as when forward and backward drop different elements ({standard_errors:.3g} standard errors from eager)",
    "dropout_statistic nonfinite": "{value}: not finite with {effect:.0%} of {seeds} dropout seeds, "
    "more often than eager's ({standard_errors:.3g} standard errors)",
    "dropout_statistic": "{value}{part}: {statistic} over {seeds} dropout seeds is {much}, "
    "{standard_errors:.3g} standard errors away",
    "dropout_mask extreme_rate": "dropout: dropout of p = {p:g} keeps {seen:.1%} of the weights",
    "dropout_mask keep_rate": "dropout: {count} of {total} weights{where} are kept, expected {expected:.3g} of them "
    "({worst:+.3g} standard errors)",
    "dropout_mask repeated": "dropout: masks of {axes} {lag} apart " + _AGREE,
    "dropout_mask same_for_seeds": "dropout: masks of seeds {seeds[0]} and {seeds[1]} " + _AGREE,
    "dropout_mask not_repeatable": "dropout: two calls with seed {seeds[0]} keep different weights",
    "repeated_mask": "{value}: its dropout mask and {of_other} agree in {agree} of {total} elements, "
    "independent ones do in {expected:.0%}",
    "form_differs structure": "returned ({actual}), eager ({expected})",
    "form_differs memory": "{value}: shares memory with {actual_owner}, eager's with {expected_owner}",
    "form_differs mutation": "{value}: changed, eager leaves it alone",
    "form_differs strides": "{value}: strides {actual} are in another order than eager's {expected}",
    "form_differs": "{value}: {aspect} {actual}, eager's is {expected}",
    "nondeterministic": "{value} differs between two runs on equal inputs",
}
"""By the kind of a failure, and its statistic, problem or aspect."""


def name_ordinal(number: int) -> str:
    """`second` of 2, for calls: a case has at most eight."""
    return _ORDINALS[(number - 1) % len(_ORDINALS)]


def describe_value(value: Value, name: str = "", *, is_sequence: bool = False) -> str:
    """A value in words: "gradient of parameter w after the second call".

    name: in place of kind and index
    is_sequence: name the first call too
    """
    if value.kind == "result":
        return str(value.name)
    words = ("gradient of " if value.is_gradient else "") + (name or f"{value.kind} {value.name}")
    if not is_sequence and value.call == 1:
        return f"{words} after the call" if value.is_written else words
    ordinal = name_ordinal(value.call)
    return f"{words} {'of' if value.kind == 'output' else 'after'} the {ordinal} call"


ValueWords = Callable[[Value], str]
"""Puts a value into words."""


def describe(result: SubjectResult, words: ValueWords = describe_value) -> str:
    """The failure of a result in one line, or ""."""
    parts = [describe_failure(result.failure, words)] if result.failure is not None else []
    if result.verdict is Verdict.PRECISION_POLICY and not isinstance(result.failure, failures.RightAt):
        parts.append("gone with emulate_precision_casts=True")
    if result.writes:
        parts.append(f"wrote {describe_writes(result.writes)}")
    return "; ".join(part for part in parts if part)


def name_refusal(failure: Failure | None) -> str:
    """What a subject does not take, to be counted: an operator if it names one, else as `describe_failure`."""
    if isinstance(failure, failures.NotTaken) and (failure.operator or failure.why in _OF_MODE):
        return failure.operator or _OF_MODE[failure.why]
    return "" if failure is None else describe_failure(failure)


_OF_MODE = {Refusal.NOT_INFERENCE: "training", Refusal.NOT_TRAINING: "inference"}


def describe_writes(writes: Sequence[Write]) -> str:
    return "; ".join(
        f"{write.count} element{'s' if write.count != 1 else ''} "
        + (_PLACES[write.place].format(write.buffer) if write.place in _PLACES else f"{write.place} {write.buffer}")
        for write in writes
    )


def describe_failure(failure: Failure, words: ValueWords = describe_value) -> str:
    match failure:
        case failures.WrongValue():
            text = _describe_wrong_value(failure, words)
        case failures.FaultyOperation():
            off = "is not finite" if math.isinf(failure.error) else f"is off by {failure.error:.2g} from float64"
            text = f"{failure.operation} gives {failure.given:.3g} where float64 gives {failure.exact:.3g}"
            text += f": eager's {words(failure.value)} {off}" if failure.value else ""
        case failures.OutOfBounds(writes=writes):
            text = f"wrote {describe_writes(writes)}"
        case failures.StateChanged(changes=changes):
            text = "; ".join(f"changes {one.state} from {one.before} to {one.after}" for one in changes)
        case failures.Raised():
            text = ": ".join(filter(None, [failure.error, failure.text]))
            text += f" at {failure.place}" if failure.place else ""
        case failures.DeviceError(fault=fault, kernel=kernel, place=place):
            text = f"{fault}{kernel and f' in {kernel}'}{place and f', launched at {place}'}"
        case failures.ProcessLost(place=place, last_words=last):
            text = failure.how.label.format(failure.detail)
            text += f", in {place}" if place else f": {last}" if last else ""
        case failures.RightAt(precisions=precisions):
            text = f"right at {' and '.join(precisions)}, which the compiler declares"
        case failures.NotTaken():
            text = ": ".join(filter(None, [failure.why.label, failure.detail]))
        case _:
            text = _fill(failure, words)
    if failure.unwritten:
        text += "; right without poison: it reads memory that nothing has written"
    undeclared = getattr(failure, "undeclared", ())
    if undeclared:
        text += f"; right for a function that declares that it rounds {' and '.join(undeclared)}"
    call = "without dropout: " if failure.without_dropout else ""
    return call + (f"{_describe_sequences(failure.sequences)}: " if failure.sequences else "") + text


def _describe_sequences(packed: Sequences) -> str:
    which = "" if packed.number is None else f"sequence {packed.number} of "
    layout = f"{packed.layout} by {packed.block_size}" if packed.block_size else packed.layout
    return f"{which}{layout} queries {list(packed.queries)} and keys {list(packed.keys)}"


def _fill(failure: Failure, words: ValueWords) -> str:
    values: dict[str, Any] = {key: list(v) if isinstance(v, tuple) else v for key, v in vars(failure).items()}
    values |= {key: words(value) for key, value in values.items() if isinstance(value, Value)}
    match failure:
        case failures.DropoutStatistic(effect=effect):
            values["much"] = f"{effect:.3g} times eager's" if math.isfinite(effect) else "above 0, eager's is 0"
        case failures.RepeatedMask(axis=axis, other=other):
            along = "" if axis is None else f" along axis {axis}"
            values["of_other"] = f"that of {values['other']}" if other else f"itself {failure.lag} further{along}"
        case failures.FormDiffers(aspect="memory"):
            values |= {owner: values[owner] or "nothing" for owner in ("actual_owner", "expected_owner")}
        case failures.DropoutMask(axis=axis):
            values["axes"] = _PLURALS.get(axis)
            values["where"] = f" of {axis} {failure.index}" if axis else ""
    form = next((values[key] for key in ("statistic", "problem", "aspect") if key in values), "")
    sentence = _SENTENCES.get(f"{failure.kind} {form}") or _SENTENCES.get(failure.kind, "")
    try:
        return sentence.format_map(values) or failure.kind
    except LookupError:
        return f"{failure.kind} {form}"  # stored by a version with other fields


def _describe_wrong_value(failure: failures.WrongValue, words: ValueWords) -> str:
    absent = "the gradient is missing; with 0 in its place " if failure.gradient_missing else ""
    off = f"{absent}element {list(failure.index)} is off by {failure.error:.2g} from float64"
    off = f"{words(failure.value)}: {off}"
    if failure.eager_error is None:
        return f"{off}, {failure.ratio:.2g} times what rounding explains (limit {failure.limit:.3g})"
    off += f", eager's by {failure.eager_error:.2g}"
    return f"{off} (worst row {failure.ratio:.2g} times what rounding explains, limit {failure.limit:g})"
