"""What the table of operations knows of each: attributes, the type of the result, and its line of source."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from generators.errors import CaseError, require
from generators.program.case import Attr, TensorType
from generators.program.dtypes import category
from generators.program.sizes import Size
from generators.program.values import number


class Kind(Enum):
    """The kinds of attribute; each says what a case file may hold there."""

    AXIS = "an integer, an axis"
    AXES = "a list of integers, axes"
    INT = "an integer"
    NUMBER = "a number"
    SIZE = "a size such as 3*H*D"
    SIZES = "a list of sizes such as [B, S, H*D]"
    FLAG = "true or false"
    WORD = "one of a list of words"
    EQUATION = "an einsum equation such as bhqd,bhkd->bhqk"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute an operation takes. `default` is its simplest value; a required one has none.

    `words` are the values of a WORD, simplest first; for a NUMBER they are words that may stand in its place.
    """

    kind: Kind
    default: Attr = None
    words: tuple[str, ...] = ()
    required: bool = False


def word(*words: str) -> Attribute:
    """An attribute that is one of `words`, the first by default."""
    return Attribute(Kind.WORD, words[0], words)


def flag(default: bool = False) -> Attribute:
    """A true-or-false attribute."""
    return Attribute(Kind.FLAG, default)


@dataclass(frozen=True, slots=True)
class Call:
    """An operation applied: the types of its arguments, all its attributes, the dimensions' sizes, and the dtype that
    autocast casts the arguments of products to, if any."""

    args: tuple[TensorType, ...]
    attrs: Mapping[str, Any]
    dims: Mapping[str, int]
    autocast: str | None = None

    @property
    def shape(self) -> tuple[Size, ...]:
        """The shape of the first argument."""
        return self.args[0].shape

    def reshape(self, *shape: Size) -> TensorType:
        """The type of the first argument in another shape."""
        return TensorType(shape, self.args[0].dtype)

    def value(self, name: str) -> int:
        """A size attribute as a number."""
        return int(self.attrs[name].value(self.dims))

    def check_probability(self, name: str) -> None:
        """Raises CaseError unless a number attribute is a probability."""
        value = self.attrs[name]
        require(value is not None and 0 <= value <= 1, f"{name} is {value}: expected a probability")

    def axis(self, name: str = "dim", extra: int = 0) -> int:
        """The axis attribute counted from 0. Raises CaseError unless the first argument has such an axis."""
        rank, axis = len(self.shape) + extra, int(self.attrs[name])
        require(-rank <= axis < rank, f"{name} {axis} is not an axis of a tensor of rank {rank}")
        return axis % rank


Infer = Callable[[Call], TensorType]


@dataclass(frozen=True, slots=True)
class Line:
    """What an operation's source text is made from: name and kind, the arguments' texts and types, attributes."""

    name: str
    kind: str
    args: Sequence[str]
    types: Sequence[TensorType]
    attrs: Mapping[str, Any]
    device: str

    def text(self, name: str, dtype_of: int = 0) -> str:
        """An attribute as source; the word `min` is the lowest finite value of an argument's dtype, or the result's."""
        value = self.attrs[name]
        if value == "min":
            dtype = f"{self.args[dtype_of]}.dtype" if self.args else f"torch.{self.attrs['dtype']}"
            return f"torch.finfo({dtype}).min"
        if isinstance(value, tuple):
            return ", ".join(str(v) for v in value)
        return number(value) if isinstance(value, float) else str(value)

    def options(self, *names: str) -> list[str]:
        """`name=value` for these attributes, where they are not left out or at False."""
        given = (name for name in names if self.attrs[name] is not None and self.attrs[name] is not False)
        return [f"{name}={self.text(name)}" for name in given]

    def fill(self, template: str) -> str:
        """A template of `OpSpec.emit`, filled in."""
        attrs = {name: self.text(name) for name in self.attrs}
        return template.format(*self.args, args=", ".join(self.args), device=self.device, **attrs)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operation: how many arguments, its attributes, the type of its result, and its source text.

    `emit` is a function, or a template in which `{0}` is the first argument, `{args}` are all, `{device}` is a device,
    and `{dim}`, say, is an attribute. `owns_memory` says the result is a new tensor in every case, so that it may be
    overwritten in place; `writes`, that the first argument is written to and is the result, and that the text is a
    statement. `init` is the right-hand side of the submodule that a module form needs; `before` are lines
    before this one. `optional` names, in order, the arguments beyond the fewest
    that these attributes require; None: attributes do not decide. `cost`: of two operations that do the same, the
    shrinker prefers the lower.
    """

    kind: str
    arity: tuple[int, int]
    infer: Infer
    emit: str | Callable[[Line], str]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    owns_memory: bool = True
    writes: bool = False
    init: Callable[[Line], str | None] = lambda _line: None
    before: Callable[[Line], Sequence[str]] = lambda _line: ()
    optional: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    random: bool = False
    cost: int = 1


def broadcast(a: Sequence[Size], b: Sequence[Size], dims: Mapping[str, int]) -> tuple[Size, ...]:
    """The shape two shapes broadcast to. Raises CaseError when they don't."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    result = list(longer)
    for i in range(1, len(shorter) + 1):
        x, y = longer[-i], shorter[-i]
        vx, vy = x.value(dims), y.value(dims)
        if x == y:
            result[-i] = x
        elif vx == 1:
            result[-i] = y
        elif vy in (1, vx):
            result[-i] = x
        else:
            raise CaseError(f"shapes {show(a)} and {show(b)} do not broadcast ({vx} against {vy})")
    return tuple(result)


