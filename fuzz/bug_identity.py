"""When two failures are the same bug."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from corpus.causes import CauseKey
from fuzz.experiments import SMALL
from fuzz.protocol import EAGER, SubjectResult, Verdict
from fuzz.protocol.failures import EmptyRowsNotZero, Failure, FailureKey, FaultyOperation, Value
from fuzz.protocol.rewrites import CALL, WrongRewrite, is_explained
from fuzz.subjects import compiler_of, get_spec, without_options
from generators.program.attention_stub import AttentionCall, list_calls
from generators.program.case import Case
from generators.program.ops import OPS

PROCESS = frozenset({Verdict.TIMEOUT, Verdict.WORKER_DIED, Verdict.OUT_OF_MEMORY, Verdict.DEVICE_ERROR})
"""Verdicts on a subject whose process is lost or of no more use."""
VALUES = frozenset({Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT, Verdict.NONFINITE})
"""Verdicts on numbers."""
SILENT = VALUES | {Verdict.METADATA, Verdict.NONDETERMINISTIC, Verdict.OUT_OF_BOUNDS}
"""Verdicts that come without an error message."""
INDIRECT = ({"biased_errors", "empty_rows_not_zero"}, {"dropout_statistic", "dropout_mask"})
"""Kinds of failures that show a bug less plainly than a wrong element, from plain to indirect. A failure of a call
without dropout is as indirect as the last."""
_OUTPUT = Value.of_result("out")
NOT_FINITE = "not_finite"
"""An aspect of wrong results."""
# Inductor gives every pattern a form per mode and dtype: _sfdp_pattern_5_inference, _sfdp_pattern_13_half_training.
_SFDP = re.compile(r"_?(sfdp_pattern_\d+)")
_WRITES = frozenset(f"op:{kind}" for kind, spec in OPS.items() if spec.writes)
"""Features that name the operation of a write."""
# Nearly every case has these rewrites, so they say nothing about a bug.
_EVERYDAY = re.compile(r"pointless_|fix_iota_device|bmm_to_mm|remove_noop|noop|view_to_reshape|same_meta")


def kind_of(verdict: Verdict) -> str:
    """The verdict, or "value" for all wrong numbers: a bug may give wrong outputs, wrong gradients and NaN."""
    return "value" if verdict in VALUES else verdict.value


def indirectness(failure: Failure | None) -> int:
    """How indirectly a failure shows its bug, by `INDIRECT`; 0 where it shows it plainly."""
    if failure is None or failure.without_dropout:
        return 0 if failure is None else len(INDIRECT)
    return next((rank for rank, kinds in enumerate(INDIRECT, 1) if failure.kind in kinds), 0)


def name_accused(subject: str, verdict: Verdict) -> str:
    """Who is at fault: eager, or the subject's compiler as in `compiler_of`."""
    return EAGER if verdict is Verdict.EAGER_SUSPECT else compiler_of(subject)


def bug_relevant_rewrites(applied: Iterable[str]) -> frozenset[str]:
    """The rewrites that may hold a bug: all but everyday ones. Attention patterns go by their number."""
    names = (found[1] if (found := _SFDP.match(name)) else name for name in applied)
    return frozenset(name for name in names if not _EVERYDAY.match(name))


def attention_patterns(applied: Iterable[str]) -> frozenset[str]:
    """The attention patterns among the rewrites, by number."""
    return frozenset(name for name in bug_relevant_rewrites(applied) if name.startswith("sfdp"))


def operation_of(result: SubjectResult) -> str:
    """The name of eager's wrong operation; "" for other failures."""
    return result.failure.operation if isinstance(result.failure, FaultyOperation) else ""


def failure_key(result: SubjectResult) -> FailureKey | None:
    """The key of an error, a lost process, a changed state or eager's wrong operation; None for wrong numbers."""
    # Which allocation fails is chance.
    is_silent = result.verdict in SILENT or result.verdict is Verdict.OUT_OF_MEMORY
    return None if is_silent or result.failure is None else result.failure.key()


