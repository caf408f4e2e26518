"""Dataclasses to JSON-ready data and back, checked against their annotations.

A member of a union of dataclasses carries its `kind`. Floats that JSON lacks (inf, nan) travel as text.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def encode(value: Any) -> Any:
    """`value` as JSON-ready data. Fields of a dataclass that have their defaults are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        data = {"kind": value.kind} if hasattr(value, "kind") else {}
        for field in fields(value):
            item = getattr(value, field.name)
            if not _is_default(field, item):
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
        return _decode_union(get_args(kind), data, path)
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise ValueError(f"{path}: a list is expected")
        return tuple(_decode(get_args(kind)[0], item, path) for item in data)
    if origin is dict:
        if not isinstance(data, Mapping):
            raise ValueError(f"{path}: an object is expected")
        return {str(key): _decode(get_args(kind)[1], item, f"{path}.{key}") for key, item in data.items()}
    if is_dataclass(kind):
        return _decode_dataclass(kind, data, path)
    if kind is Any:
        return data
    if kind is float and isinstance(data, (int, float, str)) and not isinstance(data, bool):
        return float(data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind in (int, str, bool) and type(data) is kind:
        return data
    raise ValueError(f"{path}: {str(data)[:60]!r} is no {getattr(kind, '__name__', kind)}")


def _decode_union(kinds: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    members = [kind for kind in kinds if kind is not type(None)]
    if len(members) == 1:
        return _decode(members[0], data, path)
    wanted = data.get("kind") if isinstance(data, Mapping) else None
    for member in members:
        if getattr(member, "kind", None) == wanted:
            return _decode(member, data, path)
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


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_default(field: Field[Any], value: Any) -> bool:
    if field.default is not MISSING:
        return bool(value is field.default or (type(value) is type(field.default) and value == field.default))
    return field.default_factory is not MISSING and bool(value == field.default_factory())