def must_broadcast(a: Sequence[Size], b: Sequence[Size], dims: Mapping[str, int], what: str) -> None:
    """Raises CaseError unless shape `a` broadcasts to shape `b`."""
    if [s.value(dims) for s in broadcast(a, b, dims)] != [s.value(dims) for s in b]:
        raise CaseError(f"{what} {show(a)} does not broadcast to {show(b)}")


def show(shape: Sequence[Size]) -> str:
    """A shape in words."""
    return "[" + ", ".join(str(s) for s in shape) + "]"


def must_equal(a: Size, b: Size, dims: Mapping[str, int], what: str) -> None:
    """Raises CaseError unless two sizes are the same number."""
    if a.value(dims) != b.value(dims):
        raise CaseError(f"{what}: {a} = {a.value(dims)} against {b} = {b.value(dims)}")


def same_float(call: Call) -> TensorType:
    """The type of the first argument. Raises CaseError unless it is floating."""
    require(category(call.args[0].dtype) == 2, f"needs a floating-point argument, got {call.args[0].dtype}")
    return call.args[0]


def one_float(call: Call, args: Sequence[TensorType]) -> str:
    """The dtype of a product of these arguments.

    Raises CaseError unless they have one floating dtype, or autocast gives them one.
    """
    dtypes = {arg.dtype for arg in args}
    if call.autocast and "float64" not in dtypes and all(category(dtype) == 2 for dtype in dtypes):
        return call.autocast
    if len(dtypes) != 1 or category(args[0].dtype) != 2:
        raise CaseError(f"needs one floating dtype, got {', '.join(arg.dtype for arg in args)}")
    return args[0].dtype


def same(call: Call) -> TensorType:
    """The type of the first argument."""
    return call.args[0]


def spell(form: str, name: str, x: str, *rest: str) -> str:
    """`x.name(rest)`, `x.name_(rest)`, `F.name(x, rest)` or `torch.name(x, rest)`."""
    if form in ("method", "in_place"):
        return f"{x}.{name}{'_' * (form == 'in_place')}({', '.join(rest)})"
    return f"{'F' if form == 'functional' else 'torch'}.{name}({', '.join([x, *rest])})"


def method(
    kind: str, infer: Infer, attributes: Mapping[str, Attribute] = MappingProxyType({}), **options: Any
) -> OpSpec:
    """An operation written `x.kind(...)`, its attributes in order."""
    values = ", ".join(f"{{{name}}}" for name in attributes)
    return OpSpec(kind, (1, 1), infer, f"{{0}}.{kind}({values})", attributes, **options)


def function(name: str, arity: tuple[int, int], infer: Infer, cost: int = 1) -> OpSpec:
    """An operation written `module.kind(x, ...)`; `name` is `module.kind`."""
    return OpSpec(name.split(".")[1], arity, infer, f"{name}({{args}})", cost=cost)


def forms(
    kind: str, arity: tuple[int, int], infer: Infer, attribute: str, templates: Mapping[str, str], **more: Attribute
) -> OpSpec:
    """An operation with an attribute that chooses its template, the first by default; `more` are other attributes."""
    attributes = {**more, attribute: word(*templates)}
    return OpSpec(kind, arity, infer, lambda line: line.fill(templates[line.attrs[attribute]]), attributes)
