"""Proofs that a rewrite is wrong on the operands it took, by experiments in float64.

The matched part of the program and its replacement run on the same operands, with fused calls by their definition.

- If they differ, the rewrite is wrong: rounding is negligible in float64.
- If eager computes an operation of the replacement wrongly on the same operands, its kernel is at fault, whether or not
  the rewrite is wrong too. So is scaled_dot_product_attention, if the replacement is right on its MATH backend alone.

To find the cause, one operand at a time is changed. The constants are the cause if the pattern with its own constants
differs from the program for some of these operands. Otherwise the changes under which both agree identify the cause.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from fuzz.check.judge.constants import REWRITE_AGREEMENT, REWRITE_AGREEMENT_ROUNDOFFS, UNIT_ROUNDOFF
from fuzz.check.judge.eager_audit import Audit
from fuzz.check.judge.modes import Float64Mode
from fuzz.check.judge.operations import to_float64
from fuzz.check.judge.row_error_bound import largest_finite
from fuzz.check.prove.fused_calls import find_faulty_call
from fuzz.check.prove.pattern_constants import read_outputs
from fuzz.check.prove.rewrite_match import Float64Interpreter, MatchRecorder, RewriteMatch
from fuzz.check.run.tensor_memory import name_dtype
from fuzz.check.torch_api.coverage import name_operation
from fuzz.check.torch_api.exceptions import SuppressOutOfMemory
from fuzz.experiments import EXPERIMENTS, NUMBERS, OPERAND_ROWS, EqualAlong, OperandValue, Outcome
from fuzz.protocol import SubjectResult
from fuzz.protocol.failures import FaultyOperation, FormDiffers
from fuzz.protocol.rewrites import EMPTY_ROWS, QKV, WrongRewrite

_OF_SCALARS = tuple(OperandValue(number) for number in (1.0, 2.0, -1.0))
_ALMOST = 0.99
_SOFTMAX = ("aten.amax", "aten._softmax")  # the first operation of a softmax, which reads the scores


def try_rewrite(match: RewriteMatch) -> Outcome:
    """The outcome of the experiment `exact`."""
    return compare_exactly(match.run_program, match.run_replacement, match.operands)


class RewriteProof:
    """Proves rewrites that a recorder has seen wrong or right, on the operands they took."""

    def __init__(self, recorder: MatchRecorder) -> None:
        self._recorder = recorder
        self._proven: dict[tuple[bool, bool], tuple[tuple[WrongRewrite, ...], tuple[str, ...]]] = {}

    def __call__(self, judgement: SubjectResult) -> SubjectResult:
        """`judgement` with the rewrites that are proven wrong or right. First are those that call an operation that is
        wrong in eager too.

        If strides differ from eager's, a rewrite that changes strides counts as wrong.
        """
        audits = judgement.verdict.has_wrong_numbers
        is_of_strides = isinstance(judgement.failure, FormDiffers) and judgement.failure.aspect == "strides"
        if (audits, is_of_strides) not in self._proven:
            self._proven[audits, is_of_strides] = self._prove(audits=audits, is_of_strides=is_of_strides)
        wrong, right = self._proven[audits, is_of_strides]
        return replace(judgement, wrong_rewrites=wrong, right_rewrites=right)

    def _prove(self, *, audits: bool, is_of_strides: bool) -> tuple[tuple[WrongRewrite, ...], tuple[str, ...]]:
        wrong, called = list[WrongRewrite](), list[WrongRewrite]()
        right: list[str] = []
        with SuppressOutOfMemory():
            for found in self._recorder.matches():
                match, outcome, faulty = judge_rewrite(found, audits=audits)
                if faulty is not None:
                    called.append(WrongRewrite(match.pattern, faulty=faulty))
                if outcome.fails:
                    wrong.append(find_wrong_rewrite(match))
                elif is_of_strides and match.changes_strides():
                    wrong.append(WrongRewrite(match.pattern, strides=True))
                elif outcome is Outcome.PASSES:
                    right.append(match.pattern)
        return (*called, *wrong), tuple(right)


def judge_rewrite(match: RewriteMatch, *, audits: bool) -> tuple[RewriteMatch, Outcome, FaultyOperation | None]:
    """The match to measure, its outcome of the experiment `exact`, and the operation at fault in eager, if `audits`.

    A replacement differs if its fused call does, so it is traced for the MATH backend as well. If these two differ, the
    call is made in eager. If eager is wrong too, the match with MATH is measured.
    """
    outcome, faulty = try_rewrite(match), find_faulty_operation(match) if audits else None
    on_math = match.on_math() if outcome.fails and audits else None
    if on_math and compare_exactly(on_math.run_replacement, match.run_replacement, match.operands).fails:
        faulty = faulty or find_faulty_call(match)
        if faulty:
            return on_math, try_rewrite(on_math), faulty
    return match, outcome, faulty


def find_faulty_operation(match: RewriteMatch) -> FaultyOperation | None:
    """The first operation of the replacement that eager computes wrongly from the operands, in their own dtypes and
    layouts. The limits are those of `Audit`."""
    audit = Audit()
    try:
        with torch.no_grad(), audit:
            fx.Interpreter(match.replacement).run(*match.operands.values())
    except Exception:  # as in `compare_exactly`
        return None
    return audit.faulty


def find_wrong_rewrite(match: RewriteMatch) -> WrongRewrite:
    """The constants, rows or operands that make a wrong rewrite wrong."""
    changes = _try_changes(match, _change_others(match.operands))
    others = ({**match.operands, name: value} for name, _, value in _change_others(match.operands))
    has_constants = not changes or any(
        compare_exactly(match.run_program, match.run_pattern, operands).fails for operands in (match.operands, *others)
    )
    constants = match.read_constants() if has_constants else ()
    if constants:
        return WrongRewrite(match.pattern, constants=constants)
    changes = changes or _try_changes(match, _change_attended(match.operands))
    return WrongRewrite(
        match.pattern,
        rows=EMPTY_ROWS if _is_wrong_in_empty_rows(match) else "",
        right={name: tuple(c for c in tried if not tried[c].fails) for name, tried in changes.items()},
        wrong={name: tuple(c for c in tried if tried[c].fails) for name, tried in changes.items()},
    )


def _try_changes(match: RewriteMatch, changes: Iterator[tuple[str, str, Any]]) -> dict[str, dict[str, Outcome]]:
    """The outcome of each change that applies, by operand. Keeps operands of which a uniform value makes both agree."""
    tried: dict[str, dict[str, Outcome]] = {}
    for operand, change, value in changes:
        outcome = compare_exactly(match.run_program, match.run_replacement, {**match.operands, operand: value})
        if outcome is not Outcome.DOES_NOT_APPLY:
            tried.setdefault(operand, {})[change] = outcome
    # With one key left the softmax is 1 for any scores, so a mixed mask counts only if a uniform mask agrees too.
    return {
        name: found
        for name, found in tried.items()
        if any(EXPERIMENTS[change].is_uniform and not outcome.fails for change, outcome in found.items())
    }


def _is_wrong_in_empty_rows(match: RewriteMatch) -> bool:
    """Whether program and replacement differ only in rows in which every score is the dtype's lowest number."""
    nodes = match.program.graph.nodes
    scores: Any = next((node.args[0] for node in nodes if name_operation(node.target) in _SOFTMAX), None)
    given = (*(match.operands[name] for name in match.taken), *match.free)
    program = Float64Interpreter(match.program, garbage_collect_values=False)
    try:
        with Float64Mode(), torch.no_grad():
            program.run(*map(to_float64, given))
            after = match.run_replacement({name: to_float64(value) for name, value in match.operands.items()})[0]
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
    """Changes of query, key and value: the operand, the id of the change, the new value."""
    for name in (name for name in QKV if isinstance(operands.get(name), Tensor)):
        value = operands[name]
        yield name, "all 1", torch.ones_like(value)
        for row in OPERAND_ROWS:
            if isinstance(row.change, EqualAlong) and -row.change.axis <= value.dim():
                yield name, row.id, value.narrow(row.change.axis, 0, 1).expand_as(value)
        if name != "value":
            yield name, "all 0", torch.zeros_like(value)


