"""A recorded call while it is read: its arguments by name, and the operations that it becomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuzz.importing.spellings import ABSENT, HARMLESS
from fuzz.protocol.recording import RecordedCall, RecordedTensor
from generators.program.case import Attr, TensorType
from generators.program.ops import OPS
from generators.program.values import LOWEST, category

if TYPE_CHECKING:
    from fuzz.importing.translate import Translation

_NAMED_BY_MODULE = ("linear", "embedding", "layer_norm", "rms_norm", "conv1d", "conv2d", "batch_norm", "group_norm")
"""Operations whose values are called as the submodule that computes them."""


class Untranslatable(Exception):
    """A call that no case can express; the text says why, in a few words."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor among the arguments of a call."""

    number: int


class Call:
    """A recorded call, and the program that it is added to. Its methods raise `Untranslatable`."""

    def __init__(self, program: "Translation", record: RecordedCall) -> None:
        self.program, self.record = program, record
        self.args: list[Any] = decode(record.args)
        self.kwargs: dict[str, Any] = {name: decode(value) for name, value in record.kwargs.items()}
        path, _, self.function = record.function.rpartition(".")
        self.family = path.rpartition(".")[2]  # Tensor, functional or torch

    @property
    def result(self) -> RecordedTensor:
        return self.program.recorded.tensors[self.record.results[0]]

    def tensor(self, value: Any) -> str:
        if not isinstance(value, Ref):
            raise Untranslatable(f"{value!r} in place of a tensor")
        return self.program.name(value.number)

    def type(self, value: Any) -> TensorType:
        return self.program.types[self.tensor(value)]

    def bind(self, *names: str) -> dict[str, Any]:
        """The arguments by name. Raises `Untranslatable` for an argument that is not read and has an effect."""
        given = dict(zip(names, self.args, strict=False)) | self.kwargs
        for other, own in (("self", "input"), ("axis", "dim")):
            given |= {own: given.pop(other)} if other in given else {}
        extra = self.args[len(names) :]
        if any(not _is_absent(value) for value in extra):
            raise Untranslatable(f"{len(self.args)} arguments")
        for name, value in given.items():
            if name not in names and name not in HARMLESS and not _is_absent(value):
                raise Untranslatable(f"{name}={value!r}")
        return {name: given.get(name) for name in names}

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
        wanted = {"Tensor": ("operator", "method"), "functional": ("functional",)}.get(
            self.family, ("torch", "function")
        )
        return {"form": next((word for word in wanted if word in words), words[0])} if words else {}

    def number(self, value: Any, like: TensorType) -> Attr:
        """A number as an attribute: the lowest number of a tensor's dtype is "min"."""
        whole = isinstance(value, float) and value.is_integer() and category(like.dtype) < 2
        value = int(value) if isinstance(value, bool) or whole else value
        return "min" if isinstance(value, float) and value == LOWEST.get(like.dtype) else value

    def read(self, kind: str, parameters: str) -> str:
        """Add the operation of a row of `spellings.SPELLINGS`, and return the name of its result."""
        words = parameters.split()
        names = [word.rstrip("!?*").partition(":")[::2] for word in words]
        in_place = ["inplace"] if f"{kind}_" in OPS else []
        given, args, attrs = self.bind(*(name for name, _ in names), *in_place), list[str](), dict[str, Attr]()
        kind += "_" * bool(given.get("inplace"))
        for word, (name, renamed) in zip(words, names, strict=True):
            value, attribute = given[name], renamed or name
            if word[-1] in "!?" or (word[-1] == "*" and isinstance(value, Ref)):
                args += [self.tensor(value)] if value is not None or word[-1] == "!" else []
            elif isinstance(value, dict) and "dtype" in value:
                attrs[attribute] = value["dtype"]
            elif value is not None:
                is_fill = attribute in OPS[kind].attributes and "min" in OPS[kind].attributes[attribute].words
                attrs[attribute] = self.number(value, self.program.types[args[0]]) if is_fill else freeze(value)
        if kind == "dropout":
            training = bool(attrs.get("active", True))  # the default of F.dropout
            is_own = training == self.program.recorded.training
            attrs["active"] = "mode" if is_own else "always" if training else "never"
        return self.emit(kind, args, **attrs)


Reader = Callable[[Call], list[str]]
"""Adds the operations of a call, and returns the names of its results."""


def decode(data: Any) -> Any:
    """An argument as recorded (see `RecordedCall`), with `Ref` for tensors."""
    if isinstance(data, Mapping):
        if "tensor" in data:
            return Ref(data["tensor"])
        if "dtype" in data and len(data) == 1 and isinstance(data["dtype"], str):
            return {"dtype": data["dtype"]}
        return {key: decode(value) for key, value in data.items()}
    if isinstance(data, str) and data in ("inf", "-inf", "nan"):
        return float(data)
    return [decode(item) for item in data] if isinstance(data, list) else data


def freeze(value: Any) -> Any:
    """The value of an attribute: a list as a tuple."""
    if isinstance(value, Ref):
        raise Untranslatable("a tensor in place of a number")
    return tuple(map(freeze, value)) if isinstance(value, list) else value


def _is_absent(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and value is not True and value in ABSENT
    return value is None or is_number or isinstance(value, dict)
