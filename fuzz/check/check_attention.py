"""The check of a subject that computes the attention of a case and leaves the rest of it alone."""

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from fuzz.check import exceptions
from fuzz.check.attention import calls
from fuzz.check.attention.harness import StandIn
from fuzz.check.coverage import Coverage
from fuzz.check.exceptions import SuppressOutOfMemory
from fuzz.check.oracle import constants, dynamo_same
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.refusals import Unsupported
from fuzz.check.oracle.noise import Noise
from fuzz.check.oracle.verdict import Judgement
from fuzz.check.program import Execution, from_text
from fuzz.check.subjects import Subject, SubjectError
from fuzz.protocol import Verdict
from fuzz.protocol.failures import NotTaken, OutOfBounds, Refusal

if TYPE_CHECKING:
    from fuzz.check.check import Case


def attended(case: "Case", subject: Subject, coverage: Coverage) -> tuple[Judgement, bool | None]:
    """The verdict on the attention function of `subject`, and what `torch._dynamo.utils.same` says of the case with it."""
    request = case.request
    if request.stand_in is None or subject.attention is None:
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NO_CONTRACT)), None
    try:
        with case.running:
            stand_in = StandIn(request.stand_in, subject.attention, case.device, training=request.training)
    except (SubjectError, Unsupported) as refusal:
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.UNSUPPORTED, str(refusal))), None
    except Exception as error:
        if not from_text(error):
            raise
        return _unrunnable(error), None
    runs: list[Execution] = []
    try:
        judgement = _judged(case, subject, stand_in, runs, coverage)
        damage = stand_in.damage
    finally:
        stand_in.program.close()
    if judgement.verdict is Verdict.SKIPPED and not (damage or stand_in.differences):
        return judgement, None
    if stand_in.differences and not judgement.verdict.is_finding:
        judgement = Judgement(Verdict.WRONG_RESULT, stand_in.differences[0], judgement.numbers)
    if damage:
        if judgement.verdict.is_finding:
            judgement = replace(judgement, writes=damage)
        else:
            judgement = Judgement(Verdict.OUT_OF_BOUNDS, OutOfBounds(damage), judgement.numbers)
    if not runs:
        return judgement, None
    judgement = case.unless_eager_is_wrong(judgement, runs[0], subject)
    return judgement, dynamo_same.same(case.eager, runs[0], case.exact)


def _judged(case: "Case", subject: Subject, stand_in: StandIn, runs: list[Execution], coverage: Coverage) -> Judgement:
    """The verdict on what a function gives; `runs` takes the executions."""
    recorded: list[Call] = []
    module = stand_in.module()
    try:
        with case.running, coverage:
            call = subject.compile(module, case.request.dynamic)
            for _ in range(max(1, case.request.repeat)):
                runs.append(case.execute(call, module, stand_in.fresh()))
                recorded = recorded or stand_in.calls
                if stand_in.damage:
                    break
    except Unsupported as refusal:
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.UNSUPPORTED, str(refusal)))
    except NotImplementedError as error:  # in the backward pass
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NOT_IMPLEMENTED, exceptions.line(error)))
    except Exception as error:
        if not stand_in.accuses(error):
            return _unrunnable(error)
        return Judgement(exceptions.verdict(error), exceptions.as_failure(error))
    if stand_in.attention.compiled:
        return case.decided(runs, stand_in.dtypes, functools.partial(_uncompiled, case, stand_in))
    with SuppressOutOfMemory() as memory:
        judgement = calls.judged(recorded, stand_in.function, training=case.request.training, again=not stand_in.damage)
    if memory.error is not None:
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NO_MEMORY, exceptions.line(memory.error)))
    promised = case.device in stand_in.function.capabilities.deterministic
    return case.repeated(judgement, runs) if promised else judgement


def _unrunnable(error: Exception) -> Judgement:
    return Judgement(Verdict.SKIPPED, NotTaken(Refusal.TEXT_FAILS, exceptions.line(error)))


def _uncompiled(case: "Case", stand_in: StandIn) -> list[Execution]:
    """The case with the same function, not compiled, under noise."""
    if case.request.random:
        return []
    with stand_in.uncompiled() as program:
        return [
            case.execute(None, program.module(case.request.training), Noise(number))
            for number in range(constants.REPLICAS_BEFORE_WRONG)
        ]
