"""What is said of a case that several versions judged."""

import math

import pytest

from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from fuzz.versions import Change, Row, Task, render_json, render_text
from tests.campaign.fakes import case


def result(
    verdict: str, error_type: str = "", *, error: float = 1e-7, ratio: float = 0.5, scale: float = 1.0
) -> SubjectResult:
    numbers = {"compiled_error": error, "ratio": ratio, "scale": scale}
    return SubjectResult("inductor", Verdict(verdict), numbers, failure=Raised(error_type) if error_type else None)


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


@pytest.mark.parametrize(
    ("before", "after", "times"),
    [
        # Rounding in both, however it changed.
        ((1e-8, 0.05), (1e-7, 0.9), 0.0),
        ((1e-7, 0.5), (2e-6, 10.0), 20.0),
        # Eager lost precision with it, so that rounding explains more now: by the measure of before it does not.
        ((1e-7, 0.5), (1e-4, 0.5), 1000.0),
        ((0.0, 0.0), (1e-6, 3.0), math.inf),
        ((0.0, 0.0), (1e-8, 0.1), 0.0),
        ((2e-6, 10.0), (1e-7, 0.5), 0.0),
    ],
)
def test_an_error_grew_only_beyond_rounding(
    before: tuple[float, float], after: tuple[float, float], times: float
) -> None:
    old, new = (result("rounding", error=error, ratio=ratio) for error, ratio in (before, after))
    assert row(old, new).growth == pytest.approx(times)
    assert (row(old, new).change is Change.GREW) == (times >= 4.0)


def test_errors_of_different_outputs_are_compared_by_what_rounding_explains() -> None:
    small = result("rounding", error=1e-9, ratio=2.0, scale=1e-3)
    assert row(small, result("rounding", error=1e-6, ratio=3.0, scale=10.0)).growth == pytest.approx(1.5)


def test_errors_of_unstable_programs_say_nothing() -> None:
    assert row("ok", result("ill_conditioned", error=1.0, ratio=50.0)).growth == 0.0


def test_the_table_names_what_changed_and_counts_the_rest() -> None:
    rows = (
        row("ok", "wrong_result", name="bad.case.yaml"),
        row(result("compile_error", "KeyError"), result("ok"), name="good.case.yaml"),
        row(result("ok"), result("rounding", error=5e-6, ratio=20.0), name="worse.case.yaml"),
        row("ok", "ok", name="quiet.case.yaml"),
    )
    shown = render_text(rows, ("2.12.1", "2.13.0"), 9)
    assert "quiet.case.yaml" not in shown
    assert "  bad.case.yaml under inductor: 2.12.1 ok, 2.13.0 wrong_result\n      fails since 2.13.0\n" in shown
    assert "1e-07, then 5e-06: 50 times as large; 0.5 times what rounding explains, then 20" in shown
    assert shown.endswith(
        "4 comparisons of 9, then interrupted, torch 2.12.1, 2.13.0: 1 regressed, 1 error grew, 1 fixed, 1 no change"
    )
    assert "\n      passes since 2.13.0\n      KeyError\n" in shown
    assert '"since": "2.13.0"' in render_json(rows, ("2.12.1", "2.13.0"), interrupted=True)
