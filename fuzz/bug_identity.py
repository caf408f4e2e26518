"""When two failures look like the same bug, and when measurements show that they are."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from corpus.causes import CauseKey
from fuzz.experiments import SMALL, Outcome
from fuzz.protocol import EAGER, SubjectResult, Verdict
from fuzz.protocol.failures import EmptyRowsNotZero, Failure, FailureKey, FaultyOperation, Value
from fuzz.protocol.rewrites import CALL, WrongRewrite, are_all_known, find_attention_pattern
from fuzz.subjects import compiler_of, get_spec, without_options
from generators.program.attention_stub import AttentionCall, list_calls
from generators.program.case import Case
from generators.program.features import CALL_STATES, features
from generators.program.ops import OPS

INDIRECT = ({"biased_errors", "empty_rows_not_zero"}, {"dropout_statistic", "dropout_mask", "repeated_mask"})
"""Kinds of failures that show a bug less plainly than a wrong element, from plain to indirect. A failure that a call
also shows without its dropout ranks with the last group."""
_OUTPUT = Value.of_result("out")
NOT_FINITE = "not_finite"
"""The `Symptom.aspect` of results that are NaN or infinite."""
_WRITES = frozenset(f"op:{kind}" for kind, spec in OPS.items() if spec.writes)
"""Features that name the operation of a write."""
# Nearly every case has these rewrites, so they say nothing about a bug.
_EVERYDAY = re.compile(r"pointless_|fix_iota_device|bmm_to_mm|remove_noop|noop|view_to_reshape|same_meta")


def kind_of(verdict: Verdict) -> str:
    """The verdict; "value" for all verdicts on numbers, since a bug may give wrong outputs, wrong gradients and NaN."""
    return "value" if verdict.has_wrong_numbers else verdict.value


def indirectness(failure: Failure | None) -> int:
    """How indirectly a failure shows its bug, by `INDIRECT`; 0 for a plain failure."""
    if failure is None or failure.without_dropout:
        return 0 if failure is None else len(INDIRECT)
    return next((rank for rank, kinds in enumerate(INDIRECT, 1) if failure.kind in kinds), 0)


def name_accused(subject: str, verdict: Verdict) -> str:
    """Who is at fault: eager, or the subject's compiler as in `compiler_of`."""
    return EAGER if verdict is Verdict.EAGER_SUSPECT else compiler_of(subject)


def bug_relevant_rewrites(applied: Iterable[str]) -> frozenset[str]:
    """The applied rewrites, without the everyday rewrites that almost every case has. Attention patterns are named by
    number."""
    names = (find_attention_pattern(name) or name for name in applied)
    return frozenset(name for name in names if not _EVERYDAY.match(name))


def attention_patterns(applied: Iterable[str]) -> frozenset[str]:
    """The attention patterns among the rewrites, by number."""
    return frozenset(filter(None, map(find_attention_pattern, applied)))


def operation_of(result: SubjectResult) -> str:
    """The name of eager's wrong operation; "" for other failures."""
    return result.failure.operation if isinstance(result.failure, FaultyOperation) else ""


def failure_key(result: SubjectResult) -> FailureKey | None:
    """The key of an error, a lost process, a changed state or eager's wrong operation; None for wrong numbers."""
    # The allocation that fails first is random, so its text is no key.
    is_silent = result.verdict.is_silent or result.verdict is Verdict.OUT_OF_MEMORY
    return None if is_silent or result.failure is None else result.failure.key()


