"""Dataclasses from YAML mappings, read by their type hints, and back."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from corpus.strict_yaml import Data, Node
from generators.errors import CaseError
from generators.program.sizes import Size

T = TypeVar("T")
Reader = Callable[[Node], Any]
NO_READERS: Mapping[str, Reader] = MappingProxyType({})
_type_hints = cache(get_type_hints)


def build(kind: type[T], node: Node, readers: Mapping[str, Reader] = NO_READERS, **given: Any) -> T:
    """A dataclass from a mapping of its fields, without those in `given`. Fields with defaults may be missing.

    `readers`: by field, where the type is not enough. Raises CaseError: one line with file, line and field.
    """
    wanted = [f for f in fields(kind) if f.name not in given]  # type: ignore[arg-type]  # a dataclass
    required = [f.name for f in wanted if f.default is MISSING and f.default_factory is MISSING]
    entries = node.record(required, [f.name for f in wanted if f.name not in required])
    hints = _type_hints(kind)  # type: ignore[arg-type]  # classes are hashable
    read_field = {key: readers.get(key) or partial(read, hints[key]) for key in entries}
    return kind(**given, **{key: read_field[key](entry) for key, entry in entries.items()})


def checking(test: Callable[[str], object], complaint: str) -> Reader:
    """A reader of texts that fails with `complaint` where `test` is false or raises ValueError."""

    def read_checked(node: Node) -> str:
        text = node.text()
        try:
            is_good = test(text)
        except ValueError:
            is_good = False
        if not is_good:
            node.fail(f"{node.describe()} {complaint}")
        return text

    return read_checked


def one_of(words: Sequence[str]) -> Reader:
    """A reader of one of these words."""
    return checking(words.__contains__, f"is not one of {', '.join(words)}")


def each(read_item: Reader) -> Reader:
    """A reader of lists of such items."""
    return lambda node: tuple(map(read_item, node.items()))


def read(hint: Any, node: Node) -> Any:
    """A value of the hinted type: str, int, float, bool, Size, a dataclass, or a tuple or mapping of those."""
    args = tuple(arg for arg in get_args(hint) if arg is not NoneType)
    if get_origin(hint) is tuple:
        items = node.items()
        if args[-1] is Ellipsis:
            return tuple(read(args[0], item) for item in items)
        if len(items) != len(args):
            node.fail(f"expected {len(args)} values, got {len(items)}")
        return tuple(read(arg, item) for arg, item in zip(args, items, strict=True))
    if get_origin(hint) is Mapping:
        return {key: read(args[1], item) for key, item in node.entries().items()}
    if args:
        return read(args[0], node)
    if hint in _READERS:
        return _READERS[hint](node)
    return build(hint, node)


def read_size(node: Node) -> Size:
    """A size: an integer, or text such as 3*H*D + 1."""
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return Size.of(node.value)
    if not isinstance(node.value, str):
        node.fail(f"expected a size such as 3*H*D, got {node.describe()}")
    try:
        return Size.parse(node.value)
    except CaseError as error:
        node.fail(str(error))


def read_plain(node: Node) -> Any:
    """Any data, unchanged."""
    if isinstance(node.value, dict):
        return {key: read_plain(item) for key, item in node.entries().items()}
    return [read_plain(item) for item in node.items()] if isinstance(node.value, list) else node.value


_READERS = {Any: read_plain, str: Node.text, int: Node.integer, float: Node.number, bool: Node.boolean, Size: read_size}


def fields_of(record: Any, always: Container[str] = (), without: Container[str] = ()) -> dict[str, Data]:
    """A dataclass as data, without fields that have their default unless in `always`. 1 is not the default 1.0."""
    data: dict[str, Data] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        is_default = type(value) is type(default) and value == default
        if field.name not in without and (field.name in always or not is_default):
            data[field.name] = to_data(value, always)
    return data


def to_data(value: Any, always: Container[str] = ()) -> Data:
    """A field's value as data: tuples as lists, dataclasses as mappings, sizes as integers or text."""
    if isinstance(value, Size):
        return value.constant if value.constant is not None else str(value)
    if isinstance(value, (tuple, list)):
        return [to_data(item, always) for item in value]
    if is_dataclass(value):
        return fields_of(value, always)
    return {key: to_data(item, always) for key, item in value.items()} if isinstance(value, Mapping) else value