class Signature(NamedTuple):
    """Mostly equal for failures of one bug, and mostly different for different bugs."""

    kind: str
    accused: str
    evidence: FailureKey | tuple[str, ...]
    """The key of the failure, else the causes of wrong rewrites, else the applied patterns or rewrites."""
    aspect: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Symptom:
    """How a bug shows: the kind of failure, the applied rewrites, and the features of the case."""

    verdict: Verdict
    subject: str
    applied_rewrites: frozenset[str]
    key: FailureKey | None
    """None where rewrites are proven wrong, which tell more than the exception to which they lead."""
    features: frozenset[str]
    wrong_rewrites: tuple[WrongRewrite, ...] = ()
    """Rewrites that are proven wrong; none where a kernel is at fault or nothing can be proven."""
    values: frozenset[Value] = frozenset()
    """Of attention functions: the wrong results."""
    aspect: str = ""
    """Of attention functions: `NOT_FINITE`, or `empty_rows_not_zero` where nothing else is wrong."""

    @classmethod
    def of(cls, result: SubjectResult, features: frozenset[str], *, attention_only: bool = False) -> "Symptom":
        """The symptom of a result on a case with these features. `attention_only`: of an attention function."""
        # Eager applies no rewrites.
        applied = () if result.verdict is Verdict.EAGER_SUSPECT else result.applied_rewrites
        key = None if result.wrong_rewrites else failure_key(result)
        # An error raised while a pattern is applied comes under its neighbours too. A rewrite that is proven right has
        # no part in a failure.
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
        causes = {rewrite.cause for rewrite in self.wrong_rewrites}
        names = causes or attention_patterns(self.applied_rewrites) or self.applied_rewrites
        evidence = self.key or tuple(sorted(names))
        aspect, values = self.aspect if self.values else "", tuple(sorted(self.values, key=repr))
        return Signature(kind_of(self.verdict), self.accused, evidence, aspect, values)

    def explains(self, other: "Symptom") -> bool:
        """Whether a minimal failure with this symptom explains `other`.

        | rewrites proven wrong | explained if all of these hold                                            |
        |-----------------------|---------------------------------------------------------------------------|
        | in both               | each rewrite of `other` is the same bug as a rewrite of this symptom;     |
        |                       | all rewrites ignore constants or strides, which fail in any way, or both    |
        |                       | fail alike                                                                |
        | not in both           | both fail alike; `other` has the evidence of this symptom                 |

        `fails_alike` and `has_evidence` have their own tables.
        """
        if self.can_compare_rewrites(other):
            is_any = all(one.constants or one.strides for one in (*self.wrong_rewrites, *other.wrong_rewrites))
            return (is_any or self.fails_alike(other)) and is_explained(other.wrong_rewrites, self.wrong_rewrites)
        return self.is_contained_in(other)

    def can_compare_rewrites(self, other: "Symptom") -> bool:
        """Whether rewrites are proven wrong in both, so that comparing the rewrites decides."""
        return bool(self.wrong_rewrites and other.wrong_rewrites)

    def is_contained_in(self, other: "Symptom") -> bool:
        """Whether `other` fails alike and has the evidence of this symptom. Proofs of rewrites do not count."""
        return self.fails_alike(other) and self.has_evidence(other)

    def fails_alike(self, other: "Symptom") -> bool:
        """Whether these are equal:

        | part    | equal if                                                                                 |
        |---------|------------------------------------------------------------------------------------------|
        | kind    | `kind_of` gives the same                                                                 |
        | accused | the compilers are the same; of an error, both trace, which raises under all alike        |
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
        | process lost, of which the key names the place | any      | any    | any              |
        | wrong operation of eager                       | any      | any    | any              |
        | changed state                                  | any      | any    | any              |
        | error that names an argument of an ATen call   | any      | any    | any              |
        | other error                                    | all      | equal  | all but of write |
        | no error                                       | all      | equal  | all              |

        all: `other` has all that this symptom has.
        """
        if self.verdict in {*PROCESS, Verdict.EAGER_SUSPECT, Verdict.STATE_CHANGED}:
            return True
        if self.key is not None and self.key.names_argument:
            return True
        has_rewrites, is_of_aspect = self.applied_rewrites <= other.applied_rewrites, self.aspect == other.aspect
        return has_rewrites and is_of_aspect and self.features - (_WRITES if self.key else set()) <= other.features

    def is_expected_of(self, call: AttentionCall) -> bool:
        """Whether a call of an attention function has all that this bug was measured to need. False for a bug that
        needs nothing."""
        operands = {name for rewrite in self.wrong_rewrites for name in rewrite.right}
        large = [size > SMALL for name, size in call.sizes.items() if name in operands]
        return bool(large or self.features) and all(large) and self.features <= call.features


