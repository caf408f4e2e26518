"""A plainer mode and plainer dtypes."""

from collections.abc import Iterator
from dataclasses import replace

from generators.program.case import Case, Contract
from generators.program.dtypes import FLOATS
from generators.program.edits import valid
from generators.program.type_check import make_op


def plainer_mode(case: Case) -> Iterator[Case]:
    """Static shapes for dynamic ones, no autocast, inference for training."""
    contracts = _without_dropout(case)
    if case.training and case.dynamic:
        yield replace(case, mode="inference", dynamic=False, contracts=contracts)
    if case.dynamic:
        yield replace(case, dynamic=False)
    if case.autocast and (bare := valid(replace(case, autocast=None))) is not None:
        yield bare
    if case.training:
        yield replace(case, mode="inference", contracts=contracts)


def _without_dropout(case: Case) -> tuple[Contract, ...]:
    """The contracts as they are in inference, which turns dropout off unless an operation has it always on."""
    stays = any(op.attr("active") == "always" for op in case.ops)
    return tuple(replace(c, dropout=0.0) for c in case.contracts if not (stays and c.dropout))


def float32(case: Case) -> Iterator[Case]:
    """float32 for every other floating dtype: all at once, then one dtype at a time."""
    used = {i.dtype for i in case.inputs} | {str(op.attr("dtype")) for op in case.ops}
    others = [d for d in FLOATS if d in used and d != "float32"]
    for chosen in ([others] if len(others) > 1 else []) + [[d] for d in others]:
        inputs = tuple(replace(i, dtype="float32") if i.dtype in chosen else i for i in case.inputs)
        ops = tuple(
            make_op(o.name, o.kind, o.args, {**dict(o.attrs), "dtype": "float32"}) if o.attr("dtype") in chosen else o
            for o in case.ops
        )
        smaller = valid(replace(case, inputs=inputs, ops=ops))
        if smaller is not None:
            yield smaller
