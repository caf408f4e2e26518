"""Random edits of a case: its sizes, values, memory layouts, dtypes, mode, and attributes of its operations.

Edits of the program itself (other spellings, inserted or removed operations, two cases joined) were tried and dropped:
they reached next to nothing that random cases and variants did not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from generators.program.case import Attr, Case, TensorType
from generators.program.dtypes import category
from generators.program.edits import resized, valid, with_input, with_op
from generators.program.ops import OPS
from generators.program.ops.spec import Attribute, Kind
from generators.program.sizes import Size, product
from generators.program.type_check import make_op, types_of
from generators.program.values import DISTRIBUTIONS, LAYOUTS
from generators.sampling.choices import Choices
from generators.sampling.variants import differentiates_flex, in_dtype, in_mode, reshape_views

Edit = Callable[[Case, Choices], Case | None]
"""Returns a changed case, which may be ill typed, or None where there is nothing to change."""

_SIZES = {
    1: 4.0,
    2: 4.0,
    3: 2.0,
    4: 2.0,
    5: 1.0,
    7: 1.0,
    8: 3.0,
    16: 2.0,
    17: 1.5,
    32: 1.0,
    33: 1.0,
    64: 1.0,
    65: 0.7,
    0: 0.3,
}
_FLOATS = ("float32", "bfloat16", "float16")
_SCALES = (1.0, 0.5, 3.0, 0.02, 10.0)
_NUMBERS = (0.5, 2.0, 1.0, -1.0, 0.125, 8.0, 0.0, 2, -0.5, 3)
_FALLBACK = TensorType((Size.of(1),), "float32")


def change_attribute(case: Case, c: Choices) -> Case | None:
    """Draw one attribute of one operation anew, or leave it out."""
    if not case.ops:
        return None
    op = c.pick(case.ops)
    specs = OPS[op.kind].attributes
    if not specs:
        return None
    types = types_of(case)
    name, attrs = c.pick(list(specs)), dict(op.attrs)
    old = attrs.pop(name, None)
    if old is None or specs[name].required or not c.chance(0.25):
        is_number = isinstance(old, int | float) and not isinstance(old, bool) and specs[name].kind is Kind.NUMBER
        if is_number and isinstance(old, int | float) and c.chance(0.5):
            attrs[name] = c.pick((-old, old * 2, old / 2, float(old)))
        else:
            attrs[name] = _draw_attribute(c, specs[name], case, [types[a] for a in op.args])
    return with_op(case, op, make_op(op.name, op.kind, op.args, attrs))


def _draw_attribute(c: Choices, attribute: Attribute, case: Case, args: Sequence[TensorType]) -> Attr:
    """A value for one attribute, which need not fit."""
    first = args[0] if args else _FALLBACK
    match attribute.kind:
        case Kind.AXIS:
            rank = max(1, first.rank)
            return c.below(2 * rank) - rank
        case Kind.AXES:
            return tuple(_shuffle(c, range(first.rank)))
        case Kind.INT:
            return c.below(4) - 1
        case Kind.NUMBER:
            return c.pick(_NUMBERS) if not attribute.words or c.chance(0.8) else c.pick(attribute.words)
        case Kind.SIZE:
            names = [name for name, _ in case.dims]
            return Size.of(c.pick(names)) if names and c.chance(0.7) else Size.of(c.pick((1, 2, -1)))
        case Kind.SIZES:
            shape = (c.pick(args) if args and c.chance(0.3) else first).shape
            return tuple(shape[i] for i in _shuffle(c, range(len(shape))))
        case Kind.FLAG:
            return not attribute.default
        case Kind.WORD:
            return c.pick(attribute.words)
        case _:
            return attribute.default


def _shuffle(c: Choices, items: range) -> list[int]:
    left, order = list(items), []
    while left:
        order.append(left.pop(c.below(len(left))))
    return order


def equal_dims(case: Case, c: Choices) -> Case | None:
    """Make one dimension as large as another: a rewrite that mixes up two axes then fits the shapes."""
    free = _free_dims(case)
    return resized(case, {**case.sizes, c.pick(free): c.pick(case.dims)[1]}) if free else None


def resize(case: Case, c: Choices) -> Case | None:
    """Give one dimension another size: 1, next to a power of two, sometimes 0."""
    free = _free_dims(case)
    if not free:
        return None
    name = c.pick(free)
    size = case.sizes[name]
    new = c.pick((size + 1, max(1, size - 1), size * 2)) if c.chance(0.3) else c.weighted(_SIZES)
    return resized(case, {**case.sizes, name: new})


def _free_dims(case: Case) -> list[str]:
    """The dimensions that may have any size: the rows of an embedding's table depend on the indices."""
    types = types_of(case)
    fixed = [size for op in case.ops if op.kind == "embedding" for a in op.args for size in types[a].shape]
    names = {name for size in fixed for name in size.names()}
    return [name for name, _ in case.dims if name not in names]


