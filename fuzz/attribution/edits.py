"""Edits of a case, by the rows of `EXPERIMENTS` that they belong to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

from fuzz.experiments import EXPERIMENTS, Edit, Trial
from generators.program.calls import keep_sharing
from generators.program.case import Attr, Case, Op
from generators.program.changes import without_changes
from generators.program.edits import (
    change_dtype,
    compute_before,
    make_constant,
    make_contiguous,
    make_name,
    map_attributes,
    map_inputs,
    prune_if_valid,
    redirect_reads,
    skip_op,
)
from generators.program.ops import OPS, PROBABILITIES, make_op
from generators.program.regions import call_directly, separate_functions
from generators.program.sizes import Size
from generators.program.type_check import attributes, types_of
from generators.program.values import FLOATS, LOW_PRECISION
from generators.program.writes import is_in_place, is_written

CALLED_DIRECTLY, UNCHANGED, WRITTEN_APART, OTHER_WRITE = "called_directly", "unchanged", "written_apart", "other_write"
UNSHARED, RETURNED_APART, TOUCHING, UNEXPANDED = "unshared", "returned_apart", "touching", "unexpanded"
CALLS_APART, CAST_OVER_BACKWARD = "calls_apart", "cast_over_backward"
FUNCTIONS_APART = "functions_apart"
DROPOUT = "dropout"
OVERLAPPING = ("unfold", "expand", "expand_as", "as_strided")
"""Operations whose results may overlap in memory."""
_WRITE = "masked_fill_"


def edit(trial: Trial, case: Case) -> Case | None:
    """The case with that change; None if nothing changes or the case becomes invalid."""
    make, change = EDITS.get(trial.experiment), EXPERIMENTS[trial.experiment].change
    edited = make(case, trial.argument) if make else None
    made = None if edited is None else prune_if_valid(edited)
    # An edit that keeps the fault may change nothing.
    is_any = isinstance(change, Edit) and change.keeps_fault
    return made if is_any or made is None or made.canonical() != case.canonical() else None


def list_low_precision(case: Case) -> list[str]:
    """The low-precision dtypes of the case's values."""
    return sorted({value.dtype for value in types_of(case).values()} & set(LOW_PRECISION))


def _with_positive_scale(case: Case) -> Case:
    def change(name: str, value: Attr) -> Attr:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        positive = abs(value) or (1.0 if name == "scale" else value) if is_number else value  # type: ignore[arg-type]
        return positive if name in ("scale", "other") else value

    contracts = tuple(replace(contract, scale=abs(contract.scale) or 1.0) for contract in case.contracts)
    return replace(map_attributes(case, change), contracts=contracts)


def _with_contiguous_operands(case: Case, kind: str) -> Case:
    """Inserts contiguous copies of what operations of a kind read; without one, of query, key and value, and of values
    that overlap in memory."""
    if kind:
        return _read_copies(case, lambda op: op.args if op.kind == kind else ())
    wanted = {name for contract in case.contracts for name in (contract.q, contract.k, contract.v)}
    # Copies elsewhere would keep attention patterns from matching.
    wanted |= {arg for op in case.ops if op.kind == "sdpa" for arg in op.args[:3]}
    return make_contiguous(_copy_results(case, lambda op: op.name in wanted or op.kind in OVERLAPPING))


def _in_one_dtype(case: Case) -> Case:
    low = list_low_precision(case)
    return map_inputs(case, lambda item: replace(item, dtype=low[0]) if low and item.dtype in FLOATS else item)


def _without_dropout(case: Case) -> Case:
    def change(name: str, value: Attr) -> Attr:
        return 0.0 if name in PROBABILITIES and isinstance(value, float) else value

    return map_attributes(case, change)


def _drop(case: Case, kind: str) -> Case:
    """The case without dropout, or without operations of a kind that give what has the type of their first argument."""
    if kind == DROPOUT:
        return _without_dropout(case)
    types = types_of(case)
    dropped = [op for op in case.ops if op.kind == kind and op.args and types[op.name] == types[op.args[0]]]
    return reduce(skip_op, reversed(dropped), case)


def _read_copies(case: Case, choose: Callable[[Op], Sequence[str]]) -> Case:
    """The case in which each operation reads contiguous copies of the arguments that `choose` gives for it."""
    ops: list[Op] = []
    for op in case.ops:
        copies = dict[str, str]()
        for argument in choose(op):
            copies[argument] = make_name(case, f"{op.name[:24]}_{argument[:24]}", (one.name for one in ops))
            ops.append(make_op(copies[argument], "clone", [argument], {"memory_format": "contiguous"}))
        ops.append(redirect_reads(op, copies))
    return replace(case, ops=tuple(ops))


