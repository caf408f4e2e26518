"""Strict YAML: data, and the line of each value.

It is the subset of YAML 1.1 that all YAML readers understand alike: mappings with text keys, lists, text, integers,
floats with a point, true, false and null. Scalars that YAML 1.1 and 1.2 read differently (`no`, `012`, `12:30`, `1e-3`)
must be quoted or spelled out. Anchors, aliases, tags, merge keys and second documents are refused.

`y` and `n` are text, quoted or not: tensors and dims are called so. YAML 1.1 lists them as booleans, but PyYAML never
read them so. The writer quotes them.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import yaml

from generators.errors import CaseError
from generators.records import Codec, Key, RecordError, describe_data, format_path

MAX_BYTES = 1 << 20
"""A generated case of a hundred operations takes about 10 kB."""
MAX_DEPTH = 12
"""It bounds the recursion of the reader; a case nests five deep."""
MAX_INT = (1 << 63) - 1
"""The largest integer of torch."""

T = TypeVar("T")
Data = Mapping[str, "Data"] | list["Data"] | str | int | float | bool | None

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
"""Plain scalars that YAML 1.1 and 1.2 may read differently."""
_PLAIN = re.compile(r"[A-Za-z0-9_](?:[\w.,/()*+ -]*[\w.)])?", re.ASCII)
_LETTERS = ("y", "Y", "n", "N")
_WORDS = re.compile(r"(?i)yes|no|on|off|true|false|null|~")
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: type = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True)
class Document:
    """The contents of a file."""

    data: Any
    origin: str  # the name of the file
    lines: Mapping[tuple[Key, ...], int]  # line numbers (from 1) of keys and list items, by path

    def decode(self, codec: Codec, kind: type[T], *, beside: Sequence[str] = (), **given: Any) -> T:
        """The record, as `Codec.decode` reads it. Raises CaseError: one line with file, line and field."""
        try:
            return codec.decode(kind, self.data, beside=beside, **given)
        except RecordError as error:
            self.fail(str(error), error.path)

    def require_format(self, key: str, known: int) -> None:
        """Raises CaseError unless `key` holds the number of the `known` format."""
        number = self.data.get(key) if isinstance(self.data, dict) else None
        if number is None:
            self.fail(f"missing key {key!r}, such as {key}: {known}")
        if type(number) is not int or number != known:
            self.fail(f"{key}: this version reads format {known}, got {describe_data(number)}", (key,))

    def fail(self, reason: str, path: Sequence[Key] = ()) -> NoReturn:
        """Raises CaseError: one line with file, `reason` and the line of `path`, or of the nearest value around it."""
        line = next(self.lines[p] for i in range(len(path), -1, -1) if (p := tuple(path[:i])) in self.lines)
        raise CaseError(f"{self.origin}:{line}: {reason}")


def decode_text(content: bytes | str, origin: str) -> str:
    """The text of a file. Raises CaseError for a binary file, or a long one."""
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


def parse(content: bytes | str, origin: str) -> Document:
    """The data in the text of a file, which messages call `origin`. Raises CaseError."""
    text = decode_text(content, origin)
    reader = _Reader(yaml.parse(text, _Loader), origin)
    try:
        return Document(reader.read_document(), origin, reader.lines)
    except yaml.MarkedYAMLError as error:
        # libyaml reports an unclosed bracket or quote only later, but `context_mark` is its start.
        is_open = error.context is not None and "block" not in error.context
        mark = (error.context_mark if is_open else None) or error.problem_mark
        line = mark.line + 1 if mark else 1
        raise CaseError(f"{origin}:{line}: not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.encode().count(b"\n", 0, error.position) + 1
        raise CaseError(f"{origin}:{line}: not YAML: {error.reason}") from None


class _Reader:
    def __init__(self, events: Iterator[yaml.Event], origin: str) -> None:
        self.events, self.origin = events, origin
        self.lines: dict[tuple[Key, ...], int] = {}

    def read_document(self) -> Any:
        next(self.events)
        first = next(self.events)
        if isinstance(first, yaml.StreamEndEvent):
            raise CaseError(f"{self.origin}:1: the file is empty")
        root = self.read_node(next(self.events), ())
        next(self.events)
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._refuse(after, "a second document; a file holds one")
        return root

    def read_node(self, event: yaml.Event, path: tuple[Key, ...], key: yaml.Event | None = None) -> Any:
        if len(path) > MAX_DEPTH:
            self._refuse(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self._refuse(event, "anchors and aliases are not allowed", path)
        if getattr(event, "tag", None):
            self._refuse(event, "tags are not allowed", path)
        self.lines[path] = _line_of(key or event)
        if isinstance(event, yaml.ScalarEvent):
            return self._read_scalar(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(inner := next(self.events), yaml.SequenceEndEvent):
                items.append(self.read_node(inner, (*path, len(items))))
            return items
        entries: dict[str, Any] = {}
        while not isinstance(inner := next(self.events), yaml.MappingEndEvent):
            name = self._read_key(inner, path)
            here = (*path, name)
            if name in entries:
                self._refuse(inner, f"duplicate key, first on line {self.lines[here]}", here)
            entries[name] = self.read_node(next(self.events), here, inner)
        return entries

    def _read_key(self, event: yaml.Event, path: tuple[Key, ...]) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag:
            self._refuse(event, "a key must be text without tag or anchor", path)
        if event.implicit[0] and event.value == "<<":
            self._refuse(event, "merge keys are not allowed", path)
        key = self._read_scalar(event, path)
        if not isinstance(key, str) or not key.isprintable() or len(key) > 60:
            self._refuse(event, "a key must be text of at most 60 characters; quote it", path)
        return key

    def _read_scalar(self, event: yaml.ScalarEvent, path: tuple[Key, ...]) -> str | int | float | bool | None:
        """The value of a scalar. Quoted, it is text. A plain scalar is refused if YAML 1.1 and 1.2 may disagree."""
        value: str = event.value
        if not event.implicit[0]:
            return value
        if value in _SPECIAL:
            return _SPECIAL[value]
        if _INT.fullmatch(value):
            if len(value) > 20 or abs(int(value)) > MAX_INT:
                self._refuse(event, f"an integer of {len(value)} digits is out of range", path)
            return int(value)
        if _FLOAT.fullmatch(value):
            if len(value) > 400 or math.isinf(float(value)):
                self._refuse(event, "the number is out of range; infinity is spelled .inf", path)
            return float(value)
        if not value:
            self._refuse(event, "the value is missing", path)
        if value not in _LETTERS and _AMBIGUOUS.fullmatch(value):
            meant = "true, false or null" if _WORDS.fullmatch(value) else "a number such as 0.001"
            how = f'write {meant}, or quote it as text: "{value[:40]}"'
            self._refuse(event, f"{value[:40]!r} reads differently in YAML 1.1 and 1.2; {how}", path)
        return value

    def _refuse(self, event: yaml.Event, reason: str, path: tuple[Key, ...] = ()) -> NoReturn:
        raise CaseError(f"{self.origin}:{_line_of(event)}: {': '.join(filter(None, [format_path(path), reason]))}")


def _line_of(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


def dump(data: Mapping[str, Data]) -> str:
    """YAML text that `parse` reads back bit for bit. Short lists and mappings take one line, cases several lines."""
    return _write(data, 0)


def dump_flow(data: Data) -> str:
    """The data on one line."""
    return _write([data], 2)[1:-2]


def _write(data: Data, depth: int) -> str:
    return str(yaml.serialize(_make_node(data, depth), Dumper=_Dumper, width=1 << 16, allow_unicode=True))


def _make_node(data: Data, depth: int) -> yaml.Node:
    if isinstance(data, Mapping):
        entries = [
            (_make_node(key, depth), _make_node(value, 0 if key == "case" else depth + 1))
            for key, value in data.items()
        ]
        return yaml.MappingNode("tag:yaml.org,2002:map", entries, flow_style=_is_short(data, depth))
    if isinstance(data, list):
        depths = (1 if isinstance(value, Mapping) and "case" in value else depth + 1 for value in data)
        items = list(map(_make_node, data, depths))
        return yaml.SequenceNode("tag:yaml.org,2002:seq", items, flow_style=_is_short(data, depth))
    if isinstance(data, str):
        # The output of a broken worker may have lone surrogates, which UTF-8 lacks.
        text = data.encode("utf-8", "replace").decode()
        is_plain = _PLAIN.fullmatch(text) and not _AMBIGUOUS.fullmatch(text)
        return yaml.ScalarNode("tag:yaml.org,2002:str", text, style=None if is_plain else "|" if "\n" in text else '"')
    return yaml.representer.SafeRepresenter().represent_data(data)


def _is_short(data: Mapping[str, Data] | list[Data], depth: int) -> bool:
    """Whether to write a collection on one line: an entry of a section, or a section whose
    values are all numbers or words."""
    if depth == 0 or not data:
        return depth > 0
    if isinstance(data, Mapping):
        return depth > 1 or all(isinstance(d, int) for d in data.values())
    return depth > 1 or not any(isinstance(d, (Mapping, list)) for d in data)
