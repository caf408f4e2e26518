"""The unusual traits of a case, as words, which `fuzz.bug_identity.Symptom` compares."""

from collections.abc import Iterator

from generators.program.calls import list_differences
from generators.program.case import Case, Input, Op, TensorType
from generators.program.ops import VIEWS
from generators.program.ops.rules import permutation
from generators.program.type_check import attributes, types_of
from generators.program.values import INDICES, LARGE, LOW_PRECISION
from generators.program.writes import list_targets

_SAME_OPERATION = {"log_softmax": "softmax", "type_as": "cast", "sub": "add"}
_SAME_OPERATION |= dict.fromkeys(("bmm", "matmul", "einsum"), "product")
_SAME_OPERATION |= dict.fromkeys(("full", "scalar", "zeros", "ones"), "constant")
_EMPTY_ROWS = frozenset({"empty_row", "empty_row_mask", "zeros"})
_COUNTS = frozenset({"small_counts", "signed"})
_HIDING = -100.0
"""A score of this value or less hides its key."""

_USUAL_AXES = {4: ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1)), 3: ((0, 1, 2), (0, 2, 1), (1, 0, 2))}
"""By rank, the permutations that attention uses: heads split and merged, and k transposed."""


CALL_STATES = {"layout:overlapping", "inputs:constant", "values:large", "mode:inference_mode", "mode:training_on_sum"}
"""The words for states of a call that its sizes and options do not show."""


def features(case: Case) -> frozenset[str]:
    """The words for a case, among them `mode:training`, `op:where`, `mask:integer`, `values:counts`.

    Views, copies and other spellings of the same operation have no word, since rewrites see through them. Traits that a
    rewrite may overlook have a word:

        softmax_axis       the softmax is not over the last axis
        values:large       numbers of an input exceed 100
        layout:overlapping elements of an input or of a view share memory
        axes:unusual       a permutation of axes that no attention uses
        fill:unusual       a fill hides nothing
        compared:unusual   a mask is compared with a number other than 0
        autocast:around    an autocast around a call
        calls              later calls; calls:WORD for their differences
        writes:TARGET      a write into an argument, a buffer or a result
        memory:shared      arguments that share memory
        setting:NAME       a setting
        region:KIND        a run of operations in a function of its own; region:KIND:OPTION too if it has an option
    """
    types = types_of(case)
    traits = {
        "mode:training": case.training,
        f"mode:{case.mode}": case.mode != "inference",
        "dynamic": case.dynamic,
        "autocast": case.autocast,
        "autocast:around": case.has_around,
        "checkpoint": case.checkpoint,
        "calls": case.calls,
        "dtype:low": any(i.dtype in LOW_PRECISION for i in case.inputs),
        "memory:shared": any(i.part for i in case.inputs),
        "returns:more": len(case.returns) > 1,
        "returns:twice": len({*case.returns}) < len(case.returns),
    }
    words = {word for word, holds in traits.items() if holds}
    words.update(f"setting:{name}" for name, _ in case.settings)
    words.update(f"calls:{word}" for word in list_differences(case))
    words.update(f"region:{region.kind}" for region in case.regions)
    words.update(f"region:{region.kind}:{region.option}" for region in case.regions if region.option)
    words.update(f"region:{region.kind}:carries" for region in case.regions if region.carries)
    words.update(f"writes:{target}" for target in list_targets(case))
    for item in case.inputs:
        words.update(_of_input(item))
    for op in case.ops:
        words.update(_of_op(op, types))
    words.update(_fills(case))
    return frozenset(words)


def _of_input(item: Input) -> Iterator[str]:
    kind = item.values.kind
    if kind in INDICES:
        return
    if item.dtype == "bool" or "int" in item.dtype:
        yield f"mask:{'bool' if item.dtype == 'bool' else 'integer'}"
    if kind in _EMPTY_ROWS or "empty_rows" in kind:
        yield "values:empty_row"
    elif kind in _COUNTS:
        yield "values:counts"
    elif kind in ("constant", "outliers", "one_row"):
        yield f"values:{kind}"
    if item.layout != "contiguous":
        yield "layout:overlapping" if item.layout == "expanded" else "layout:strided"
    if item.values.scale >= LARGE:
        yield "values:large"
    if not item.requires_grad:
        yield "inputs:constant"


def _of_op(op: Op, types: dict[str, TensorType]) -> Iterator[str]:
    attrs = attributes(op)
    if op.kind in ("permute", "transpose"):
        rank = types[op.args[0]].rank
        if rank in _USUAL_AXES and tuple(permutation(attrs, rank)) not in _USUAL_AXES[rank]:
            yield "axes:unusual"
    if op.kind == "unfold":
        yield "layout:overlapping"
    if op.kind in VIEWS:
        return
    yield f"op:{_SAME_OPERATION.get(op.kind, op.kind)}"
    if op.kind in ("eq", "ne") and attrs["other"] not in (None, 0):
        yield "compared:unusual"
    if op.kind in ("softmax", "log_softmax"):
        axis, rank = attrs["dim"], types[op.args[0]].rank
        if axis not in (-1, rank - 1):
            yield "softmax_axis"
    if op.kind in ("mul", "div", "add", "sub"):
        other = attrs["other"]
        if isinstance(other, int | float) and other < 0:
            yield "number:negative"
        if len(op.args) == 2 and types[op.args[0]].rank != types[op.args[1]].rank:
            yield f"{op.kind}:ranks_differ"
        if len(op.args) == 2 and types[op.args[0]].dtype != types[op.args[1]].dtype:
            yield f"{op.kind}:dtypes_differ"


def _fills(case: Case) -> Iterator[str]:
    """`fill:unusual` if the filled scores are not hidden."""
    made = {"ones": 1.0, "zeros": 0.0}
    constants = {
        op.name: made.get(op.kind, dict(attributes(op)).get("value"))
        for op in case.ops
        if op.kind in ("full", "scalar", *made)
    }
    for op in case.ops:
        filled = []
        if op.kind == "masked_fill":
            filled = [attributes(op)["value"]]
        elif op.kind == "where":
            filled = [attributes(op)["other"], *(constants[arg] for arg in op.args[1:] if arg in constants)]
        if any(isinstance(value, int | float) and value > _HIDING for value in filled):
            yield "fill:unusual"
