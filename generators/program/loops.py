"""Loops over rows, whose steps may hand values to the next step: their rules, and what a value needs through them."""

from collections.abc import Callable, Container, Mapping, Sequence

from generators.errors import require
from generators.program.case import Case, Region, TensorType
from generators.program.sizes import Size
from generators.reasons import Reason

InferRows = Callable[[Mapping[str, int]], Mapping[str, TensorType]]
"""The types of all values at these sizes, those within the loop inferred anew."""


def find_carried(case: Case, needed: Container[str]) -> set[str]:
    """The values that steps hand on to needed operations, and the starts of those whose last value is needed."""
    found = set[str]()
    for region in case.regions:
        ops = (op for op in case.ops if op.name in region.ops and op.name in needed)
        read = {arg for op in ops for arg in op.args}
        found.update(carry.next for carry in region.carries if carry.start in read)
        found.update(carry.start for carry in region.carries if carry.next in needed)
    return found


def list_rows(region: Region, operands: Sequence[str], types: Mapping[str, TensorType]) -> list[str]:
    """The operands of which a step takes a row."""
    starts = {carry.start for carry in region.carries}
    return [name for name in operands if name not in starts and types[name].shape[:1] == (Size.of(region.over),)]


def check_carries(region: Region, before: Container[str]) -> None:
    """Raises CaseError unless each carry has its own start among the values `before`, and its own operation."""
    starts, following = ({getattr(carry, name) for carry in region.carries} for name in ("start", "next"))
    known = all(start in before for start in starts) and following <= {*region.ops}
    require(
        known and len(starts) == len(following) == len(region.carries),
        f"{region.kind}: a carry has a start of its own from before the loop, and an operation of its own in it",
        Reason.MALFORMED,
    )


def check_loop(
    case: Case,
    region: Region,
    operands: Sequence[str],
    results: Sequence[str],
    types: Mapping[str, TensorType],
    infer_rows: InferRows,
) -> None:
    """Raises CaseError unless the operations take a single row too, and give rows of results and what is handed on."""
    name, over, rows = region.kind, region.over, list_rows(region, operands, types)
    for operand in operands:
        shape = types[operand].shape[operand in rows :]
        fits = not any(over in size.names() for size in shape)
        require(fits, f"{name} can't slice {operand!r} along {over}", Reason.REGION_ROWS)
    single = {**case.sizes, over: 1}
    inner = infer_rows(single)
    for carry in region.carries:
        wanted, sizes = types[carry.start], types[carry.start].sizes(case.sizes)
        found = types[carry.next].sizes(case.sizes), inner[carry.next].sizes(single)
        fits = found == (sizes, sizes) and types[carry.next].dtype == wanted.dtype
        require(fits, f"{name}: {carry.next!r} has another type than {carry.start!r}", Reason.CARRIED)
    handed = {carry.next for carry in region.carries}
    for result in (value for value in results if value not in handed):
        outer, row = types[result].sizes(case.sizes), inner[result].sizes(single)
        fits = types[result].shape[:1] == (Size.of(over),) and row == (1, *outer[1:])
        require(fits, f"{name} can't join rows of {result!r} along {over}", Reason.REGION_ROWS)
