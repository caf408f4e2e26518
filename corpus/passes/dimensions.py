"""Smaller and fewer dimensions; one size named everywhere is one number to shrink."""

from collections.abc import Iterator
from dataclasses import replace

from corpus.passes.rewriting import valid
from generators.case import Attr, Case
from generators.sizes import Size


def smaller_dims(case: Case) -> Iterator[Case]:
    """Every dimension 2 (or 1) at once; one dimension at 1, 2, 3, 4, half and one less; equal ones together."""
    for size in (1, 2, 3, 4):
        smaller = valid(replace(case, dims=tuple((n, min(size, v)) for n, v in case.dims)))
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
                smaller = valid(replace(case, dims=tuple((n, size if n in group else v) for n, v in case.dims)))
                if smaller is not None:
                    yield smaller


def merge_dims(case: Case) -> Iterator[Case]:
    """One name for two dimensions of equal size, and a number for a dimension of size 1."""
    names = [name for name, _ in case.dims]
    for i, keep in enumerate(names):
        for drop in names[i + 1 :]:
            if case.sizes[keep] == case.sizes[drop]:
                smaller = valid(_renamed(case, {drop: keep}))
                if smaller is not None:
                    yield smaller


def _renamed(case: Case, names: dict[str, str]) -> Case:
    def renamed(value: Attr) -> Attr:
        if isinstance(value, Size):
            return value.renamed(names)
        if isinstance(value, tuple):
            return tuple(v.renamed(names) if isinstance(v, Size) else v for v in value)
        return value

    return replace(
        case,
        dims=tuple(d for d in case.dims if d[0] not in names),
        inputs=tuple(replace(i, shape=tuple(s.renamed(names) for s in i.shape)) for i in case.inputs),
        ops=tuple(replace(o, attrs=tuple((k, renamed(v)) for k, v in o.attrs)) for o in case.ops),
    )
