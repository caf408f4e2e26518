"""When two failures are taken for the same bug."""

import re
from dataclasses import dataclass, replace

from fuzz.protocol import EAGER, SubjectResult, Verdict
from fuzz.protocol.failures import EmptyRowsNotZero, Failure, Value
from fuzz.protocol.render import describe_value
from fuzz.protocol.rewrites import WrongRewrite, is_explained
from fuzz.subjects import compiler_of, get_spec
from generators.program.attention_stub import AttentionCall, list_calls
from generators.program.case import Case
from generators.program.ops import OPS

PROCESS = frozenset({Verdict.TIMEOUT, Verdict.WORKER_DIED, Verdict.OUT_OF_MEMORY, Verdict.DEVICE_ERROR})
"""Verdicts on a subject whose process was lost, or is of no more use."""
VALUES = frozenset({Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT, Verdict.NONFINITE})
"""Verdicts on numbers."""
SILENT = VALUES | {Verdict.METADATA, Verdict.NONDETERMINISTIC, Verdict.OUT_OF_BOUNDS}
"""Verdicts that come without an error message."""
INDIRECT = ({"biased_errors", "empty_rows_not_zero"}, {"dropout_statistic", "dropout_mask"})
"""Kinds of failures that show a bug less plainly than a wrong element, from plain to indirect; the last is as indirect
as a call without dropout. While a case is shrunk its failure may become a plainer one, and no less plain one."""
NOT_FINITE = "not_finite"
"""An aspect of wrong results."""
# Inductor gives every pattern a form per mode and dtype: _sfdp_pattern_5_inference, _sfdp_pattern_13_half_training.
_SFDP = re.compile(r"_?(sfdp_pattern_\d+)")
_WRITES = frozenset(f"op:{kind}" for kind, spec in OPS.items() if spec.writes)
"""Features that name the operation of a write."""
# Rewrites that hardly any case goes without say nothing about a bug.
_EVERYDAY = re.compile(r"pointless_|fix_iota_device|bmm_to_mm|remove_noop|noop|view_to_reshape|same_meta")


def kind_of(verdict: Verdict) -> str:
    """The verdict, or "value" for all wrong numbers: one bug may give wrong outputs, wrong gradients and NaN."""
    return "value" if verdict in VALUES else verdict.value


def indirectness(failure: Failure | None) -> int:
    """How indirectly a failure shows its bug, by `INDIRECT`; 0 where it shows it plainly."""
    if failure is None or failure.without_dropout:
        return 0 if failure is None else len(INDIRECT)
    return next((rank for rank, kinds in enumerate(INDIRECT, 1) if failure.kind in kinds), 0)


def name_accused(subject: str, verdict: Verdict) -> str:
    """Who is at fault: eager, or the subject's compiler as in `compiler_of`."""
    return EAGER if verdict is Verdict.EAGER_SUSPECT else compiler_of(subject)


def rewrites(fired: tuple[str, ...]) -> frozenset[str]:
    """The rewrites that may hold a bug: those that nearly every case fires are left out; patterns by number."""
    names = (found[1] if (found := _SFDP.match(name)) else name for name in fired)
    return frozenset(name for name in names if not _EVERYDAY.match(name))


def attention_patterns(fired: tuple[str, ...]) -> frozenset[str]:
    """The attention patterns among the rewrites, by number."""
    return frozenset(name for name in rewrites(fired) if name.startswith("sfdp"))


def operation_of(result: SubjectResult) -> str:
    """The name of eager's wrong operation; "" for other failures."""
    return identity_of(result).partition(" ")[0] if result.verdict is Verdict.EAGER_SUSPECT else ""


def identity_of(result: SubjectResult) -> str:
    """A text that differs between failures of one kind; empty where numbers are wrong.

    The normalized exception, the place where the process was lost, or the wrong operation of eager.
    """
    # Which allocation is the one too many is chance.
    is_silent = result.verdict in SILENT or result.verdict is Verdict.OUT_OF_MEMORY
    return "" if is_silent or result.failure is None else result.failure.identity()


