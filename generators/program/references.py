"""Names and sizes within a case: one walk over all fields whose annotations say what they name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from generators.program.sizes import Size
from generators.records import APART, NameOf

T = TypeVar("T")


@dataclass(frozen=True)
class _Visit:
    name: Callable[[NameOf, str], str | None]
    size: Callable[[Size], Size]


_Walk = Callable[[Any, _Visit], Any]  # gives None for what is dropped


def map_references(
    part: T,
    *,
    name: Callable[[NameOf, str], str | None] = lambda _, name: name,
    size: Callable[[Size], Size] = lambda size: size,
) -> T:
    """A case, a part of it, or a tuple of parts, with other names and sizes. Earlier cases have names of their own.

    name: gets a name and what it refers to. None drops the name, and the record that has it in a field. A field
        without a default that becomes empty drops its record too.
    size: gets a size
    """
    mapped: T = _map_part(part, _Visit(name, size))
    return mapped


def rename(part: T, names: Mapping[str, str]) -> T:
    """The part with values and dimensions renamed. Two dimensions that get the same name must have the same size."""
    return map_references(part, name=lambda _, name: names.get(name, name), size=lambda size: size.rename(names))


def list_sizes(part: object) -> list[Size]:
    """The sizes in a part, in order."""
    found = list[Size]()

    def note(size: Size) -> Size:
        found.append(size)
        return size

    map_references(part, size=note)
    return found


def list_dims(part: object) -> frozenset[str]:
    """The dimensions in the sizes of a part."""
    return frozenset(name for size in list_sizes(part) for name in size.names())


def _map_part(part: Any, visit: _Visit) -> Any:
    if isinstance(part, Size):
        return visit.size(part)
    if isinstance(part, tuple):
        return _map_items(_map_part, part, visit)
    return _map_fields(type(part), part, visit) if is_dataclass(part) else part


def _map_items(walk: _Walk, items: Iterable[Any], visit: _Visit) -> tuple[Any, ...]:
    return tuple(item for given in items if (item := walk(given, visit)) is not None or given is None)


def _map_pairs(walk: _Walk, pairs: Iterable[tuple[str, Any]], visit: _Visit) -> tuple[Any, ...]:
    """Pairs by name; equal names are united."""
    return tuple({name: value for key, value in pairs if (name := walk(key, visit)) is not None}.items())


def _map_fields(kind: type, record: Any, visit: _Visit) -> Any:
    changed = {}
    for name, walk, required in _list_fields(kind):
        old = getattr(record, name)
        if old:
            new = walk(old, visit)
            if new is None or (required and not new):
                return None
            changed[name] = new
    return replace(record, **changed) if changed else record


@cache
def _list_fields(kind: Any) -> tuple[tuple[str, _Walk, bool], ...]:
    """The fields that hold names or sizes: name, walk, and whether it has no default."""
    hints = get_type_hints(kind, include_extras=True)
    walks = ((field, _find_walk(hints[field.name])) for field in fields(kind))
    return tuple((field.name, walk, field.default is MISSING) for field, walk in walks if walk is not None)


def _find_walk(hint: Any) -> _Walk | None:
    """The walk over values of an annotated type; None if they hold no names and no sizes."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        names = [mark for mark in args if isinstance(mark, NameOf)]
        inner = None if APART in args else _find_walk(args[0])
        return (lambda value, visit: visit.name(names[0], value)) if names else inner
    if Size in (hint, *args):
        return _map_part
    if origin is tuple and args[-1] is Ellipsis:
        if get_origin(args[0]) is tuple and (of_key := _find_walk(get_args(args[0])[0])) is not None:
            return partial(_map_pairs, of_key)
        walk = _find_walk(args[0])
        return None if walk is None else partial(_map_items, walk)
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(_map_fields, hint) if _list_fields(hint) else None
    walks = list(filter(None, map(_find_walk, args)))
    return (_map_part if origin is tuple else walks[0]) if walks else None
