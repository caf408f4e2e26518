"""Arithmetic on other numbers than floating ones: integers, beyond 2^31 or narrow, truths, and complex numbers."""

from collections.abc import Callable, Sequence
from typing import Any

from generators.errors import require
from generators.program.case import Values
from generators.program.sizes import ONE
from generators.program.values import RANGES, category
from generators.reasons import Reason
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import draw_any_layout
from generators.sampling.windows import reduce

_NUMBERS = {"int64": (3, 256, 2**31 - 3, 10**10), "int32": (3, 256, 10**5, 2**31 - 3), "uint8": (3, 50, 200, 255)}
_NUMBERS |= {"int8": (3, 50, 100, 127), "int16": (3, 256, 1000, 2**15 - 3)}
"""Factors and terms that lead beyond 2^31, or around: arithmetic of narrow dtypes wraps."""
_FAR_STEPS = {"mul": 3.0, "add": 2.0, "sub": 1.0}
_SCATTERED_SHARE = 0.2
_SCATTERS = ("sum", "prod", "mean", "amax", "amin")


def write_far_integers(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:
    """Integer arithmetic that leads beyond 2^31, or around the end of a dtype; or a reduction of scattered values."""
    if not c.chance(_SCATTERED_SHARE):
        return write_integers(b, c, value, others, is_far=True)
    places = b.input("places", b.shape(value), Values("tokens", scale=float(b.size(b.shape(value)[-1]))), "int64")
    options: dict[str, Any] = {"dim": -1, "reduce": c.pick(_SCATTERS), "include_self": c.chance(0.5)}
    return b.op("scatter_reduce", value, places, b.op("neg", value, to="values"), to="reduced", **options)


_BITWISE = ("logical_and", "logical_or", "logical_xor")
DrawAttributes = Callable[[Choices, str], dict[str, Any]]
"""Draws the attributes of a step on a value of this dtype."""


def _number(*numbers: int, far: bool = False) -> DrawAttributes:
    def draw(c: Choices, dtype: str) -> dict[str, Any]:
        fitting = [number for number in numbers if number > 0 or dtype != "uint8"]
        return {"other": c.pick([*fitting, *_NUMBERS[dtype][-far:]] if far else fitting)}

    return draw


def _cast(c: Choices, _dtype: str) -> dict[str, Any]:
    return {"dtype": c.draw({"int64": 3.0, "int32": 2.0, "uint8": 0.7, "int8": 0.3, "int16": 0.3})}


def _rounding(c: Choices, dtype: str) -> dict[str, Any]:
    return {**_DIVISOR(c, dtype), "form": c.pick(("operator", "floor", "trunc"))}


def _nothing(_c: Choices, _dtype: str) -> dict[str, Any]:
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
    "reduce": (5.0, _nothing),
    "clamp": (
        1.0,
        lambda c, dtype: {"min": c.pick((0, 1) if dtype == "uint8" else (0, -2, 1)), "max": c.pick((3, 100))},
    ),
    "pow": (0.7, lambda c, _: {"exponent": c.pick((2, 3))}),
}
"""Steps of arithmetic: how often each is drawn, and its attributes."""
_REDUCED = {**dict.fromkeys(("sum", "prod", "amax", "cumsum"), 1.0), "mean": 0.7}
_CAST_RANGE = 1e5
"""Floating values are clamped to this before a cast: torch does not define casts of NaN and of larger numbers to
integers. Casts of negative numbers to uint8, which it does not define either, go through int64."""


def write_integers(b: Builder, c: Choices, value: str, others: Sequence[str], *, is_far: bool = False) -> str:  # noqa: ARG001 - a `Writer`
    """One to four steps of integer arithmetic on a cast of the value, on given integers, or on its places.

    The result is the integers, or the value that they scale or mask. is_far: a step leads beyond 2^31, or around, from
    nearly all places.
    """
    shape, dtype = (
        b.shape(value),
        c.draw({"int64": 6.0, "int32": 2.0 if is_far else 5.0, "uint8": 4.0 if is_far else 0.7}),
    )
    how = c.draw({"cast": 0.0 if is_far else 4.0, "given": 3.0, "places": 6.0 if is_far else 2.0})
    if how == "cast":
        made = cast_to_integers(b, c, value, dtype)
    elif how == "given":
        kind = c.draw({"signed": 3.0, "small_counts": 2.0}) if dtype != "uint8" else "small_counts"
        made = b.input("count", [c.pick((size, ONE)) for size in shape], Values(kind), dtype)
    else:
        require(dtype != "uint8" or not shape or b.size(shape[-1]) < 256, "uint8 can't hold the places", Reason.TYPES)
        made = b.op("arange", to="count", stop=shape[-1] if shape else ONE, dtype=dtype)
    count = c.draw({1: 2.0, 2: 3.0, 3: 3.0, 4: 2.0})
    far = c.below(count) if is_far else count
    for step in range(count):
        if step == far and not b.is_float(made):
            made = b.op(c.draw(_FAR_STEPS), made, other=_NUMBERS[b.dtype_of(made)][-1])
        else:
            made = step_integers(b, c, made)
    return use_integers(b, c, value, made)


