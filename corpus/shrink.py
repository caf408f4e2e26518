"""From a case that fails to the simplest one that still does."""

from collections.abc import Callable, Sequence

from corpus.passes import CONTRACT_PASSES, PASSES, Pass
from generators.program.attention_stub import stand_in
from generators.program.case import Case
from generators.program.simplicity import contract_key, sort_key

Predicate = Callable[[Case], bool]


def shrink(
    case: Case,
    still_fails: Predicate,
    deadline: Callable[[], bool] = lambda: False,
    passes: Sequence[Pass] | None = None,
    *,
    contracted: bool = False,
) -> list[Case]:
    """The cases accepted on the way, `case` first, the simplest last; each is smaller by `sort_key` than the one before.

    `still_fails` is asked once per case id. `deadline` says when time is up; what was reached by then is returned.

    `contracted` is for failures of attention functions, which are given what a case's contract says: its spelling is
    then free, every case on the way has a stand-in, and where cases are alike by `sort_key`, `contract_key` decides.
    """
    chosen = passes or (CONTRACT_PASSES if contracted else PASSES)
    trajectory = [case]
    verdicts: dict[str, bool] = {case.id: True}
    improved = True
    while improved:
        improved = False
        for one_pass in chosen:
            while (
                smaller := _first(one_pass, trajectory[-1], still_fails, deadline, verdicts, contracted=contracted)
            ) is not None:
                trajectory.append(smaller)
                improved = True
            if deadline():
                return trajectory
    return trajectory


def _first(
    one_pass: Pass,
    case: Case,
    still_fails: Predicate,
    deadline: Callable[[], bool],
    verdicts: dict[str, bool],
    *,
    contracted: bool,
) -> Case | None:
    """The pass's first simpler candidate that fails."""
    key = contract_key if contracted else sort_key
    limit = key(case)
    for candidate in one_pass(case):
        if candidate.id in verdicts and not verdicts[candidate.id]:
            continue
        if key(candidate) >= limit or (contracted and stand_in(candidate) is None):
            continue
        if deadline():
            return None
        verdicts[candidate.id] = still_fails(candidate)
        if verdicts[candidate.id]:
            return candidate
    return None
