"""Compares eager and compiled code under active dropout: over seeds, and the masks that a case shows over calls."""

from collections.abc import Callable
from typing import Any

from torch import nn

from fuzz.check.judge import constants, dropout
from fuzz.check.judge.case_run import CaseRun
from fuzz.check.judge.modes import Noise
from fuzz.check.judge.repeated_masks import find_repeated_mask
from fuzz.check.judge.verdict import conclude
from fuzz.check.run.program import Execution, execute
from fuzz.check.torch_api import exceptions
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import DropoutStatistic, Value

Compiled = tuple[Callable[..., Any], nn.Module]
"""A compiled callable, and the module it was made from."""


def compare_seeds(judgement: SubjectResult, case: CaseRun, compiled: Compiled, run: Execution) -> SubjectResult:
    """`judgement`, or a graver judgement that does not depend on the random numbers."""
    plain = case.program.module(case.request.training)
    runs = _make_run(case, (plain, plain)), _make_run(case, compiled)
    comparison = dropout.Comparison(*runs, case.eager, run, case.program.inputs, case.coarsest())
    judge = case.make_judge(case.eager, random=False)

    def judge_constant() -> SubjectResult | None:
        """The judgement on the elements of `run` that do not depend on the seed, if these are wrong."""
        constant = comparison.merge_constant(case.eager, run)
        certain = None if constant is None else judge.judge(constant)
        return certain if certain is not None and certain.verdict.has_wrong_numbers else None

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
