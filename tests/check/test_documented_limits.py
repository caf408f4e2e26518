"""docs/oracle.md says what the oracle judges by: its tables hold what the code has."""

import re
from fractions import Fraction
from pathlib import Path

from fuzz.check.oracle import constants
from fuzz.protocol import Verdict

TEXT = (Path(__file__).parents[2] / "docs/oracle.md").read_text()
ROW = re.compile(r"^\| (`[A-Z_`, ]+`) \| ([^|]+) \|", re.MULTILINE)


def test_every_limit_is_the_constant() -> None:
    rows = ROW.findall(TEXT)
    assert len(rows) > 10
    for names, values in rows:
        documented = [_number(value) for value in values.split(", ")]
        assert [getattr(constants, name.strip("`")) for name in names.split(", ")] == documented


def test_every_verdict_is_named() -> None:
    assert {verdict.value for verdict in Verdict} <= set(re.findall(r"`([a-z_]+)`", TEXT))


def _number(text: str) -> float:
    base, caret, power = text.strip().partition("^")
    return float(base) ** int(power) if caret else float(Fraction(base))
