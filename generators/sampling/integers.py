"""Adds arithmetic on integers to a case, beyond 2^31 or around the end of a dtype."""

from contextlib import suppress
from typing import Any

from generators.errors import CaseError
from generators.program.case import Case, Values
from generators.program.type_check import is_valid
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices

_NUMBERS = {"int64": (3, 256, 2**31 - 3, 10**10), "int32": (3, 256, 10**5, 2**31 - 3), "uint8": (3, 50, 200, 255)}
"""Factors and terms that lead beyond 2^31, or around: arithmetic of `uint8` and `int32` wraps."""
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
