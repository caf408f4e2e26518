"""Programs whose values have other dtypes than models use: reductions of narrow integers and truths, complex numbers,
and the places of largest values in tensors that lie in memory in another order."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from generators.errors import CaseError, require
from generators.program.case import Case, Values
from generators.program.sizes import ONE, Size
from generators.program.type_check import is_valid
from generators.program.values import LAYOUTS, RANGES
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.integers import step_integers

_NARROW = {"uint8": 4.0, "int8": 3.0, "int16": 1.0, "int32": 1.0, "int64": 1.0, "bool": 1.5}
_REDUCTIONS = {
    **dict.fromkeys(("sum", "any", "all"), 3.0),
    **dict.fromkeys(("prod", "amax", "amin", "argmax", "argmin", "cumsum"), 1.5),
    **dict.fromkeys(
        ("mean", "max", "min", "cumprod", "nansum", "count_nonzero", "aminmax", "median", "logsumexp"), 0.7
    ),
}
_SEVERAL = ("sum", "any", "all", "amax", "amin", "mean", "count_nonzero", "nansum", "logsumexp")
_WITH_DTYPE = ("sum", "prod", "cumsum", "cumprod", "nansum", "mean")
_OWN_DTYPE_SHARE = 0.5  # the share of reductions with a dtype of their own


def _draw_layout(c: Choices, rank: int) -> str:
    return c.pick(["contiguous", *(name for name, row in LAYOUTS.items() if row.min_rank <= rank)])


def write_reduced(b: Builder, c: Choices, value: str) -> str:
    """A reduction of integers or truths, mostly of narrow ones that were computed, and arithmetic that may wrap."""
    shape, dtype = b.shape(value), c.draw(_NARROW)
    least, most = RANGES[dtype]
    values = Values("between", scale=float(min(most, c.pick((3, 100)))), param=float(max(least, c.pick((0, 1, -50)))))
    if dtype == "bool":
        values = Values("random", scale=c.pick((0.5, 0.05)))
    made = b.input("count", shape, values, dtype, _draw_layout(c, len(shape)))
    for _ in range(c.draw({0: 2.0, 1: 3.0, 2: 1.0})):
        made = step_integers(b, c, made) if b.dtype_of(made) != "bool" else b.op("logical_not", made, to="keep")
    kind, rank = c.draw(_REDUCTIONS), b.rank(made)
    require(rank > 0, "needs an axis")
    attrs: dict[str, Any] = {"dim": c.below(rank) - c.pick((0, rank))}
    if kind in _SEVERAL and c.chance(0.4):
        attrs = {"axes": tuple(c.subset(range(rank), 0.6) or [rank - 1])}
    if kind not in ("cumsum", "cumprod", "count_nonzero"):
        attrs["keepdim"] = c.chance(0.5)
    if kind in _WITH_DTYPE and (kind == "mean" or c.chance(_OWN_DTYPE_SHARE)):
        own = b.dtype_of(made)
        attrs["dtype"] = "float32" if kind == "mean" or own == "bool" else c.pick((own, own, "int32", "float32"))
    if kind == "aminmax":
        attrs["form"] = c.pick(("min", "max"))
    if kind in ("max", "min"):
        attrs["form"] = c.pick(("values", "item", "indices"))
    made = b.op(kind, made, to="reduced", **attrs)
    if b.dtype_of(made) != "bool" and not b.is_float(made):
        for _ in range(c.draw({0: 2.0, 1: 2.0, 2: 1.0})):
            made = b.op(c.pick(("mul", "add")), made, other=c.pick((2, 100, 100)))
    end = c.draw({"": 4.0, "mask": 1.0, "scale": 1.0})
    if end == "mask" and not b.is_float(made):
        return b.op("where", b.op("gt", made, to="keep", other=0), value, to="kept", other=0.0)
    return b.op("mul", value, b.op("cast", made, dtype=b.dtype_of(value)), to="scaled") if end == "scale" else made


def write_complex(b: Builder, c: Choices, value: str) -> str:
    """Arithmetic on complex numbers, of shapes that broadcast, or with floating numbers; the result as real ones."""
    shape = b.shape(value)[: c.pick((1, 2, 3))]
    made = b.op("view_as_complex", b.input("pairs", (*shape, 2), dtype="float32"), to="numbers")
    for _ in range(c.draw({1: 4.0, 2: 2.0, 3: 1.0})):
        if b.rank(made) > 1 and c.chance(0.3):
            made = b.op("transpose", made, dim0=-1, dim1=-2)
        kind = c.draw({"add": 4.0, "sub": 2.0, "mul": 2.0, "div": 1.0})
        other = c.draw({"complex": 2.0, "real": 1.0, "": 1.0})
        attrs: dict[str, Any] = {"alpha": c.pick((2, 0.5))} if kind in ("add", "sub") and c.chance(0.3) else {}
        if not other:
            made = b.op(kind, made, to="made", other=c.pick((0.5, 2, -1.5)), **attrs)
            continue
        sizes = [c.pick((size, size, ONE)) for size in b.shape(made)][c.below(b.rank(made) + 1) :]
        if other == "complex":
            operand = b.op("view_as_complex", b.input("pairs", (*sizes, 2), dtype="float32"), to="numbers")
        else:
            operand = b.input("factor", sizes, dtype="float32")
        made = b.op(kind, *((made, operand) if c.chance(0.7) else (operand, made)), to="made", **attrs)
    end = c.draw({"": 6.0, "abs": 1.0, "neg": 1.0, "sum": 1.0, "mean": 1.0})
    if end in ("sum", "mean"):
        require(b.rank(made) > 0, "needs an axis")
    made = b.op(end, made, to="made") if end else made
    return made if end == "abs" else b.op("view_as_real", made, to="parts")


_PLACES = ("argmax", "argmin", "max", "min", "max_pool", "max_pool", "adaptive_max_pool", "adaptive_avg_pool")


def write_places(b: Builder, c: Choices, value: str) -> str:
    """The places of largest or smallest values, or pooled values, of a tensor that lies in memory in another order."""
    shape = b.shape(value)
    kind, few = c.pick(_PLACES), Size.of(c.pick((2, 3, 5)))
    while "pool" in kind and len(shape) < 4 and c.chance(0.8 if len(shape) == 3 else 1.0):
        shape = (*shape[:-1], few, shape[-1])
    x = b.input("image", shape, dtype=b.dtype_of(value), layout=_draw_layout(c, len(shape)))
    x = b.op("mul", x, to="scaled", other=2.0) if c.chance(0.4) else x
    rank, part = len(shape), c.pick(("values", "indices", "indices"))
    if "pool" not in kind:
        axis = {"dim": c.below(rank)} if c.chance(0.7) or kind in ("max", "min") else {"axes": ()}
        form = {"form": part} if kind in ("max", "min") else {}
        return b.op(kind, x, to="places", keepdim=c.chance(0.4) and "dim" in axis, **axis, **form)
    attrs: dict[str, Any] = {} if kind == "adaptive_avg_pool" else {"part": part}
    if kind == "max_pool":
        attrs |= {"kernel": (few,), "stride": (Size.of(c.pick((1, 2, 3))),), "ceil_mode": c.chance(0.3)}
    else:
        attrs["sizes"] = tuple(c.pick((ONE, Size.of(2), Size.of(3), size)) for size in shape[2:])
    return b.op(f"{kind}{rank - 2}d", x, to="pooled", **attrs)


class _Drawn(NamedTuple):
    weight: float  # how often it is drawn
    write: Callable[[Builder, Choices, str], str]


WRITERS: Mapping[str, _Drawn] = {
    "reduced_integers": _Drawn(5.0, write_reduced),
    "complex_numbers": _Drawn(2.0, write_complex),
    "places_in_memory": _Drawn(2.0, write_places),
}
"""By name, as `--draw` takes them."""
_TRIES = 8


def add_dtypes(case: Case, c: Choices, share: float, only: str = "") -> Case:
    """In this share of cases, adds one of `WRITERS`, or that of the name `only`.

    Outside of training it takes the place of the other operations: then fewer compile and have to shrink.
    """
    b = Builder.reopen(case, 0)
    floats = b.list_floats()
    if not (c.chance(share) and floats) or case.autocast or case.dynamic:
        return case
    writer = WRITERS[only or c.draw({name: row.weight for name, row in WRITERS.items()})]
    n_inputs, n_ops = len(b.inputs), len(b.ops)
    for _ in range(_TRIES):
        with suppress(CaseError):
            made = writer.write(b, c, c.pick(floats))
            found = b.close(case, (*(case.returns if case.may_train else ()), made), case.ops)
            if is_valid(found):
                return found
        b.undo(n_inputs, n_ops)
    return case
