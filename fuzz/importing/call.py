"""A recorded call while it is read: its arguments by name, and the operations that it becomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuzz.importing.kinds import ATTRIBUTES, find_kind
from fuzz.importing.program import ImportedProgram, Untranslatable
from fuzz.protocol.recording import RecordedCall, RecordedTensor
from generators.program.case import Attr, TensorType
from generators.program.ops import OPS, PROBABILITIES
from generators.program.ops.spec import Attribute, Kind
from generators.program.values import LOWEST, category

_NAMED_BY_MODULE = ("linear", "embedding", "layer_norm", "rms_norm", "conv1d", "conv2d", "batch_norm", "group_norm")
"""Operations whose values are called as the submodule that computes them."""
_AFTER = {"bias": "weight", "append": "prepend"}
"""Tensors that an operation takes after another tensor alone."""


@dataclass(frozen=True, slots=True)
class TensorNumber:
    """A tensor among the arguments of a call."""

    number: int


class ImportedCall:
    """A recorded call, and the program that it is added to. Its methods raise `Untranslatable`.

    given: the arguments that are not read yet, by name
    """

    def __init__(self, program: ImportedProgram, record: RecordedCall) -> None:
        self.program, self.record = program, record
        self.given = {name: decode(value) for name, value in record.args.items()}
        self.defaults = {name: decode(value) for name, value in record.defaults.items()}
        path, _, self.function = record.function.rpartition(".")
        self.family = path.rpartition(".")[2]  # Tensor, functional, linalg or torch

    @property
    def result(self) -> RecordedTensor:
        return self.program.recorded.tensors[self.record.results[0]]

    def take(self, name: str) -> Any:
        """The argument, which is read with this; else torch's default, else None."""
        return self.given.pop(name, self.defaults.get(name))

    def take_tensor(self, name: str = "input") -> str:
        return self.tensor(self.take(name))

    def take_rest(self) -> list[Any]:
        """All arguments that are not read yet."""
        values = [*self.given.values()]
        self.given.clear()
        return values

    def require_read(self) -> None:
        """Raise `Untranslatable` for an argument that is not read and has an effect."""
        for name, value in self.given.items():
            if not _is_default(value, self.defaults.get(name)):
                raise Untranslatable(f"{name}={'a tensor' if isinstance(value, TensorNumber) else value}")

    def tensor(self, value: Any) -> str:
        if not isinstance(value, TensorNumber):
            raise Untranslatable(f"{value!r} in place of a tensor")
        return self.program.name(value.number)

    def type(self, value: Any) -> TensorType:
        return self.program.types[self.tensor(value)]

    def emit(self, kind: str, args: Sequence[str], **attrs: Attr) -> str:
        """Add an operation, and return the name of its result."""
        for value in attrs.values():
            freeze(value if not isinstance(value, tuple) else list(value))
        module = self.record.module.rpartition(".")[2]
        hint = module if kind in _NAMED_BY_MODULE and module and not module.isdecimal() else kind.rstrip("_")
        return self.program.emit(hint, kind, args, self.form(kind) | attrs)

    def form(self, kind: str) -> dict[str, Attr]:
        """The attribute `form` of the spelling, if the operation has several."""
        words = OPS[kind].attributes["form"].words if kind in OPS and "form" in OPS[kind].attributes else ()
        wanted = {"Tensor": ("operator", "method"), "functional": ("functional",), "linalg": ("linalg",)}.get(
            self.family, ("torch", "function")
        )
        return {"form": next((word for word in wanted if word in words), words[0])} if words else {}

    def number(self, value: Any, like: TensorType) -> Attr:
        """A number as an attribute: the lowest number of a tensor's dtype is "min"."""
        value = _make_whole(value, like)
        return "min" if isinstance(value, float) and value == LOWEST.get(like.dtype) else value

    def read(self, *args: str, kind: str = "", second: str = "", **attrs: Attr) -> list[str]:
        """Add the function's operation for each result, and return their names. Tensors are its arguments, and all
        that it has an attribute for is one.

        args: the first arguments, which are read already
        second: the operation of the second result; else it is a part of the first's
        attrs: attributes beyond the arguments
        """
        kind = kind or find_kind(self.function)
        if not kind:
            raise Untranslatable("")
        if f"{kind}_" in OPS and self.take("inplace"):
            kind += "_"
        known, names, values = OPS[kind].attributes, [*args], dict[str, Any]()
        tensors = {name: value for name, value in self.given.items() if isinstance(value, TensorNumber)}
        for name in tensors:
            if name in _AFTER and _AFTER[name] not in tensors:
                raise Untranslatable(f"{name} without {_AFTER[name]}")
            names.append(self.take_tensor(name))
        for name in [*self.given, *self.defaults]:
            attribute = name if name in known else ATTRIBUTES.get(name, "")
            if attribute in known:
                is_given = name in self.given
                value, own = self.take(name), known[attribute]
                # Without an argument, the attribute's default is mostly torch's.
                if is_given or own.required or None not in (own.default, value):
                    values.setdefault(attribute, value)
        if "axes" in known and type(values.get("dim")) is not int:
            values["axes"] = values.pop("dim", None) or []
        like = self.program.types[names[0]] if names else None
        for name, value in values.items():
            if value is not None and name not in attrs:
                attrs[name] = _as_attribute(value, name, known[name], like)
        if len(self.record.results) < 2 or second:
            return [self.emit(one, names, **attrs) for one in (kind, second) if one]
        parts = [_find_attribute(known, word) for word in ("values", "indices")]
        if {} in parts:
            raise Untranslatable(f"{len(self.record.results)} results")
        return [self.emit(kind, names, **part, **attrs) for part in parts]


