"""The strict reader and the writer: what goes in comes out, and everything else is one line of complaint."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corpus.strict_yaml import MAX_BYTES, Data, dump, parse
from generators.errors import CaseError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
keys = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Zs", "Cf", "Co", "Cn"]), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats() | texts
data = st.dictionaries(
    keys,
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
    ),
)


def exact(value: Data) -> object:
    """A form in which 1, 1.0, true and every bit of a float differ."""
    if isinstance(value, dict):
        return [(key, exact(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [exact(inner) for inner in value]
    return (type(value).__name__, value.hex() if isinstance(value, float) else value)


@pytest.mark.samples
@given(data)
@example({"x": 5e-324, "y": -0.0, "z": 1e-5, "no": 1e22, "on": -math.inf, "12:30": math.nan})
@example(
    {"a": "1e-3", "b": "no", "c": "12:30", "d": "2026-01-01", "e": "~", "f": "", "g": "<<", "h": "- x", "i": "a: b"}
)
@example({"a": {"b": ["line\nline\n", " lead\n", "\ttab\n\n", "\x85\u2028", "#no", "a #b", "x\n---\n"]}})
def test_what_is_written_reads_back_bit_for_bit(written: dict[str, Data]) -> None:
    assert exact(parse(dump(written), "x").data) == exact(written)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "f:1: the file is empty"),
        (b"# nothing\n", "f:1: the file is empty"),
        (b"\x7fELF\0\0", "f: a binary file, not YAML"),
        (b"a: 1\nb: \xff\xfe\n", "f:2: not UTF-8 text"),
        (b"a: 1\nb: \x01", "f:2: not YAML: control characters are not allowed"),
        (b"a" * (MAX_BYTES + 1), f"f: larger than {MAX_BYTES} bytes"),
        (b"a: " + b"[" * 100_000, "f:1: nested deeper than 12 levels"),
        (b"&a [*a, *a]", "anchors and aliases are not allowed"),
        (b"- &a [x]\n- *a", "f:1: [0]: anchors and aliases are not allowed"),
    ],
)
def test_what_is_no_yaml_text_is_refused(content: bytes, expected: str) -> None:
    with pytest.raises(CaseError) as error:
        parse(content, "f")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_names_of_one_letter_need_no_quotes_and_are_written_with_them() -> None:
    document = parse("{N: 2, y: [n, Y], n: y}", "f")
    assert document.data == {"N": 2, "y": ["n", "Y"], "n": "y"}
    assert '"N": 2' in dump(document.data)


@given(st.binary(max_size=200) | texts.map(str.encode))
def test_any_bytes_are_read_or_refused_in_one_line(content: bytes) -> None:
    try:
        parse(content, "f")
    except CaseError as error:
        assert str(error).startswith("f:")
        assert "\n" not in str(error)


def test_what_is_wrong_with_a_key_is_told_where_the_key_is() -> None:
    document = parse('a: 1\n"b":\n\n  - x\n', "f")
    with pytest.raises(CaseError, match=r"^f:2: unknown$"):
        document.fail("unknown", ("b",))
    with pytest.raises(CaseError, match=r"^f:4: unknown$"):
        document.fail("unknown", ("b", 0, "deeper"))
