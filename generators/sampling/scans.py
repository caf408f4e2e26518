"""Adds loops whose steps hand values to the next step: recurrent layers, gated and linear, one after another."""

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
_STARTS = {"input": 5.0, "parameter": 2.0, "zeros": 2.0, "first_row": 1.0}
_MIXES = {"linear": 4.0, "decay": 2.0, "gate": 3.0, "vector": 2.0, "kept": 1.0}
_TERMS = {"row": 5.0, "linear": 2.0, "gated": 2.0, "none": 1.0}
_ACTIVATIONS = {"none": 4.0, "tanh": 3.0, "sigmoid": 2.0, "sin": 1.0}
_OUTPUTS = {"new": 3.0, "copy": 2.0, "scaled": 2.0, "before": 2.0, "linear": 2.0, "sum": 1.0}
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
        match self.c.draw(_STARTS):
            case "zeros":
                return b.op("zeros", to="start", sizes=shape, dtype=dtype)
            case "first_row":
                return b.op("clone", b.op("select", self.rows[0], dim=0, index=0), to="start")
            case form:
                return b.input("start", shape, dtype=dtype, parameter=form == "parameter")

    def _step(self, state: str) -> str:
        """The next value of a state, as a row or as a state."""
        b, c, row = self.b, self.c, self.c.pick(self.rows)
        match c.draw(_MIXES):
            case "linear":
                mixed = b.op("matmul", state, self.weight, to="mixed")
            case "decay":
                mixed = b.op("mul", state, to="mixed", other=c.pick((0.5, -1.0, 0.9)))
            case "gate":
                mixed = b.op("mul", b.op("sigmoid", row, to="gate"), state, to="mixed")
            case "vector":
                mixed = b.op("mul", state, self.vector, to="mixed")
            case _:
                mixed = state
        if len(self.states) > 1 and c.chance(0.6):
            mixed = b.op(c.pick(("add", "mul")), mixed, c.pick(self.states), to="mixed")
        match c.draw(_TERMS):
            case "row":
                mixed = b.op("add", mixed, c.pick(self.rows), to="sum")
            case "linear":
                mixed = b.op("add", mixed, b.op("matmul", row, self.weight, to="term"), to="sum")
            case "gated":
                mixed = b.op("add", mixed, b.op("mul", row, self.vector, to="term"), to="sum")
            case _:
                pass
        if c.chance(0.4):
            mixed = self._take_row(mixed)
        activation = c.draw(_ACTIVATIONS)
        return b.op("clone" if activation == "none" else activation, mixed, to="new")

    def _take_row(self, value: str) -> str:
        whole = self.b.rank(value) == len(self.shape)
        return self.b.op("select", value, to="last", dim=0, index=0) if whole else value

    def _output(self, value: str) -> str:
        """A value of which each step gives a row."""
        b, row, state = self.b, self.c.pick(self.rows), self.c.pick(self.states)
        wide = value if b.rank(value) == len(self.shape) else b.op("mul", row, value, to="out")
        match self.c.draw(_OUTPUTS):
            case "scaled":
                return b.op("mul", wide, to="out", other=2.0)
            case "before":
                return b.op("mul", row, state, to="out")
            case "linear":
                return b.op("matmul", wide, self.weight, to="out")
            case "sum":
                return b.op("sum", wide, to="out", dim=-1)
            case "copy":
                return b.op("clone", wide, to="out")
            case _:
                return wide