class Signature(NamedTuple):
    """A coarse key of a failure, by which suspicions wait for each other. Failures of the same bug mostly share it."""

    kind: str
    accused: str
    evidence: FailureKey | tuple[str, ...]
    """The first that exists: key of the failure, causes of wrong rewrites, applied patterns, applied rewrites."""
    aspect: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Symptom:
    """How a bug shows: the kind of failure, the applied rewrites, and the features of the case."""

    verdict: Verdict
    subject: str
    applied_rewrites: frozenset[str]
    key: FailureKey | None
    """None if rewrites are proven wrong: they identify the bug better than an exception that they cause. Measurements
    of a call leave the key, since two exceptions may have one condition."""
    features: frozenset[str]
    wrong_rewrites: tuple[WrongRewrite, ...] = ()
    """Rewrites that are proven wrong, or measured calls; empty if nothing could be measured."""
    values: frozenset[Value] = frozenset()
    """The wrong results of an attention function; empty for other subjects."""
    aspect: str = ""
    """Of an attention function: `NOT_FINITE`, or `empty_rows_not_zero` if only rows without a key are wrong."""

    @classmethod
    def of(cls, result: SubjectResult, features: frozenset[str], *, attention_only: bool = False) -> "Symptom":
        """The symptom of a result on a case with these features. `attention_only`: the subject computes attention."""
        # Eager applies no rewrites.
        applied = () if result.verdict is Verdict.EAGER_SUSPECT else result.applied_rewrites
        key = None if any(one.pattern != CALL for one in result.wrong_rewrites) else failure_key(result)
        # An error during one attention pattern is also raised under neighbouring patterns. Without an error, rewrites
        # that are proven right have no part in the failure.
        without = attention_patterns(applied) if key else bug_relevant_rewrites(result.right_rewrites)
        names = bug_relevant_rewrites(applied) - without
        symptom = cls(result.verdict, result.subject, names, key, features, result.wrong_rewrites)
        if not attention_only:
            return symptom
        failure = result.failure
        is_finite = result.verdict is not Verdict.NONFINITE
        aspect = failure.kind if isinstance(failure, EmptyRowsNotZero) else "" if is_finite else NOT_FINITE
        return replace(symptom, values=list_wrong(failure), aspect=aspect)

    @property
    def accused(self) -> str:
        """Who is at fault, as in `name_accused`."""
        return name_accused(self.subject, self.verdict)

    @property
    def signature(self) -> Signature:
        """A coarse key, by which suspicions wait for each other."""
        causes = {rewrite.evidence_label for rewrite in self.wrong_rewrites}
        names = causes or attention_patterns(self.applied_rewrites) or self.applied_rewrites
        evidence = self.key or tuple(sorted(names))
        aspect, values = self.aspect if self.values else "", tuple(sorted(self.values, key=repr))
        return Signature(kind_of(self.verdict), self.accused, evidence, aspect, values)

    def is_like(self, other: "Symptom") -> bool:
        """Whether `other` may be the same bug as the minimal failure with this symptom.

        | rewrites proven wrong | alike if all of these hold                                                      |
        |-----------------------|---------------------------------------------------------------------------------|
        | in both               | each rewrite of `other` is the same bug as a rewrite of this symptom;           |
        |                       | both fail alike, or all rewrites ignore constants or strides: such bugs may     |
        |                       | fail in any way                                                                 |
        | not in both           | both fail alike; `other` has the evidence of this symptom                       |

        `fails_alike` and `has_evidence` have their own tables.
        """
        if self.can_compare_rewrites(other):
            is_any = all(one.constants or one.strides for one in (*self.wrong_rewrites, *other.wrong_rewrites))
            return (is_any or self.fails_alike(other)) and are_all_known(other.wrong_rewrites, self.wrong_rewrites)
        return self.fails_alike(other) and self.has_evidence(other)

    def may_be(self, other: "Symptom") -> bool:
        """Whether `other` may be the same bug, as `is_like`, if neither case has to be minimal: evidence is not asked
        for."""
        return self.is_like(other) if self.can_compare_rewrites(other) else self.fails_alike(other)

    def is_measured_in(self, other: "Symptom") -> bool:
        """Whether measurements show that `other` is this bug. An error may have another reason than a rewrite that is
        wrong beside it. An operation of eager may be wrong for another reason."""
        is_decisive = other.verdict.is_silent or any(one.pattern == CALL for one in other.wrong_rewrites)
        is_decisive &= not any(one.faulty for one in other.wrong_rewrites)
        return is_decisive and self.can_compare_rewrites(other) and self.is_like(other)

    def can_compare_rewrites(self, other: "Symptom") -> bool:
        """Whether rewrites are proven wrong in both, so that comparing the rewrites decides."""
        return bool(self.wrong_rewrites and other.wrong_rewrites)

    def fails_alike(self, other: "Symptom") -> bool:
        """Whether these are equal:

        | part    | equal if                                                                                 |
        |---------|------------------------------------------------------------------------------------------|
        | kind    | `kind_of` gives the same                                                                 |
        | accused | the compilers are the same; or the failures have keys, and neither is eager's or a user's  |
        | key     | the keys of the failures are the same                                                    |
        | values  | `share_values` holds                                                                     |
        """
        accused = {self.accused, other.accused}
        is_traced = self.key is not None and {"", "unknown"}.isdisjoint(get_spec(name).backend for name in accused)
        return (
            kind_of(self.verdict) == kind_of(other.verdict)
            and (len(accused) == 1 or is_traced)
            and self.key == other.key
            and share_values(self.values, other.values)
        )

    def has_evidence(self, other: "Symptom") -> bool:
        """Whether `other`, which fails alike, has the evidence of this symptom:

        | failure                                        | rewrites | aspect | features         |
        |------------------------------------------------|----------|--------|------------------|
        | process lost (the key names the place)         | any      | any    | any              |
        | wrong operation of eager                       | any      | any    | any              |
        | changed state                                  | any      | any    | any              |
        | error that names an argument of an ATen call   | any      | any    | any              |
        | other error                                    | all      | equal  | all but of write |
        | no error                                       | all      | equal  | all              |

        all: those of this symptom are a subset of those of `other`.
        """
        if self.verdict.is_lost or self.verdict in (Verdict.EAGER_SUSPECT, Verdict.STATE_CHANGED):
            return True
        if self.key is not None and self.key.names_argument:
            return True
        has_rewrites, is_of_aspect = self.applied_rewrites <= other.applied_rewrites, self.aspect == other.aspect
        return has_rewrites and is_of_aspect and self.features - (_WRITES if self.key else set()) <= other.features

    def is_expected_of(self, call: AttentionCall) -> bool:
        """Whether a call of an attention function has every feature and every large size that this bug is known to
        need. False if no need is known."""
        operands = {name for rewrite in self.wrong_rewrites for name in rewrite.right}
        large = [size > SMALL for name, size in call.sizes.items() if name in operands]
        return bool(large or self.features) and all(large) and self.features <= call.features


