"""Adds arithmetic on integers to a case, beyond 2^31 or around the end of a dtype, and on truths."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from generators.errors import CaseError, require
from generators.program.case import Case, Values
from generators.program.sizes import ONE
from generators.program.type_check import is_valid
from generators.reasons import Reason
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices

_NUMBERS = {"int64": (3, 256, 2**31 - 3, 10**10), "int32": (3, 256, 10**5, 2**31 - 3), "uint8": (3, 50, 200, 255)}
_NUMBERS |= {"int8": (3, 50, 100, 127), "int16": (3, 256, 1000, 2**15 - 3)}
"""Factors and terms that lead beyond 2^31, or around: arithmetic of narrow dtypes wraps."""
_FAR_STEPS = {"mul": 3.0, "add": 2.0, "sub": 1.0}
_STEPS = {**_FAR_STEPS, "cast": 2.0, "neg": 1.0, "remainder": 1.0, "floor_divide": 1.0}
_ENDS = {"lt": 2.0, "ge": 2.0, "cast": 3.0, "": 2.0}
_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")
_ALONE_SHARE = 0.75
"""How often such a case has an argument in place of its other operations: then fewer compile and have to shrink."""


def add_integers(case: Case, c: Choices, share: float) -> Case:
    """In this share of cases, adds integer arithmetic on positions.

    The case returns the integers, or a tensor that they mask or scale.
    """
    is_alone = c.chance(_ALONE_SHARE)
    place = 0 if is_alone else len(case.ops)
    b = Builder.reopen(case, place)
    lengths = {name: b.size(b.shape(name)[-1]) for name in b.list_floats()}
    floats = [name for name, length in lengths.items() if 0 < length < 256]  # so that uint8 holds them
    if not (c.chance(share) and floats) or case.autocast or case.dynamic:
        return case
    target, dtype = c.pick(floats), c.draw({"int64": 3.0, "int32": 1.0, "uint8": 2.0})
    length = b.shape(target)[-1]
    with suppress(CaseError):
        if c.chance(0.2):
            places = b.input("places", b.shape(target), Values("tokens", scale=float(b.size(length))), "int64")
            values = b.op("neg", target, to="values")
            options: dict[str, Any] = {"dim": -1, "reduce": c.pick(_REDUCTIONS), "include_self": c.chance(0.5)}
            made = b.op("scatter_reduce", target, places, values, to="reduced", **options)
        else:
            count = b.input("count", (length,), Values("small_counts"), dtype) if c.chance(0.3) else ""
            made = count or b.op("arange", to="count", stop=length, dtype=dtype)
            steps = c.draw({1: 3.0, 2: 3.0, 3: 2.0})
            leads_far = c.below(steps)
            for step in range(steps):
                made = _compute(b, c, made, is_far=step == leads_far)
            how = c.draw(_ENDS)
            if how == "cast":
                made = b.op("mul", target, b.op("cast", made, to="scale", dtype="float32"), to="scaled")
            elif how:
                keep = b.op(how, made, to="keep", other=c.pick((0, 5, 100)))
                made = b.op("masked_fill", target, keep, to="kept", value=0.0)
        kept = () if is_alone and b.is_float(made) else case.returns
        found = b.close(case, (*kept, made), case.ops[place:])
        return found if is_valid(found) else case
    return case


def _compute(b: Builder, c: Choices, value: str, *, is_far: bool) -> str:
    """A step of arithmetic. is_far: it leads beyond 2^31, or around, from nearly all positions."""
    kind, dtype = c.draw(_FAR_STEPS if is_far else _STEPS), b.dtype_of(value)
    if kind == "neg":
        return b.op(kind, value)
    if kind == "cast":
        return b.op(kind, value, dtype=c.pick([*_NUMBERS]))
    return b.op(kind, value, other=_NUMBERS[dtype][-1] if is_far else c.pick(_NUMBERS[dtype]))


_BITWISE = ("logical_and", "logical_or", "logical_xor")
DrawAttributes = Callable[[Choices, str, int], dict[str, Any]]
"""Draws the attributes of a step on a value of this dtype and rank."""


def _number(*numbers: int, far: bool = False) -> DrawAttributes:
    def draw(c: Choices, dtype: str, _rank: int) -> dict[str, Any]:
        fitting = [number for number in numbers if number > 0 or dtype != "uint8"]
        return {"other": c.pick([*fitting, *_NUMBERS[dtype][-far:]] if far else fitting)}

    return draw


def _axis(c: Choices, _dtype: str, rank: int) -> dict[str, Any]:
    require(rank > 0, "needs an axis")
    return {"dim": c.below(rank) - c.pick((0, rank))}


def _reduced(c: Choices, dtype: str, rank: int) -> dict[str, Any]:
    return {**_axis(c, dtype, rank), "keepdim": c.chance(0.5)}


def _cast(c: Choices, _dtype: str, _rank: int) -> dict[str, Any]:
    return {"dtype": c.draw({"int64": 3.0, "int32": 2.0, "uint8": 0.7})}


def _rounding(c: Choices, dtype: str, rank: int) -> dict[str, Any]:
    return {**_DIVISOR(c, dtype, rank), "form": c.pick(("operator", "floor", "trunc"))}


def _nothing(_c: Choices, _dtype: str, _rank: int) -> dict[str, Any]:
    return {}


_TERM, _DIVISOR = _number(2, -1, 3, -7, 5, 100, 1, 0, far=True), _number(2, -2, 3, -3, 7, 16)
_SHIFT = _number(1, 2, 3, 5)
_STEPS_OF_INTEGERS: dict[str, tuple[float, DrawAttributes]] = {
    **dict.fromkeys(("add", "sub", "mul"), (3.0, _TERM)),
    **dict.fromkeys(("remainder", "fmod", "div"), (2.5, _DIVISOR)),
    "floor_divide": (3.0, _rounding),
    **dict.fromkeys(("shift_left", "shift_right"), (0.3, _SHIFT)),
    **dict.fromkeys(("neg", "abs", "sign", "logical_not", *_BITWISE), (1.0, _nothing)),
    "cast": (3.0, _cast),
    **dict.fromkeys(("sum", "prod", "amax"), (1.0, _reduced)),
    "mean": (0.7, lambda c, dtype, rank: {**_reduced(c, dtype, rank), "dtype": "float32"}),
    "cumsum": (1.0, _axis),
    "clamp": (
        1.0,
        lambda c, dtype, _: {"min": c.pick((0, 1) if dtype == "uint8" else (0, -2, 1)), "max": c.pick((3, 100))},
    ),
    "pow": (0.7, lambda c, *_: {"exponent": c.pick((2, 3))}),
}
"""Steps of arithmetic: how often each is drawn, and its attributes."""
_CAST_RANGE = 1e5
"""Floating values are clamped to this before a cast: torch does not define casts of NaN and of larger numbers to
integers. Casts of negative numbers to uint8, which it does not define either, go through int64."""


def write_integers(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001 - as other forms
    """One to four steps of integer arithmetic on a cast of the value, on given integers, or on its places.

    The result is the integers, or the value that they scale or mask.
    """
    shape, dtype = b.shape(value), c.draw({"int64": 5.0, "int32": 4.0, "uint8": 0.7})
    how = c.draw({"cast": 4.0, "given": 3.0, "places": 2.0})
    if how == "cast":
        made = cast_to_integers(b, c, value, dtype)
    elif how == "given":
        kind = c.draw({"signed": 3.0, "small_counts": 2.0}) if dtype != "uint8" else "small_counts"
        made = b.input("count", [c.pick((size, ONE)) for size in shape], Values(kind), dtype)
    else:
        require(dtype != "uint8" or not shape or b.size(shape[-1]) < 256, "uint8 can't hold the places", Reason.TYPES)
        made = b.op("arange", to="count", stop=shape[-1] if shape else ONE, dtype=dtype)
    for _ in range(c.draw({1: 2.0, 2: 3.0, 3: 3.0, 4: 2.0})):
        made = step_integers(b, c, made)
    end = c.draw({"": 4.0, "scale": 2.0, "mask": 2.0})
    if end == "scale" and b.is_float(value):
        return b.op("mul", value, b.op("cast", made, to="factor", dtype=b.dtype_of(value)), to="scaled")
    if end == "mask" and b.is_float(value):
        keep = b.op(c.pick(("lt", "ge", "eq", "ne")), made, to="keep", other=c.pick((0, 1, 5, 100)))
        return b.op("where", keep, value, to="kept", other=0.0)
    return made


def cast_to_integers(b: Builder, c: Choices, value: str, dtype: str) -> str:
    """The value as integers, of a size that torch defines: scaled, clamped, and cast."""
    if b.dtype_of(value) == "bool" or not b.is_float(value):
        return b.op("cast", value, to="count", dtype=dtype)
    scaled = b.op("mul", value, to="scaled", other=c.pick((3.0, -5.0, 100.0, 1e4, 0.5)))
    finite = b.op("nan_to_num", scaled, nan=0.0)
    clamped = b.op("clamp", finite, min=-_CAST_RANGE, max=_CAST_RANGE)
    made = b.op("cast", clamped, to="count", dtype="int64" if dtype == "uint8" else dtype)
    return b.op("cast", made, to="count", dtype=dtype) if dtype == "uint8" else made


def step_integers(b: Builder, c: Choices, value: str) -> str:
    """A step of arithmetic on integers, or of rounding on the numbers that a step made."""
    if b.is_float(value):  # a mean, or a quotient
        return b.op(c.pick(("floor", "ceil", "round", "neg")), value)
    kind, dtype = c.draw({kind: weight for kind, (weight, _) in _STEPS_OF_INTEGERS.items()}), b.dtype_of(value)
    given = []
    if kind in _BITWISE:
        values = Values("signed" if dtype != "uint8" and c.chance(0.7) else "small_counts")
        given = [b.input("bits", [c.pick((size, ONE)) for size in b.shape(value)], values, dtype)]
    return b.op(kind, value, *given, **_STEPS_OF_INTEGERS[kind][1](c, dtype, b.rank(value)))


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def write_truths(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:
    """Truths: the value compared, joined and reduced; returned, counted, or as a factor, a mask or a condition."""
    made = _compare(b, c, value, others)
    for _ in range(c.draw({0: 2.0, 1: 3.0, 2: 3.0, 3: 1.0})):
        kind = c.draw({"not": 2.0, "and": 3.0, "or": 2.0, "xor": 2.0, "any": 2.0, "all": 2.0})
        if kind == "not":
            made = b.op("logical_not", made, to="keep")
        elif kind in ("any", "all"):
            rank = b.rank(made)
            axes = c.pick((None, *((tuple(c.subset(range(rank), 0.5)) or (-1,)),) * 2)) if rank else ()
            made = b.op(kind, made, to="keep", axes=axes, keepdim=bool(rank) and axes != () and c.chance(0.6))
        else:
            joined = b.input("given", [c.pick((s, ONE)) for s in b.shape(made)], Values("random", scale=0.5), "bool")
            made = b.op(f"logical_{kind}", made, c.pick((joined, _compare(b, c, value, others))), to="keep")
    end = c.draw({"": 2.0, "sum": 1.0, "cast": 2.0, "mul": 2.0, "where": 3.0, "fill": 2.0, "cumsum": 1.0, "mean": 1.0})
    if end in ("sum", "mean", "cumsum"):
        require(b.rank(made) > 0, "needs an axis")
        return b.op(end, made, to="count", dim=-1, **({"dtype": b.float_dtype()} if end == "mean" else {}))
    if end == "cast":
        return b.op("cast", made, to="truth", dtype=c.pick(("int64", "int32", "uint8", b.float_dtype())))
    if end in ("mul", "where", "fill") and b.is_float(value):
        other = c.pick((0.0, 1.0, -2.0, float("-inf")))
        if end == "mul":
            return b.op("mul", value, made, to="masked")
        return (
            b.op("where", made, value, other=other) if end == "where" else b.op("masked_fill", value, made, value=other)
        )
    return made


def _compare(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:
    alike = [name for name in others if b.types[name] == b.types[value]]
    if alike and c.chance(0.4):
        return b.op(c.pick(_COMPARISONS), value, c.pick(alike), to="keep")
    if b.dtype_of(value) == "bool":
        return b.op(c.pick(("eq", "ne")), value, to="keep", other=1)
    return b.op(
        c.pick(_COMPARISONS), value, to="keep", other=c.pick((0.0, 0.5, -1.0) if b.is_float(value) else (0, 1, -1))
    )
