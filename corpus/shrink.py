"""From a case that fails to the simplest one that still does."""

from collections.abc import Callable, Sequence
from itertools import chain, islice

from corpus.passes import CONTRACT_PASSES, PASSES, Pass
from corpus.readability import make_readable
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.edits import prune_if_valid
from generators.program.simplicity import contract_key, sort_key

Predicate = Callable[[Case], bool]


def shrink(
    case: Case,
    still_fails: Predicate,
    deadline: Callable[[], bool] = lambda: False,
    passes: Sequence[Pass] | None = None,
    *,
    attention_only: bool = False,
) -> list[Case]:
    """The accepted cases: `case` first, each smaller by `sort_key` than the one before; last the simplest in forms for
    readers (corpus/readability.py).

    `still_fails` is called once per case id. When `deadline` returns True, the cases accepted so far are returned.

    `attention_only` is for failures of attention functions, which see only a case's contract. Then the operations may
    change, every accepted case has an attention stub, and `contract_key` orders cases with equal `sort_key`.
    """
    key = contract_key if attention_only else sort_key
    trajectory = [case]
    asked = {case.id}

    def is_open(candidate: Case) -> bool:
        is_taken = not attention_only or emit_attention_stub(candidate) is not None
        return candidate.id not in asked and is_taken

    def accept_next(one_pass: Pass, start: int) -> int | None:
        """Append the first simpler candidate that fails, counting from candidate `start` and wrapping around."""
        limit = key(trajectory[-1])
        candidates = (enumerate(filter(None, map(prune_if_valid, one_pass(trajectory[-1])))) for _ in range(2))
        for at, candidate in chain(islice(next(candidates), start, None), islice(next(candidates), start)):
            if key(candidate) >= limit or not is_open(candidate):
                continue
            if deadline():
                return None
            asked.add(candidate.id)
            if still_fails(candidate):
                trajectory.append(candidate)
                return at
        return None

    chosen = passes or (CONTRACT_PASSES if attention_only else PASSES)
    accepted = 0
    while accepted < len(trajectory):
        accepted = len(trajectory)
        for one_pass in chosen:
            at: int | None = 0
            while at is not None:
                at = accept_next(one_pass, at)
            if deadline():
                return trajectory

    if passes:
        return trajectory
    return [*trajectory, *make_readable(trajectory[-1], lambda c: is_open(c) and not deadline() and still_fails(c))]
