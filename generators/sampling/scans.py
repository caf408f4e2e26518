"""Adds loops whose steps hand values to the next step: recurrent layers, gated and linear, one after another."""

from collections.abc import Callable
from dataclasses import replace

from generators.errors import require
from generators.program.case import Carry, Case, Region, Values
from generators.program.sizes import Size, product
from generators.reasons import Reason
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices

_KINDS = {"scan": 8.0, "loop": 1.0}
_COUNTS = {1: 6.0, 2: 3.0, 3: 1.0}  # of values that a step hands on
_CHAINED = {1: 6.0, 2: 3.0, 3: 1.0}  # of loops, each over the results of the one before
_MOST_STEPS, _MOST_ELEMENTS = 33, 1 << 12
_SCALE = 0.3  # of weights: values stay near 1 over many steps


def add_carries(case: Case, c: Choices) -> Case:
    """The case with loops with carries, each over the results of the one before. Raises CaseError if none fits."""
    b = Builder.reopen(case)
    found = [name for name in b.list_floats() if _is_loopable(b, name)]
    require(bool(found), "nothing has rows to loop over", Reason.NOTHING)
    rows, returns, regions = c.pick(found), list[str](), list[Region]()
    if b.rank(rows) > 2 and c.chance(0.5):
        rows = b.op("transpose", rows, to="rows", dim0=0, dim1=1)
    for _ in range(c.draw(_CHAINED)):
        loop = _Loop(b, c, rows)
        regions.append(loop.write())
        returns += [name for name in loop.lasts if c.chance(0.6)]
        rows = c.pick(loop.outputs)
        if b.rank(rows) < 2:
            break
    returns.append(b.op("sum", rows, dim=0) if c.chance(0.3) else rows)
    kept = case.returns if c.chance(0.3) else ()
    drawn = replace(case, contracts=(), regions=(*case.regions, *regions))
    return b.close(drawn, (*kept, *returns))


def _is_loopable(b: Builder, name: str) -> bool:
    shape = b.shape(name)
    if b.rank(name) < 2 or not all(size.is_name for size in shape[:2]):
        return False
    steps, other = (b.size(size) for size in shape[:2])
    few = min(steps, other) > 0 and max(steps, other) <= _MOST_STEPS
    return few and len({str(size) for size in shape}) == len(shape) and b.size(product(shape)) <= _MOST_ELEMENTS


