"""The codec: data that holds a record is read, and other data is refused with its path."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import pytest

from generators.records import (
    ALWAYS,
    KEYED,
    SORTED,
    Codec,
    RecordError,
    RecordForm,
    Tagged,
    decode,
    encode,
    matches,
    one_of,
)

FILES = Codec(strict=True)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Shape(Tagged):
    pass


@dataclass(frozen=True)
class LongLine(Shape):
    ends: tuple[int, int]


@dataclass(frozen=True)
class Dot(Shape):
    at: float = 0.0


@dataclass(frozen=True)
class Named:
    name: str
    size: Annotated[int, ALWAYS] = 1


@dataclass(frozen=True)
class Drawing:
    shapes: tuple[Shape, ...]
    date: Annotated[str, matches("[0-9]{4}", "is not a year")] = ""
    colour: Colour = Colour.RED
    sizes: Annotated[tuple[tuple[str, int], ...], KEYED, SORTED] = ()
    parts: Annotated[tuple[Named, ...], KEYED] = ()
    marks: tuple[Annotated[str, one_of("ab")], ...] = ()
    limit: int | None = None
    options: Mapping[str, bool | int] = field(default_factory=dict)


FULL = Drawing(
    (LongLine((1, 2)), Dot()),
    "2026",
    Colour.BLUE,
    (("a", 1), ("b", 2)),
    (Named("z"), Named("y", 3)),
    ("b",),
    0,
    {"deep": True, "wide": 2},
)
DATA = {
    "shapes": [{"kind": "long_line", "ends": [1, 2]}, {"kind": "dot"}],
    "date": "2026",
    "colour": "blue",
    "sizes": {"a": 1, "b": 2},
    "parts": {"z": {"size": 1}, "y": {"size": 3}},
    "marks": ["b"],
    "limit": 0,
    "options": {"deep": True, "wide": 2},
}


@pytest.mark.parametrize("codec", [Codec(), FILES])
def test_a_record_comes_back_as_it_was(codec: Codec) -> None:
    assert codec.encode(FULL) == DATA
    assert codec.decode(Drawing, DATA) == FULL
    assert codec.encode(Drawing(())) == {"shapes": []}
    assert codec.decode(Drawing, {**DATA, "sizes": {"b": 2, "a": 1}}) == FULL


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shapes": "dot"}, "shapes: expected a list, got 'dot'"),
        ({"shapes": [{"kind": "dot"}, {"kind": "disk"}]}, "shapes[1].kind: 'disk' is not one of long_line, dot"),
        ({"shapes": [{"kind": "long_line", "ends": [1]}]}, "shapes[0].ends: expected 2 values, got 1"),
        ({"shapes": [{"kind": "long_line"}]}, "shapes[0]: missing key 'ends'"),
        ({"date": "May"}, "date: 'May' is not a year"),
        ({"colour": "green"}, "colour: 'green' is not one of red, blue"),
        ({"sizes": {"a": True}}, "sizes.a: expected an integer, got true"),
        ({"parts": {"z": {"size": 1.0}}}, "parts.z.size: expected an integer, got 1.0"),
        ({"marks": ["a", "c"]}, "marks[1]: 'c' is not one of a, b"),
        ({"options": {"deep": 0.5}}, "options.deep: expected true or false, an integer; got 0.5"),
        ({"options": []}, "options: expected a mapping, got a list"),
    ],
)
@pytest.mark.parametrize("codec", [Codec(), FILES])
def test_other_data_is_refused_with_its_path(codec: Codec, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError) as error:
        codec.decode(Drawing, DATA | change)
    assert str(error.value) == message


def test_files_are_strict_and_messages_are_not() -> None:
    assert decode(Dot, {"at": 1, "colour": "red"}) == Dot(1.0)
    assert type(decode(Dot, {"at": 1}).at) is float and type(FILES.decode(Dot, {"at": 1}).at) is int
    assert decode(Drawing, {"shapes": [], "limit": None}) == Drawing(())
    assert math.isnan(decode(Dot, encode(Dot(math.nan))).at) and encode(Dot(-math.inf))["at"] == "-inf"
    assert FILES.encode(Dot(math.inf))["at"] == math.inf
    for kind, data, message in (
        (Dot, {"colour": 1}, "colour: unknown key; expected kind, at"),
        (Drawing, {"shapes": [], "limit": None}, "limit: expected an integer, got null"),
        (Dot, {"at": "inf"}, "at: expected a number, got 'inf'"),
        (Named, {"name": 1}, "name: expected text, got 1; quote it"),
    ):
        with pytest.raises(RecordError) as error:
            FILES.decode(kind, data)
        assert str(error.value) == message


def test_a_class_may_have_a_form_and_a_mapping_keys_beside_those_of_a_record() -> None:
    codec = Codec(strict=True, forms={Dot: RecordForm(lambda data: Dot(float(data)), lambda dot: str(dot.at))})
    assert codec.encode([Dot(0.5)]) == ["0.5"]
    assert codec.read(tuple[Dot, ...], ["0.5"]) == (Dot(0.5),)
    with pytest.raises(RecordError, match=r"^\[1\]: could not convert string to float: 'x'$"):
        codec.read(tuple[Dot, ...], ["1", "x"])
    assert FILES.decode(Named, {"note": "", "size": 2}, beside=("note",), name="a") == Named("a", 2)
    with pytest.raises(RecordError, match=r"^notes: unknown key; expected note, size$"):
        FILES.decode(Named, {"notes": ""}, beside=("note",), name="a")
