"""From a root cause to its place in the source of torch, by experiments.

- An exception while compiling: the innermost line of the compiler.
- A step of compiling: its function, or the parts of its pattern. Without the step, the case passes.
- Any other fault, and within the function of a step: a branch that failing programs take and few passing programs take.
  Passing programs are edits of the case, and the case under an experiment that flips.
"""

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from corpus.causes import Part, Stage
from fuzz.attribution.decide import STEPS, edit, list_conditions
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study, subject_of
from fuzz.bug_identity import compare_outcome
from fuzz.experiments import EXPERIMENTS, Edit, OtherSubject, Outcome, Trial, WithoutAxis, WithSetting
from fuzz.protocol import Executed, StepsTaken, Verdict
from fuzz.protocol.places import Found, Place
from fuzz.subjects import find_variant
from generators.program.case import Case
from generators.program.edits import prune_if_valid, replace_inputs, replace_op

_MOST = 8
"""Programs that pass whose branches are compared."""
_SWAPPED = {"sigmoid", "relu", "silu"}
_REWRITTEN = (Part.FUSION, Part.VECTORISATION)
"""Parts without which Inductor generates other code throughout."""
_MATCHER = "_inductor/pattern_matcher.py"
_LAYERS = "nn/functional.py nn/modules/activation.py nn/modules/transformer.py nn/attention/"
"""Layers of torch that choose another way under Dynamo."""
_AOT = "_functorch/ _decomp/ _refs/ _prims _subclasses/ _higher_order_ops/"
_FILES = {
    Stage.JOINT_PASSES: "_inductor/fx_passes/ _inductor/pattern_matcher.py _inductor/constant_folding.py",
    Stage.GRAPH_PASSES: "_inductor/fx_passes/ _inductor/pattern_matcher.py _inductor/constant_folding.py",
    Stage.LOWERING: "_inductor/lowering.py _inductor/ir.py _inductor/codegen/",
    Stage.CODEGEN: "_inductor/ _export/ export/",
    Stage.OPERATION: "_higher_order_ops/",
}
"""Prefixes of the files of a stage."""

Branch = tuple[str, str, int, int]


class _Run(NamedTuple):
    case: Case
    subject: str
    trials: tuple[Trial, ...] = ()


def locate(study: Study, cause: RootCause, neighbours: Iterable[Case] = (), seconds: float = 60.0) -> RootCause:
    """`cause` with its places, the line at fault first; without any if none is found.

    study: the failing case, under the subject that was accused
    neighbours: cases that differ from the failing case in one property
    """
    if cause.stage is Stage.KERNEL:
        return cause
    if cause.stage is Stage.OPERATION and cause.part.startswith("aten."):
        return replace(cause, places=(Place("", 0, cause.part, Found.KERNEL),))
    stages = [one for one in cause.evidence if isinstance(one.row.change, OtherSubject)]
    subjects = {one.flips: subject_of(one.experiment, study.entry) for one in stages}
    subject = subjects.get(True, study.subject)
    result = study.evaluator.judge(study.case, subject)
    if compare_outcome(result, study.result).fails:
        study = replace(study, subject=subject, result=result)
    raised = [study.result.raised_at] if study.result.raised_at else []
    kind = "pass" if cause.is_attention_pattern else STEPS.get(cause.stage, "")
    steps = _leave_out(study, Trial(kind, cause.part)) if kind and cause.part else ()
    if raised and study.result.verdict is Verdict.COMPILE_ERROR:
        # A step that raises itself, and no later one, is at fault in that line.
        is_later = bool(steps) and raised[0].file not in (_MATCHER, *(step.file for step in steps))
        return replace(cause, places=(*steps, *raised) if is_later else (*raised, *steps))
    if steps and steps[0].found is not Found.LEFT_OUT:
        return replace(cause, places=steps)
    if steps and "/" not in steps[0].file:
        return replace(cause, places=steps)
    layers: tuple[Place, ...] = ()
    if cause.who == "dynamo":
        layers = _BranchSearch(study, _LAYERS).find([_Run(study.case, "eager")], seconds)
    scope = _FILES.get(cause.stage, "_dynamo/" if cause.who == "dynamo" else _AOT)
    if steps and cause.stage is not Stage.LOWERING:
        # Lowerings hand over to what generates code. Of other steps alone the own file is at fault.
        scope = f"{steps[0].file}:{steps[0].line} {steps[0].file}"
    changed = (_change_literals(study.case), _swap_operations(study.case), neighbours)
    ways = (_list_runs(study, cause), *((_Run(case, study.subject) for case in cases) for cases in changed))
    runs = (run for together in itertools.zip_longest(*ways) for run in together if run is not None)
    is_own = bool(steps) and cause.stage is not Stage.LOWERING
    search = _BranchSearch(study, scope, steps[0].function if is_own else "", subjects.get(False, ""))
    # The whole stage is too large a place to look for a branch, unless a switch of that stage flips.
    switched = any(one.flips and isinstance(one.row.change, (WithSetting, WithoutAxis)) for one in cause.evidence)
    is_narrow = bool(steps) or switched or cause.stage is Stage.OPERATION
    parted = layers or (search.find(runs, seconds) if is_narrow else ()) or raised
    # That a program calls the operation at fault says nothing.
    parted = tuple(one for one in parted if one.found is not Found.ENTERED or one.function != cause.part)
    return replace(cause, places=(*(one for one in parted if one.line not in [step.line for step in steps]), *steps))