def use_integers(b: Builder, c: Choices, value: str, made: str) -> str:
    """The integers or truths, or the value that they scale or mask."""
    end = c.draw({"": 3.0, "scale": 2.0, "where": 2.0, "fill": 1.0}) if b.is_float(value) else ""
    is_truth = b.dtype_of(made) == "bool"
    if end == "scale":
        factor = made if is_truth and c.chance(0.5) else b.op("cast", made, to="factor", dtype=b.dtype_of(value))
        return b.op("mul", value, factor, to="scaled")
    if end and not is_truth:
        made = b.op(c.pick(("lt", "ge", "eq", "ne")), made, to="keep", other=c.pick((0, 1, 5, 100)))
    number = c.draw({0.0: 6.0, 1.0: 1.0, -2.0: 1.0, float("-inf"): 1.0})
    if end == "fill":
        return b.op("masked_fill", value, made, to="kept", value=number)
    return b.op("where", made, value, to="kept", other=number) if end else made


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
    if kind == "reduce":
        return reduce(b, c, value, _REDUCED)
    given = []
    if kind in _BITWISE:
        values = Values("signed" if dtype != "uint8" and c.chance(0.7) else "small_counts")
        given = [b.input("bits", [c.pick((size, ONE)) for size in b.shape(value)], values, dtype)]
    return b.op(kind, value, *given, **_STEPS_OF_INTEGERS[kind][1](c, dtype))


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def write_truths(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:
    """Truths: the value compared, joined and reduced; returned, counted, or as a factor, a mask or a condition."""
    made = _compare(b, c, value, others)
    for _ in range(c.draw({0: 2.0, 1: 3.0, 2: 3.0, 3: 1.0})):
        kind = c.draw({"not": 2.0, "and": 3.0, "or": 2.0, "xor": 2.0, "any": 2.0, "all": 2.0})
        if kind == "not":
            made = b.op("logical_not", made, to="keep")
        elif kind in ("any", "all"):
            made = reduce(b, c, made, {kind: 1.0})
        else:
            joined = b.input("given", [c.pick((s, ONE)) for s in b.shape(made)], Values("random", scale=0.5), "bool")
            made = b.op(f"logical_{kind}", made, c.pick((joined, _compare(b, c, value, others))), to="keep")
    end = c.draw({"use": 9.0, "reduce": 3.0, "cast": 2.0})
    if end == "reduce":
        return reduce(b, c, made, dict.fromkeys(("sum", "mean", "cumsum"), 1.0))
    if end == "cast":
        return b.op("cast", made, to="truth", dtype=c.pick(("int64", "int32", "uint8", b.dtype)))
    return use_integers(b, c, value, made)


def _compare(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:
    alike = [name for name in others if b.types[name] == b.types[value]]
    if alike and c.chance(0.4):
        return b.op(c.pick(_COMPARISONS), value, c.pick(alike), to="keep")
    if b.dtype_of(value) == "bool":
        return b.op(c.pick(("eq", "ne")), value, to="keep", other=1)
    return b.op(
        c.pick(_COMPARISONS), value, to="keep", other=c.pick((0.0, 0.5, -1.0) if b.is_float(value) else (0, 1, -1))
    )


_NARROW = {"uint8": 4.0, "int8": 3.0, "int16": 1.0, "int32": 1.0, "int64": 1.0, "bool": 1.5}
_OF_NARROW = {
    **dict.fromkeys(("sum", "any", "all"), 3.0),
    **dict.fromkeys(("prod", "amax", "amin", "argmax", "argmin", "cumsum"), 1.5),
    **dict.fromkeys(
        ("mean", "max", "min", "cumprod", "nansum", "count_nonzero", "aminmax", "median", "logsumexp"), 0.7
    ),
}


def write_reduced(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001 - a `Writer`
    """A reduction of integers or truths, mostly of narrow ones that were computed, and arithmetic that may wrap."""
    shape, dtype = b.shape(value), c.draw(_NARROW)
    least, most = RANGES[dtype]
    values = Values("between", scale=float(min(most, c.pick((3, 100)))), param=float(max(least, c.pick((0, 1, -50)))))
    if dtype == "bool":
        values = Values("random", scale=c.pick((0.5, 0.05)))
    made = b.input("count", shape, values, dtype, draw_any_layout(c, len(shape)))
    for _ in range(c.draw({0: 2.0, 1: 3.0, 2: 1.0})):
        made = step_integers(b, c, made) if b.dtype_of(made) != "bool" else b.op("logical_not", made, to="keep")
    made = reduce(b, c, made, _OF_NARROW)
    for _ in range(c.draw({0: 2.0, 1: 2.0, 2: 1.0}) if category(b.dtype_of(made)) == 1 else 0):
        made = b.op(c.pick(("mul", "add")), made, other=c.pick((2, 100, 100)))
    return use_integers(b, c, value, made)


def write_complex(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001 - a `Writer`
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