Reader = Callable[[ImportedCall], list[str]]
"""Adds the operations of a call, and returns the names of its results."""


def decode(data: Any) -> Any:
    """An argument as recorded (see `RecordedCall`), with `TensorNumber` for tensors."""
    if isinstance(data, Mapping):
        if "tensor" in data:
            return TensorNumber(data["tensor"])
        return {key: decode(value) for key, value in data.items()}
    if isinstance(data, str) and data in ("inf", "-inf", "nan"):
        return float(data)
    return [decode(item) for item in data] if isinstance(data, (list, tuple)) else data


def freeze(value: Any) -> Any:
    """The value of an attribute: a list as a tuple."""
    if isinstance(value, TensorNumber):
        raise Untranslatable("a tensor in place of a number")
    return tuple(map(freeze, value)) if isinstance(value, list) else value


def _is_default(value: Any, default: Any) -> bool:
    """Whether an argument says no more than a default. Either may be a list with the other for each axis."""
    one, several = (value, default) if isinstance(default, list) else (default, value)
    is_same = value == default or (isinstance(several, list) and [one] * max(1, len(several)) == several)
    return is_same or value is None or isinstance(value, dict)


def _find_attribute(known: Mapping[str, Attribute], word: str) -> dict[str, Attr]:
    return {name: word for name, attribute in known.items() if word in attribute.words}


def _as_attribute(value: Any, name: str, attribute: Attribute, like: TensorType | None) -> Attr:
    """An argument of torch as the value that an attribute of this kind takes.

    like: the type of the first tensor
    """
    if isinstance(value, dict) and "dtype" in value:
        return str(value["dtype"])
    if attribute.kind is Kind.FLAG:
        return bool(freeze(value))
    if attribute.kind in (Kind.SIZES, Kind.AXES) and not isinstance(value, list):
        return (freeze(value),)
    if attribute.kind is Kind.INT and isinstance(value, list):
        return len(value)  # of `normalized_shape`
    if name in PROBABILITIES:
        return float(value)
    if attribute.kind is Kind.WORD and type(value) is int:
        return attribute.words[value]
    if name == "value" and like is not None:
        value = _make_whole(value, like)
    if "min" in attribute.words and like is not None and isinstance(value, float) and value == LOWEST.get(like.dtype):
        return "min"
    return freeze(value)  # type: ignore[no-any-return]


def _make_whole(value: Any, like: TensorType) -> Any:
    """A number that fills a tensor of booleans or integers as an integer; a boolean as an integer too."""
    is_whole = isinstance(value, float) and value.is_integer() and category(like.dtype) < 2
    return int(value) if isinstance(value, bool) or is_whole else value
