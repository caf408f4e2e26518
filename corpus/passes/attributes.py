"""Plainer operations: attributes at their defaults, the simplest of several spellings."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from generators.program.case import Attr, Case, Op
from generators.program.edits import valid, with_op
from generators.program.ops import OPS
from generators.program.type_check import attributes, make_op, types_of


def default_attributes(case: Case) -> Iterator[Case]:
    """One attribute left at its default, or at a simpler word of its list, without the arguments it asked for."""
    for op in case.ops:
        given = dict(op.attrs)
        for name, value in given.items():
            attribute = OPS[op.kind].attributes[name]
            options: list[Attr] = [] if attribute.required else [attribute.default]
            if value in attribute.words:
                options += attribute.words[: attribute.words.index(str(value))]
            for option in options:
                smaller = valid(with_op(case, op, _with_attributes(op, {**given, name: option})))
                if smaller is not None:
                    yield smaller


def _with_attributes(op: Op, attrs: Mapping[str, Attr]) -> Op:
    """The operation with other attributes, and of its arguments those that they ask for."""
    new = make_op(op.name, op.kind, op.args, attrs)
    optional = OPS[op.kind].optional
    if optional is None:
        return new
    least = OPS[op.kind].arity[0]
    before, now = optional(attributes(op)), optional(attributes(new))
    kept = [arg for name, arg in zip(before, op.args[least:], strict=True) if name in now]
    return replace(new, args=(*op.args[:least], *kept))


def plainer_kinds(case: Case) -> Iterator[Case]:
    """One operation respelled as a simpler one that gives the same."""
    types = types_of(case)
    for op in case.ops:
        args, attrs = op.args, attributes(op)
        rank = types[op.name].rank
        options: list[Op] = []
        if op.kind in ("reshape", "flatten", "unflatten"):
            options.append(make_op(op.name, "view", args, {"sizes": types[op.name].shape}))
        if op.kind == "reshape" or (op.kind == "view" and any(str(s) == "-1" for s in _sizes(attrs["sizes"]))):
            options.append(make_op(op.name, op.kind, args, {"sizes": types[op.name].shape}))
        if op.kind == "mT" or (op.kind == "permute" and attrs["dims"] == (*range(rank - 2), rank - 1, rank - 2)):
            options.append(make_op(op.name, "transpose", args, {}))
        if op.kind == "transpose" and {_axis(attrs["dim0"], rank), _axis(attrs["dim1"], rank)} == {rank - 1, rank - 2}:
            options.append(make_op(op.name, "transpose", args, {}))
        if op.kind == "expand_as":
            options.append(make_op(op.name, "expand", args[:1], {"sizes": types[op.name].shape}))
        if op.kind == "type_as":
            options.append(make_op(op.name, "cast", args[:1], {"dtype": types[op.name].dtype}))
        if op.kind in ("unbind", "max"):
            options.append(make_op(op.name, "select" if op.kind == "unbind" else "amax", args, attrs))
        if op.kind in ("bmm", "einsum"):
            options.append(make_op(op.name, "matmul", args, {}))
        if op.kind == "linear" and len(args) == 3:
            options.append(make_op(op.name, "linear", args[:2], {}))
        if op.kind == "div" and isinstance(attrs["other"], int | float):
            options.append(make_op(op.name, "mul", args, attrs))
        if op.kind == "softmax" and attrs["dim"] == rank - 1:
            options.append(make_op(op.name, "softmax", args, {**attrs, "dim": -1}))
        for option in options:
            smaller = valid(with_op(case, op, option))
            if smaller is not None:
                yield smaller


def _sizes(value: Attr) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()


def _axis(value: Attr, rank: int) -> int:
    return value % rank if isinstance(value, int) and rank else -1
