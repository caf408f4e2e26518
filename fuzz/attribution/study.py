"""A failure under experiment: runs rows of `EXPERIMENTS` and compares their results with the failure."""

import math
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace

from corpus.causes import Mechanism, MechanismKind, details
from corpus.entry import Entry
from fuzz.ask.question import Asker, Question
from fuzz.attribution.edits import edit
from fuzz.bug_identity import bug_relevant_rewrites, compare_outcome, operation_of
from fuzz.compilers.interface import Variation
from fuzz.compilers.table import VARIATIONS
from fuzz.experiments import (
    EXPERIMENTS,
    Edit,
    FirstNode,
    OtherSubject,
    Outcome,
    StepLimit,
    Trial,
    Tried,
    Varied,
    WithoutAxis,
)
from fuzz.protocol import NodeParted, StepsTaken, SubjectResult, Verdict
from fuzz.subjects import find_variant, get_spec
from generators.program.case import Case

_RAISED = {Verdict.COMPILE_ERROR: MechanismKind.COMPILING_RAISES, Verdict.RUNTIME_ERROR: MechanismKind.RUNNING_RAISES}
_FORMS = {"strides": MechanismKind.STRIDES, "memory": MechanismKind.MEMORY}
_DETAIL_LENGTH = 120
_ALL = 1_000_000
"""More steps than any compilation takes."""


@dataclass(frozen=True, slots=True)
class Study:
    """A failure under experiment: `subject` gives `result` for the case of `entry`.

    `rewrite`: a result counts only if this rewrite ("sfdp_pattern_5") was applied. If the failure is a faulty operation
    of its replacement, only a wrong result of that operation counts as failing.

    `deadline`: of `time.monotonic()`; after it no experiment begins, and outcomes are `NOT_TRIED`.
    """

    asker: Asker
    entry: Entry
    subject: str
    result: SubjectResult
    rewrite: str = ""
    deadline: float = math.inf

    @property
    def is_time_up(self) -> bool:
        return time.monotonic() > self.deadline

    @property
    def case(self) -> Case:
        """The case that fails."""
        return self.entry.case

    def try_out(self, experiment: str, argument: str = "", *, case: Case | None = None) -> Tried:
        """Run an experiment. `case`: the edited case, for an experiment with several edits."""
        row, trials = EXPERIMENTS[experiment], list[Trial]()
        here: Case | None = case or self.case
        subject: str | None = self.subject
        if row.device not in ("", self.asker.hello.device):
            return Tried(experiment, "", Outcome.DOES_NOT_APPLY)
        if self.is_time_up:
            return Tried(experiment, argument)
        match row.change:
            case StepLimit() if not argument:
                return self._bisect(experiment)
            case Varied() if (names := VARIATIONS[experiment].arguments) and not argument:
                return self._find_step(experiment, names)
            case Varied() if not _varies(subject, VARIATIONS[experiment]):
                return Tried(experiment, "", Outcome.DOES_NOT_APPLY)
            case FirstNode():
                return self._find_node(experiment, argument)
            case OtherSubject(name):
                subject = subject_of(name, self.entry)
            case WithoutAxis(axis):
                has_axis = getattr(get_spec(self.subject), axis)
                subject = find_variant(self.subject, **{axis: False}) if has_axis else None
            case Edit(other, keeps_fault):
                # Wrong numbers have no text by which to know the fault again.
                is_nameless = keeps_fault and self.result.verdict.is_silent
                here = None if is_nameless else case or edit(Trial(experiment, argument), self.case)
                subject = subject_of(other, self.entry) if other else subject
            case _:
                trials.append(Trial(experiment, argument))
        if here is None or subject is None:
            return Tried(experiment, "", Outcome.DOES_NOT_APPLY)
        return Tried(experiment, argument, self._compare(self.ask(here, subject, *trials)))

    def ask(self, case: Case, subject: str, *trials: Trial) -> SubjectResult:
        """The result of a case; skipped if eager refuses it. Raises as `Asker.ask`."""
        return self.asker.ask(Question(case, (subject,), trials)).only

    def find_first_flip(self, experiments: Iterable[str]) -> tuple[Tried | None, tuple[Tried, ...]]:
        """The first experiment that flips, and all experiments before it that fail, or that time was too short for."""
        failing: list[Tried] = []
        for tried in map(self.try_out, experiments):
            if tried.flips:
                return tried, tuple(failing)
            failing += [tried] if tried.outcome.fails or tried.outcome is Outcome.NOT_TRIED else []
        return None, tuple(failing)

    def _bisect(self, kind: str) -> Tried:
        """Find the first step of this kind (`decomposition`, `pass`, `lowering`) with which the case fails alike.

        The argument of the outcome names the step. It does not apply if the case fails with all steps off.
        """

        def run(most: int) -> tuple[Outcome, StepsTaken | None]:
            if self.is_time_up:
                return Outcome.NOT_TRIED, None
            result = self.ask(self.case, self.subject, Trial(kind, str(most)))
            taken = next((one for one in result.observations if isinstance(one, StepsTaken)), None)
            return self._compare(result), taken

        def fails_alike(most: int) -> bool:
            return run(most)[0] is Outcome.FAILS_ALIKE

        steps = run(_ALL)[1]
        if not (steps and fails_alike(_ALL) and run(0)[0] is Outcome.PASSES):
            return Tried(kind, "", Outcome.NOT_TRIED if self.is_time_up else Outcome.DOES_NOT_APPLY)
        most = bisect_left(range(steps.count), True, lo=1, key=fails_alike)
        steps, outcome = run(most)[1], run(most - 1)[0]
        if steps is None or outcome is Outcome.NOT_TRIED:
            return Tried(kind)
        return (
            Tried(kind, steps.last, outcome) if outcome is Outcome.PASSES else Tried(kind, "", Outcome.DOES_NOT_APPLY)
        )

    def _find_step(self, experiment: str, names: tuple[str, ...]) -> Tried:
        """Find the first of these steps without which, and without all before it, the case passes.

        The argument of the outcome names the step, with the steps before it if it does not suffice.
        """

        def omit(*left_out: str) -> Tried:
            return self.try_out(experiment, ",".join(left_out))

        every = omit(*names)
        if not every.flips:
            return replace(every, argument="")
        most = bisect_left(range(len(names)), True, lo=1, key=lambda count: omit(*names[:count]).flips)
        alone = omit(names[most - 1])
        return alone if alone.flips else omit(*names[:most])

    def _find_node(self, experiment: str, wanted: str) -> Tried:
        """Find the first wrong node. The argument of the outcome names its operators; it applies if these are among
        them."""
        if self.is_time_up:
            return Tried(experiment, wanted)
        result = self.ask(self.case, self.subject, Trial(experiment))
        seen = next((one for one in result.observations if isinstance(one, NodeParted)), NodeParted())
        is_found = bool(seen.operators) and {*filter(None, wanted.split(","))} <= {*seen.operators}
        outcome = self._compare(result) if is_found else Outcome.DOES_NOT_APPLY
        return Tried(experiment, ",".join(seen.operators), outcome)

    def _compare(self, other: SubjectResult) -> Outcome:
        applies = not self.rewrite or self.rewrite in bug_relevant_rewrites(other.applied_rewrites)
        called = {"", *(one.operation for one in other.wrong_rewrites)}
        if self.rewrite and other.verdict.has_wrong_numbers and operation_of(self.result) not in called:
            other = replace(other, verdict=Verdict.OK)  # the rewrite is wrong, but the operation under study is right
        return compare_outcome(other, self.result, applies=applies)


