"""Failures in words: the one place that turns what a worker found into sentences, which nothing reads again."""

import math
from collections.abc import Sequence

from fuzz.protocol.failures import (
    FURTHER_CALL,
    WITHOUT_DROPOUT,
    AnyFailure,
    BiasedErrors,
    DifferentElements,
    DropoutMask,
    DropoutStatistic,
    EmptyRowsNotZero,
    FaultyOperation,
    FormDiffers,
    GradientIdentityBroken,
    IllConditioned,
    ImpossibleUnderDropout,
    MissingGradient,
    Nondeterministic,
    NonfiniteByConvention,
    NotFinite,
    NotTaken,
    OutOfBounds,
    Process,
    ProcessLost,
    Raised,
    Recorded,
    Refusal,
    RelationBroken,
    Write,
    WrongValue,
)
from fuzz.protocol.messages import CASTS, TF32, SubjectResult

_EXCUSES = {CASTS: "gone with emulate_precision_casts=True", TF32: "TF32, which is allowed here, explains it"}
_CALLS = {FURTHER_CALL: "called again with other arguments: ", WITHOUT_DROPOUT: "without dropout: "}
_REFUSALS = {
    Refusal.UNKNOWN_SUBJECT: "this worker has no such subject, or no C++ compiler for it",
    Refusal.NO_CONTRACT: "the case has no contract that says what its attention computes",
    Refusal.NOT_RANDOM: "the case draws no random numbers",
    Refusal.UNSUPPORTED: "",
    Refusal.TEXT_FAILS: "the program around the call does not run",
    Refusal.NOT_IMPLEMENTED: "not implemented",
    Refusal.NO_MEMORY: "not enough memory left to judge it",
    Refusal.NO_VERDICT: "no verdict",
    Refusal.CONTROL: "",
}
_PROCESSES = {
    Process.TIMEOUT: "timed out after {} s",
    Process.OUT_OF_MEMORY: "used more than {} MiB",
    Process.SIGNAL: "died by {}",
    Process.EXIT: "ended with exit code {}",
    Process.PROTOCOL: "broke the protocol: {}",
}
_PLURALS = {"batch": "batches", "head": "heads", "query": "queries", "key": "keys"}


def describe(result: SubjectResult, *, brief: bool = False) -> str:
    """What is wrong and what explains it, in one line, or "". `brief`: see `describe_failure`."""
    parts = [describe_failure(result.failure, brief=brief)] if result.failure is not None else []
    if result.excuse:
        parts.append(_EXCUSES[result.excuse])
    if result.writes:
        parts.append(f"wrote {describe_writes(result.writes)}")
    return "; ".join(part for part in parts if part)


def describe_writes(writes: Sequence[Write]) -> str:
    """Where memory was written that should not be."""
    return "; ".join(_describe_write(write) for write in writes)


def describe_failure(failure: AnyFailure, *, brief: bool = False) -> str:
    """A failure in one line. `brief`: without the limit, the subject and the broken relation."""
    match failure:
        case WrongValue() if brief:
            text = _describe_error(failure)
        case FaultyOperation() if brief:
            text = _describe_faulty_eager(failure)
        case RelationBroken() if brief:
            text = _describe_relation(failure)
        case _:
            text = _describe(failure)
    return text if isinstance(failure, RelationBroken) else _CALLS.get(failure.call, "") + text


