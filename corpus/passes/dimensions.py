"""Plainer inputs and smaller dimensions."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from generators.program.case import Case, Values
from generators.program.edits import (
    make_contiguous,
    map_attributes,
    map_inputs,
    rename_dims,
    replace_input,
    replace_inputs,
    resize,
)
from generators.program.roles import HEADS, find_attentions, trace
from generators.program.sizes import Size
from generators.program.values import DISTRIBUTIONS


def shrink_dims(case: Case) -> Iterator[Case]:
    """All dimensions at 1, 2, 3 or 4; then equal dimensions together, then each alone: at 1 to 4, 1/2, 3/4, 7/8 of the
    size, and so on to the size less 1. So a threshold among long lengths is found in few steps."""
    yield from filter(None, (resize(case, {n: min(size, v) for n, v in case.dims}) for size in (1, 2, 3, 4)))
    groups = [[name for name, v in case.dims if v == value] for value in sorted({v for _, v in case.dims})]
    for names in [*(group for group in groups if len(group) > 1), *([name] for name, _ in case.dims)]:
        value = case.sizes[names[0]]
        sizes = dict.fromkeys((1, 2, 3, 4, *(value - (value >> n) for n in range(1, value.bit_length()))))
        smaller = (dict.fromkeys(names, size) for size in sizes if size < value)
        yield from filter(None, (resize(case, {**case.sizes, **changed}) for changed in smaller))


def merge_dims(case: Case) -> Iterator[Case]:
    """One name for two dimensions of equal size in a computed attribute, so that `T - S` is 0."""
    sizes = [value for op in case.ops for _, value in op.attrs if isinstance(value, Size)]
    for size in dict.fromkeys(sizes):
        for keep, drop in itertools.combinations(sorted(size.names()), 2):
            if case.sizes[keep] == case.sizes[drop]:
                merged = rename_dims(case, {drop: keep})
                yield map_attributes(merged, lambda _, value: value)  # drops what has become the default


def simplify_inputs(case: Case) -> Iterator[Case]:
    """Contiguous arguments instead of parameters, other strides and shared memory; seeds 0, 1, 2...; and the simpler
    distributions of the dtype."""
    own = map_inputs(case, lambda item: replace(item, parameter=False, buffer=False))
    yield make_contiguous(own)
    numbered = tuple(replace(i, values=replace(i.values, seed=n)) for n, i in enumerate(case.inputs))
    yield replace(case, inputs=numbered)
    for item, argument in zip(case.inputs, own.inputs, strict=True):
        yield replace_input(case, item, replace(item, layout="contiguous"))
        yield replace_input(case, item, argument)
        rank = DISTRIBUTIONS[item.values.kind].rank
        simpler = sorted(
            (d for d in DISTRIBUTIONS.values() if item.dtype in d.dtypes and d.rank < rank), key=lambda d: d.rank
        )
        for kind in simpler:
            scale = 0.5 if kind.name == "random" else 1.0
            yield replace_input(case, item, replace(item, values=Values(kind.name, item.values.seed, scale)))
        if item.values.scale != 1.0:
            yield replace_input(case, item, replace(item, values=replace(item.values, scale=1.0)))


def drop_axes(case: Case) -> Iterator[Case]:
    """An input without its leading axis, q, k and v together, or with a size of 1, where broadcasting allows it."""
    places = [(found, role) for found in find_attentions(case) for role in HEADS if role in found.reads]
    heads = {trace(case, found.reads[role])[-1] for found, role in places}
    together = [[i for i in case.inputs if i.name in heads], *([i] for i in case.inputs if i.name not in heads)]
    for items in together:
        rank = max((len(item.shape) for item in items), default=0)
        long = (item for item in items if len(item.shape) == rank > 1)
        yield replace_inputs(case, {item: replace(item, shape=item.shape[1:]) for item in long})
    for item in case.inputs:
        for at, size in enumerate(item.shape):
            if size.value(case.sizes) != 1:
                shape = (*item.shape[:at], Size.of(1), *item.shape[at + 1 :])
                yield replace_input(case, item, replace(item, shape=shape))
