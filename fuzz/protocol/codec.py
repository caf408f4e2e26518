"""Dataclasses to JSON-ready data and back, checked against their annotations.

Floats that JSON lacks (inf, nan) travel as text.
"""

import math
import re
import types
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class Tagged:
    """The base of a closed list of dataclasses derives from it: data says by its `kind` which of them it holds."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def encode(value: Any) -> Any:
    """`value` as JSON-ready data. Fields of a dataclass that have their defaults are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        data = {"kind": value.kind} if isinstance(value, Tagged) else {}
        for field in fields(value):
            item = getattr(value, field.name)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if item is not default and (type(item) is not type(default) or item != default):
                data[field.name] = encode(item)
        return data
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], data: Any) -> T:
    """The value of type `kind` that `data` holds. Keys that are not fields are ignored.

    Raises `ValueError`, with the name of the field, where `data` holds no such value.
    """
    made: T = _decode(kind, data, kind.__name__)
    return made


def _decode(kind: Any, data: Any, path: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        members = [arg for arg in get_args(kind) if arg is not type(None)]
        if data is None and len(members) < len(get_args(kind)):
            return None
        return _decode(members[0] if len(members) == 1 else _find_kind(members, data, path), data, path)
    if origin is Literal:
        if data not in get_args(kind):
            raise ValueError(f"{path}: {str(data)[:60]!r} is none of {', '.join(get_args(kind))}")
        return data
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise ValueError(f"{path}: a list is expected")
        kinds = get_args(kind)
        if kinds[-1] is not ... and len(kinds) != len(data):
            raise ValueError(f"{path}: {len(kinds)} values are expected")
        return tuple(_decode(kinds[0] if kinds[-1] is ... else kinds[i], item, path) for i, item in enumerate(data))
    if origin in (dict, Mapping, Counter):
        if not isinstance(data, Mapping):
            raise ValueError(f"{path}: an object is expected")
        of_key, of_item = (*get_args(kind), int)[:2]
        found = {_decode(of_key, key, path): _decode(of_item, item, f"{path}.{key}") for key, item in data.items()}
        return Counter(found) if origin is Counter else found
    if Tagged in getattr(kind, "__bases__", ()):
        kind = _find_kind(kind.__subclasses__(), data, path)
    if is_dataclass(kind):
        return _decode_dataclass(kind, data, path)
    if kind is Any:
        return data
    if kind is float and isinstance(data, (int, float, str)) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError as error:
            raise ValueError(f"{path}: {error}") from error
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind in (int, str, bool) and type(data) is kind:
        return data
    raise ValueError(f"{path}: {str(data)[:60]!r} is no {getattr(kind, '__name__', kind)}")


def _find_kind(members: Iterable[Any], data: Any, path: str) -> Any:
    wanted = data.get("kind") if isinstance(data, Mapping) else None
    for member in members:
        if member.kind == wanted:
            return member
    raise ValueError(f"{path}: {str(wanted)[:60]!r} is no known kind")


def _decode_dataclass(kind: Any, data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{path}: an object is expected")
    hints, given = _hints(kind), {}
    for field in fields(kind):
        if field.name in data:
            given[field.name] = _decode(hints[field.name], data[field.name], f"{path}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{path}.{field.name} is missing")
    return kind(**given)


_hints = cache(get_type_hints)
