"""Files with mistakes are refused in one line, which begins with the place: each row of mistakes.yaml."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import casefile, entry, ledger, strict_yaml
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
