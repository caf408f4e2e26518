"""Whether a rewrite is wrong on the operands it took, proven in float64, and for which operands it would be right.

The matched part of the program and its replacement are evaluated on the same operands, fused calls by their definition.
If they agree, the rewrite is right and a kernel is at fault. If not, the rewrite is wrong whatever rounding does. Then
one operand at a time is changed. If the pattern with its own constants differs from the program on any of these
operands, the constants are the cause. Otherwise the changes under which both agree identify it.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fuzz.check.exact_graph import Exact, agree, name_operation, read_outputs, tolerance_of
from fuzz.check.oracle.operation_audit import to_float64
from fuzz.check.oracle.reference import Float64
from fuzz.check.rewrite_match import RewriteMatch
from fuzz.protocol.rewrites import ATTENDED, EMPTY_ROWS, WrongRewrite

_NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5)
_HIDING = (-1e4, -math.inf)
_ALMOST = 0.99


def is_right_rewrite(match: RewriteMatch) -> bool | None:
    """Whether a rewrite is right in exact arithmetic; None if that can't be decided."""
    return agree(match.run_program, match.run_replacement, match.operands)


def find_wrong_rewrite(match: RewriteMatch) -> WrongRewrite:
    """What makes a wrong rewrite wrong."""
    changes = _try_changes(match, _change_others(match.operands))
    others = ({**match.operands, name: value} for name, _, value in _change_others(match.operands))
    has_constants = not changes or any(
        agree(match.run_program, match.run_pattern, operands) is False for operands in (match.operands, *others)
    )
    constants = match.read_constants() if has_constants else ()
    if constants:
        return WrongRewrite(match.pattern, constants=constants)
    changes = changes or _try_changes(match, _change_attended(match.operands))
    return WrongRewrite(
        match.pattern,
        rows=EMPTY_ROWS if _is_wrong_in_empty_rows(match) else "",
        right={name: tuple(c for c in tried if tried[c]) for name, tried in changes.items()},
        wrong={name: tuple(c for c in tried if not tried[c]) for name, tried in changes.items()},
    )


def _try_changes(match: RewriteMatch, changes: Iterator[tuple[str, str, Any]]) -> dict[str, dict[str, bool]]:
    """Whether both agree under each change, by operand. Only operands that, changed throughout, make them agree."""
    tried: dict[str, dict[str, bool]] = {}
    for operand, change, value in changes:
        agrees = agree(match.run_program, match.run_replacement, {**match.operands, operand: value})
        if agrees is not None:
            tried.setdefault(operand, {})[change] = agrees
    # A mask that leaves one key makes any scores right, so such a change alone is no evidence.
    return {name: found for name, found in tried.items() if any(found[c] for c in found if c.startswith("all"))}


def _is_wrong_in_empty_rows(match: RewriteMatch) -> bool:
    """Whether program and replacement differ in no other rows than those whose scores are all the smallest number."""
    nodes = match.program.graph.nodes
    scores: Any = next((node.args[0] for node in nodes if name_operation(node) in ("aten.amax", "aten._softmax")), None)
    given = (*(match.operands[name] for name in match.taken), *match.free)
    program = Exact(match.program, garbage_collect_values=False)
    try:
        with Float64(), torch.no_grad():
            program.run(*map(to_float64, given))
            after = match.run_replacement({name: to_float64(value) for name, value in match.operands.items()}, Exact)[0]
        before, seen = program.env[read_outputs(match.program)[0]], program.env[scores]
    except (AttributeError, KeyError, RuntimeError, TypeError):  # no softmax, or a rewrite that does not run
        return False
    if before.shape != after.shape or before.shape[:-1] != seen.shape[:-1]:
        return False
    size = before.abs().max()
    wrong = ~((before - after).abs() <= tolerance_of(match.operands.values()) * size).all(-1)
    empty = (seen <= torch.finfo(match.operands["query"].dtype).min * _ALMOST).all(-1)
    return bool(wrong.any()) and not bool((wrong & ~empty).any())


def _change_attended(operands: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Changes of query, key and value: the operand, the name of the change, the new value."""
    for name in (name for name in ATTENDED if isinstance(operands.get(name), Tensor)):
        value = operands[name]
        yield name, "all 1", torch.ones_like(value)
        for axis in range(-value.dim(), 0):
            yield name, f"all equal along {axis}", value.narrow(axis, 0, 1).expand_as(value)
        if name != "value":
            yield name, "all 0", torch.zeros_like(value)


def _change_others(operands: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """The same for all other operands but tangents."""
    for name, value in operands.items():
        if name in ATTENDED or name.startswith("tangents"):
            continue
        if not isinstance(value, Tensor):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield from ((name, f"all {number:g}", type(value)(number)) for number in (1, 2, -1))
            continue
        numbers, hidden = _list_values(value)
        for number in numbers:  # without the lowest ones, which would hide all scores
            yield name, f"all {number:g}", torch.full_like(value, number)
        if value.numel() > 1:
            for number in (*numbers, *hidden):
                for rest in (0.0, 1.0):
                    if number != rest:
                        yield name, f"one {number:g} in {rest:g}", _make_one(value, number, rest)


def _list_values(value: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if value.dtype == torch.bool:
        return (0.0, 1.0), ()
    if value.is_floating_point():
        return _NUMBERS, (*_HIDING, torch.finfo(value.dtype).min)
    least = torch.iinfo(value.dtype).min
    return tuple(number for number in _NUMBERS if number.is_integer() and number >= least), ()


def _make_one(like: Tensor, number: float, rest: float) -> Tensor:
    row = max(axis for axis in range(like.dim()) if like.size(axis) > 1)
    made = torch.full_like(like, rest, memory_format=torch.contiguous_format)
    return made.index_fill_(row, torch.zeros((), dtype=torch.int64, device=like.device), number)