def _varies(subject: str | None, variation: Variation) -> bool:
    """Whether the variation is one of the subject's compiler, and no way in which it works already."""
    compiler = get_spec(subject or "").compiler
    is_own = compiler is not None and variation in compiler.variations
    return is_own and not variation.keywords.items() <= (compiler.keywords.items() if compiler else set())


def subject_of(stage: str, entry: Entry) -> str:
    """The variant of a subject with the random stream, memory budget, caches, settings and keywords of the entry's."""
    axes = ("random", "recomputes", "warm", "options", "keywords")
    kept = {name: getattr(get_spec(entry.subject), name) for name in axes}
    return find_variant(stage, **kept) or stage


def mechanism_of(result: SubjectResult, values: MechanismKind | None = None) -> Mechanism:
    """The mechanism of a failing result; `values`: the mechanism of wrong numbers."""
    kind, failure = _RAISED.get(result.verdict), result.failure
    if kind is not None:
        told = (row for row in EXPERIMENTS.values() if row.error and row.error in getattr(failure, "text", ""))
        if named := next(told, None):
            return Mechanism(MechanismKind(named.mechanism))
        key = failure and failure.key()
        return Mechanism(kind, details(error=key.text[:_DETAIL_LENGTH] if key else ""))
    if result.verdict is Verdict.METADATA:
        return Mechanism(_FORMS.get(getattr(failure, "aspect", ""), MechanismKind.FORM))
    return Mechanism(values or MechanismKind(result.verdict))