def change_values(case: Case, c: Choices) -> Case | None:
    """Fill an input in another way."""
    item = c.pick(case.inputs)
    if item.values.kind == "tokens":  # numbers that name rows of a table
        return None
    kinds = [
        d.name
        for d in DISTRIBUTIONS.values()
        if item.dtype in d.dtypes and d.min_rank <= len(item.shape) and d.name != "tokens"
    ]
    values = replace(item.values, kind=c.pick(kinds), scale=c.pick(_SCALES) if item.dtype != "bool" else 0.5)
    return with_input(case, item, replace(item, values=values))


def change_layout(case: Case, c: Choices) -> Case | None:
    """Lay an input out differently in memory, or make it a parameter or no parameter."""
    item = c.pick(case.inputs)
    if c.chance(0.2):
        return with_input(case, item, replace(item, parameter=not item.parameter))
    layouts = [name for name, (rank, *_) in LAYOUTS.items() if rank <= len(item.shape) and name != item.layout]
    return with_input(case, item, replace(item, layout=c.pick(layouts))) if layouts else None


def change_dtype(case: Case, c: Choices) -> Case | None:
    """Take another floating dtype throughout, or for one input."""
    found = {i.dtype for i in case.inputs if category(i.dtype) == 2}
    if not found:
        return None
    old = c.pick(sorted(found))
    new = c.pick([d for d in _FLOATS if d != old])
    if c.chance(0.2):
        item = c.pick([i for i in case.inputs if i.dtype == old])
        return with_input(case, item, replace(item, dtype=new))
    return in_dtype(case, old, new, casts=old == "float32" or c.chance(0.5))


def change_mode(case: Case, c: Choices) -> Case | None:
    """Switch between training and inference; rarely, dynamic shapes on or off."""
    if c.chance(0.1):
        return replace(case, dynamic=not case.dynamic)
    return in_mode(case, "inference" if case.training else "training")


EDITS: Mapping[Edit, float] = {
    change_attribute: 3.0,
    equal_dims: 2.0,
    resize: 1.5,
    change_values: 2.0,
    change_layout: 1.0,
    change_dtype: 1.5,
    change_mode: 1.0,
}
WEIGHTS: Mapping[str, float] = {edit.__name__: weight for edit, weight in EDITS.items()}
_BY_NAME = {edit.__name__: edit for edit in EDITS}
_COUNT = {1: 5.0, 2: 3.0, 3: 1.5, 5: 0.5}
_ATTEMPTS = 40
MOST_ELEMENTS = 1 << 18
"""Elements of one value, so that cases stay quick to judge. A case that has more to begin with may keep them."""


@dataclass(frozen=True, slots=True)
class MutatedCase:
    """A mutated case, and the names of the edits that made it."""

    case: Case
    edits: tuple[str, ...]


def mutate(case: Case, c: Choices, weights: Mapping[str, float] = WEIGHTS) -> MutatedCase:
    """A valid case a few edits away from `case`, almost always another one.

    A contract stays where the edits keep what it says, and is dropped where they may not.
    """
    limit = max(MOST_ELEMENTS, _largest_value(case))
    edits: list[str] = []
    for _ in range(c.weighted(_COUNT)):
        for _ in range(_ATTEMPTS):
            name = c.weighted(weights)
            changed = _apply(_BY_NAME[name], case, c)
            if changed is not None and _largest_value(changed) <= limit:
                case = changed
                edits.append(name)
                break
    return MutatedCase(reshape_views(case), tuple(edits))


def _apply(edit: Edit, case: Case, c: Choices) -> Case | None:
    edited = edit(case, c)
    changed = None if edited is None else valid(edited)
    if changed is None or not changed.ops or changed.id == case.id or differentiates_flex(changed):
        return None
    return changed


def _largest_value(case: Case) -> int:
    return max((product(t.shape).value(case.sizes) for t in types_of(case).values()), default=0)