def _write_otherwise(case: Case) -> Case | None:
    """The case with writes by masked_fill_, whose form out of place has strides of its own; None without writes."""
    if not is_written(case):
        return None
    ops: list[Op] = []
    for op in case.ops:
        if OPS[op.kind].writes and op.kind != _WRITE:
            mask = make_name(case, f"{op.name[:24]}_mask", (one.name for one in ops))
            ops.append(make_op(mask, "eq", op.args[:1], {"other": 0}))
            op = make_op(op.name, _WRITE, (op.args[0], mask), {})  # noqa: PLW2901 - the write in its place
        ops.append(op)
    return replace(case, ops=tuple(ops))


def _write_copies(case: Case) -> Case:
    """The case that writes into copies, and returns a copy where it returned the target of a write."""
    writes = [op for op in case.ops if OPS[op.kind].writes and not is_in_place(op)]
    last = {op.args[0]: op.name for op in writes}
    apart = _read_copies(case, lambda op: op.args[:1] if op in writes else ())
    return replace(apart, returns=tuple(last.get(name, name) for name in case.returns))


def _return_copies(case: Case) -> Case:
    """The case that returns new tensors: negated, since Inductor may return a view for a clone of it."""
    copies, types = {name: make_name(case, f"{name[:24]}_copy") for name in case.returns}, types_of(case)
    kinds = {name: "clone" if types[name].dtype == "bool" else "neg" for name in copies}
    ops = (make_op(copy, kinds[name], (name,), {}) for name, copy in copies.items())
    return replace(case, ops=(*case.ops, *ops), returns=tuple(copies.values()))


def _unshare(case: Case) -> Case:
    return keep_sharing(map_inputs(case, lambda item: replace(item, part=None)))


def _let_windows_touch(case: Case) -> Case:
    """The case whose windows (`unfold`) follow each other without a gap, and fill a slice of their source."""
    types, ops = types_of(case), list[Op]()
    for op in case.ops:
        if op.kind == "unfold":
            source, attrs = op.args[0], attributes(op)
            assert isinstance(attrs["dim"], int)
            axis = attrs["dim"] % len(types[source].shape)
            count, size = (types[op.name].sizes(case.sizes)[at] for at in (axis, -1))
            part = make_name(case, f"{op.name[:24]}_part", (one.name for one in ops))
            ops.append(make_op(part, "narrow", (source,), {"dim": axis, "stop": Size.of(count * size)}))
            op = make_op(op.name, op.kind, (part,), {**attrs, "step": size})  # noqa: PLW2901 - in its place
        ops.append(op)
    return replace(case, ops=tuple(ops))


def _copy_results(case: Case, is_copied: Callable[[Op], bool]) -> Case:
    """The case with contiguous copies in the place of these operations' results."""
    ops = list[Op]()
    for op in case.ops:
        name = make_name(case, f"{op.name[:24]}_strided", (one.name for one in ops)) if is_copied(op) else op.name
        ops.append(replace(op, name=name))
        if name != op.name:
            ops.append(make_op(op.name, "clone", (name,), {"memory_format": "contiguous"}))
    return replace(case, ops=tuple(ops))


def _give_offsets(case: Case) -> Case:
    return map_attributes(case, lambda name, value: 0 if (name, value) == ("offset", None) else value)


EDITS: dict[str, Callable[[Case, str], Case | None]] = {
    "positive_scale": lambda case, _: _with_positive_scale(case),
    "contiguous": _with_contiguous_operands,
    "one_dtype": lambda case, _: _in_one_dtype(case),
    "float32": lambda case, _: change_dtype(case, LOW_PRECISION, "float32"),
    "wide_integers": lambda case, _: change_dtype(case, ("int8", "uint8"), "int64"),
    "offset_given": lambda case, _: _give_offsets(case),
    "default": lambda case, name: replace(case, settings=tuple(one for one in case.settings if one[0] != name)),
    CALLED_DIRECTLY: call_directly,
    FUNCTIONS_APART: lambda case, _: separate_functions(case),
    UNCHANGED: without_changes,
    CAST_OVER_BACKWARD: lambda case, _: replace(case, around_backward=True) if case.is_cast_forward else None,
    WRITTEN_APART: lambda case, _: _write_copies(case),
    "computed_before": compute_before,
    "constant": make_constant,
    "dropped": _drop,
    OTHER_WRITE: lambda case, _: _write_otherwise(case),
    UNSHARED: lambda case, _: _unshare(case),
    RETURNED_APART: lambda case, _: _return_copies(case),
    TOUCHING: lambda case, _: _let_windows_touch(case),
    UNEXPANDED: lambda case, _: _copy_results(case, lambda op: op.kind in ("expand", "expand_as")),
}
"""By the id of an experiment: the case edited for an argument; None if there is nothing to edit."""
