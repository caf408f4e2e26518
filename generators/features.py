"""What is unusual about a case, in a few words: two failures are taken for the same bug when these words agree."""

from collections.abc import Iterator, Mapping
from typing import Any

from generators.case import Case, Input, Op, TensorType
from generators.dtypes import LOW_PRECISION
from generators.program import attributes, types_of

_VIEWS = frozenset({
    "view", "reshape", "permute", "transpose", "mT", "unsqueeze", "squeeze", "unflatten", "flatten", "expand",
    "expand_as", "chunk", "unbind", "select", "contiguous", "clone", "to_own_dtype", "narrow", "detach", "unfold",
})
_ONE_NAME = {
    "bmm": "product", "matmul": "product", "einsum": "product", "log_softmax": "softmax", "type_as": "cast",
    "unbind": "select", "max": "amax", "full": "constant", "scalar": "constant", "zeros": "constant",
    "ones": "constant", "sub": "add", "repeat": "repeat_interleave",
    "stack": "cat", "index": "embedding",
}
_EMPTY_ROWS = frozenset({"empty_row", "empty_row_mask", "zeros"})
_COUNTS = frozenset({"small_counts", "signed"})


_USUAL_AXES = {4: ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1)), 3: ((0, 1, 2), (0, 2, 1), (1, 0, 2))}
"""By rank, how attention turns its tensors: heads apart and together again, and the key."""


def features(case: Case) -> frozenset[str]:
    """The words for a case, among them `mode:training`, `op:where`, `softmax_axis`, `mask:int64`, `values:counts`.

    Views, copies and the many spellings of one operation are no feature: rewrites see through them. Axes that are turned as
    no attention turns them are one (`axes:unusual`).
    """
    types = types_of(case)
    words = {"mode:training"} if case.training else set()
    if case.dynamic:
        words.add("dynamic")
    if case.autocast:
        words.add("autocast")
    if any(i.dtype in LOW_PRECISION for i in case.inputs):
        words.add("dtype:low")
    if len(case.returns) > 1:
        words.add("returns:more")
    for item in case.inputs:
        words.update(_of_input(item))
    for op in case.ops:
        words.update(_of_op(op, types))
    return frozenset(words)


def _of_input(item: Input) -> Iterator[str]:
    kind = item.values.kind
    if kind == "tokens":
        return
    if item.dtype == "bool" or "int" in item.dtype:
        yield f"mask:{'bool' if item.dtype == 'bool' else 'integer'}"
    if kind in _EMPTY_ROWS:
        yield "values:empty_row"
    elif kind in _COUNTS:
        yield "values:counts"
    elif kind in ("constant", "outliers", "one_row"):
        yield f"values:{kind}"
    if item.layout != "contiguous":
        yield "layout:strided"


def _of_op(op: Op, types: dict[str, TensorType]) -> Iterator[str]:
    attrs = attributes(op)
    if op.kind in ("permute", "transpose") and _turned(attrs, types[op.args[0]].rank):
        yield "axes:unusual"
    if op.kind in _VIEWS:
        return
    yield f"op:{_ONE_NAME.get(op.kind, op.kind)}"
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


def _turned(attrs: Mapping[str, Any], rank: int) -> bool:
    """Whether axes are turned in an unusual way."""
    if "dims" in attrs:
        axes = [axis % rank for axis in attrs["dims"]]
    else:
        axes = list(range(rank))
        one, other = attrs["dim0"] % rank, attrs["dim1"] % rank
        axes[one], axes[other] = axes[other], axes[one]
    return rank in _USUAL_AXES and tuple(axes) not in _USUAL_AXES[rank]
