"""Adds to a drawn program operations of the whole table, with random arguments and attributes."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from generators.errors import CaseError, require
from generators.program.case import Attr, Case, Values
from generators.program.ops import OPS
from generators.program.ops.spec import Attribute, Kind, OpSpec
from generators.program.sizes import ONE, Size, product
from generators.program.values import category
from generators.reasons import Reason
from generators.sampling.builder import Builder, insert
from generators.sampling.choices import Choices

OWN_WRITERS = (
    *("sdpa", "flex_attention", "multihead_attention", "transformer_encoder_layer", "layer", "decayed_sum", "dropout"),
    *("einsum", "embedding", "as_strided", "polar", "view_as_complex", "view_as_real", "arange"),
)
"""Operations that other parts of the generator write."""
_UNLIKELY = (
    "one_hot",
    "bucketize",
    "grouped_mm",
    "shift_left",
    "shift_right",
)  # take arguments that random ones hardly ever are
DRAWN = tuple(kind for kind, spec in OPS.items() if kind not in OWN_WRITERS + _UNLIKELY and spec.arity[1] > 0)
"""The operations that are added: all others but constants."""
_POSITIVE = ("log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "acos", "pow")
"""Operations that get an argument between 0 and 1, where they have a number."""
_RANKS = {"": 6.0, "flatten": 1.0, "unsqueeze": 2.0, "select": 1.0}
"""How the argument gets another rank."""
_OVERWRITING = ("scatter", "scatter_", "index_copy_", "index_put_")
"""Operations that get distinct indices: torch does not define which of several writes into one place is the last."""
_TRIES = 60  # draws of arguments and attributes for an operation, 20 us each
_MOST_ELEMENTS = 1 << 16
_NUMBERS: tuple[Attr, ...] = (0.5, 1.0, 2.0, -1.0, 0.0, 3.0, 1, 2, 0)
_DEFAULT_SHARE = 0.5  # the share of optional attributes that keep their default
_SOURCE_SHARE = 0.7  # the share of scattered sources that get the shape of their index
_FEW = {1: 4.0, 2: 3.0, 3: 2.0, 0: 2.0}


def add_operation(case: Case, c: Choices, kinds: Collection[str] = DRAWN) -> Case:
    """The case with an operation of one of these kinds on a random value. Raises CaseError."""
    spec = OPS[c.pick([*kinds])]
    return insert(case, c, lambda b, c, value, others: apply(b, c, spec, value, others))


def apply(b: Builder, c: Choices, spec: OpSpec, value: str, others: Sequence[str]) -> str:
    """Adds the operation with the first arguments and attributes that it takes. Raises CaseError."""
    n_inputs, n_ops = len(b.inputs), len(b.ops)
    for _ in range(_TRIES):
        with suppress(CaseError):
            change = c.draw(_RANKS)
            options: dict[str, Any] = {"start_dim": 0, "end_dim": -1} if change == "flatten" else {"dim": 0}
            first = b.op(change, value, **options) if change else value
            if spec.kind.rstrip("_") in _POSITIVE:
                first = b.op("sigmoid", first, to="share")
            elif spec.writes:
                first = b.op("clone", first, to="target")
            attrs = {name: _draw_attribute(b, c, one, first) for name, one in spec.attributes.items()}
            attrs |= {"eps": c.pick((None, 1e-5, 1e-3))} if "eps" in attrs else {}
            least, most = spec.arity
            count = least + c.below(min(most, least + 2) - least + 1)
            places = "permutation" if spec.kind in _OVERWRITING else "tokens"
            args = [first, *(_draw_argument(b, c, first, others, places) for _ in range(count - 1))]
            if spec.kind.startswith("scatter") and count == 3 and c.chance(_SOURCE_SHARE):
                args[2] = b.input("source", b.shape(args[1]), dtype=b.dtype_of(first))
            if spec.takes in ("bool", "integral") or spec.kind == "where":
                args[0] = b.op("gt", first, to="keep", other=0.0)
            made = b.op(spec.kind, *args, to="made", **attrs)
            require(b.size(product(b.shape(made))) <= _MOST_ELEMENTS, "the result is too large", Reason.SIZE)
            if spec.kind.startswith("scatter") and count == 3:
                index, source = (b.types[name].sizes(b.dims) for name in args[1:])
                require(index == source, "its gradient needs a source of the index's shape", Reason.SCATTERED_GRADIENT)
            return made
        b.undo(n_inputs, n_ops)
    raise CaseError(f"no arguments found for {spec.kind}")


def _draw_argument(b: Builder, c: Choices, first: str, others: Sequence[str], places: str) -> str:
    """A value of the program, or a new input whose shape is made from the first argument's.

    places: the distribution of indices
    """
    if c.chance(0.3):
        return c.pick(others)
    shape, lengths = b.shape(first), [b.size(size) for size in b.shape(first)]
    ends, few = shape[-2:], Size.of(c.draw({2: 2.0, 3: 1.0, 1: 1.0}))
    shapes = [shape, shape[-1:], shape[1:2], tuple(c.pick((size, ONE)) for size in shape)]
    shapes += [
        (*shape[:-2], *ends[::-1]),
        (few, *shape[1:2], *(few,) * (len(shape) - 2)),
        (few,),
        (few, *ends[1:]),
        (few, few, *ends),
    ]
    drawn = c.pick(shapes)
    own = b.dtype_of(first)
    dtype = c.draw({own: 6.0, "int64": 3.0, "bool": 1.0} if category(own) == 2 else {own: 1.0})
    if dtype == "int64":
        scale = float(max(1, min(lengths, default=1))) if places == "tokens" else 1.0
        return b.input("places", drawn, Values(places, scale=scale), dtype)
    if dtype == "bool":
        return b.input("keep", drawn, Values("random", scale=0.5), dtype)
    return b.input("factor", drawn, dtype=dtype, parameter=c.chance(0.5))


def _draw_attribute(b: Builder, c: Choices, attribute: Attribute, first: str) -> Attr:
    if not attribute.required and c.chance(_DEFAULT_SHARE):
        return attribute.default
    shape, rank = b.shape(first), b.rank(first)
    match attribute.kind:
        case Kind.AXIS:
            return c.below(rank)
        case Kind.AXES:
            rest = [*range(rank)]
            order = [rest.pop(c.below(len(rest))) for _ in range(rank)]
            return tuple(order if c.chance(0.5) else order[: 1 + c.below(rank)])
        case Kind.INT:
            return c.draw(_FEW)
        case Kind.NUMBER:
            return c.pick([*_NUMBERS, *attribute.words])
        case Kind.SIZE | Kind.BOUND:
            return c.pick([*shape, *(size - 1 for size in shape), *(Size.of(number) for number in (0, 1, 1, 2, 3))])
        case Kind.FLAG:
            return c.chance(0.5)
        case Kind.WORD:
            return c.pick(attribute.words)
    scaled = tuple(size * c.pick((1, 1, 2)) for size in shape)
    numbers = tuple(Size.of(c.draw(_FEW)) for _ in range(c.pick((1, 1, 1, 2, 3, 4, rank, rank))))
    return c.pick((numbers, numbers, scaled, (*shape[:-2], *shape[-1:], *shape[-2:-1])))
