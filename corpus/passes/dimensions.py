"""Smaller and fewer dimensions; one size named everywhere is one number to shrink."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from corpus.passes.rewriting import valid
from generators.case import Attr, Case
from generators.errors import CaseError
from generators.program import types_of
from generators.sizes import Size


def smaller_dims(case: Case) -> Iterator[Case]:
    """Every dimension 2 (or 1) at once; one dimension at 1, 2, 3, 4, half and one less; equal ones together."""
    for size in (1, 2, 3, 4):
        smaller = _resized(case, {n: min(size, v) for n, v in case.dims})
        if smaller is not None:
            yield smaller
    groups = [[name] for name, _ in case.dims]
    for value in sorted({v for _, v in case.dims}):
        equal = [name for name, v in case.dims if v == value]
        if len(equal) > 1:
            groups.append(equal)
    for group in groups:
        value = case.sizes[group[0]]
        for size in dict.fromkeys((1, 2, 3, 4, value // 2, value - 1)):
            if 0 < size < value:
                smaller = _resized(case, {**case.sizes, **dict.fromkeys(group, size)})
                if smaller is not None:
                    yield smaller


def _resized(case: Case, sizes: dict[str, int]) -> Case | None:
    """The case with other sizes; where the fused call takes its scale from head_dim, so does its contract."""
    case = replace(case, dims=tuple(sizes.items()))
    unscaled = {op.name: op.args[0] for op in case.ops if op.kind == "sdpa" and op.attr("scale") is None}
    if not unscaled.keys() & {c.output for c in case.contracts}:
        return valid(case)
    try:
        types = types_of(case)
    except CaseError:
        return None
    head_dims = {out: max(1, types[q].shape[-1].value(sizes)) for out, q in unscaled.items()}
    return valid(replace(case, contracts=tuple(
        replace(c, scale=1 / math.sqrt(head_dims[c.output])) if c.output in head_dims else c for c in case.contracts)))


def merge_dims(case: Case) -> Iterator[Case]:
    """One name for two dimensions of equal size, and a number for a dimension of size 1."""
    names = [name for name, _ in case.dims]
    for i, keep in enumerate(names):
        for drop in names[i + 1 :]:
            if case.sizes[keep] == case.sizes[drop]:
                smaller = valid(_with_sizes(case, _renaming(drop, keep)))
                if smaller is not None:
                    yield smaller
    ones = [name for name, size in case.dims if size == 1]
    for chosen in [ones, *([name] for name in ones)]:
        smaller = valid(_with_sizes(case, _leaving_out(chosen)))
        if smaller is not None:
            yield smaller


def _renaming(old: str, new: str) -> Callable[[Size], Size]:
    return lambda size: size.renamed({old: new})


def _leaving_out(ones: list[str]) -> Callable[[Size], Size]:
    return lambda size: size.without_ones(ones)


def _with_sizes(case: Case, change: Callable[[Size], Size]) -> Case:
    """The case with every size in it changed; dimensions no longer named are left to pruning."""

    def changed(value: Attr) -> Attr:
        if isinstance(value, Size):
            return change(value)
        if isinstance(value, tuple):
            return tuple(change(v) if isinstance(v, Size) else v for v in value)
        return value

    return replace(
        case,
        inputs=tuple(replace(i, shape=tuple(change(s) for s in i.shape)) for i in case.inputs),
        ops=tuple(replace(o, attrs=tuple((k, changed(v)) for k, v in o.attrs)) for o in case.ops),
    )