def _describe(failure: AnyFailure) -> str:
    match failure:
        case WrongValue():
            return _describe_wrong_value(failure)
        case DifferentElements(value=value, count=count, total=total, than="reference"):
            return f"{value}: differs bitwise from the reference in {count} of {total} elements"
        case DifferentElements():
            return f"{failure.value}: {failure.count} of {failure.total} {failure.dtype} elements differ from eager"
        case NotFinite():
            return f"{failure.value}: {failure.count} elements not finite, first at {list(failure.first)}"
        case NonfiniteByConvention():
            return (
                f"{failure.value}: {failure.count} elements not finite in one of eager and compiled, "
                "without a right answer"
            )
        case IllConditioned():
            return f"{failure.value}: rounding alone changes every weight"
        case EmptyRowsNotZero():
            return f"{failure.value}: {failure.count} rows that keep no key are not 0, first at {list(failure.first)}"
        case BiasedErrors():
            return _describe_biased_errors(failure)
        case MissingGradient():
            return f"{failure.value}: has no gradient, though an argument requires one"
        case RelationBroken():
            return f"{failure.relation}: {_describe_relation(failure)}"
        case GradientIdentityBroken():
            return (
                f"{failure.equation} is broken in {failure.count} of {failure.total} sums, most at "
                f"{list(failure.index)}: off by {failure.residual:.3g}, {failure.ratio:.3g} times the rounding "
                f"(limit {failure.limit:g})"
            )
        case DropoutStatistic():
            return _describe_dropout_statistic(failure)
        case DropoutMask():
            return f"dropout: {_describe_dropout_mask(failure)}"
        case ImpossibleUnderDropout():
            return f"{failure.value}: {_describe_impossible(failure)}"
        case FaultyOperation():
            return _describe_faulty_operation(failure)
        case OutOfBounds(writes=writes):
            return f"wrote {describe_writes(writes)}"
        case FormDiffers():
            return _describe_form(failure)
        case Nondeterministic(value=value):
            return f"{value} differs between two runs on equal inputs"
        case Raised(error=error, text=text):
            return f"{error}: {text}" if text else error
        case ProcessLost():
            words = (
                f", in {failure.place}" if failure.place else f": {failure.last_words}" if failure.last_words else ""
            )
            return _PROCESSES[failure.how].format(failure.detail) + words
        case NotTaken(why=why, detail=detail):
            return ": ".join(filter(None, [_REFUSALS[why], detail]))
        case Recorded(text=text):
            return text


def _describe_wrong_value(failure: WrongValue) -> str:
    off = _describe_error(failure)
    if failure.eager_error is None:
        return f"{off}, {failure.ratio:.2g} times what rounding explains (limit {failure.limit:.3g})"
    return f"{off} (worst row {failure.ratio:.2g} times what rounding explains, limit {failure.limit:g})"


def _describe_error(failure: WrongValue) -> str:
    absent = "no gradient came, and with 0 in its place " if failure.gradient_missing else ""
    off = f"{failure.value}: {absent}element {list(failure.index)} is off by {failure.error:.2g} from float64"
    return off if failure.eager_error is None else f"{off}, eager's by {failure.eager_error:.2g}"


def _describe_biased_errors(failure: BiasedErrors) -> str:
    against = f"{failure.deviations:.0f} standard deviations off {failure.kernels} right kernels"
    match failure.statistic:
        case "scale":
            said = f"is what a scale times {failure.amount:.6f} gives, on the whole"
        case "bias":
            said = f"is {failure.amount:.6f} times what it should be, on the whole"
        case "row":
            said = f"the errors of the worst row are {failure.amount:.2g} times those of right kernels"
        case _:
            said = f"errors are {failure.amount:.2g} times those of right kernels"
    return f"{failure.value}: {said} ({against})"


def _describe_relation(failure: RelationBroken) -> str:
    if failure.aspect == "shape":
        return f"a shape of {list(failure.shape)} where {list(failure.expected_shape)} follows"
    end = {
        "not_finite": "not finite on one side",
        "bitwise": "which must be equal bit for bit",
        "rounding": f"{failure.ratio:.3g} times the error bounds of both sides (limit {failure.limit:g})",
    }[failure.aspect]
    return (
        f"{failure.count} of {failure.total} elements differ, most at {list(failure.index)}: "
        f"{failure.left:.7g} and {failure.right:.7g}, {end}"
    )


