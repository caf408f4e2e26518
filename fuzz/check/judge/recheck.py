"""Verdicts that need more runs: precision policy, repeatability, and other random numbers."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from fuzz.check.judge import constants, dropout
from fuzz.check.judge.case_run import CaseRun, find_difference
from fuzz.check.judge.choices import Choices, Nested
from fuzz.check.judge.modes import FusedNoise, Noise, SkippedCasts
from fuzz.check.judge.open_orders import HAVE_ANOTHER_ALGORITHM
from fuzz.check.judge.repeated_masks import find_repeated_mask
from fuzz.check.judge.verdict import RECHECKED_VERDICTS, Judge, RightRuns, conclude
from fuzz.check.run import graph_passes
from fuzz.check.run.program import Execution, execute
from fuzz.check.run.subject_builder import Subject
from fuzz.check.run.subject_changes import apply_experiments
from fuzz.check.torch_api import exceptions
from fuzz.check.torch_api.coverage import Coverage
from fuzz.check.torch_api.exceptions import SuppressOutOfMemory
from fuzz.experiments import Trial
from fuzz.protocol import CoverageKind, SubjectResult, Verdict
from fuzz.protocol.failures import DropoutStatistic, Nondeterministic, Value

Compiled = tuple[Callable[..., Any], nn.Module]
"""A compiled callable, and the module it was made from."""


def recheck(
    judgement: SubjectResult, case: CaseRun, subject: Subject, compiled: Compiled, run: Execution
) -> SubjectResult:
    """The judgement on `run` of `compiled`, after further runs if the verdict needs them."""
    with SuppressOutOfMemory():
        if judgement.verdict is Verdict.NONFINITE and case.request.random:
            # Other random numbers may lead to a division by 0 elsewhere.
            rest = case.judge.judge(run.merge(case.eager, lambda _, value: value.isfinite()))
            if rest.verdict is Verdict.RANDOM_STREAM:
                judgement = replace(judgement, verdict=Verdict.RANDOM_STREAM, where=None)
        if isinstance(judgement.failure, Nondeterministic):
            on_gpu = case.device != "cpu" and "use_deterministic_algorithms" not in subject.options
            if on_gpu and is_documented(case, subject):
                return conclude(Verdict.ROUNDING, None, judgement.numbers)
            return judgement
        if judgement.verdict in RECHECKED_VERDICTS:
            judgement = explain_by_order(judgement, case, run)
            if judgement.verdict in RECHECKED_VERDICTS:
                return _explain_by_rounding(judgement, case, subject, run)
        if judgement.verdict is Verdict.RANDOM_STREAM:
            with subject.apply_settings():
                return _compare_seeds(judgement, case, compiled, run)
    return judgement


def explain_by_order(judgement: SubjectResult, case: CaseRun, run: Execution) -> SubjectResult:
    """`judgement`, or convention if every element of `run` is right in some order that the documentation leaves open.

    Elements on which all orders agree must agree with these (`Envelope`).
    """
    if judgement.verdict not in RECHECKED_VERDICTS:
        return judgement
    for count in (1, constants.ORDERS, constants.ORDERS_BEFORE_WRONG):
        runs = case.run_in_other_orders(count)
        if not runs:
            return judgement
        judged = case.judge.judge(run, others=partial(RightRuns, case.exact, (), runs))
        if judged.verdict not in RECHECKED_VERDICTS:
            return conclude(Verdict.CONVENTION, None, judged.numbers)
    return replace(judged, right_rewrites=judgement.right_rewrites)


@contextmanager
def _listen(heard: list[warnings.WarningMessage]) -> Iterator[None]:
    """While entered, collects torch's warnings that an operation has no deterministic algorithm."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", r"(?s).*deterministic")
        # cuBLAS is nondeterministic only if several streams share its workspace.
        warnings.filterwarnings("ignore", r"(?s).*CuBLAS")
        try:
            yield
        finally:
            heard += caught


