"""Attributes drawn at random, of an operation that is given its arguments."""

from collections.abc import Mapping, Sequence

from generators.program.case import Attr, Case, TensorType
from generators.program.ops.spec import Attribute, Kind, OpSpec
from generators.program.sizes import Size
from generators.sampling.choices import Choices

_NUMBERS = (0.5, 2.0, 1.0, -1.0, 0.125, 8.0, 0.0, 2, -0.5, 3)
_FALLBACK = TensorType((Size.of(1),), "float32")


def draw(c: Choices, spec: OpSpec, case: Case, args: Sequence[TensorType]) -> dict[str, Attr]:
    """All that `spec` requires, and now and then something that it does not."""
    return {
        name: draw_one(c, attribute, case, args)
        for name, attribute in spec.attributes.items()
        if attribute.required or c.chance(0.3)
    }


def draw_one(c: Choices, attribute: Attribute, case: Case, args: Sequence[TensorType]) -> Attr:
    """A value for one attribute, which may turn out not to fit."""
    first = args[0] if args else _FALLBACK
    rank = max(1, first.rank)
    kind = attribute.kind
    if kind is Kind.AXIS:
        return c.below(2 * rank) - rank
    if kind is Kind.AXES:
        return tuple(shuffled(c, range(first.rank)))
    if kind is Kind.INT:
        return c.below(4) - 1
    if kind is Kind.NUMBER:
        return c.pick(_NUMBERS) if not attribute.words or c.chance(0.8) else c.pick(attribute.words)
    if kind is Kind.SIZE:
        return _size(c, case)
    if kind is Kind.SIZES:
        return _shape(c, args, first)
    if kind is Kind.FLAG:
        return not attribute.default if isinstance(attribute.default, bool) else c.chance(0.5)
    return c.pick(attribute.words) if kind is Kind.WORD else attribute.default


def changed(
    c: Choices, spec: OpSpec, attrs: Mapping[str, Attr], case: Case, args: Sequence[TensorType]
) -> dict[str, Attr]:
    """`attrs` with one of those `spec` takes drawn anew, or left out."""
    name = c.pick(list(spec.attributes))
    rest = {key: value for key, value in attrs.items() if key != name}
    attribute, old = spec.attributes[name], attrs.get(name)
    if old is not None and not attribute.required and c.chance(0.25):
        return rest
    if isinstance(old, int | float) and not isinstance(old, bool) and attribute.kind is Kind.NUMBER and c.chance(0.5):
        return {**rest, name: c.pick((-old, old * 2, old / 2, float(old)))}
    return {**rest, name: draw_one(c, attribute, case, args)}


def shuffled(c: Choices, items: range) -> list[int]:
    """The items in a random order."""
    left, order = list(items), []
    while left:
        order.append(left.pop(c.below(len(left))))
    return order


def _size(c: Choices, case: Case) -> Size:
    names = [name for name, _ in case.dims]
    return Size.of(c.pick(names)) if names and c.chance(0.7) else Size.of(c.pick((1, 2, -1)))


def _shape(c: Choices, args: Sequence[TensorType], first: TensorType) -> tuple[Size, ...]:
    """The sizes of the first argument in another order, two of them in one, one of them 1, or all of another argument."""
    shape = list(c.pick(args).shape) if args and c.chance(0.3) else list(first.shape)
    how = c.pick(("order", "merge", "one", "same"))
    if how == "order":
        return tuple(shape[i] for i in shuffled(c, range(len(shape))))
    if how == "merge" and len(shape) > 1:
        at = c.below(len(shape) - 1)
        return (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    if how == "one":
        at = c.below(len(shape) + 1)
        return (*shape[:at], Size.of(1), *shape[at:])
    return tuple(shape)
