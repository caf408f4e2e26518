"""Strict YAML: values that know their line.

The subset of YAML 1.1 that every YAML reader understands alike: mappings with text keys, lists, text, integers, floats
with a point, true, false and null. What YAML 1.1 and 1.2 read differently (`no`, `012`, `12:30`, `1e-3`) must be quoted
or spelled out. No anchors, aliases, tags, merge keys or second documents.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

import yaml

from generators.errors import CaseError

MAX_BYTES = 1 << 20
"""A generated case of a hundred operations takes about 10 kB."""
MAX_DEPTH = 12
"""A case nests five deep; this bounds the recursion of the reader."""
MAX_INT = (1 << 63) - 1
"""What torch can hold."""

T = TypeVar("T")
Data = Mapping[str, "Data"] | list["Data"] | str | int | float | bool | None
"""What can be written: nested mappings, lists and scalars."""

_INT = re.compile(r"0|-?[1-9][0-9]*")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+][0-9]+)?")
_SPECIAL = {"true": True, "false": False, "null": None, ".inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_AMBIGUOUS = re.compile(
    r"(?i)y|yes|n|no|on|off|true|false|null|~|=|<<|[-+]?\.(?:inf|nan)"
    r"|[-+]?(?:[0-9][0-9_]*\.?|\.[0-9])[0-9_]*(?:e[-+]?[0-9]*)?"  # numbers
    r"|[-+]?0[box][0-9a-f_]+"  # of other bases
    r"|[-+]?[0-9][0-9_]*(?::[0-9_.]+)+"  # of base sixty
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[T \t].*)?"  # dates
)
"""Plain scalars that YAML 1.1 and 1.2 read differently, or that look like one of those."""
_PLAIN = re.compile(r"[A-Za-z0-9_](?:[\w.,/()*+ -]*[\w.)])?", re.ASCII)
_PLAINLY = "write true, false, null or a number such as 0.001, or quote it"
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: type = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place: `line` is that of its key if any, from 1; `field` its path, such as `ops[3].other`."""

    value: "dict[str, Node] | list[Node] | str | int | float | bool | None"
    origin: str
    line: int
    field: str = ""

    def fail(self, reason: str) -> NoReturn:
        """Raises CaseError: one line with file, line, field and `reason`."""
        where = f"{self.field}: " if self.field else ""
        raise CaseError(f"{self.origin}:{self.line}: {where}{reason}")

    def describe(self) -> str:
        """The value in a few words, for messages."""
        if isinstance(self.value, dict | list):
            return "a mapping" if isinstance(self.value, dict) else "a list"
        if isinstance(self.value, str):
            return repr(self.value if len(self.value) <= 40 else self.value[:37] + "...")
        return _scalar_text(self.value)

    def text(self) -> str:
        """The text. Raises CaseError for anything else, as the other readers do."""
        return self._expect("text", str)

    def integer(self) -> int:
        """The integer; 1.0 and true are refused."""
        return self._expect("an integer", int)

    def number(self) -> int | float:
        """The integer or float, as it was written; true is refused."""
        return self._expect("a number", int, float)

    def boolean(self) -> bool:
        """The truth value; 1 and 0 are refused."""
        return self._expect("true or false", bool)

    def _expect(self, what: str, *kinds: type[T]) -> T:
        if not isinstance(self.value, kinds) or (isinstance(self.value, bool) and bool not in kinds):
            hint = "; quote it" if str in kinds and not isinstance(self.value, dict | list) else ""
            self.fail(f"expected {what}, got {self.describe()}{hint}")
        return self.value

    def items(self) -> "list[Node]":
        """The elements of the list."""
        if not isinstance(self.value, list):
            self.fail(f"expected a list, got {self.describe()}")
        return self.value

    def entries(self) -> "dict[str, Node]":
        """The entries of the mapping, in order."""
        if not isinstance(self.value, dict):
            self.fail(f"expected a mapping, got {self.describe()}")
        return self.value

    def select(self, keys: Sequence[str]) -> "Node":
        """The mapping with only these keys."""
        return replace(self, value={key: node for key, node in self.entries().items() if key in keys})

    def record(self, required: Sequence[str], optional: Sequence[str] = ()) -> "dict[str, Node]":
        """The entries of a mapping. Its keys must be all of `required` and any of `optional`."""
        entries = self.entries()
        for key, node in entries.items():
            if key not in required and key not in optional:
                node.fail(f"unknown key; expected {', '.join((*required, *optional))}")
        for key in required:
            if key not in entries:
                self.fail(f"missing key {key!r}")
        return entries


def decode(content: bytes | str, origin: str) -> str:
    """The text of a file. Raises CaseError for what is too long or no text."""
    raw = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    if len(raw) > MAX_BYTES:
        raise CaseError(f"{origin}: larger than {MAX_BYTES} bytes")
    if b"\0" in raw:
        raise CaseError(f"{origin}: a binary file, not YAML")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CaseError(f"{origin}:{line}: not UTF-8 text") from None


