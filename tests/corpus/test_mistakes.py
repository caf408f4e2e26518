"""Files with mistakes are refused in one line, which begins with the place: each row of mistakes.yaml, any bytes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corpus import casefile, entry, ledger, strict_yaml
from corpus.strict_yaml import MAX_BYTES, Data, dump, parse
from generators.errors import CaseError, UserError
from generators.program.type_check import MAX_LINES

GROUPS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())
READERS: dict[str, Callable[[str, str], object]] = {
    "case": casefile.loads,
    "entry": entry.loads,
    "ledger": lambda text, origin: ledger.loads(text, Path(origin)),
    "yaml": strict_yaml.parse,
}
ROWS = [
    (name, *((group["old"],) if len(row) == 3 else ()), *row) for name, group in GROUPS.items() for row in group["rows"]
]
PLAIN: str = GROUPS["case"]["text"]


@pytest.mark.parametrize(("group", "old", "new", "place", "words"), ROWS)
def test_a_mistake_is_told_in_one_line_with_its_place(group: str, old: str, new: str, place: str, words: str) -> None:
    text, read = GROUPS[group]["text"], READERS[GROUPS[group]["reads"]]
    assert old in text
    with pytest.raises(UserError) as error:
        read(text.replace(old, new, 1), "f")
    told = str(error.value)
    assert told.startswith(f"f:{place}: ") and words in told.removeprefix(f"f:{place}: ")
    assert "\n" not in told


@pytest.mark.parametrize("group", GROUPS)
def test_without_the_mistake_it_is_read(group: str) -> None:
    assert READERS[GROUPS[group]["reads"]](GROUPS[group]["text"], "f")


def test_a_program_without_end_is_refused() -> None:
    lines = "".join(f"  - {{name: x{i}, op: clone, args: [q]}}\n" for i in range(MAX_LINES))
    with pytest.raises(CaseError, match=rf"f:[0-9]+: .*[0-9]+ inputs and operations; at most {MAX_LINES}"):
        casefile.loads(PLAIN.replace("ops:\n", "ops:\n" + lines), "f")


@pytest.mark.parametrize("cut", range(20, len(PLAIN), 37))
def test_a_truncated_file_is_refused(cut: int) -> None:
    with pytest.raises(CaseError, match=r"^f:\d+: "):
        casefile.loads(PLAIN[:cut], "f")


@pytest.mark.samples
@settings(max_examples=200)
@given(st.integers(0, len(PLAIN) - 1), st.integers(0, 6), st.text("{}[]:,-!&*'\"# \n\t01.eqBw\\", max_size=4))
def test_a_damaged_file_is_read_or_refused_in_one_line(start: int, length: int, inserted: str) -> None:
    damaged = PLAIN[:start] + inserted + PLAIN[start + length :]
    try:
        case = casefile.loads(damaged, "f")
    except CaseError as error:
        assert "\n" not in str(error)
    else:
        assert casefile.loads(casefile.dumps(case)) == case


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
