"""The promises of a subject: which cases it takes, and which parts of its runs are compared."""

from dataclasses import replace

from torch import Tensor

from fuzz.check.judge.case_run import CaseRun
from fuzz.check.judge.verdict import order_dims
from fuzz.check.run.program import Execution
from fuzz.check.run.subject_builder import Subject
from fuzz.check.run.tensor_memory import name_dtype
from fuzz.compilers.interface import CompilerCapabilities
from fuzz.protocol.failures import Refusal


def find_unpromised(case: CaseRun, subject: Subject) -> tuple[Refusal, str] | None:
    """The first property of a case that the subject does not take, and a reason in words; None if there is none."""
    request, spec, reasons = case.request, subject.spec, dict[str, bool]()
    promised = subject.compiler.capabilities if subject.compiler is not None else None
    if spec.random and (not request.random or case.program.is_sequence):
        return Refusal.NOT_RANDOM, ""
    if not request.training and (spec.recomputes or (promised is not None and "inference" not in promised.modes)):
        return Refusal.NOT_TRAINING, ""
    if request.training and promised is not None and "training" not in promised.modes:
        return Refusal.NOT_INFERENCE, ""
    if spec.sharded:
        reasons = {
            "no input is split over ranks": not case.shards,
            "DTensor draws other random numbers": request.random,
            "it has regions, for which DTensor has no rules": bool(request.plain),
        }
    if promised is not None:
        dtypes = {name_dtype(value.dtype) for value in _list_given(case)}
        unknown = sorted(dtypes - {*promised.dtypes}) if promised.dtypes is not None else []
        reasons = {
            "active dropout": request.random and not promised.random,
            "writes that the caller sees": bool(case.eager.mutated) and not promised.state,
            f"inputs or parameters of {', '.join(unknown)}": bool(unknown),
            "several calls": case.program.is_sequence and not (promised.state or promised.dynamic),
        }
    return next(((Refusal.UNSUPPORTED, reason) for reason, applies in reasons.items() if applies), None)


def _list_given(case: CaseRun) -> list[Tensor]:
    module = case.program.module(case.request.training)
    given = [] if case.request.live is not None else case.program.inputs()
    return [value for value in (*module.parameters(), *module.buffers(), *given) if isinstance(value, Tensor)]


def keep_promised(run: Execution, eager: Execution, promised: CompilerCapabilities) -> Execution:
    """`run`, with eager's form where the compiler promises none: memory, strides, and how outputs are nested."""
    if not promised.state:
        same = len(run.outputs) == len(eager.outputs)
        run = replace(run, shared={}, structure=eager.structure if same else run.structure)
    if promised.strides:
        return run
    outputs = {name: _lay_out(value, eager.outputs.get(name)) for name, value in run.outputs.items()}
    return replace(run, outputs=outputs)


def _lay_out(value: Tensor, like: Tensor | None) -> Tensor:
    """`value`, with its dimensions in the order of `like` in memory."""
    if like is None or like.shape != value.shape or order_dims(like) == order_dims(value):
        return value
    order = order_dims(like)
    order += [dim for dim in range(value.dim()) if dim not in order]
    back = [order.index(dim) for dim in range(value.dim())]
    return value.permute(order).contiguous().permute(back)
