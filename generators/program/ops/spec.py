"""The parts of a row of the table of operations: attributes, rules for the result's type, and the source text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from generators.errors import CaseError, require
from generators.program.case import Attr, TensorType
from generators.program.sizes import Size, show
from generators.program.values import category, number


class Kind(Enum):
    """The kinds of attribute; the value describes, for messages, which values a case file may hold."""

    AXIS = "an integer, an axis"
    AXES = "a list of integers, axes"
    INT = "an integer"
    NUMBER = "a number"
    SIZE = "a size such as 3*H*D"
    BOUND = "a size such as 3*H*D, or a number with a decimal point"
    SIZES = "a list of sizes such as [B, S, H*D]"
    FLAG = "true or false"
    WORD = "one of a list of words"
    EQUATION = "an einsum equation such as bhqd,bhkd->bhqk"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that an operation takes."""

    kind: Kind
    default: Attr = None  # the simplest value; a required attribute has none
    words: tuple[str, ...] = ()
    """The values of a WORD, simplest first. For a NUMBER, words that may stand in its place."""
    required: bool = False


def word(*words: str) -> Attribute:
    """An attribute whose values are `words`, the first by default."""
    return Attribute(Kind.WORD, words[0], words)


def flag(default: bool = False) -> Attribute:
    return Attribute(Kind.FLAG, default)


class Memory(Enum):
    """Whose memory the result of an operation has."""

    NEW = "a new tensor's"
    COPY = "a new tensor's, with the first argument's numbers"
    VIEW = "the first argument's"
    CROWDED_VIEW = "the first argument's; several elements may have one place"
    PART_VIEW = "the first argument's, of which the call makes several views"
    VIEW_OR_COPY = "the first argument's or a copy's, as strides decide"
    UNKNOWN = "a new tensor's or the first argument's"
    TARGET = "the first argument's, which is written into; the source text is a statement"

    @property
    def keeps_numbers(self) -> bool:
        return self.is_view or self in (Memory.COPY, Memory.VIEW_OR_COPY)

    @property
    def is_view(self) -> bool:
        return self in (Memory.VIEW, Memory.CROWDED_VIEW, Memory.PART_VIEW)


@dataclass(frozen=True, slots=True)
class Operands:
    """The types of an operation's arguments, and everything else that the type of its result depends on."""

    args: tuple[TensorType, ...]
    attrs: Mapping[str, Any]  # all attributes, defaults filled in
    dims: Mapping[str, int]
    autocast: str | None = None  # the dtype that autocast casts the arguments of products to
    equations: list[tuple[Size, Size]] = field(default_factory=list)  # sizes that must be equal, as the rules find them

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.args[0].shape

    def value(self, name: str) -> int:
        return int(self.attrs[name].value(self.dims))

    def check_probability(self, name: str) -> None:
        value = self.attrs[name]
        require(value is not None and 0 <= value <= 1, f"{name} is {value}: expected a probability")

    def axis(self, name: str = "dim", extra: int = 0) -> int:
        """The axis attribute counted from 0. Raises CaseError unless the first argument has such an axis."""
        rank, axis = len(self.shape) + extra, int(self.attrs[name])
        require(-rank <= axis < rank, f"{name} {axis} is not an axis of a tensor of rank {rank}")
        return axis % rank

    def numbers(self, shape: Sequence[Size]) -> tuple[int, ...]:
        return tuple(size.value(self.dims) for size in shape)

    def must_equal(self, a: Size, b: Size, what: str) -> None:
        x, y = self.numbers((a, b))
        if x != y:
            raise CaseError(f"{what}: {a} = {x} against {b} = {y}")
        self.equations.append((a, b))

    def broadcast(self, *shapes: Sequence[Size]) -> tuple[Size, ...]:
        """The shape that shapes broadcast to. Raises CaseError if they don't."""
        result: tuple[Size, ...] = ()
        for shape in shapes:
            longer, shorter = sorted((result, tuple(shape)), key=len, reverse=True)
            lead = len(longer) - len(shorter)
            result = (*longer[:lead], *map(self._join, longer[lead:], shorter))
        return result

    def _join(self, a: Size, b: Size) -> Size:
        x, y = self.numbers((a, b))
        if x != y and 1 not in (x, y):
            raise CaseError(f"{a} = {x} and {b} = {y} do not broadcast")
        if x == y:
            self.equations.append((a, b))
        return b if x == 1 and a != b else a

    def must_broadcast(self, shape: Sequence[Size], to: Sequence[Size], what: str) -> None:
        if self.numbers(self.broadcast(shape, to)) != self.numbers(to):
            raise CaseError(f"{what} {show(shape)} does not broadcast to {show(to)}")


ShapeRule = Callable[[Operands], tuple[Size, ...]]
DtypeRule = Callable[[Operands], str]  # A rule raises CaseError for operands that the operation does not accept

_TAKES: Mapping[str, tuple[tuple[int, ...], str]] = {
    "any": ((0, 1, 2), "takes no complex numbers"),
    "all": ((0, 1, 2, 3), ""),
    "float": ((2,), "needs a floating-point argument"),
    "number": ((1, 2), "takes no booleans"),
    "signed": ((1, 2, 3), "takes no booleans"),
    "integer": ((1,), "needs integers"),
    "integral": ((0, 1), "needs booleans or integers"),
    "complex": ((3,), "needs a complex argument"),
}
"""By kind of dtype: the accepted categories of dtypes, and the message for any other category."""


def first_shape(call: Operands) -> tuple[Size, ...]:
    return call.args[0].shape


def first_dtype(call: Operands) -> str:
    return call.args[0].dtype


