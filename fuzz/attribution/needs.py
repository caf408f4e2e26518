"""Attribution: the region, shared memory, change, later call or write that a failure needs."""

from collections.abc import Callable
from dataclasses import replace

from corpus.causes import Mechanism, MechanismKind, details
from corpus.entry import Entry
from fuzz.attribution.decide import needs_write, try_calls_apart
from fuzz.attribution.edits import (
    CALLED_DIRECTLY,
    CAST_OVER_BACKWARD,
    RETURNED_APART,
    TOUCHING,
    UNCHANGED,
    UNEXPANDED,
    UNSHARED,
)
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study
from fuzz.bug_identity import compare_outcome
from fuzz.experiments import Outcome, Tried
from generators.program.calls import list_differences
from generators.program.numbers import list_uses
from generators.program.ops import OPS
from generators.program.regions import FUNCTION, GRADIENT, REGIONS, list_indirect, only_region
from generators.program.writes import is_written, list_odd_views, list_targets

_WITHOUT = {"unfold": TOUCHING, "expand": UNEXPANDED}
"""Experiments that write through another view, by the kinds of `list_odd_views`."""


def find_need(study: Study, cause: RootCause, explain: Callable[[Entry], RootCause]) -> RootCause:
    """`cause` with what the failure needs; `explain` finds the cause of a call that fails alone.

    Raises as `Asker.ask`.
    """
    found = _find_region(study, cause) or _find_sharing(study, cause)
    if found or not study.result.verdict.is_silent:
        return found or cause
    return _find_cast(study, cause) or _find_change(study, cause) or _find_calls(study, cause, explain)


def _find_region(study: Study, cause: RootCause) -> RootCause | None:
    """`cause` with the region that the failure needs; None if it needs no region.

    If the region with nothing but a sine is silently wrong, the region is at fault, whatever the error. A region that
    raises for a sine would raise that error in each program, so a different error has a different cause.
    """
    case, is_silent = study.case, study.result.verdict.is_silent
    for kind in list_indirect(case):
        directly = study.try_out(CALLED_DIRECTLY, kind)
        if not directly.flips:
            continue
        # Try `grad` first: if it fails, the form (vjp, jacrev, ...) is not the cause.
        kinds = [GRADIENT, kind] if kind in REGIONS and REGIONS[kind].like_first else [kind] if kind in REGIONS else []
        results = ((one, study.ask(only_region(case, one), study.subject)) for one in kinds)
        alone = (
            Tried("only_region", one, compare_outcome(found, study.result))
            for one, found in results
            if found.verdict.is_silent
        )
        wrong = next((one for one in alone if not is_silent or one.outcome is Outcome.FAILS_ALIKE), None)
        if wrong is None and is_written(case) and needs_write(study):
            continue  # a fault of writes, which the region only brings out
        if wrong or is_silent:
            around = _list_around(study) if kind == FUNCTION and not wrong else []
            named = [wrong.argument if wrong else kind, *(one.argument for one in around)]
            evidence = (*cause.evidence, directly, *around, *filter(None, [wrong]))
            return replace(cause, mechanism=Mechanism(MechanismKind.REGION, details(region=named)), evidence=evidence)
    return None


def _list_around(study: Study) -> list[Tried]:
    """The transforms without which an autograd.Function is right."""
    kinds = [kind for kind in list_indirect(study.case) if kind in REGIONS and kind != FUNCTION]
    return [tried for kind in kinds if (tried := study.try_out(CALLED_DIRECTLY, kind)).flips]


def _find_sharing(study: Study, cause: RootCause) -> RootCause | None:
    """`cause` with what the failure needs of arguments that share memory; None if it shows without them."""
    if not (apart := study.try_out(UNSHARED)).flips:
        return None
    case, evidence = study.case, (*cause.evidence, apart)
    returned = study.try_out(RETURNED_APART)
    evidence = (*evidence, returned) if returned.flips else evidence
    told = details(changed=list_differences(case), returned="views" if returned.flips else "")
    return replace(cause, mechanism=Mechanism(MechanismKind.SHARED_MEMORY, told), evidence=evidence)


def _find_cast(study: Study, cause: RootCause) -> RootCause | None:
    """`cause` with autocast around the forward pass alone, if the failure needs it."""
    if not (over := study.try_out(CAST_OVER_BACKWARD)).flips:
        return None
    return replace(cause, mechanism=Mechanism(MechanismKind.FORWARD_CAST), evidence=(*cause.evidence, over))


def _find_change(study: Study, cause: RootCause) -> RootCause | None:
    """`cause` with the change of the module that the failure needs."""
    for kind in dict.fromkeys(change.kind for change in study.case.setup):
        if (unchanged := study.try_out(UNCHANGED, kind)).flips:
            mechanism = Mechanism(MechanismKind.CHANGED, details(changed=kind))
            return replace(cause, mechanism=mechanism, evidence=(*cause.evidence, unchanged))
    return None


def _find_calls(study: Study, cause: RootCause, explain: Callable[[Entry], RootCause]) -> RootCause:
    """`cause` with the later call or write that the failure needs. If a call fails alone, that call's cause."""
    case = study.case
    write = {"into": list_targets(case), "by": sorted({op.kind for op in case.ops if OPS[op.kind].writes})}
    if not (is_written(case) and study.result.verdict.has_wrong_numbers):
        write = {}
    alone, tried = try_calls_apart(study)
    failing = next((one for one, apart in zip(alone, tried, strict=True) if apart.outcome.fails), None)
    if failing is not None:
        return explain(replace(study.entry, case=failing))
    if not (tried and all(apart.flips for apart in tried)):
        return _find_write(study, cause, write) if write else cause
    kind = MechanismKind.LATER_CALL_AND_WRITE if write else MechanismKind.LATER_CALL
    mechanism = Mechanism(kind, details(changed=list_differences(case) or "nothing", numbers=list_uses(case), **write))
    return replace(cause, mechanism=mechanism, evidence=(*cause.evidence, tried[0]))


def _find_write(study: Study, cause: RootCause, write: dict[str, list[str]]) -> RootCause:
    """`cause` with the view that a wrong write goes through, or with the write, if it is wrong without that view."""
    views = list_odd_views(study.case)
    tried = [study.try_out(_WITHOUT[view]) for view in views]
    # Without the view another fault may show.
    if not tried or any(one.outcome is Outcome.FAILS_ALIKE for one in tried):
        return replace(cause, mechanism=Mechanism(MechanismKind.WRITTEN, details(**write)))
    evidence = (*cause.evidence, *(one for one in tried if one.flips))
    return replace(cause, mechanism=Mechanism(MechanismKind.WRITTEN_THROUGH, details(view=views)), evidence=evidence)
