"""Wrong elements of a value in words: "head 1-7 of 8, query row 0-62 of 65"."""

import math
from collections.abc import Sequence
from functools import partial

from fuzz.protocol import SubjectResult, WrongElements
from fuzz.protocol.failures import Value
from fuzz.protocol.render import describe, describe_value
from generators.program.attention_options import Contract
from generators.program.case import Case
from generators.program.type_check import types_of

BATCH, HEAD, QUERY, KEY, FEATURE = "batch", "head", "query row", "key row", "feature"

_OF_CALLS = {
    **dict.fromkeys(("out", "dq"), (BATCH, HEAD, QUERY, FEATURE)),
    **dict.fromkeys(("dk", "dv"), (BATCH, HEAD, KEY, FEATURE)),
    "dbias": (BATCH, HEAD, QUERY, KEY),
}
"""The axes of the results of an attention function."""
_LAYOUTS = {"bhsd": (BATCH, HEAD, "", FEATURE), "bshd": (BATCH, "", HEAD, FEATURE), "bsd": (BATCH, "", FEATURE)}

_SHOWN = 4
"""The most ranges of an axis that are listed."""


def describe_with_names(case: Case, result: SubjectResult) -> str:
    """`describe` with the program's names for values."""
    return describe(result, partial(name_value, case))


def describe_where(case: Case, where: WrongElements | None) -> str:
    """The wrong elements in one line; "" if all elements are wrong, or the wrong elements are not known."""
    if where is None or where.wrong in (0, math.prod(where.shape)):
        return ""
    return (
        f"{name_value(case, where.value)}: {describe_elements(where, label_axes(case, where.value, len(where.shape)))}"
    )


def label_axes(case: Case, value: Value, rank: int) -> tuple[str, ...]:
    """Names of the axes of a value, by attention, such as "head", or by the names of its sizes."""
    if value.kind == "result" and value.name in _OF_CALLS:
        return _OF_CALLS[str(value.name)][-rank:]
    name = find_name(case, value)
    for contract in case.contracts:
        found = _label_contract_axes(contract, name, rank)
        if found:
            return found
    kind = types_of(case).get(name)
    if kind is None or kind.rank != rank:
        return tuple(f"axis {axis}" for axis in range(rank))
    return tuple(
        str(size) if str(size) and not str(size).isdigit() else f"axis {i}" for i, size in enumerate(kind.shape)
    )


def name_gradient(case: Case, value: Value) -> str:
    """A kernel author's name for the gradient of an input, such as "dq"; "" for an input that no kernel reads."""
    if value.kind == "result":
        return str(value.name)
    name = find_name(case, value)
    for contract in case.contracts:
        for field, read in contract.reads.items():
            if read == name:
                return f"d{field}"
    return ""


def name_value(case: Case, value: Value) -> str:
    """A value in words, with the program's names: "gradient of q", "output of the second call"."""
    name = find_name(case, value) if value.kind in ("input", "parameter") else ""
    name = "output" if value.kind == "output" and case.calls and len(case.returns) == 1 else name
    return describe_value(value, name, is_sequence=bool(case.calls))


def find_name(case: Case, value: Value) -> str:
    """The name of a value in the program; "" for a result of an attention function."""
    if isinstance(value.name, str):
        return "" if value.kind == "result" else value.name
    listed = case.returns if value.kind == "output" else [item.name for item in case.inputs if not item.parameter]
    return listed[value.name] if value.name < len(listed) else ""


def _label_contract_axes(contract: Contract, name: str, rank: int) -> tuple[str, ...]:
    if name in (contract.mask, contract.bias):
        return (BATCH, HEAD, QUERY, KEY)[-rank:] if contract.layout != "bsd" else (BATCH, QUERY, KEY)[-rank:]
    row = {contract.q: QUERY, contract.output: QUERY, contract.k: KEY, contract.v: KEY}.get(name)
    layout = _LAYOUTS.get(contract.layout, ())
    return tuple(label or row for label in layout) if row and len(layout) == rank else ()


def describe_elements(where: WrongElements, names: Sequence[str]) -> str:
    """The wrong elements, axis by axis: "head 1-7 of 8, query row 0-62 of 65 (7056 elements)". `names`: of the axes."""
    axes = zip(names, where.shape, where.ranges, strict=True)
    parts = [f"{name} {_list(ranges)} of {size}" for name, size, ranges in axes if ranges != ((0, size - 1),)]
    return f"{', '.join(parts) or f'scattered among all {math.prod(where.shape)}'} ({where.wrong} elements)"


def _list(ranges: Sequence[Sequence[int]]) -> str:
    listed = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:_SHOWN]]
    more = [f"... ({sum(last - first + 1 for first, last in ranges)} in all)"] if len(ranges) > _SHOWN else []
    return ", ".join([*listed, *more])