def parse(content: bytes | str, origin: str) -> Node:
    """Read one document; `origin` names it in messages. Raises CaseError."""
    text = decode(content, origin)
    try:
        return _Reader(yaml.parse(text, _Loader), origin).document()
    except yaml.MarkedYAMLError as error:
        # What is not closed is noticed lines later, up to the end of the file.
        is_open = error.context is not None and "block" not in error.context
        mark = (error.context_mark if is_open else None) or error.problem_mark
        line = mark.line + 1 if mark else 1
        raise CaseError(f"{origin}:{line}: not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.encode().count(b"\n", 0, error.position) + 1
        raise CaseError(f"{origin}:{line}: not YAML: {error.reason}") from None


class _Reader:
    def __init__(self, events: Iterator[yaml.Event], origin: str) -> None:
        self.events = events
        self.origin = origin

    def document(self) -> Node:
        next(self.events)
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise CaseError(f"{self.origin}:1: the file is empty")
        root = self.node(next(self.events), "", 0)
        next(self.events)
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            self.refuse(after, "", "a second document; a file holds one")
        return root

    def node(self, event: yaml.Event, field: str, depth: int, key: yaml.Event | None = None) -> Node:
        if depth > MAX_DEPTH:
            self.refuse(event, "", f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self.refuse(event, field, "anchors and aliases are not allowed")
        if getattr(event, "tag", None):
            self.refuse(event, field, "tags are not allowed")
        line = _line_of(key or event)
        if isinstance(event, yaml.ScalarEvent):
            return Node(self.scalar(event, field), self.origin, line, field)
        value: dict[str, Node] | list[Node]
        value = {}
        if isinstance(event, yaml.SequenceStartEvent):
            value = []
            while not isinstance(inner := next(self.events), yaml.SequenceEndEvent):
                value.append(self.node(inner, f"{field}[{len(value)}]", depth + 1))
        else:
            while not isinstance(inner := next(self.events), yaml.MappingEndEvent):
                name = self.key(inner, field)
                path = f"{field}.{name}" if field else name
                if name in value:
                    self.refuse(inner, path, f"duplicate key, first on line {value[name].line}")
                value[name] = self.node(next(self.events), path, depth + 1, inner)
        return Node(value, self.origin, line, field)

    def key(self, event: yaml.Event, field: str) -> str:
        """The key that `event` is: text of at most 60 characters."""
        if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag:
            self.refuse(event, field, "a key must be text without tag or anchor")
        if event.implicit[0] and event.value == "<<":
            self.refuse(event, field, "merge keys are not allowed")
        key = self.scalar(event, field)
        if not isinstance(key, str) or not key.isprintable() or len(key) > 60:
            self.refuse(event, field, "a key must be text of at most 60 characters; quote it")
        return key

    def scalar(self, event: yaml.ScalarEvent, field: str) -> str | int | float | bool | None:
        """A quoted scalar is text. A plain one is refused if YAML versions read it differently."""
        value: str = event.value
        if not event.implicit[0]:
            return value
        if value in _SPECIAL:
            return _SPECIAL[value]
        if _INT.fullmatch(value):
            if len(value) > 20 or abs(int(value)) > MAX_INT:
                self.refuse(event, field, f"an integer of {len(value)} digits is out of range")
            return int(value)
        if _FLOAT.fullmatch(value):
            if len(value) > 400 or math.isinf(float(value)):
                self.refuse(event, field, "the number is out of range; infinity is spelled .inf")
            return float(value)
        if not value:
            self.refuse(event, field, "the value is missing")
        if _AMBIGUOUS.fullmatch(value):
            self.refuse(event, field, f"{value[:40]!r} reads differently in YAML 1.1 and 1.2; {_PLAINLY}")
        return value

    def refuse(self, event: yaml.Event, field: str, reason: str) -> NoReturn:
        Node(None, self.origin, _line_of(event), field).fail(reason)


def _line_of(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


def _scalar_text(value: bool | int | float | None) -> str:
    """A scalar that reads back bit for bit, in YAML 1.1 and 1.2."""
    if value is None:
        return "null"
    if not isinstance(value, float):
        return str(value).lower()
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def dump(data: Mapping[str, Data]) -> str:
    """YAML text that `parse` reads back bit for bit. Short lists and mappings take one line."""
    return _emit(data, 0)


def dump_flow(data: Data) -> str:
    """The data on one line."""
    return _emit([data], 2)[1:-2]


def _emit(data: Data, depth: int) -> str:
    events = [
        yaml.StreamStartEvent(),
        yaml.DocumentStartEvent(explicit=False),
        *_events(data, depth),
        yaml.DocumentEndEvent(explicit=False),
        yaml.StreamEndEvent(),
    ]
    text = yaml.emit(events, Dumper=_Dumper, width=1 << 16, allow_unicode=True)
    assert isinstance(text, str)
    return text


def _events(data: Data, depth: int) -> Iterator[yaml.Event]:
    if isinstance(data, Mapping):
        yield yaml.MappingStartEvent(None, None, implicit=True, flow_style=_is_short(data, depth))
        for key, value in data.items():
            yield from _events(key, depth)
            yield from _events(value, depth + 1)
        yield yaml.MappingEndEvent()
    elif isinstance(data, list):
        yield yaml.SequenceStartEvent(None, None, implicit=True, flow_style=_is_short(data, depth))
        for value in data:
            yield from _events(value, depth + 1)
        yield yaml.SequenceEndEvent()
    elif isinstance(data, str):
        # A worker's broken output may hold lone surrogates, which UTF-8 can't.
        text = data.encode("utf-8", "replace").decode()
        is_plain = _PLAIN.fullmatch(text) and not _AMBIGUOUS.fullmatch(text)
        style = None if is_plain else "|" if "\n" in text else '"'
        yield yaml.ScalarEvent(None, None, (style is None, True), text, style=style)
    else:
        yield yaml.ScalarEvent(None, None, (True, False), _scalar_text(data))


def _is_short(data: Mapping[str, Data] | list[Data], depth: int) -> bool:
    """Whether to write a collection on one line: an entry of a section, or a section of numbers or words alone."""
    if depth == 0 or not data:
        return depth > 0
    if isinstance(data, Mapping):
        return depth > 1 or all(isinstance(d, int) for d in data.values())
    return depth > 1 or not any(isinstance(d, (Mapping, list)) for d in data)