def is_documented(case: CaseRun, subject: Subject) -> bool:
    """Whether torch documents that an operation of the graph is nondeterministic. Either of these suffices:

    - torch warns that there is no deterministic algorithm.
    - In deterministic mode the operation has another algorithm, and runs are equal.
    """
    heard, coverage = list[warnings.WarningMessage](), Coverage()
    with coverage:
        again = apply_experiments(subject, [Trial("deterministic")])
        runs = _run_again(case, again, max(2, case.repeat), lambda: _listen(heard))
    operations = (item.name for item in coverage.items if item.kind is CoverageKind.OP)
    has_another = any(name.removeprefix("aten.").strip("_") in HAVE_ANOTHER_ALGORITHM for name in operations)
    return bool(heard) or (has_another and bool(runs) and case.find_unrepeated(runs) is None)


def _run_again(
    case: CaseRun, subject: Subject, times: int = 1, mode: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> list[Execution]:
    """Runs of `subject`, compiled once more; none if it raises."""
    module = case.program.module(case.request.training)
    torch._dynamo.reset()
    try:
        with subject.apply_settings():
            call = case.compile(subject, module)
            return [case.execute(call, module, mode()) for _ in range(times)]
    except Exception as error:
        if exceptions.is_out_of_memory(error):
            raise
        return []
    finally:
        torch._dynamo.reset()


def _explain_by_rounding(judgement: SubjectResult, case: CaseRun, subject: Subject, run: Execution) -> SubjectResult:
    """`judgement`, or precision_policy if the casts that Inductor omits explain it.

    - The subject is right with all casts.
    - Eager with some casts omitted is as far off.
    - There is no NaN or infinity.
    """
    low = case.coarsest() in constants.LOW_PRECISION and judgement.verdict is not Verdict.NONFINITE
    if low and subject.spec.uses_inductor:
        with_casts = apply_experiments(subject, [Trial("casts_emulated")])
        kept = _is_wrong_again(case, with_casts)
        # If the subject is right now without the option too, it fails only at times, and casts explain nothing.
        if kept is False and _is_wrong_again(case, subject) and _is_within_skipped_casts(case, run):
            return replace(judgement, verdict=Verdict.PRECISION_POLICY, where=None)
    return judgement


def explain_by_fused_rounding(judgement: SubjectResult, case: CaseRun, run: Execution) -> SubjectResult:
    """`judgement`, or a harmless judgement if fused calls are as far off when their arguments move by one ulp, or
    eager with some casts omitted is.

    The fused calls must be proven right in exact arithmetic. Their backward pass computes the weights again, from
    rounded scores.
    """
    if judgement.verdict not in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT) or case.request.random:
        return judgement
    noise: AbstractContextManager[Any] = nullcontext()
    module = case.program.module(case.request.training)
    torch._dynamo.reset()

    def move() -> RightRuns | None:
        nonlocal noise
        moved: list[Execution] = []
        try:
            call = graph_passes.compile_module(module, case.dynamic, lambda: noise)
            plain = case.execute(call, module)
            if find_difference([plain, case.execute(call, module)]) is not None:
                return None  # a nondeterministic kernel would explain any error
            for seed in range(constants.REPLICAS_BEFORE_WRONG):
                noise = FusedNoise(seed)
                moved.append(case.eager.shift(plain, case.execute(call, module)))
        except Exception as error:
            if exceptions.is_out_of_memory(error):
                raise
            return None  # this torch does not run the graph operation by operation: nothing is explained
        return RightRuns(case.exact, tuple(moved))

    with SuppressOutOfMemory():
        explained = case.judge.judge(run, others=move)
        if explained.verdict not in RECHECKED_VERDICTS:
            return replace(explained, right_rewrites=judgement.right_rewrites)
        # A fused call adds the mask to scores that are not rounded: eager's rounding hides them behind a large mask.
        if case.coarsest() in constants.LOW_PRECISION and _is_within_skipped_casts(case, run):
            return replace(judgement, verdict=Verdict.PRECISION_POLICY, where=None)
    return judgement


