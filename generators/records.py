"""Converts dataclasses to data and back, by the annotations of their fields; for JSON messages and YAML files.

Data are mappings, lists, text, numbers, truth values and None. Workers import this module, so it needs the standard
library of Python 3.10 alone.
"""

import json
import math
import re
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Key = str | int

KEYED = "keyed"
"""Annotates a tuple that is a mapping in data. The first field of an item, or element of a pair, is the key."""
SORTED = "sorted"
"""Annotates a tuple that is sorted when it is read."""
ALWAYS = "always"
"""Annotates a field that is written even if it has its default."""
APART = "apart"
"""Annotates a part of a case whose names are its own."""


class NameOf(Enum):
    """Annotates a name in a case: what it names. `generators.program.references` walks over these names."""

    DEFINED = "the input or operation itself"
    VALUE = "an input or an operation"
    RESULT = "an operation"
    ARGUMENT = "an input that is no parameter"
    CHANGED = "what a change changes, or a dtype"
    DIM = "a dimension"
    VARYING = "a dimension that may vary between calls"
    NUMBER = "a number that forward takes"


_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


class RecordError(ValueError):
    """Data that holds no such record. `path`: the keys and indices of the wrong value, outermost first."""

    def __init__(self, reason: str, path: tuple[Key, ...] = ()) -> None:
        super().__init__(reason)
        self.reason, self.path = reason, path

    def __str__(self) -> str:
        return ": ".join(filter(None, [format_path(self.path), self.reason]))


@dataclass(frozen=True)
class Rule:
    """Annotates a field whose type is not enough: `Annotated[str, Rule(test, "is not a date")]`.

    A value breaks the rule if `test` is false or raises ValueError. `complaint` follows the value in the message.
    """

    test: Callable[[Any], object]
    complaint: str

    def require(self, value: Any) -> None:
        """Raises RecordError for a value that breaks the rule."""
        try:
            holds = self.test(value)
        except ValueError:
            holds = False
        if not holds:
            raise RecordError(f"{describe_data(value)} {self.complaint}")


@dataclass(frozen=True)
class RecordForm:
    """How a class is read and written that is not converted field by field."""

    read: Callable[[Any], Any]  # may raise ValueError
    write: Callable[[Any], Any]


class Word(str, Enum):
    """A word of a closed list, which is stored as its value. A list may annotate further columns, all of them text."""

    label: str  # the text for people: by default the value in words

    def __new__(cls, value: str, label: str | None = None, *more: str) -> "Word":  # noqa: PYI034 - workers run on 3.10
        word = str.__new__(cls, value)
        word._value_, word.label = value, value.replace("_", " ") if label is None else label
        columns = [name for name in cls.__annotations__ if name != "label"]
        for name, text in zip_longest(columns, more, fillvalue=""):
            setattr(word, name, text)
        return word

    def __str__(self) -> str:
        return str(self.value)


