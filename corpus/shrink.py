"""From a case that fails to the simplest one that still does."""

from collections.abc import Callable, Sequence

from corpus.passes import PASSES, Pass
from generators.case import Case
from generators.simplicity import sort_key

Predicate = Callable[[Case], bool]


def shrink(
    case: Case, still_fails: Predicate, deadline: Callable[[], bool] = lambda: False, passes: Sequence[Pass] = PASSES
) -> list[Case]:
    """The cases accepted on the way, `case` first, the simplest last; each is smaller by `sort_key` than the one before.

    `still_fails` is asked once per case id. `deadline` says when time is up; what was reached by then is returned.
    """
    trajectory = [case]
    verdicts: dict[str, bool] = {case.id: True}
    improved = True
    while improved:
        improved = False
        for one_pass in passes:
            while (smaller := _first(one_pass, trajectory[-1], still_fails, deadline, verdicts)) is not None:
                trajectory.append(smaller)
                improved = True
            if deadline():
                return trajectory
    return trajectory


def _first(
    one_pass: Pass, case: Case, still_fails: Predicate, deadline: Callable[[], bool], verdicts: dict[str, bool]
) -> Case | None:
    """The pass's first simpler candidate that fails."""
    limit = sort_key(case)
    for candidate in one_pass(case):
        if candidate.id in verdicts and not verdicts[candidate.id]:
            continue
        if sort_key(candidate) >= limit:
            continue
        if deadline():
            return None
        verdicts[candidate.id] = still_fails(candidate)
        if verdicts[candidate.id]:
            return candidate
    return None