class _Loop:
    """A loop over the rows of a value, being written."""

    def __init__(self, b: Builder, c: Choices, rows: str) -> None:
        self.b, self.c, self.rows, self.shape = b, c, [rows], b.shape(rows)
        if c.chance(0.4):
            other = c.pick(("input", "same"))
            more = b.input("gates", self.shape, dtype=b.dtype_of(rows)) if other == "input" else b.op("cos", rows)
            self.rows.append(more)
        self.weight = self._input("weight", (self.shape[-1], self.shape[-1]))
        self.vector = self._input("factors", self.shape[-1:])
        self.states = [self._start() for _ in range(c.draw(_COUNTS))]
        self.lasts: list[str] = []
        self.outputs: list[str] = []

    def write(self) -> Region:
        """Adds the operations, and returns their loop."""
        b, c, begin = self.b, self.c, len(self.b.ops)
        made = [self._step(state) for state in self.states]
        handed = made[::-1] if c.chance(0.2) else made
        self.lasts = [self._take_row(value) for value in handed]
        self.outputs = [self._output(value) for value in made[: c.draw({1: 3.0, 2: 1.0})]]
        carries = tuple(Carry(state, last) for state, last in zip(self.states, self.lasts, strict=True))
        ops = tuple(op.name for op in b.ops[begin:])
        return Region(c.draw(_KINDS), ops, str(self.shape[0]), carries=carries, reverse=c.chance(0.25))

    def _input(self, hint: str, shape: tuple[Size, ...]) -> str:
        dtype, values = self.b.dtype_of(self.rows[0]), Values(scale=_SCALE)
        return self.b.input(hint, shape, values, dtype, parameter=self.c.chance(0.5))

    def _start(self) -> str:
        b, shape, dtype = self.b, self.shape[1:], self.b.dtype_of(self.rows[0])
        match self.c.draw({"input": 5.0, "parameter": 2.0, "zeros": 2.0, "first_row": 1.0}):
            case "zeros":
                return b.op("zeros", to="start", sizes=shape, dtype=dtype)
            case "first_row":
                return b.op("clone", b.op("select", self.rows[0], dim=0, index=0), to="start")
            case form:
                return b.input("start", shape, dtype=dtype, parameter=form == "parameter")

    def _step(self, state: str) -> str:
        """The next value of a state, as a row or as a state."""
        b, c, row = self.b, self.c, self.c.pick(self.rows)
        mixed = c.draw(_MIXES)(self, state, row)
        if len(self.states) > 1 and c.chance(0.6):
            mixed = b.op(c.pick(("add", "mul")), mixed, c.pick(self.states), to="mixed")
        term = c.draw(_TERMS)(self, row)
        mixed = b.op("add", mixed, term, to="sum") if term else mixed
        if c.chance(0.4):
            mixed = self._take_row(mixed)
        activation = c.draw({"clone": 4.0, "tanh": 3.0, "sigmoid": 2.0, "sin": 1.0})
        return b.op(activation, mixed, to="new")

    def _take_row(self, value: str) -> str:
        whole = self.b.rank(value) == len(self.shape)
        return self.b.op("select", value, to="last", dim=0, index=0) if whole else value

    def _output(self, value: str) -> str:
        """A value of which each step gives a row."""
        row, state = self.c.pick(self.rows), self.c.pick(self.states)
        wide = value if self.b.rank(value) == len(self.shape) else self.b.op("mul", row, value, to="out")
        return self.c.draw(_OUTPUTS)(self, wide, row, state)


_MIXES: dict[Callable[[_Loop, str, str], str], float] = {
    lambda loop, state, _: loop.b.op("matmul", state, loop.weight, to="mixed"): 4.0,
    lambda loop, state, _: loop.b.op("mul", state, to="mixed", other=loop.c.pick((0.5, -1.0, 0.9))): 2.0,
    lambda loop, state, row: loop.b.op("mul", loop.b.op("sigmoid", row, to="gate"), state, to="mixed"): 3.0,
    lambda loop, state, _: loop.b.op("mul", state, loop.vector, to="mixed"): 2.0,
    lambda _loop, state, _: state: 1.0,
}
"""What becomes of a state in a step, with a row."""
_TERMS: dict[Callable[[_Loop, str], str], float] = {
    lambda loop, _: loop.c.pick(loop.rows): 5.0,
    lambda loop, row: loop.b.op("matmul", row, loop.weight, to="term"): 2.0,
    lambda loop, row: loop.b.op("mul", row, loop.vector, to="term"): 2.0,
    lambda _loop, _row: "": 1.0,
}
"""What a step adds, made from a row; "" for nothing."""
_OUTPUTS: dict[Callable[[_Loop, str, str, str], str], float] = {
    lambda _loop, wide, _row, _state: wide: 3.0,
    lambda loop, wide, _row, _state: loop.b.op("clone", wide, to="out"): 2.0,
    lambda loop, wide, _row, _state: loop.b.op("mul", wide, to="out", other=2.0): 2.0,
    lambda loop, _wide, row, state: loop.b.op("mul", row, state, to="out"): 2.0,
    lambda loop, wide, _row, _state: loop.b.op("matmul", wide, loop.weight, to="out"): 2.0,
    lambda loop, wide, _row, _state: loop.b.op("sum", wide, to="out", dim=-1): 1.0,
}
"""Results of a step, made from its value, a row and a state."""