def _leave_out(study: Study, trial: Trial) -> tuple[Place, ...]:
    observed = study.evaluator.judge(study.case, study.subject, trial).observations
    return next((one.left_out for one in observed if isinstance(one, StepsTaken)), ())


def _list_runs(study: Study, cause: RootCause) -> Iterator[_Run]:
    """The case under the experiments that may flip; experiments of the cause come first."""
    named = [Trial(name, argument) for name, arguments in cause.decided_by for argument in arguments or ("",)]
    shown = [Trial(one.experiment, one.argument) for one in cause.evidence]
    for trial in dict.fromkeys((*named, *shown, *list_conditions(study))):
        match EXPERIMENTS[trial.experiment].change:
            case WithSetting() if cause.part not in _REWRITTEN:
                yield _Run(study.case, study.subject, (trial,))
            case WithoutAxis(axis):
                if other := find_variant(study.subject, **{axis: False}):
                    yield _Run(study.case, other)
            case Edit():
                if (edited := edit(trial, study.case)) is not None:
                    yield _Run(edited, study.subject)


def _change_literals(case: Case) -> Iterator[Case]:
    """Variants of the case: each adds 1 to one constant size of an input."""
    for item in case.inputs:
        for axis, size in enumerate(item.shape):
            if size.constant is not None:
                larger = replace(item, shape=(*item.shape[:axis], size + 1, *item.shape[axis + 1 :]))
                if made := prune_if_valid(replace_inputs(case, {item: larger})):
                    yield made


def _swap_operations(case: Case) -> Iterator[Case]:
    """Variants of the case: each replaces one unary operation by another."""
    for op in case.ops:
        if op.kind in _SWAPPED:
            for kind in sorted(_SWAPPED - {op.kind}):
                yield replace_op(case, op, replace(op, kind=kind))


class _BranchSearch(NamedTuple):
    """Searches for a branch that failing programs take and few passing programs take."""

    study: Study
    scope: str
    home: str = ""
    """The function whose branches are preferred."""
    earlier: str = ""
    """A subject that passes, whose branches are not at fault; "" for none."""

    def find(self, runs: Iterable[_Run], seconds: float) -> tuple[Place, ...]:
        """The first branch that all failing and fewest passing programs take."""
        began, study = time.monotonic(), self.study
        takes: dict[Outcome, list[dict[Branch, int]]] = {Outcome.PASSES: [], Outcome.FAILS_ALIKE: []}
        for run in runs:
            outcome, taken = self._trace(run)
            if outcome in takes:
                takes[outcome].append(taken)
            if len(takes[Outcome.PASSES]) == _MOST or time.monotonic() - began > seconds:
                break
        passing = takes[Outcome.PASSES]
        before = self._trace(_Run(study.case, self.earlier))[1] if self.earlier else {}
        # The failing program runs last, when all caches are filled.
        _, own = self._trace(_Run(study.case, study.subject))
        shared = (*takes[Outcome.FAILS_ALIKE], own)
        rank: dict[Branch, tuple[bool, int, int]] = {}
        for branch, order in own.items():
            count = sum(branch in one for one in passing)
            if branch not in before and all(branch in one for one in shared) and count < len(passing):
                rank[branch] = branch[1] != self.home, count, order
        if not rank:
            return ()
        file, function, first, then = min(rank, key=rank.__getitem__)
        found = Found.PARTED if first else Found.ENTERED
        return (Place(file, first or then, function, found, len(passing)),)

    def _trace(self, run: _Run) -> tuple[Outcome, dict[Branch, int]]:
        """The outcome of a run, and the branches that it takes, with their order."""
        result = self.study.evaluator.judge(run.case, run.subject, *run.trials, Trial("traced", self.scope))
        parts = (part for one in result.observations if isinstance(one, Executed) for part in one.branches)
        taken = {(part.file, part.function, *pair[1:]): pair[0] for part in parts for pair in part.pairs}
        return compare_outcome(result, self.study.result), taken
