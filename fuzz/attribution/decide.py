"""The experiments that decide whether a failure is a known bug.

Each is stored as the id of its row, with arguments: `memory_kept`, or `pass` with the names of passes. The failure is
the bug if each row flips with at least one of its arguments.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from corpus.causes import Details, MechanismKind, Part, Stage
from corpus.ledger import Ledger
from corpus.ledger import load as read_ledger
from fuzz.attribution.edits import (
    CALLED_DIRECTLY,
    CALLS_APART,
    CAST_OVER_BACKWARD,
    DROPOUT,
    FUNCTIONS_APART,
    TOUCHING,
    UNCHANGED,
    UNEXPANDED,
    UNSHARED,
    WRITTEN_APART,
    edit,
)
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study, subject_of
from fuzz.bug_identity import compare_outcome
from fuzz.experiments import DECOMPOSED, EXPERIMENTS, NARROWER, NO_PATTERNS, Edit, OtherSubject, Outcome, Trial, Tried
from fuzz.protocol import EAGER, Verdict
from fuzz.protocol.rewrites import CALL, CONTIGUOUS, DROPPED, EXPANDED, WrongRewrite, are_all_known
from generators.errors import UserError
from generators.program.calls import at_call
from generators.program.case import Case
from generators.program.changes import list_changes
from generators.program.emit import is_random
from generators.program.numbers import FORMULAS, list_uses
from generators.program.ops import VIEWS
from generators.program.regions import list_indirect
from generators.program.writes import is_written, list_odd_views

EXACT = "exact"
_DEFAULT = "default"
_OF_OPTIONS = (DROPPED, EXPANDED, CONTIGUOUS, "alone")
"""Experiments on a call of an attention function that say which option is at fault."""
_USUAL = VIEWS | {"clone", "cast", "matmul", "bmm", "einsum", "softmax", "add", "sub", "mul", "div"}
"""Operations of nearly every case, so a pass without them tells nothing."""
_LAYERS = {"multihead_attention", "transformer_encoder_layer"}
_MOST_LOST = 3
"""The most conditions that are tried on a failure that lost its process."""
_UNNAMED_PARTS = {"", Part.DECOMPOSITIONS, Part.TORCH_EXPORT, Part.AOT_INDUCTOR_PACKAGE}
"""Parts that name no step, so their experiments show only the stage of a fault."""
_SAME_ROW = {
    MechanismKind.OVERLAPPING_ROWS: MechanismKind.NOT_CONTIGUOUS,
    MechanismKind.NOT_FINITE_IN: MechanismKind.WRONG_IN,
}
_OF_STATE = {
    MechanismKind.REGION,
    MechanismKind.LATER_CALL,
    MechanismKind.WRITTEN,
    MechanismKind.WRITTEN_THROUGH,
    MechanismKind.LATER_CALL_AND_WRITE,
    MechanismKind.CHANGED,
    MechanismKind.FORWARD_CAST,
    MechanismKind.SHARED_MEMORY,
}
_ROW_OF = {row.mechanism: row.id for row in EXPERIMENTS.values() if isinstance(row.change, Edit) and row.mechanism}


def load_ledger(path: Path) -> Ledger:
    """The ledger in a file. Raises UserError, also if `decided_by` names no experiment."""
    ledger = read_ledger(path)
    for bug in ledger.bugs:
        for name, _ in bug.decided_by:
            if name not in EXPERIMENTS:
                raise UserError(f"{path}: {bug.id}: decided_by: {name!r} is not an experiment of fuzz/experiments.py")
    return ledger


def decides(decided_by: Details, study: Study, known: tuple[WrongRewrite, ...] = ()) -> bool:
    """Whether these experiments show that the failure of `study` is the bug whose wrong rewrites are `known`.

    A failure that does not repeat passes under every experiment, so it is run again. Raises as `Asker.ask`.
    """
    if not (decided_by and all(_flips(name, arguments, study, known) for name, arguments in decided_by)):
        return False
    again = study.ask(study.case, study.subject)
    return compare_outcome(again, study.result) is Outcome.FAILS_ALIKE


def _flips(name: str, arguments: tuple[str, ...], study: Study, known: tuple[WrongRewrite, ...]) -> bool:
    if name == EXACT:
        wrong = study.result.wrong_rewrites
        is_same = bool(wrong) and are_all_known(wrong, known)
        # An error may have another reason than a rewrite that is wrong beside it.
        return is_same and (study.result.verdict.is_silent or study.try_out(NO_PATTERNS).flips)
    if name in (UNSHARED, WRITTEN_APART) and _shows(Trial(CALLS_APART), study):
        return False  # each call is right by itself, and copies mend any fault of memory
    return any(_shows(Trial(name, argument), study) for argument in arguments or ("",))


def _shows(trial: Trial, study: Study) -> bool:
    """Whether a trial flips. An edit also shows the fault if the case then fails otherwise, without its error."""
    tried = _try(trial, study)
    change, has_error = tried.row.change, not study.result.verdict.is_silent
    mends = has_error and isinstance(change, Edit) and not change.keeps_fault
    return tried.flips or (mends and tried.outcome is Outcome.FAILS_OTHERWISE)


def _try(trial: Trial, study: Study) -> Tried:
    same = (
        one for one in _list_measured(study) if (one.experiment, one.argument) == (trial.experiment, trial.argument)
    )
    if measured := next(same, None):
        return measured
    if trial.experiment == CALLS_APART:
        _, tried = try_calls_apart(study)
        return next((one for one in tried if not one.flips), tried[0] if tried else Tried(CALLS_APART))
    if trial.experiment == Stage.DECOMPOSITION:
        # Inductor decomposes before it counts steps, so the failure has to show in the stage that only decomposes.
        decomposed = study.try_out(DECOMPOSED)
        if decomposed.outcome is not Outcome.FAILS_ALIKE:
            return Tried(trial.experiment, trial.argument, Outcome.DOES_NOT_APPLY)
        study = replace(study, subject=subject_of(DECOMPOSED, study.entry))
    change = EXPERIMENTS[trial.experiment].change
    if isinstance(change, OtherSubject) and subject_of(change.name, study.entry) == study.subject:
        return Tried(trial.experiment, "", Outcome.FAILS_ALIKE)
    return study.try_out(trial.experiment, trial.argument)


def try_calls_apart(study: Study) -> tuple[list[Case], list[Tried]]:
    """The program of each call by itself, and what it gives. Empty for a single call."""
    case = study.case
    alone = [at_call(case, place) for place in range(len(case.calls) + 1)] if case.calls else []
    return alone, [study.try_out(CALLS_APART, case=one) for one in alone]


def needs_write(study: Study) -> bool:
    """Whether the failure goes when each write is made into a copy."""
    return study.try_out(WRITTEN_APART).flips


def find_deciding(study: Study, cause: RootCause) -> Details:
    """The experiments that decide whether a failure has this cause. Empty if there are none.

    `study`: a minimal case with the cause. All experiments that are returned flip on it.
    """
    if study.result.verdict.is_lost:  # an experiment that fails costs a process
        few = itertools.islice(list_conditions(study), _MOST_LOST)
        found = next((one for one in few if _shows(one, study)), None)
        return () if found is None else ((found.experiment, (found.argument,) if found.argument else ()),)
    rows = _list_rows(cause, _list_measured(study))
    if cause.stage is Stage.KERNEL or (rows and _is_specific(cause)):
        return rows
    matcher = [Trial(NO_PATTERNS)] if cause.stage is Stage.GRAPH_PASSES and not cause.part else []
    conditions = itertools.chain(matcher, list_conditions(study))
    condition = next((one for one in conditions if _shows(one, study)), None)
    if condition is None:
        return () if cause.part in _UNNAMED_PARTS else rows
    # Of a minimal case every setting is needed: without it the row would explain other failures of the same kind.
    settings = tuple(name for name, _ in study.case.settings if _shows(Trial(_DEFAULT, name), study))
    needed = {_DEFAULT: settings} if settings else {}
    own = {condition.experiment: (condition.argument,) if condition.argument else ()}
    return _list_by_name({**dict(rows), **own, **needed})


def _list_measured(study: Study) -> list[Tried]:
    """The experiments that the worker ran on a wrong call of an attention function."""
    return [one for rewrite in study.result.wrong_rewrites if rewrite.pattern == CALL for one in rewrite.outcomes]


def _list_rows(cause: RootCause, measured: list[Tried]) -> Details:
    key, stage, part = cause.key, cause.stage, cause.part
    if stage is Stage.OPERATION:
        row = _ROW_OF.get(_SAME_ROW.get(key.mechanism, key.mechanism), EXACT if cause.rewrites else "")
        return ((row, dict(key.details).get("operand", ())),) if row else ()
    if stage is Stage.KERNEL:
        return _list_options(measured)
    if cause.rewrites:
        return ((EXACT, ()),)
    if cause.is_attention_pattern:
        return ((NO_PATTERNS, ()),) if key.part == Part.ATTENTION_PATTERNS else (("pass", (part,)),)
    if stage.step and part:
        return ((stage.step, (part,)),)
    kept = (one for one in cause.evidence if isinstance(one.row.change, Edit) and one.row.stage == stage and one.flips)
    if narrow := next(kept, None):
        return ((narrow.experiment, ()),)
    rows = (row for row in EXPERIMENTS.values() if (row.stage, row.part) == (stage, part))
    name = next((row.id for row in rows if row.who == key.who), "")
    return ((name, ()),) if name else ()


def _list_options(measured: list[Tried]) -> Details:
    """The changes of options that make a call of an attention function right."""
    arguments: dict[str, list[str]] = {}
    for one in measured:
        if one.flips and one.experiment in _OF_OPTIONS:
            arguments.setdefault(one.experiment, []).append(one.argument)
    return _list_by_name({name: tuple(found) for name, found in arguments.items()})


def _is_specific(cause: RootCause) -> bool:
    """Whether the rows of a cause need no condition: they name a step, or measure a rewrite."""
    is_measured = cause.stage.step or cause.stage in (Stage.JOINT_PASSES, Stage.OPERATION)
    return bool(is_measured) and cause.part != "" and cause.key.mechanism not in _OF_STATE


def list_conditions(study: Study) -> Iterator[Trial]:
    """Changes to take away from a case, the most telling first."""
    case, usual = study.case, _USUAL if study.result.verdict.is_silent else frozenset()
    kinds = list(dict.fromkeys(op.kind for op in case.ops))
    if _LAYERS & {*kinds}:
        yield Trial("fast_path_off")
    yield from list_edits(case)
    yield from (Trial(DROPPED, kind) for kind in reversed(kinds) if kind not in usual)
    if study.result.verdict is Verdict.METADATA:
        yield from (Trial(CONTIGUOUS, kind) for kind in reversed(kinds) if kind not in usual)


def list_edits(case: Case) -> Iterator[Trial]:
    """The edits that take something away from a case: regions, changes, calls, settings; the most telling first."""
    if edit(Trial(FUNCTIONS_APART), case) is not None:
        yield Trial(FUNCTIONS_APART)
    yield from (Trial(CALLED_DIRECTLY, kind) for kind in list_indirect(case))
    yield from (Trial(UNCHANGED, kind) for kind in dict.fromkeys(one.kind for one in list_changes(case)))
    if case.calls:
        yield Trial(CALLS_APART)
    views = (TOUCHING, UNEXPANDED) if list_odd_views(case) else ()
    yield from (Trial(name) for name in (UNSHARED, *views) if edit(Trial(name), case) is not None)
    if is_written(case):
        yield Trial(WRITTEN_APART)
    for use in list_uses(case):
        yield Trial("computed_before" if use in FORMULAS else "constant", use)
    if is_random(case):
        yield Trial(DROPPED, DROPOUT)
    yield from (Trial(_DEFAULT, name) for name, _ in case.settings)
    yield from (
        Trial(name)
        for name in (CAST_OVER_BACKWARD, *NARROWER[EAGER], "wide_integers", "offset_given")
        if edit(Trial(name), case) is not None
    )


def _list_by_name(rows: Mapping[str, tuple[str, ...]]) -> Details:
    return tuple(sorted(rows.items()))