def _describe_dropout_statistic(failure: DropoutStatistic) -> str:
    errors, seeds = f"{failure.standard_errors:.3g} standard errors", failure.seeds
    if failure.statistic == "slope":
        return (
            f"gradients: with {failure.effect:.0%} of {seeds} seeds they are not the slope of the outputs, as when "
            f"forward and backward drop different elements ({errors} from eager)"
        )
    if failure.statistic == "nonfinite":
        return (
            f"{failure.value}: not finite with {failure.effect:.0%} of {seeds} dropout seeds, more often than eager's "
            f"({errors})"
        )
    much = f"{failure.effect:.3g} times eager's" if math.isfinite(failure.effect) else "above 0, eager's is 0"
    return f"{failure.value}{failure.part}: {failure.statistic} over {seeds} dropout seeds is {much}, {errors} away"


def _describe_dropout_mask(failure: DropoutMask) -> str:
    count, total = failure.count, failure.total
    match failure.problem:
        case "extreme_rate":
            return f"dropout of p = {failure.p:g} keeps {failure.seen:.1%} of the weights"
        case "keep_rate":
            where = f" of {failure.axis} {failure.index}" if failure.axis else ""
            return (
                f"{count} of {total} weights{where} are kept, expected {failure.expected:.3g} of them "
                f"({failure.worst:+.3g} standard errors)"
            )
        case "scale":
            where = " under these scores" if failure.under_scores else ""
            return (
                f"kept weights{where} are multiplied by {failure.seen:.4g} on average, expected 1 / (1 - p) = "
                f"{failure.expected:.4g} (off by {failure.worst:.2g} at most)"
            )
        case "repeated":
            return f"masks of {_PLURALS[failure.axis]} {failure.lag} apart {_describe_agreement(failure)}"
        case "same_for_seeds":
            return f"masks of seeds {' and '.join(map(str, failure.seeds))} {_describe_agreement(failure)}"
        case "not_repeatable":
            return f"two calls with seed {failure.seeds[0]} keep different weights"
        case "depends_on_scores":
            return (
                f"which weights are kept depends on more than positions and seed: {count} of {total} differ between "
                "these scores and equal ones"
            )
        case _:
            return f"backward drops other weights than forward: {count} of {total} differ"


def _describe_agreement(failure: DropoutMask) -> str:
    return f"agree in {failure.seen:.0%} of {failure.total} elements, independent ones do in {failure.expected:.0%}"


def _describe_impossible(failure: ImpossibleUnderDropout) -> str:
    if failure.aspect == "too_large":
        return f"{failure.count} elements larger than any dropout mask makes them, first at {list(failure.index)}"
    if failure.aspect == "zero_rows":
        return f"{failure.count} rows are 0, which no dropout mask makes them, first at {list(failure.index)}"
    what = f"head {list(failure.index)}" if failure.index else "all of it"
    return f"{what} is {failure.share:.3g} times what it is without dropout, which no dropout mask makes it"


def _describe_faulty_operation(failure: FaultyOperation) -> str:
    said = _describe_faulty_eager(failure)
    if failure.subject_is_wrong:
        said += "; this subject's is wrong too"
        return said + (", though its own call is right" if failure.subject_call_is_right else "")
    return said + ("; this subject's is right" if failure.subject_is_wrong is False else "")


def _describe_faulty_eager(failure: FaultyOperation) -> str:
    off = "is not finite" if math.isinf(failure.error) else f"is off by {failure.error:.2g} from float64"
    said = f"{failure.operation} gives {failure.given:.3g} where float64 gives {failure.exact:.3g}"
    return f"{said}: eager's {failure.value} {off}"


def _describe_form(failure: FormDiffers) -> str:
    match failure.aspect:
        case "structure":
            return f"returned {failure.actual}, eager returns {failure.expected}"
        case "mutation":
            return f"{failure.value}: changed, eager leaves it alone"
        case "strides":
            return f"{failure.value}: strides {failure.actual} are in another order than eager's {failure.expected}"
        case aspect:
            return f"{failure.value}: {aspect} {failure.actual}, eager's is {failure.expected}"


def _describe_write(write: Write) -> str:
    place = {"itself": "of {} itself", "between": "between the rows of {}"}.get(write.place, f"{write.place} {{}}")
    return f"{write.count} element{'s' if write.count != 1 else ''} {place.format(write.buffer)}"
