"""What of a program a failure needs: a region, shared memory, a change of the module, a later call, a write."""

from collections.abc import Callable
from dataclasses import replace

from corpus.causes import Mechanism, MechanismKind, details
from corpus.entry import Entry
from fuzz.attribution.decide import needs_write
from fuzz.attribution.edits import CALLED_DIRECTLY, RETURNED_APART, TOUCHING, UNCHANGED, UNSHARED
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study
from fuzz.bug_identity import compare_outcome
from fuzz.experiments import Outcome, Tried
from generators.program.calls import at_call, list_differences
from generators.program.case import LaterCall
from generators.program.numbers import list_uses
from generators.program.ops import OPS
from generators.program.regions import FUNCTION, GRADIENT, REGIONS, list_indirect, only_region
from generators.program.writes import is_written, list_odd_views, list_targets


def find_need(study: Study, cause: RootCause, explain: Callable[[Entry], RootCause]) -> RootCause:
    """`cause` with what the failure needs; `explain` finds the cause of a call that fails alone.

    Raises as `Asker.ask`.
    """
    found = _find_region(study, cause) or _find_sharing(study, cause)
    return found or (_find_state(study, cause, explain) if study.result.verdict.is_silent else cause)


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


def _find_state(study: Study, cause: RootCause, explain: Callable[[Entry], RootCause]) -> RootCause:
    """`cause` with the change, later call or write that the failure needs. If a call fails alone, that call's cause."""
    case, mechanism, write = study.case, cause.mechanism, {}
    if (over := study.try_out("cast_over_backward")).flips:
        return replace(cause, mechanism=Mechanism(MechanismKind.FORWARD_CAST), evidence=(*cause.evidence, over))
    for kind in dict.fromkeys(change.kind for change in case.setup):
        unchanged = study.try_out(UNCHANGED, kind)
        if unchanged.flips:
            evidence = (*cause.evidence, unchanged)
            return replace(cause, mechanism=Mechanism(MechanismKind.CHANGED, details(changed=kind)), evidence=evidence)
    if is_written(case) and study.result.verdict.has_wrong_numbers:
        write = {"into": list_targets(case), "by": sorted({op.kind for op in case.ops if OPS[op.kind].writes})}
        mechanism = Mechanism(MechanismKind.WRITTEN, details(**write))
        if views := list_odd_views(case):
            touching = study.try_out(TOUCHING)
            if not touching.outcome.fails:
                evidence = (*cause.evidence, *([touching] if touching.flips else []))
                cause = replace(cause, evidence=evidence)
                mechanism = Mechanism(MechanismKind.WRITTEN_THROUGH, details(view=views))
    alone = [at_call(case, call) for call in ((LaterCall(), *case.calls) if case.calls else ())]
    tried = [study.try_out("calls_apart", case=one) for one in alone]
    failing = next((one for one, apart in zip(alone, tried, strict=True) if apart.outcome.fails), None)
    if failing is not None:
        return explain(replace(study.entry, case=failing))
    if not (tried and all(apart.flips for apart in tried)):
        return replace(cause, mechanism=mechanism)
    kind = MechanismKind.LATER_CALL_AND_WRITE if write else MechanismKind.LATER_CALL
    mechanism = Mechanism(kind, details(changed=list_differences(case) or "nothing", numbers=list_uses(case), **write))
    return replace(cause, mechanism=mechanism, evidence=(*cause.evidence, tried[0]))
