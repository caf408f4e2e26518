"""Running sums with decay, the states of linear attention, written as a loop, a scan or an associative scan."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from generators.errors import require
from generators.program.ops.rules import common_float
from generators.program.ops.spec import Attribute, Kind, Line, Operands, OpSpec, flag, word
from generators.program.sizes import ONE, Size

SCAN_FUNCTIONS: Mapping[str, str] = {
    "decayed_sum": '''
def decayed_sum(x, decay, dim, reverse=False):
    """state[t] = decay[t] * state[t - 1] + x[t] along `dim`, from its end if reversed."""
    pairs = [*zip(x.unbind(dim), decay.expand_as(x).unbind(dim))]
    state, states = torch.zeros_like(pairs[0][0]), []
    for row, factor in reversed(pairs) if reverse else pairs:
        state = factor * state + row
        states.append(state)
    return torch.stack(states[::-1] if reverse else states, dim)
''',
    "fresh_copy": '''
def fresh_copy(value):
    """Carries of a scan share no memory, and keep their strides."""
    return value.clone(memory_format=torch.contiguous_format)
''',
    "loop_rows": """
def loop_rows(step, state, rows, reverse=False):
    steps, found = [*zip(*(value.unbind() for value in rows))], []
    for row in reversed(steps) if reverse else steps:
        state, made = step(state, row)
        found.append(made)
    return state, [torch.stack(values) for values in zip(*(reversed(found) if reverse else found))]
""",
    "scan_sum": """
def scan_sum(x, decay, dim, reverse=False):
    def step(state, rows):
        state = state * rows[1] + rows[0]
        return state, state.clone()

    x, decay = x.movedim(dim, 0), decay.movedim(dim, 0)
    start = torch.zeros_like(x[0], memory_format=torch.contiguous_format)
    return scan(step, start, (x, decay), reverse=reverse)[1].movedim(0, dim)
""",
    "scan_sum_constant": """
def scan_sum_constant(x, decay, dim, reverse=False):
    x, factor = x.movedim(dim, 0), decay.select(dim, 0)

    def step(state, row):
        state = state * factor + row
        return state, state.clone()

    start = torch.zeros_like(x[0], memory_format=torch.contiguous_format)
    return scan(step, start, x, reverse=reverse)[1].movedim(0, dim)
""",
    "associative_sum": """
def associative_sum(x, decay, dim, reverse=False, combine_mode="generic"):
    def combine(left, right):
        return left[0] * right[1] + right[0], left[1] * right[1]

    leaves = x, decay.expand_as(x)
    return associative_scan(combine, leaves, dim, reverse=reverse, combine_mode=combine_mode)[0]
""",
    "call_in_ensemble": """
def call_in_ensemble(layer, *given):
    weights = {name: torch.stack([value, -0.5 * value]) for name, value in layer.named_parameters()}
    return torch.vmap(lambda own: torch.func.functional_call(layer, own, given))(weights)[0]
""",
}
"""The functions that texts of cases call, by name."""


def _sum(call: Operands) -> tuple[Size, ...]:
    (x, decay), axis = call.args, call.axis()
    require(decay.rank == x.rank, "needs a decay with the axes of the first argument")
    require(min(call.numbers(x.shape)) > 0, "needs an element")
    if decay.shape[axis] != ONE:
        call.must_equal(decay.shape[axis], x.shape[axis], "steps")
    fits = call.autocast in (None, x.dtype) or x.dtype == "float32"
    require(fits, f"autocast to {call.autocast} stacks no {x.dtype}")
    call.must_broadcast(decay.shape, x.shape, "decay")
    return x.shape


def _text(line: Line, form: str = "") -> str:
    form, more = form or line.attrs["form"], []
    name = "decayed_sum" if form == "loop" else "associative_sum"
    if form == "scan":
        name = "scan_sum_constant" if line.types[1].shape[line.attrs["dim"]] == ONE else "scan_sum"
    elif form == "pointwise_scan":
        more = ['combine_mode="pointwise"']
    return f"{name}({', '.join([*line.args, line.fill('dim={dim}'), *line.options('reverse'), *more])})"


_SUM = {
    "dim": Attribute(Kind.AXIS, 0),
    "reverse": flag(),
    "form": word("loop", "scan", "associative_scan", "pointwise_scan"),
}

OPS = [
    OpSpec(
        "decayed_sum",
        _sum,
        lambda call: common_float(replace(call, autocast=None)),
        text=_text,
        plain=partial(_text, form="loop"),
        attributes=_SUM,
        arity=(2, 2),
        cost=3,
    )
]
