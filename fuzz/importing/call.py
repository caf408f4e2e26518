"""A recorded call while it is read: its arguments by name, and the operations that it becomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuzz.importing.program import ImportedProgram, Untranslatable
from fuzz.importing.signatures import ABSENT, HARMLESS, SIGNATURES, FunctionSignature, Parameter, Role
from fuzz.protocol.recording import RecordedCall, RecordedTensor
from generators.program.case import Attr, TensorType
from generators.program.ops import OPS, PROBABILITIES
from generators.program.ops.spec import Attribute, Kind
from generators.program.values import LOWEST, category

_NAMED_BY_MODULE = ("linear", "embedding", "layer_norm", "rms_norm", "conv1d", "conv2d", "batch_norm", "group_norm")
"""Operations whose values are called as the submodule that computes them."""
_SYNONYMS = {"self": "input", "axis": "dim", "ord": "p"}
"""Names of torch for parameters that it calls otherwise elsewhere."""


@dataclass(frozen=True, slots=True)
class TensorNumber:
    """A tensor among the arguments of a call."""

    number: int


class ImportedCall:
    """A recorded call, and the program that it is added to. Its methods raise `Untranslatable`."""

    def __init__(self, program: ImportedProgram, record: RecordedCall) -> None:
        self.program, self.record = program, record
        self.args: list[Any] = decode(record.args)
        self.kwargs: dict[str, Any] = {
            _SYNONYMS.get(name, name): decode(value) for name, value in record.kwargs.items()
        }
        path, _, self.function = record.function.rpartition(".")
        self.family = path.rpartition(".")[2]  # Tensor, functional, linalg or torch

    @property
    def result(self) -> RecordedTensor:
        return self.program.recorded.tensors[self.record.results[0]]

    def tensor(self, value: Any) -> str:
        if not isinstance(value, TensorNumber):
            raise Untranslatable(f"{value!r} in place of a tensor")
        return self.program.name(value.number)

    def type(self, value: Any) -> TensorType:
        return self.program.types[self.tensor(value)]

    def bind(self, *names: str) -> dict[str, Any]:
        """The arguments by name. Raises `Untranslatable` for an argument that is not read and has an effect."""
        given = dict(zip(names, self.args, strict=False)) | self.kwargs
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
        wanted = {"Tensor": ("operator", "method"), "functional": ("functional",), "linalg": ("linalg",)}.get(
            self.family, ("torch", "function")
        )
        return {"form": next((word for word in wanted if word in words), words[0])} if words else {}

    def number(self, value: Any, like: TensorType) -> Attr:
        """A number as an attribute: the lowest number of a tensor's dtype is "min"."""
        value = _make_whole(value, like)
        return "min" if isinstance(value, float) and value == LOWEST.get(like.dtype) else value

    def truth(self, value: Any) -> str:
        """A tensor as booleans."""
        tensor = self.tensor(value)
        return tensor if self.type(value).dtype == "bool" else self.emit("cast", [tensor], dtype="bool", form="method")

    def read(self, **attrs: Attr) -> list[str]:
        """Add the operations of the function's first signature that holds, and return the names of their results.

        attrs: attributes for which the call gives no argument
        """
        signatures = SIGNATURES.get(self.function, ())
        if not signatures:
            raise Untranslatable("")
        signature = next(filter(self._holds, signatures), signatures[-1])
        kind = signature.results[0][0]
        in_place = ["inplace"] if f"{kind}_" in OPS else []
        given = self.bind(*(parameter.name for parameter in signature.parameters), *in_place)
        signature = signature.in_place if given.get("inplace") else signature
        args, left_out = list[str](), ""
        known = OPS[kind].attributes
        for parameter in signature.parameters:
            value, name = given[parameter.name], parameter.attribute
            if parameter.role is Role.OPTIONAL_TENSOR:
                if value is not None and left_out:
                    raise Untranslatable(f"{name} without {left_out}")
                left_out = left_out or (name if value is None else "")
            if _is_tensor(parameter, value):
                args.append(self.truth(value) if parameter.role is Role.TRUTH else self.tensor(value))
            elif parameter.only is not None:
                _require_only(parameter, value)
            elif name == "dim" and "axes" in known and type(value) is not int:
                attrs["axes"] = freeze(value or [])
            elif value is not None and parameter.role not in (Role.OPTIONAL_TENSOR, Role.ELSEWHERE):
                like = self.program.types[args[0]] if args else None
                attrs[name] = _as_attribute(value, name, known.get(name), like)
        return [self.emit(kind, args, **implied, **attrs) for kind, implied in signature.results]

    def _holds(self, signature: FunctionSignature) -> bool:
        """Whether the call gives all tensors and attributes that the signature needs."""
        given = dict(zip((item.name for item in signature.parameters), self.args, strict=False)) | self.kwargs
        known = OPS[signature.results[0][0]].attributes
        for item in signature.parameters:
            value = given.get(item.name)
            is_flag = item.attribute in known and known[item.attribute].kind is Kind.FLAG
            if item.role is Role.TENSOR and not isinstance(value, TensorNumber):
                return False
            if item.role is Role.GIVEN_ATTRIBUTE and (value is None or isinstance(value, bool) != is_flag):
                return False
        return True


Reader = Callable[[ImportedCall], list[str]]
"""Adds the operations of a call, and returns the names of its results."""


def decode(data: Any) -> Any:
    """An argument as recorded (see `RecordedCall`), with `TensorNumber` for tensors."""
    if isinstance(data, Mapping):
        if "tensor" in data:
            return TensorNumber(data["tensor"])
        if "dtype" in data and len(data) == 1 and isinstance(data["dtype"], str):
            return {"dtype": data["dtype"]}
        return {key: decode(value) for key, value in data.items()}
    if isinstance(data, str) and data in ("inf", "-inf", "nan"):
        return float(data)
    return [decode(item) for item in data] if isinstance(data, list) else data


def freeze(value: Any) -> Any:
    """The value of an attribute: a list as a tuple."""
    if isinstance(value, TensorNumber):
        raise Untranslatable("a tensor in place of a number")
    return tuple(map(freeze, value)) if isinstance(value, list) else value


def _is_tensor(parameter: Parameter, value: Any) -> bool:
    if parameter.role is Role.TENSOR_OR_ATTRIBUTE:
        return isinstance(value, TensorNumber)
    needed = parameter.role in (Role.TENSOR, Role.TRUTH)
    return needed or (parameter.role is Role.OPTIONAL_TENSOR and value is not None)


def _require_only(parameter: Parameter, value: Any) -> None:
    values = value if isinstance(value, list) else [value]
    if any(item not in (None, parameter.only) for item in values):
        raise Untranslatable(f"{parameter.name}={value}")


def _as_attribute(value: Any, name: str, attribute: Attribute | None, like: TensorType | None) -> Attr:
    """An argument of torch as the value that an attribute of this kind takes.

    like: the type of the first tensor
    """
    if isinstance(value, dict) and "dtype" in value:
        return str(value["dtype"])
    if attribute is None:
        return freeze(value)  # type: ignore[no-any-return]  # arguments are data
    if attribute.kind is Kind.FLAG:
        return bool(freeze(value))
    if attribute.kind is Kind.SIZES and not isinstance(value, list):
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


def _is_absent(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and value is not True and value in ABSENT
    return value is None or is_number or isinstance(value, dict)