@dataclass(frozen=True, slots=True)
class Symptom:
    """How a bug shows: the kind of failure, the rewrites that fired, and the features of the case."""

    verdict: Verdict
    subject: str
    fired: frozenset[str]
    identity: str
    """See `identity_of`."""
    features: frozenset[str]
    rewrites: tuple[WrongRewrite, ...] = ()
    """Those proven wrong; none where a kernel is at fault or nothing could be proven."""
    values: frozenset[Value] = frozenset()
    """For attention functions: the results that are wrong."""
    aspect: str = ""
    """For attention functions: `NOT_FINITE`, or `empty_rows_not_zero` where nothing else is wrong."""

    @classmethod
    def of(cls, result: SubjectResult, features: frozenset[str], *, attention_only: bool = False) -> "Symptom":
        """The symptom of a result on a case with these features. `attention_only`: of an attention function."""
        # No rewrite has a part in what eager does.
        fired = () if result.verdict is Verdict.EAGER_SUSPECT else result.applied_rewrites
        # What is measured tells more than the exception to which it leads.
        identity = "" if result.wrong_rewrites else identity_of(result)
        # What raises while a pattern is applied does so under its neighbours too. A rewrite that is proven right has no
        # part in a failure.
        names = rewrites(fired) - (attention_patterns(fired) if identity else rewrites(result.right_rewrites))
        symptom = cls(result.verdict, result.subject, names, identity, features, result.wrong_rewrites)
        if not attention_only or result.failure is None:
            return symptom
        failure = result.failure
        is_finite = result.verdict is not Verdict.NONFINITE
        aspect = failure.kind if isinstance(failure, EmptyRowsNotZero) else "" if is_finite else NOT_FINITE
        return replace(symptom, values=list_wrong(failure), aspect=aspect)

    @property
    def signature(self) -> str:
        """A coarse text: mostly equal for failures of one bug, and mostly different for different bugs."""
        causes = sorted({rewrite.cause for rewrite in self.rewrites})
        fired = causes or sorted(f for f in self.fired if f.startswith("sfdp")) or sorted(self.fired)
        who = name_accused(self.subject, self.verdict)
        shown = [self.aspect, "+".join(sorted(map(describe_value, self.values)))] if self.values else []
        return "/".join([kind_of(self.verdict), who, self.identity or "+".join(fired) or "none", *shown])

    def explains(self, other: "Symptom") -> bool:
        """Whether a minimal failure with this symptom explains `other`.

        If rewrites are proven wrong in both, they must be the same bugs. Otherwise `other` must have all rewrites and
        features of this symptom.
        """
        if self.can_compare_rewrites(other):
            # Ignored constants lead to wrong values, strides and errors of any text.
            is_alike = all(one.constants for one in (*self.rewrites, *other.rewrites)) or self._has_same_outcome(other)
            return is_alike and is_explained(other.rewrites, self.rewrites)
        return self.is_contained_in(other)

    def can_compare_rewrites(self, other: "Symptom") -> bool:
        """Whether rewrites are proven wrong in both, so that comparing those decides."""
        return bool(self.rewrites and other.rewrites)

    def is_contained_in(self, other: "Symptom") -> bool:
        """Whether `other` fails alike and has all rewrites and features of this symptom."""
        return self._has_same_outcome(other) and (
            # A lost process names the place where it was lost; shrinking it costs too much to tell what it takes. Where
            # an operation is named, eager's or the one that raises, or what was changed, that is the bug, whatever
            # leads to it.
            self.verdict in {*PROCESS, Verdict.EAGER_SUSPECT, Verdict.STATE_CHANGED}
            # ... an error that says which argument one of ATen's operations was given wrongly.
            or ("aten::" in self.identity and "argument" in self.identity)
            or (
                self.fired <= other.fired
                and self.aspect == other.aspect
                # An error that is the same does not depend on which write it is.
                and self.features - (_WRITES if self.identity else frozenset()) <= other.features
            )
        )

    def is_expected_of(self, call: AttentionCall) -> bool:
        """Whether a call of an attention function has all that this bug was measured to take; False where that is
        nothing that a call can lack."""
        changes = {name: change for one in self.rewrites for name, (change, *_) in one.right.items()}
        large = [size > int(changes[name]) for name, size in call.sizes.items() if name in changes]
        return bool(large or self.features) and all(large) and self.features <= call.features

    def _has_same_outcome(self, other: "Symptom") -> bool:
        accused = {name_accused(one.subject, one.verdict) for one in (self, other)}
        # What tracing raises it raises under every backend.
        is_traced = bool(self.identity) and {"", "unknown"}.isdisjoint(get_spec(name).backend for name in accused)
        return (
            kind_of(self.verdict) == kind_of(other.verdict)
            and (len(accused) == 1 or is_traced)
            and self.identity == other.identity
            and share_values(self.values, other.values)
        )


_OUTPUT = Value.of_result("out")


def list_wrong(failure: Failure | None) -> frozenset[Value]:
    """The results that a failure is about; none where it names none."""
    return frozenset() if failure is None else frozenset(filter(None, (getattr(failure, "value", None), *failure.also)))


def share_values(some: frozenset[Value], others: frozenset[Value]) -> bool:
    """Whether wrong results of two calls may be one bug: of both the output, or only gradients, of which they share
    one. Where a failure names no result, it may be."""
    if not (some and others):
        return True
    return _OUTPUT in some & others or (_OUTPUT not in some | others and bool(some & others))


def contract_features(case: Case) -> frozenset[str]:
    """What a case asks of an attention function, in words such as `mode:training`, `with:causal`, `grouped`."""
    overlapping = {"layout:overlapping"} if any(op.kind == "unfold" for op in case.ops) else set[str]()
    return frozenset(overlapping.union(*(call.features for call in list_calls(case))))
