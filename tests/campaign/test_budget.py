import pytest

from fuzz.campaign.options import Budget
from fuzz.durations import format_duration, parse_duration
from generators.errors import UserError


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("90s", Budget(seconds=90)),
        ("10m", Budget(seconds=600)),
        ("1h30m", Budget(seconds=5400)),
        ("1h1m1.5s", Budget(seconds=3661.5)),
        ("500x", Budget(cases=500)),
    ],
)
def test_time_and_cases_are_read(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize(
    "text", ["10", "1.5", "", "x", "0s", "0x", "m", "10 minutes", "-5s", "5s3m", "1e3s", "nan", "infs"]
)
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(UserError, match=r"expected 90s|longer than 0 s|at least 1x"):
        Budget.parse(text)


def test_a_bare_number_lacks_its_unit() -> None:
    with pytest.raises(UserError, match=r"timeout '60'.*the unit is missing; expected 60s"):
        parse_duration("60", "timeout")


@pytest.mark.parametrize("text", ["45s", "3m20s", "1h05m", "2h", "5m", "1.5s"])
def test_durations_are_spelled_as_they_are_read(text: str) -> None:
    assert format_duration(parse_duration(text, "it")) == text
