"""Plainer inputs: simple values and layouts, fewer tensors, fewer axes."""

from collections.abc import Iterator
from dataclasses import replace

from corpus.passes.candidates import well_typed
from generators.program.case import Case, Values
from generators.program.edits import substituted, with_input
from generators.program.sizes import Size
from generators.program.values import DISTRIBUTIONS


@well_typed
def simplify_inputs(case: Case) -> Iterator[Case]:
    """Contiguous, an argument instead of a parameter, seeds 0, 1, 2..., and the simpler distributions of the dtype."""
    plain = tuple(replace(i, layout="contiguous", parameter=False) for i in case.inputs)
    yield replace(case, inputs=plain)
    numbered = tuple(replace(i, values=replace(i.values, seed=n)) for n, i in enumerate(case.inputs))
    yield replace(case, inputs=numbered)
    for item in case.inputs:
        yield with_input(case, item, replace(item, layout="contiguous"))
        yield with_input(case, item, replace(item, parameter=False))
        rank = DISTRIBUTIONS[item.values.kind].rank
        simpler = sorted(
            (d for d in DISTRIBUTIONS.values() if item.dtype in d.dtypes and d.rank < rank), key=lambda d: d.rank
        )
        for kind in simpler:
            scale = 0.5 if kind.name == "random" else 1.0
            yield with_input(case, item, replace(item, values=Values(kind.name, item.values.seed, scale)))
        if item.values.scale != 1.0:
            yield with_input(case, item, replace(item, values=replace(item.values, scale=1.0)))


@well_typed
def merge_inputs(case: Case) -> Iterator[Case]:
    """One input in place of two of the same type."""
    for i, keep in enumerate(case.inputs):
        for drop in case.inputs[i + 1 :]:
            if keep.type.sizes(case.sizes) == drop.type.sizes(case.sizes) and keep.dtype == drop.dtype:
                yield substituted(case, {drop.name: keep.name})


@well_typed
def drop_axes(case: Case) -> Iterator[Case]:
    """An input without its leading axis, or with 1 for a size, where broadcasting makes up for it."""
    for item in case.inputs:
        if len(item.shape) > 1:
            yield with_input(case, item, replace(item, shape=item.shape[1:]))
        for at, size in enumerate(item.shape):
            if size.constant != 1:
                shape = (*item.shape[:at], Size.of(1), *item.shape[at + 1 :])
                yield with_input(case, item, replace(item, shape=shape))