def _is_within_skipped_casts(case: CaseRun, run: Execution) -> bool:
    def skip() -> RightRuns:
        rounded, chosen = list[Execution](), list[Execution]()
        for number in range(constants.REPLICAS_BEFORE_WRONG):
            free = Choices()
            chosen.append(case.execute(mode=Nested(SkippedCasts(number), free)))
            if not free.differ(case.right.eager_choices):
                rounded.append(chosen.pop())
                continue
            held = Choices(case.right.eager_choices)
            rounded.append(case.execute(mode=Nested(SkippedCasts(number), held)))
        return RightRuns(case.exact, tuple(rounded), tuple(chosen))

    return case.judge.judge(run, others=skip).verdict not in RECHECKED_VERDICTS


def _is_wrong_again(case: CaseRun, subject: Subject) -> bool | None:
    """Whether `subject`, compiled and run once more, is still a finding; None if it raises."""
    runs = _run_again(case, subject)
    if not runs:
        return None
    with subject.apply_settings():
        return case.judge.judge(runs[0]).verdict.is_finding


def _compare_seeds(judgement: SubjectResult, case: CaseRun, compiled: Compiled, run: Execution) -> SubjectResult:
    """`judgement`, or a graver judgement that does not depend on the random numbers."""
    plain = case.program.module(case.request.training)
    runs = _make_run(case, (plain, plain)), _make_run(case, compiled)
    comparison = dropout.Comparison(*runs, case.eager, run, case.program.inputs, case.coarsest())
    judge = Judge(case.eager, case.right, case.coarsest, random=False)

    def judge_constant() -> SubjectResult | None:
        """The judgement on the elements of `run` that do not depend on the seed, if its verdict needs a recheck."""
        constant = comparison.merge_constant(case.eager, run)
        certain = None if constant is None else judge.judge(constant)
        return certain if certain is not None and certain.verdict in RECHECKED_VERDICTS else None

    try:
        found = comparison.find_difference(lambda number: _make_run(case, (plain, plain), number))
        if found is not None:
            return _accuse(found)
        # More seeds show which elements do not depend on the seed.
        if judge_constant() is not None and comparison.run_seeds(constants.DROPOUT_SEEDS[1]):
            return judge_constant() or judgement
        return judgement if case.program.is_sequence else _find_repeated_mask(case, compiled) or judgement
    except RunFailed as failure:
        if exceptions.is_out_of_memory(failure):
            raise
    return judgement


def _find_repeated_mask(case: CaseRun, compiled: Compiled) -> SubjectResult | None:
    """The judgement that masks repeat, over several calls after one seed; None if they are independent."""
    dropouts = case.request.dropouts
    if not dropouts:
        return None
    elements = sum(case.eager.outputs[Value("output", dropout.result)].numel() for dropout in dropouts)
    calls = constants.REPEATED_CALLS[elements > constants.REPEATED_ELEMENTS]
    run = _make_run(case, compiled, calls=calls)(0, case.program.inputs(), False)
    found = find_repeated_mask(run, dropouts, calls)
    return None if found is None else conclude(Verdict.WRONG_RESULT, found, {"ratio": found.doubt}, found.value)


def _accuse(found: dropout.Difference) -> SubjectResult:
    wrong = Verdict.WRONG_RESULT if found.is_of_output else Verdict.WRONG_GRADIENT
    verdict = Verdict.NONFINITE if found.kind == dropout.NONFINITE else wrong
    failure = DropoutStatistic(found.value, found.kind, found.part, found.effect, found.seeds, found.errors)
    return conclude(verdict, failure, {"ratio": found.errors, "seeds": float(found.seeds)}, found.value)


def _make_run(case: CaseRun, compiled: Compiled, noise: int | None = None, calls: int = 1) -> dropout.Run:
    call, module = compiled

    def run(seed: int, inputs: list[Any], gradients: bool) -> Execution:
        try:
            return execute(
                call,
                module,
                [inputs] * calls,
                training=case.request.training,
                cotangents=case.eager.cotangents if gradients else {},
                mode=None if noise is None else Noise(noise),
                watched=noise is None,
                seed=seed,
            )
        except Exception as error:
            raise RunFailed(exceptions.line(error)) from error

    return run


class RunFailed(Exception):
    """A case raises with another seed."""
