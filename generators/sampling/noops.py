"""Steps that change nothing, as real modules have them: a rewrite must match in spite of them, or not at all."""

from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices

_STEPS = {
    "contiguous": 3.0,
    "clone": 2.0,
    "own_dtype": 1.0,
    "there_and_back": 2.0,
    "reshape": 1.0,
    "zero": 1.0,
    "one": 1.0,
    "up_and_down": 1.0,
    "double_transpose": 1.0,
}


def insert_noop(b: Builder, c: Choices, value: str) -> str:
    """The value after none, one or (rarely) more steps that change nothing."""
    amount = c.noop_rate
    while c.chance(amount):
        value = _one_step(b, c, value)
        amount /= 3
    return value


def _one_step(b: Builder, c: Choices, value: str) -> str:
    step = c.weighted(_STEPS)
    rank, dtype = b.rank(value), b.dtype_of(value)
    if step == "clone":
        return b.op("clone", value, memory_format=c.pick(("preserve", "contiguous")))
    if step == "own_dtype":
        return b.op("to_own_dtype", value)
    if step == "there_and_back":
        axis = c.below(rank + 1)
        return b.op("squeeze", b.op("unsqueeze", value, dim=axis), dim=axis)
    if step == "reshape":
        flat = b.op("reshape", value, sizes=(Size.of(-1),))
        return b.op("view", flat, sizes=b.shape(value))
    if step == "zero" and b.is_float(value):
        return b.op("add", value, other=c.pick((0, 0.0)), form=c.pick(("operator", "method", "function")))
    if step == "one" and b.is_float(value):
        return b.op(c.pick(("mul", "div")), value, other=c.pick((1, 1.0)), reverse=False)
    if step == "up_and_down" and b.is_float(value):
        wide = "float64" if dtype == "float32" else "float32"
        return b.op("cast", b.op("cast", value, dtype=wide), dtype=dtype)
    if step == "double_transpose" and rank >= 2:
        return b.op("transpose", b.op("transpose", value, dim0=-1, dim1=-2), dim0=-2, dim1=-1)
    return b.op("contiguous", value)
