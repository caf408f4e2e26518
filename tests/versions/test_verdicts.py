"""What is said of a case that several versions judged."""

import pytest

from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from fuzz.versions import Change, Row, Task, render_json, render_text
from tests.campaign.fakes import case


def result(verdict: str, error_type: str = "") -> SubjectResult:
    return SubjectResult("inductor", Verdict(verdict), failure=Raised(error_type) if error_type else None)


def row(*results: SubjectResult | str, name: str = "a.case.yaml") -> Row:
    made = tuple(given if isinstance(given, SubjectResult) else result(given) for given in results)
    return Row(Task(name, case("exp"), "inductor", "cpu"), made)


@pytest.mark.parametrize(
    ("verdicts", "change", "turn"),
    [
        (("ok", "wrong_result"), Change.REGRESSED, 1),
        (("ok", "ok", "compile_error"), Change.REGRESSED, 2),
        (("ok", "timeout", "wrong_result"), Change.REGRESSED, 1),
        (("wrong_result", "ok", "worker_died"), Change.REGRESSED, 2),
        (("skipped", "ok", "wrong_result"), Change.REGRESSED, 2),
        (("wrong_result", "ok"), Change.FIXED, 1),
        (("ok", "wrong_result", "rounding"), Change.FIXED, 2),
        (("wrong_result", "skipped", "ok"), Change.FIXED, 2),
        (("wrong_result", "compile_error"), Change.FAILS, None),
        (("skipped", "wrong_result", "wrong_result"), Change.FAILS, None),
        (("skipped", "wrong_result"), Change.UNJUDGED, None),
        (("ok", "skipped"), Change.UNJUDGED, None),
        (("ok", "rounding", "ill_conditioned"), Change.SAME, None),
    ],
)
def test_what_became_of_a_case(verdicts: tuple[str, ...], change: Change, turn: int | None) -> None:
    assert (row(*verdicts).change, row(*verdicts).find_turn()) == (change, turn)


def test_the_table_names_what_changed_and_counts_the_rest() -> None:
    rows = (
        row("ok", "wrong_result", name="bad.case.yaml"),
        row(result("compile_error", "KeyError"), result("ok"), name="good.case.yaml"),
        row("ok", "ok", name="quiet.case.yaml"),
    )
    shown = render_text(rows, ("2.12.1", "2.13.0"), 9)
    assert "quiet.case.yaml" not in shown
    assert "  bad.case.yaml under inductor: 2.12.1 ok, 2.13.0 wrong_result\n      fails since 2.13.0\n" in shown
    assert shown.endswith(
        "3 comparisons of 9, then interrupted, torch 2.12.1, 2.13.0: 1 regressed, 1 fixed, 1 no change"
    )
    assert "\n      passes since 2.13.0\n      KeyError\n" in shown
    assert '"since": "2.13.0"' in render_json(rows, ("2.12.1", "2.13.0"), interrupted=True)