def _change_others(operands: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """The same for all operands except query, key, value and tangents."""
    others = {name: value for name, value in operands.items() if name not in QKV and not name.startswith("tangents")}
    for name, value in others.items():
        for row in OPERAND_ROWS:
            if isinstance(row.change, OperandValue) and (changed := _change_value(value, row.change)) is not None:
                yield name, row.id, changed


def _change_value(value: Any, change: OperandValue) -> Any:
    """The new value of an operand; None if the change does not apply."""
    if not isinstance(value, Tensor):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return type(value)(change.number) if is_number and change in _OF_SCALARS else None
    if not _can_hold(value.dtype, change) or (change.rest is not None and value.numel() <= 1):
        return None
    if change.rest is None:
        return torch.full_like(value, change.number)
    row = max(axis for axis in range(value.dim()) if value.size(axis) > 1)
    made = torch.full_like(value, change.rest, memory_format=torch.contiguous_format)
    return made.index_fill_(row, torch.zeros((), dtype=torch.int64, device=value.device), change.number)


def _can_hold(dtype: torch.dtype, change: OperandValue) -> bool:
    if dtype.is_floating_point:
        return change.dtype in ("", name_dtype(dtype))
    if dtype == torch.bool:
        return change.number in (0.0, 1.0)
    return change.number in NUMBERS and change.number.is_integer() and change.number >= torch.iinfo(dtype).min


def tolerance_of(operands: Iterable[Any]) -> float:
    """The largest relative difference that counts as equal: a program rounds constants to the dtype of its tensors."""
    units = [UNIT_ROUNDOFF.get(value.dtype, 0.0) for value in operands if isinstance(value, Tensor)]
    return max(REWRITE_AGREEMENT, REWRITE_AGREEMENT_ROUNDOFFS * max(units, default=0.0))


def measure_difference(before: Tensor, after: Tensor, scale: float) -> float | None:
    """The largest difference where `before` is finite, relative to its largest element, or to `scale` if that is 0.

    Infinite if the shapes differ or `after` is not finite there; None if `before` is finite nowhere.
    """
    if before.shape != after.shape:
        return torch.inf
    known = before.isfinite()
    if not bool(known.any()):
        return None
    before, after = before.double()[known], after.double()[known]
    error, size = float((before - after).abs().nan_to_num(torch.inf).max()), float(before.abs().max()) or scale
    return error / size if size else torch.inf if error else 0.0


GraphRun = Callable[[dict[str, Any]], list[Tensor]]
"""Runs a graph on operands, by name."""


def compare_exactly(program: GraphRun, rewrite: GraphRun, operands: dict[str, Any]) -> Outcome:
    """Whether both agree wherever `program` is finite.

    The experiment does not apply if `program` is finite nowhere, or either raises.
    """
    exact = {name: to_float64(value) for name, value in operands.items()}
    try:
        with Float64Mode(), torch.no_grad():
            before, after = program(exact), rewrite(exact)
    except Exception:
        # A changed operand that torch refuses shows nothing about the rewrite.
        return Outcome.DOES_NOT_APPLY
    limit = tolerance_of(operands.values())
    scale = max(map(largest_finite, before), default=0.0)
    found = [measure_difference(mine, theirs, scale) for mine, theirs in zip(before, after, strict=True)]
    if any(error is not None and error > limit for error in found):
        return Outcome.FAILS_ALIKE
    return Outcome.DOES_NOT_APPLY if found.count(None) == len(found) else Outcome.PASSES