@dataclass(frozen=True, slots=True)
class Line:
    """The parts of an operation's source text."""

    name: str
    spec: "OpSpec"
    args: Sequence[str]
    types: Sequence[TensorType]
    attrs: Mapping[str, Any]
    device: str
    names: Mapping[str, str] = field(default_factory=dict)
    """By attribute, the expression of an argument of forward that stands for it."""

    @property
    def kind(self) -> str:
        return self.spec.kind

    def text(self, name: str, dtype_of: int = 0) -> str:
        """An attribute as source. `min` is the lowest finite number of an argument's dtype, or of the result's."""
        if name in self.names:
            return self.names[name]
        value = self.attrs[name]
        if value == "min":
            dtype = f"{self.args[dtype_of]}.dtype" if self.args else f"torch.{self.attrs['dtype']}"
            return f"torch.finfo({dtype}).min"
        if isinstance(value, tuple):
            return ", ".join(str(v) for v in value)
        return number(value) if isinstance(value, float) else str(value)

    @property
    def right(self) -> str:
        """The second argument, or the number `other` in its place."""
        return self.args[1] if len(self.args) == 2 else self.text("other")

    def options(self, *names: str) -> list[str]:
        """`name=value` for each of these that the row has, if it is an axis, has not its default, or has a name."""
        rows = {name: row for name in names if (row := self.spec.attributes.get(name)) is not None}
        is_told = {name: row.kind is Kind.AXIS or self.attrs[name] != row.default for name, row in rows.items()}
        return [f"{name}={self.packed(name)}" for name in rows if name in self.names or is_told[name]]

    def packed(self, name: str) -> str:
        """An attribute as a single argument: a list of more than one number as a tuple, a word in quotes."""
        value, text = self.attrs[name], self.text(name)
        if name == "dtype":
            return f"torch.{text}"
        is_word = self.spec.attributes[name].kind is Kind.WORD
        return f"({text})" if isinstance(value, tuple) and len(value) > 1 else f'"{text}"' if is_word else text

    def fill(self, template: str) -> str:
        """A template of `OpSpec.text`, filled in."""
        words = {name: self.text(name) for name in self.attrs}
        words |= {"args": ", ".join(self.args), "device": self.device, "name": self.name}
        return template.format(*self.args, right=self.right if "{right}" in template else "", **words)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """A row of the table: an operation."""

    kind: str
    shape: ShapeRule = first_shape
    dtype: DtypeRule | str = first_dtype
    takes: str = "any"  # the kind of dtype, of `_TAKES`, that all arguments have; views and copies take "all" for "any"
    text: str | Callable[[Line], str] = ""
    """The source text: a function, or a template in which `{0}` is the first argument, `{args}` are all of them,
    `{right}` is `Line.right`, `{device}` is a device, `{name}` the name of the value, and `{dim}`, say, an attribute.
    "" calls a method; a form of `spell` calls that with `Line.options`."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    memory: Memory = Memory.NEW
    arity: tuple[int, int] = (1, 1)  # the fewest and the most arguments
    saves: bool = True  # whether its gradient needs its arguments or its result
    init: Callable[[Line], str | None] = lambda _line: None  # the right-hand side of the submodule that the text needs
    before: Callable[[Line], Sequence[str]] = lambda _line: ()  # lines of source before the text
    optional: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    """The names, in order, of the arguments that these attributes require beyond the fewest."""
    plain: str | Callable[[Line], str] = ""
    """The text that the reference and runs with noise take, where `text` has no float64 or noise. If the operation has
    the attribute `form`, it is the text of the first form."""
    random: bool = False
    cost: int = 1  # of two operations that compute the same, the shrinker prefers the lower cost

    def infer(self, call: Operands) -> TensorType:
        """The type of the result; an in-place form keeps the type of its first argument. Raises CaseError."""
        moves_any = self.takes == "any" and self.memory.keeps_numbers
        categories, message = _TAKES["all" if moves_any else self.takes]
        fits = all(category(arg.dtype) in categories for arg in call.args)
        require(fits, f"{message}, got {', '.join(arg.dtype for arg in call.args)}")
        shape = self.shape(call)
        result = TensorType(shape, self.dtype if isinstance(self.dtype, str) else self.dtype(call))
        if call.attrs.get("form") != "in_place":
            return result
        fits = result.sizes(call.dims) == call.args[0].sizes(call.dims)
        require(fits, "an in-place form must keep its first argument's shape")
        return call.args[0]

    def emit(self, line: Line, *, plain: bool = False) -> str:
        text = self.plain if plain and self.plain else self.text
        if callable(text):
            return text(line)
        if text in _FORMS:
            return spell(text, self.kind, *line.args, *line.options(*self.attributes))
        return line.fill(text or f"{{0}}.{self.kind}({', '.join(f'{{{name}}}' for name in self.attributes)})")

    @property
    def owns_memory(self) -> bool:
        """Whether the result is always a new tensor, which may be overwritten in place."""
        return self.memory in (Memory.NEW, Memory.COPY)

    @property
    def writes(self) -> bool:
        """Whether the first argument is written to and is the result."""
        return self.memory is Memory.TARGET


_FORMS = ("method", "functional", "torch")


def spell(form: str, name: str, x: str, *rest: str) -> str:
    """`x.name(rest)`, `x.name_(rest)`, `F.name(x, rest)` or `torch.name(x, rest)`."""
    if form in ("method", "in_place"):
        return f"{x}.{name}{'_' * (form == 'in_place')}({', '.join(rest)})"
    return f"{'F' if form == 'functional' else 'torch'}.{name}({', '.join([x, *rest])})"


def choose_text(attribute: str, templates: Mapping[str, str]) -> Callable[[Line], str]:
    """The source text whose template an attribute chooses."""
    return lambda line: line.fill(templates[line.attrs[attribute]])
