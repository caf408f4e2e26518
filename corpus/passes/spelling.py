"""The same program with simpler attributes, operations, mode, dtypes, numbers and names."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from generators.program.attention_options import Contract
from generators.program.case import Attr, Case, Op
from generators.program.dtypes import FLOATS
from generators.program.edits import change_dtype, replace_input, replace_op
from generators.program.later_calls import rename_in_calls
from generators.program.ops import OPS
from generators.program.roles import plain_names
from generators.program.type_check import attributes, make_op, types_of


def drop_settings(case: Case) -> Iterator[Case]:
    """No setting, each alone, then all but each."""
    yield replace(case, settings=())
    yield from (replace(case, settings=(item,)) for item in case.settings)
    yield from (
        replace(case, settings=tuple(other for other in case.settings if other != item)) for item in case.settings
    )


def drop_attributes(case: Case) -> Iterator[Case]:
    """An attribute at its default or at a simpler word, without the arguments that its value asked for."""
    for op in case.ops:
        given = dict(op.attrs)
        for name, value in given.items():
            attribute = OPS[op.kind].attributes[name]
            options: list[Attr] = [] if attribute.required else [attribute.default]
            if value in attribute.words:
                options += attribute.words[: attribute.words.index(str(value))]
            for option in options:
                yield replace_op(case, op, _with_attributes(op, {**given, name: option}))


def _with_attributes(op: Op, attrs: Mapping[str, Attr]) -> Op:
    """The operation with other attributes, and with the arguments that these ask for."""
    new = make_op(op.name, op.kind, op.args, attrs)
    optional = OPS[op.kind].optional
    if optional is None:
        return new
    least = OPS[op.kind].arity[0]
    before, now = optional(attributes(op)), optional(attributes(new))
    kept = [arg for name, arg in zip(before, op.args[least:], strict=True) if name in now]
    return replace(new, args=(*op.args[:least], *kept))


def respell_operations(case: Case) -> Iterator[Case]:
    """A simpler operation: matmul for a product, view for a change of shape, transpose for an exchange of the last two
    axes, a linear layer without bias."""
    types = types_of(case)
    for op in case.ops:
        rank = types[op.name].rank
        if op.kind in ("bmm", "einsum"):
            yield replace_op(case, op, make_op(op.name, "matmul", op.args, {}))
        if op.kind == "reshape":
            yield replace_op(case, op, make_op(op.name, "view", op.args, {"sizes": types[op.name].shape}))
        if op.kind == "mT" or op.attr("dims") == (*range(rank - 2), rank - 1, rank - 2):
            yield replace_op(case, op, make_op(op.name, "transpose", op.args, {}))
        if op.kind == "linear" and len(op.args) == 3:
            yield replace_op(case, op, make_op(op.name, "linear", op.args[:2], {}))


def simplify_mode(case: Case) -> Iterator[Case]:
    """Static shapes, no autocast, inference."""
    contracts = _without_dropout(case)
    if case.training and case.dynamic:
        yield replace(case, mode="inference", dynamic=False, contracts=contracts)
    if case.dynamic:
        yield replace(case, dynamic=False)
    if case.autocast:
        yield replace(case, autocast=None)
    if case.training:
        yield replace(case, mode="inference", contracts=contracts)


def _without_dropout(case: Case) -> tuple[Contract, ...]:
    """The contracts in inference, which turns dropout off unless an operation has it always on."""
    stays = any(op.attr("active") == "always" for op in case.ops)
    return tuple(replace(c, dropout=0.0) for c in case.contracts if not (stays and c.dropout))


def use_float32(case: Case) -> Iterator[Case]:
    """float32 for the other floating dtypes: for all of them, then for each."""
    used = {i.dtype for i in case.inputs} | {str(op.attr("dtype")) for op in case.ops}
    others = [d for d in FLOATS if d in used and d != "float32"]
    for chosen in ([others] if len(others) > 1 else []) + [[d] for d in others]:
        yield change_dtype(case, chosen, "float32")


def round_numbers(case: Case) -> Iterator[Case]:
    """A shorter number in an attribute or as the scale of an input."""
    for op in case.ops:
        given = dict(op.attrs)
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            for plain in _plainer(value):
                yield replace_op(case, op, make_op(op.name, op.kind, op.args, {**given, name: plain}))
    for item in case.inputs:
        for plain in _plainer(item.values.scale):
            yield replace_input(case, item, replace(item, values=replace(item.values, scale=float(plain))))


def _plainer(value: float) -> Iterator[float]:
    if not math.isfinite(value):
        return
    options: list[float] = [1.0, 2.0, 0.5, -1.0, float(round(value)), round(value, 1), float(f"{value:.1g}")]
    if isinstance(value, int):
        options = [1, 2, -1]
    yield from dict.fromkeys(o for o in options if o != value)


def rename_values(case: Case) -> Iterator[Case]:
    """The plain name for every value."""
    names = plain_names(case)
    yield replace(
        rename_in_calls(case, names),
        inputs=tuple(replace(i, name=names[i.name]) for i in case.inputs),
        ops=tuple(replace(o, name=names[o.name], args=tuple(names[a] for a in o.args)) for o in case.ops),
        returns=tuple(names[r] for r in case.returns),
        contracts=tuple(c.rename(names) for c in case.contracts),
    )