def compare_outcome(result: SubjectResult | None, failure: SubjectResult, *, applies: bool = True) -> Outcome:
    """The outcome of an experiment on a failure, from its result. `applies=False`: the outcome is `DOES_NOT_APPLY`."""
    if result is None or not (applies and (result.verdict.is_finding or result.verdict.clears)):
        return Outcome.DOES_NOT_APPLY
    aspect, wanted = (getattr(one.failure, "aspect", "") for one in (result, failure))
    is_compared_earlier = failure.verdict.has_wrong_numbers or wanted not in ("", "strides")
    if result.verdict.clears or (aspect == "strides" and is_compared_earlier):
        return Outcome.PASSES  # values and other aspects are compared before strides, and are right
    is_alike = kind_of(result.verdict) == kind_of(failure.verdict) and aspect == wanted
    if is_alike and result.verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR):
        is_alike = failure_key(result) == failure_key(failure)
    return Outcome.FAILS_ALIKE if is_alike else Outcome.FAILS_OTHERWISE


def is_same_failure(
    result: SubjectResult | None, wanted: SubjectResult, *, exact: bool, attention_only: bool = False
) -> bool:
    """Whether `result`, of a simpler case, shows the failure that `wanted` shows. All of these must hold:

    | compared                | must hold                                                                             |
    |-------------------------|---------------------------------------------------------------------------------------|
    | verdict                 | with `exact`: equal; else: equal `kind_of`                                            |
    | torch._dynamo.utils.same| rejects `result` if it rejects `wanted`; not asked with `attention_only`              |
    | directness              | `result` shows the bug as plainly as `wanted` (`INDIRECT`)                            |
    | values                  | with `attention_only`: `share_values`                                                 |
    | proven rewrites         | if `wanted` has any: `result` has any, and each is the same bug as one of `wanted`    |
    | patterns                | else, if `wanted` applied patterns not proven right, and is neither eager's nor a     |
    |                         | changed state: `result` applied one of these; without an error, no other pattern is   |
    |                         | proven wrong                                                                          |
    | key                     | equal; not compared if a process was lost, whose place is random                      |

    Rewrites and patterns are compared only if both results are of the same subject.
    """
    if result is None or not result.verdict.is_finding:
        return False
    is_rejected = wanted.verdict.has_wrong_numbers and wanted.dynamo_same is False and not attention_only
    if is_rejected and result.dynamo_same is not False:
        return False
    if indirectness(result.failure) > indirectness(wanted.failure):
        return False
    if attention_only and not share_values(list_wrong(result.failure), list_wrong(wanted.failure)):
        return False
    if result.verdict is not wanted.verdict and (exact or kind_of(result.verdict) != kind_of(wanted.verdict)):
        return False
    is_of_one = without_options(result.subject) == without_options(wanted.subject)
    if is_of_one and not _shares_rewrites(result, wanted):
        return False
    # The place of a device error is not random, so its key counts.
    is_of_place = wanted.verdict is Verdict.DEVICE_ERROR or not wanted.verdict.is_lost
    return not is_of_place or failure_key(result) == failure_key(wanted)


