"""Refuses indices out of range, boundaries that are not sorted and rows in no group, before eager runs the case."""

import math
from collections.abc import Mapping

from generators.errors import require_of
from generators.program.case import Case, Op, TensorType
from generators.program.ops import VIEWS, complete_attributes
from generators.program.sizes import Size, product
from generators.program.values import DISTRIBUTIONS, category
from generators.reasons import Reason

_ALONG = "scatter scatter_ scatter_add scatter_add_ scatter_reduce gather index_select index_copy_ index_add_ index_add"
_INDEXED: dict[str, tuple[int | None, slice]] = dict.fromkeys(_ALONG.split(), (0, slice(1, 2)))
_INDEXED |= {"one_hot": (None, slice(0, 1))}
_INDEXED |= {"embedding": (1, slice(0, 1)), "index": (0, slice(1, None)), "index_put_": (0, slice(1, -1))}
"""By operation: the argument with the indexed axes, or None for the last axis of the result, and the arguments with the
indices of consecutive axes."""
_PLACES = {"topk": "indices", "sort": "indices", "argsort": "", "argmax": "", "argmin": ""}
"""Operations whose results, or this part of them, are places along the axis `dim`."""


_WRITTEN: dict[str, slice] = {"scatter": slice(1, 2), "scatter_": slice(1, 2), "index_copy_": slice(1, 2)}
_WRITTEN |= {"index_put_": slice(1, -1)}
"""Operations of which torch does not define the result if two writes go into one place, and their indices."""


def find_undefined_writes(case: Case, types: Mapping[str, TensorType]) -> list[str]:
    """The operations that may write different numbers into one place, whose result torch does not define."""
    found = []
    for op in case.ops:
        attrs = complete_attributes(op)
        is_defined = attrs.get("accumulate") or (op.kind.startswith("scatter") and len(op.args) == 2)
        if op.kind not in _WRITTEN or is_defined:
            continue
        indices = op.args[_WRITTEN[op.kind]]
        if not all(product(types[name].shape).value(case.sizes) <= 1 for name in indices):
            axis = attrs.get("dim", -1) if op.kind.startswith("scatter") else 0
            if len(indices) > 1 or not _has_distinct_places(case, types, indices[0], axis):
                found.append(op.name)
    return found


def _has_distinct_places(case: Case, types: Mapping[str, TensorType], name: str, axis: int) -> bool:
    """Whether no two indices along an axis are equal. False if it is not known."""
    rank = types[name].rank
    is_last = (axis - rank + 1) % rank == 0
    if types[name].sizes(case.sizes)[axis] <= 1:
        return True
    given = next((item for item in case.inputs if item.name == name), None)
    if given is not None:
        numbers = given.values.given.numbers if given.values.given is not None else ()
        if numbers:
            return len(set(numbers)) == len(numbers)
        return is_last and given.values.kind in ("permutation", "positions", "offset_positions")
    maker = case.makers[name]
    attrs = complete_attributes(maker)
    if maker.kind == "arange":
        return bool(attrs["step"])
    if maker.kind in ("sort", "argsort", "topk") and attrs.get("part", "") == _PLACES[maker.kind]:
        return int(attrs["dim"] - axis) % rank == 0
    return maker.kind in ("clone", "contiguous") and _has_distinct_places(case, types, maker.args[0], axis)


def check_indices(case: Case, types: Mapping[str, TensorType]) -> None:
    """Raises CaseError for what the types do not tell."""
    stops, rising = _find_stops(case, types), set[str]()
    for op in case.ops:
        attrs = complete_attributes(op)
        if (op.kind == "arange" and attrs["step"] > 0) or (op.kind == "linspace" and attrs["start"] <= attrs["stop"]):
            rising.add(op.name)
        if op.kind == "bucketize":
            require_of(op.name, op.args[1] in rising, "the boundaries are no rising range", Reason.UNSORTED)
        elif op.kind == "grouped_mm":
            fits = _counts_all(case, types, stops, op)
            require_of(
                op.name, fits, "the ends are no running sum of a histogram that counts all rows", Reason.UNGROUPED
            )
        if op.kind in _INDEXED:
            indexed, indices = _INDEXED[op.kind]
            sizes = types[op.name if indexed is None else op.args[indexed]].sizes(case.sizes)
            first = -1 if indexed is None else attrs.get("dim", 0)
            for axis, name in enumerate(op.args[indices], first % len(sizes)):
                fits = stops.get(name, 0) <= sizes[axis]
                require_of(op.name, fits, f"the indices {name!r} reach beyond an axis of {sizes[axis]}", Reason.INDEX)


def _find_stops(case: Case, types: Mapping[str, TensorType]) -> dict[str, int]:
    """The indices that inputs and ranges stay below, by name."""
    stops: dict[str, int] = {}
    for op in case.ops:
        attrs = complete_attributes(op)
        if op.kind == "arange" and isinstance(attrs["start"], Size):
            first, (length,) = attrs["start"].value(case.sizes), types[op.name].sizes(case.sizes)
            stops[op.name] = 1 + int(max(first, first + (length - 1) * attrs["step"]))
    for item in case.inputs:
        if item.values.given is not None and item.values.given.numbers:
            stops[item.name] = 1 + max(item.values.given.numbers)
            continue
        stop, values = DISTRIBUTIONS[item.values.kind].stop, item.values
        if stop is not None:
            stops[item.name] = stop(int(values.scale), int(values.param), (1, *item.type.sizes(case.sizes))[-1])
        elif values.kind in ("constant", "between") and category(item.dtype) == 1:
            stops[item.name] = int(values.scale) + (values.kind == "constant")
    return stops


def _counts_all(case: Case, types: Mapping[str, TensorType], stops: Mapping[str, int], op: Op) -> bool:
    """Whether the ends of groups are counts of as many numbers as there are rows, none of them outside of the bins."""
    total = case.makers.get(op.args[2])
    counts = case.makers.get(total.args[0]) if total is not None and total.kind == "cumsum" else None
    if counts is None or counts.kind != "histc":
        return False

    def find_stop(name: str) -> float:
        """The number that all numbers of a value are below, from 0 on."""
        maker = case.makers.get(name)
        if maker is None or name in stops:
            return stops.get(name, math.inf)
        attrs = complete_attributes(maker)
        part = attrs.get("part", "")
        if maker.kind in _PLACES and part == _PLACES[maker.kind] and attrs.get("axes") is None:
            return types[maker.args[0]].sizes(case.sizes)[int(attrs["dim"])]
        is_moved = maker.kind in VIEWS or maker.kind in ("cast", "index") or (maker.kind, part) == ("sort", "values")
        moved = maker.args[:1] if is_moved else maker.args if maker.kind in ("cat", "stack") else ()
        return max(map(find_stop, moved), default=math.inf)

    bins, counted = complete_attributes(counts), types[counts.args[0]].sizes(case.sizes)
    fits = (bins["min"], bins["max"]) == (0, bins["bins"] - 1) and find_stop(counts.args[0]) <= bins["bins"]
    return fits and counted == types[op.args[0]].sizes(case.sizes)[:1]
