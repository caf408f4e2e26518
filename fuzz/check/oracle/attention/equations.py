"""What is said of an attention function's outputs: equations between what it gives for calls."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from fuzz.check.oracle.attention.call import Call

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Term:
    """What `map` makes of the output of a call. `spread`, `map` itself when it is linear, makes the same of its budget."""

    call: Call
    map: Map = lambda out: out
    spread: Map | None = None


@dataclass(frozen=True, eq=False)
class Equation:
    """The sum of the terms on the left is that on the right, or `value`."""

    left: tuple[Term, ...]
    right: tuple[Term, ...] = ()
    value: float | None = None


@dataclass(frozen=True)
class Relation:
    """A named relation."""

    name: str
    exact: bool
    build: Callable[[Call, Random], Equation | None]


def equated(changed: Call, call: Call, of: Map = lambda out: out) -> Equation:
    """What the changed call gives is what `of` makes of the output of the call."""
    return Equation((Term(changed),), (Term(call, of),))


def four_axes(x: Tensor) -> Tensor:
    """`x` with axes of 1 in front, four in all."""
    return x.reshape((1,) * (4 - x.dim()) + x.shape)


def _along(x: Tensor | None, axis: int, index: Tensor) -> Tensor | None:
    """Elements `index` of an axis of what broadcasts to the scores."""
    if x is None:
        return None
    x = four_axes(x)
    return x if x.shape[axis] == 1 else x.index_select(axis, index)


def taken(call: Call, axis: int, chosen: list[int]) -> tuple[Call, Tensor]:
    """The call with only the chosen batches (0), query heads with all key heads (1), queries (2) or keys (3); and their index."""
    index = torch.tensor(chosen, device=call.q.device)
    extras = {name: _along(call.options.get(name), axis, index) for name in ("mask", "bias")}
    q, k, v = call.q, call.k, call.v
    if axis < 3:
        q = q.index_select(axis, index)
    if axis == 0:
        k, v = k.index_select(0, index), v.index_select(0, index)
    if axis == 3:
        k, v = k.index_select(2, index), v.index_select(2, index)
    if axis == 1:
        extras |= {name: x[index] for name in ("alibi", "sinks") if (x := call.options.get(name)) is not None}
    return call.but(q=q, k=k, v=v, **extras), index