def is_same_failure(
    result: SubjectResult | None, wanted: SubjectResult, *, exact: bool, attention_only: bool = False
) -> bool:
    """Whether `result`, of a simpler case, shows the failure that `wanted` shows. All of these must hold:

    | compared                | must hold                                                                             |
    |-------------------------|---------------------------------------------------------------------------------------|
    | verdict                 | equal; of one kind is enough without `exact`                                          |
    | torch._dynamo.utils.same| rejects `result` if it rejects `wanted`; attention functions aside (`attention_only`) |
    | directness              | `result` shows the bug as plainly as `wanted` (`INDIRECT`)                            |
    | values                  | calls of attention functions share a wrong result                                     |
    | proven rewrites         | each of `result` is one of `wanted`, where `wanted` has any and the subject is one    |
    | patterns                | else one is applied in both that is not proven right, where `wanted` has any;         |
    |                         | without an error no other is proven wrong                                             |
    | key                     | equal, but where a process is lost: where is chance                                   |
    """
    if result is None or not result.verdict.is_finding:
        return False
    is_rejected = wanted.verdict in VALUES and wanted.dynamo_same is False and not attention_only
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
    # A device error is no chance.
    return wanted.verdict in PROCESS - {Verdict.DEVICE_ERROR} or failure_key(result) == failure_key(wanted)


def _shares_rewrites(result: SubjectResult, wanted: SubjectResult) -> bool:
    # A call that no single change makes right may show several bugs. Any of them will do.
    measured = tuple(one for one in wanted.wrong_rewrites if one.pattern != CALL or one.right)
    if measured:
        # A rewrite that is proven wrong stays wrong for the same operands.
        return bool(result.wrong_rewrites) and is_explained(result.wrong_rewrites, measured)
    applied = () if wanted.verdict is Verdict.EAGER_SUSPECT else wanted.applied_rewrites
    patterns = attention_patterns(applied) - attention_patterns(wanted.right_rewrites)
    if patterns and not patterns & attention_patterns(result.applied_rewrites):
        return False
    proven = attention_patterns(tuple(one.pattern for one in result.wrong_rewrites))
    return wanted.verdict not in SILENT or proven <= patterns


def list_wrong(failure: Failure | None) -> frozenset[Value]:
    """The results that a failure names."""
    return frozenset() if failure is None else frozenset(filter(None, (getattr(failure, "value", None), *failure.also)))


def share_values(some: frozenset[Value], others: frozenset[Value]) -> bool:
    """Whether wrong results of two calls may be one bug:

    - a failure names no result;
    - both are about the output;
    - both are about gradients alone, and share one.
    """
    if not (some and others):
        return True
    return _OUTPUT in some & others or (_OUTPUT not in some | others and bool(some & others))


def measured_rewrite(key: CauseKey) -> WrongRewrite | None:
    """The rewrite of a cause that is proven wrong and that some operands make right."""
    return WrongRewrite(key.part, dict(key.right), dict(key.wrong)) if key.right else None


def contract_features(case: Case) -> frozenset[str]:
    """The features of the calls that a case makes, such as `mode:training`, `with:causal`, `grouped`."""
    overlapping = {"layout:overlapping"} if any(op.kind == "unfold" for op in case.ops) else set[str]()
    return frozenset(overlapping.union(*(call.features for call in list_calls(case))))