class Tagged:
    """The base of a family of dataclasses derives from it. In data, `kind` names the class."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


@dataclass(frozen=True)
class Codec:
    """Reads and writes records.

                  strict (files of people)   else (messages)
    unknown keys  refused                    ignored
    null          refused                    None, if the annotation allows it
    1 as a float  stays 1                    is 1.0
    inf and nan   floats                     text, since JSON lacks them
    """

    strict: bool = False
    forms: Mapping[type, RecordForm] = field(default_factory=dict)

    def encode(self, value: Any) -> Any:
        """`value` as data, without the fields that have their defaults."""
        if type(value) in self.forms:
            return self.forms[type(value)].write(value)
        if is_dataclass(value) and not isinstance(value, type):
            data = {"kind": value.kind} if isinstance(value, Tagged) else {}
            return data | self._encode_fields(value)
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, float) and not self.strict and not math.isfinite(value):
            return str(value)
        if isinstance(value, Mapping):
            return {str(key): self.encode(item) for key, item in value.items()}
        return [self.encode(item) for item in value] if isinstance(value, (list, tuple)) else value

    def _encode_fields(self, record: Any) -> dict[str, Any]:
        data = {}
        for own in fields(record):
            value = getattr(record, own.name)
            default = own.default if own.default_factory is MISSING else own.default_factory()
            marks = get_args(_hints(record.__class__)[own.name])
            if type(value) is not type(default) or value != default or ALWAYS in marks:
                data[own.name] = dict(map(self._encode_item, value)) if KEYED in marks else self.encode(value)
        return data

    def _encode_item(self, item: Any) -> tuple[str, Any]:
        if isinstance(item, tuple):
            return item[0], self.encode(item[1])
        data = self._encode_fields(item)
        return data.pop(fields(item)[0].name), data

    def decode(self, kind: type[T], data: Any, *, beside: Collection[str] = (), **given: Any) -> T:
        """The record of type `kind` in `data`, with the fields `given`. `beside`: keys of `data` that other code reads.

        Raises ValueError, mostly a `RecordError`.
        """
        made: T = self._decode_fields(kind, data, beside, given) if beside or given else self.read(kind, data)
        return made

    def read(self, hint: Any, data: Any) -> Any:
        """As `decode`, for any annotated type."""
        if hint in _NAMES:
            return self._read_scalar(hint, data)
        if hint in self.forms:
            return self.forms[hint].read(data)
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._read_annotated(args[0], args[1:], data)
        if origin in (Union, types.UnionType):
            return self._read_union(args, data)
        if origin is tuple:
            return self._read_tuple(args, data)
        if origin in (dict, Mapping, Counter):
            of_key, of_item = (*args, int)[:2]
            entries = read_mapping(data).items()
            found = {at(key, self.read, of_key, key): at(key, self.read, of_item, item) for key, item in entries}
            return Counter(found) if origin is Counter else found
        if Tagged in getattr(hint, "__bases__", ()):
            kinds = {kind.kind: kind for kind in hint.__subclasses__()}
            hint = kinds[at("kind", self.read, Literal[tuple(kinds)], read_mapping(data).get("kind"))]
        if is_dataclass(hint):
            return self._decode_fields(hint, data)
        if origin is Literal or (isinstance(hint, type) and issubclass(hint, Enum)):
            one_of(args or [member.value for member in hint]).require(data)
            return data if args else hint(data)
        return data

    def _read_annotated(self, hint: Any, marks: tuple[Any, ...], data: Any) -> Any:
        value = self._read_keyed(hint, data) if KEYED in marks else self.read(hint, data)
        if SORTED in marks:
            value = tuple(sorted(value))
        for rule in marks:
            if isinstance(rule, Rule):
                rule.require(value)
        return value

    def _read_tuple(self, args: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
        if not isinstance(data, (list, tuple)):
            raise RecordError(f"expected a list, got {describe_data(data)}")
        hints = args[:1] * len(data) if args[-1] is Ellipsis else args
        if len(data) != len(hints):
            raise RecordError(f"expected {len(hints)} values, got {len(data)}")
        return tuple(at(i, self.read, hints[i], item) for i, item in enumerate(data))

    def _read_scalar(self, kind: Any, data: Any) -> Any:
        if type(data) is kind or (kind is float and self.strict and type(data) is int):
            return data
        if kind is float and not self.strict and (type(data) is int or data in ("inf", "-inf", "nan")):
            try:
                return float(data)
            except OverflowError as error:
                raise RecordError(str(error)) from error
        hint = "; quote it" if kind is str and self.strict and not isinstance(data, (dict, list)) else ""
        raise RecordError(f"expected {_NAMES[kind]}, got {describe_data(data)}{hint}")

    def _read_union(self, args: tuple[Any, ...], data: Any) -> Any:
        members = [arg for arg in args if arg is not type(None)]
        if data is None and len(members) < len(args) and not self.strict:
            return None
        if len(members) == 1:
            return self.read(members[0], data)
        if type(data) not in members:
            raise RecordError(f"expected {', '.join(map(_NAMES.__getitem__, members))}; got {describe_data(data)}")
        return data

    def _read_keyed(self, hint: Any, data: Any) -> tuple[Any, ...]:
        kind, entries = get_args(hint)[0], read_mapping(data).items()
        if is_dataclass(kind):
            name = fields(kind)[0].name
            return tuple(at(key, self._decode_fields, kind, item, (), {name: key}) for key, item in entries)
        return tuple((key, at(key, self.read, get_args(kind)[1], item)) for key, item in entries)

    def _decode_fields(
        self, kind: Any, data: Any, beside: Collection[str] = (), given: Mapping[str, Any] = types.MappingProxyType({})
    ) -> Any:
        entries, hints = read_mapping(data), _hints(kind)
        beside = (*beside, "kind") if issubclass(kind, Tagged) else beside
        wanted = [own for own in fields(kind) if own.name not in given]
        required = [own.name for own in wanted if own.default is MISSING and own.default_factory is MISSING]
        names = (*required, *(own.name for own in wanted if own.name not in required))
        for key in entries if self.strict else ():
            if key not in names and key not in beside:
                raise RecordError(f"unknown key; expected {', '.join((*beside, *names))}", (key,))
        for name in required:
            if name not in entries:
                raise RecordError(f"missing key {name!r}")
        read = {name: at(name, self.read, hints[name], entries[name]) for name in names if name in entries}
        return kind(**given, **read)


_MESSAGES = Codec()
encode, decode = _MESSAGES.encode, _MESSAGES.decode
"""For messages between processes, and the results that a run stores."""


def at(key: Key, read: Callable[..., Any], *arguments: Any) -> Any:
    """`read(*arguments)`. A ValueError becomes a RecordError with `key` in front of its path."""
    try:
        return read(*arguments)
    except ValueError as error:
        path = error.path if isinstance(error, RecordError) else ()
        raise RecordError(getattr(error, "reason", str(error)), (key, *path)) from error


def one_of(words: Iterable[Any]) -> Rule:
    """The rule of a closed list of words."""
    known = tuple(words)
    return Rule(known.__contains__, f"is not one of {', '.join(map(str, known))}")


def matches(pattern: str, complaint: str) -> Rule:
    """The rule of a text that a regular expression matches as a whole."""
    return Rule(re.compile(pattern).fullmatch, complaint)


def read_mapping(data: Any) -> Mapping[str, Any]:
    """`data` if it is a mapping. Raises `RecordError`."""
    if not isinstance(data, Mapping):
        raise RecordError(f"expected a mapping, got {describe_data(data)}")
    return data


def describe_data(data: Any) -> str:
    """Data in a few words, for messages."""
    if isinstance(data, (Mapping, list, tuple)):
        return "a mapping" if isinstance(data, Mapping) else "a list"
    if isinstance(data, str):
        return repr(data if len(data) <= 40 else data[:37] + "...")
    return json.dumps(data, default=repr)


def format_path(path: Iterable[Key]) -> str:
    """Keys and indices as one text: `ops[3].other`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)