def _shares_rewrites(result: SubjectResult, wanted: SubjectResult) -> bool:
    # A wrong call that no single change makes right may have several bugs, so it is not compared.
    measured = tuple(one for one in wanted.wrong_rewrites if one.pattern != CALL or one.right)
    if measured:
        # A rewrite that is proven wrong stays wrong for the same operands.
        return bool(result.wrong_rewrites) and are_all_known(result.wrong_rewrites, measured)
    is_of_pattern = wanted.verdict not in (Verdict.EAGER_SUSPECT, Verdict.STATE_CHANGED)
    applied = wanted.applied_rewrites if is_of_pattern else ()
    patterns = attention_patterns(applied) - attention_patterns(wanted.right_rewrites)
    if patterns and not patterns & attention_patterns(result.applied_rewrites):
        return False
    proven = attention_patterns(tuple(one.pattern for one in result.wrong_rewrites))
    return not wanted.verdict.is_silent or proven <= patterns


def list_wrong(failure: Failure | None) -> frozenset[Value]:
    """The results that a failure names."""
    return frozenset() if failure is None else frozenset(filter(None, (getattr(failure, "value", None), *failure.also)))


def share_values(some: frozenset[Value], others: frozenset[Value]) -> bool:
    """Whether wrong results of two calls may be one bug. Any of these suffices:

    - A failure names no result.
    - Both are about the output.
    - Neither is about the output, and both share a gradient.
    """
    if not (some and others):
        return True
    return _OUTPUT in some & others or (_OUTPUT not in some | others and bool(some & others))


def measured_rewrite(key: CauseKey) -> WrongRewrite | None:
    """The measured rewrite of a cause, from `right` and `wrong` of its key. None for other causes."""
    return WrongRewrite(key.part, dict(key.right), dict(key.wrong)) if key.right else None


def is_same_cause(one: CauseKey, other: CauseKey) -> bool:
    """Whether two causes are the same bug: their keys or their measurements are."""
    some, others = measured_rewrite(one), measured_rewrite(other)
    return one == other or bool(some and others and some.is_same_bug(others))


def contract_features(case: Case) -> frozenset[str]:
    """The features of the calls that a case makes, such as `mode:training`, `with:causal`, `grouped`."""
    return (features(case) & CALL_STATES).union(*(call.features for call in list_calls(case)))
