"""From a case that fails to the simplest case that still fails.

Passes yield simpler candidates. Ill-typed candidates are dropped, and all others are judged.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, replace
from itertools import chain, islice

from corpus.passes import contracts, program
from corpus.passes.readability import grow_sizes, make_readable
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.edits import prune_if_valid
from generators.program.indices import find_undefined_writes
from generators.program.simplicity import sort_key
from generators.program.type_check import types_of

Pass = Callable[[Case], Iterator[Case]]

PASSES: tuple[Pass, ...] = (
    program.simplify_before,
    program.drop("settings"),
    program.drop_calls,
    program.drop_differences,
    program.drop("setup"),
    program.drop("regions"),
    program.simplify_regions,
    program.drop("numbers"),
    program.simplify_numbers,
    program.drop_writes,
    program.start_later,
    program.drop("returns"),
    program.return_later,
    program.simplify_mode,
    program.cut_to_inputs,
    program.bypass,
    program.share,
    program.return_earlier,
    program.shrink_dims,
    program.drop_attributes,
    program.respell_operations,
    program.use_float32,
    program.simplify_inputs,
    program.simplify_given,
    program.drop_axes,
    program.merge_dims,
    program.round_numbers,
    program.rename_values,
)
"""In the order in which they are tried. Passes that remove most come first, since they make later probes cheaper."""

CONTRACT_PASSES: tuple[Pass, ...] = (contracts.simplify_contract, *PASSES)
"""For failures of attention functions, which only see the contract of a case. So the first pass writes the contract
in plain operations."""
Predicate = Callable[[Case], bool]


def _propose(one_pass: Pass, case: Case) -> Iterator[Case]:
    """The candidates of a pass: for the case with all earlier cases of its form at once, then for each of these alone.

    Passes see a case without its earlier cases, except for `simplify_before`. If two cases differ only in numbers, the
    difference may be the bug: all cases of that form change at once, or none does.
    """
    if one_pass is program.simplify_before or not case.before:
        yield from one_pass(case)
        return
    cases = replace(case, before=()), *(earlier.case for earlier in case.before)
    alike = [at for at, one in enumerate(cases) if _form_of(one) == _form_of(cases[0])]
    are_kept_alike = any(cases[at] != cases[0] for at in alike)
    at_once = (
        dict(zip(alike, some, strict=True)) for some in zip(*(one_pass(cases[at]) for at in alike), strict=False)
    )
    alone = (
        {at: candidate}
        for at, one in enumerate(cases)
        for candidate in one_pass(one)
        if not are_kept_alike or at not in alike or _form_of(candidate) == _form_of(cases[0])
    )
    for changes in chain(at_once, alone):
        first, *others = (prune_if_valid(changes[at]) if at in changes else one for at, one in enumerate(cases))
        if first is not None and None not in others:
            before = zip(case.before, filter(None, others), strict=True)
            yield replace(first, before=tuple(replace(earlier, case=one) for earlier, one in before))


def _number(one_pass: Pass, case: Case, start: int, *, wraps: bool) -> Iterator[tuple[int, Case]]:
    """The valid candidates of a pass by number, from `start` on; then those before it, if it wraps."""
    after, before = (enumerate(filter(None, map(prune_if_valid, _propose(one_pass, case)))) for _ in range(2))
    return chain(islice(after, start, None), islice(before, start if wraps else 0))


def _form_of(case: Case) -> tuple[list[str], list[str]]:
    return [op.kind for op in case.ops], [item.name for item in case.inputs]


def shrink(
    case: Case,
    still_fails: Predicate,
    deadline: Callable[[], bool] = lambda: False,
    passes: Sequence[Pass] | None = None,
    *,
    is_readable: bool = True,
    attention_only: bool = False,
    look_ahead: Callable[[Sequence[Case]], None] | None = None,
    at_once: int = 1,
    find_wrong: Callable[[Case], str | None] | None = None,
) -> list[Case]:
    """The accepted cases, from `case` on, in decreasing order of `sort_key`. With `is_readable`, readable forms of the
    smallest case follow (corpus/passes/readability.py).

    `still_fails` is called once per case id, but for readable forms that were accepted before. When `deadline` returns
    True, the cases accepted so far are returned.

    If torch defines the result of every write of `case`, it does so for every accepted case.

    `look_ahead` gets the next `at_once` candidates before `still_fails` gets each of them, so that they can be judged
    at once. The result does not depend on either.

    `find_wrong` gets the case with all its values as results, and names the first that is wrong. The program is cut
    there first. If a compiler fuses less in such a case and all are right, it names a wrong result of `case`. None: it
    can't tell.

    `attention_only` is for failures of attention functions, which only see a case's contract:

    - The operations may change.
    - Every accepted case has an attention stub.
    """
    is_defined = not find_undefined_writes(case, types_of(case))

    def is_wanted(candidate: Case) -> bool:
        has_stub = not attention_only or emit_attention_stub(candidate) is not None
        return has_stub and not (is_defined and find_undefined_writes(candidate, types_of(candidate)))

    search = _Search(case, still_fails, is_wanted, deadline, look_ahead, at_once)
    chosen = (CONTRACT_PASSES if attention_only else PASSES) if passes is None else passes
    every = program.return_all(case) if find_wrong and len(case.ops) > 1 else None
    wrong = find_wrong(every) if find_wrong and every else None
    if wrong is not None:
        search.accept_next(lambda one: program.end_at(one, wrong), 0)
    accepted = 0
    while accepted < len(search.trajectory):
        accepted = len(search.trajectory)
        for one_pass in chosen:
            at: int | None = 0
            while at is not None:
                at = search.accept_next(one_pass, at)
            if deadline():
                return search.trajectory
    if is_readable and search.accept_next(make_readable, 0, is_last_stage=True):
        at = search.accept_next(grow_sizes, 0, is_last_stage=True)
        while at:  # candidate 0 makes all sizes different
            at = search.accept_next(grow_sizes, at, is_last_stage=True)
    return search.trajectory


@dataclass
class _Search:
    """The accepted cases, and what is known of candidates."""

    case: InitVar[Case]
    still_fails: Predicate
    is_wanted: Predicate
    deadline: Callable[[], bool]
    look_ahead: Callable[[Sequence[Case]], None] | None
    at_once: int

    def __post_init__(self, case: Case) -> None:
        self.trajectory = [case]
        self._asked = {case.id}

    def accept_next(self, one_pass: Pass, start: int, *, is_last_stage: bool = False) -> int | None:
        """Append the first candidate that fails, counting from candidate `start`.

        Before the last stage a candidate must be simpler, and candidates before `start` are tried last. In the last
        stage a case that was accepted and made simpler is asked about again: it may be the readable form.
        """
        limit = sort_key(self.trajectory[-1])
        failing = {one.id for one in self.trajectory} - {self.trajectory[-1].id} if is_last_stage else set[str]()
        simpler = (
            (at, candidate)
            for at, candidate in _number(one_pass, self.trajectory[-1], start, wraps=not is_last_stage)
            if candidate.id not in self._asked - failing
            and (is_last_stage or sort_key(candidate) < limit)
            and self.is_wanted(candidate)
        )
        while some := list(islice(simpler, self.at_once)):
            if self.deadline():
                return None
            if self.look_ahead is not None and len(some) > 1:
                self.look_ahead([candidate for _, candidate in some])
            for at, candidate in some:
                if candidate.id in self._asked - failing:
                    continue
                self._asked.add(candidate.id)
                if self.still_fails(candidate):
                    self.trajectory.append(candidate)
                    return at
        return None
