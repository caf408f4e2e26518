"""The table of cases that several versions judged."""

from pathlib import Path

import pytest

from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from fuzz.versions import VersionChange, VersionRow, render_table

LABELS = ("2.12.1", "2.13.0", "2.14.0")


def result(verdict: str, error_type: str = "") -> SubjectResult:
    return SubjectResult("inductor", Verdict(verdict), failure=Raised(error_type) if error_type else None)


def row(*results: SubjectResult | str, name: str = "a.case.yaml") -> VersionRow:
    made = (given if isinstance(given, SubjectResult) else result(given) for given in results)
    return VersionRow(Path(name), "inductor", dict(zip(LABELS, made, strict=False)))


@pytest.mark.parametrize(
    ("verdicts", "change"),
    [
        (("ok", "wrong_result"), VersionChange.REGRESSED),
        (("ok", "ok", "compile_error"), VersionChange.REGRESSED),
        (("ok", "timeout", "wrong_result"), VersionChange.REGRESSED),
        (("wrong_result", "ok", "worker_died"), VersionChange.REGRESSED),
        (("skipped", "ok", "wrong_result"), VersionChange.REGRESSED),
        (("wrong_result", "ok"), VersionChange.FIXED),
        (("ok", "wrong_result", "rounding"), VersionChange.FIXED),
        (("wrong_result", "skipped", "ok"), VersionChange.FIXED),
        (("wrong_result", "compile_error"), VersionChange.FAILS),
        (("skipped", "wrong_result", "wrong_result"), VersionChange.FAILS),
        (("skipped", "wrong_result"), VersionChange.UNJUDGED),
        (("ok", "skipped"), VersionChange.UNJUDGED),
        (("ok", "rounding", "ill_conditioned"), VersionChange.SAME),
        (("ill_conditioned", "wrong_result"), VersionChange.UNJUDGED),
        (("wrong_result", "convention", "ok"), VersionChange.FIXED),
    ],
)
def test_what_became_of_a_case(verdicts: tuple[str, ...], change: VersionChange) -> None:
    assert row(*verdicts).change is change


def test_the_table_names_what_changed_and_counts_the_rest() -> None:
    rows = (
        row("ok", "wrong_result", name="bad.case.yaml"),
        row(result("compile_error", "KeyError"), result("ok"), name="good.case.yaml"),
        row("ok", "ok", name="quiet.case.yaml"),
    )
    shown = render_table(rows, LABELS[:2], 9)
    assert "quiet.case.yaml" not in shown
    assert "  bad.case.yaml under inductor: 2.12.1 ok, 2.13.0 wrong_result\n" in shown
    assert shown.endswith(
        "3 comparisons of 9, then interrupted, torch 2.12.1, 2.13.0: 1 regressed, 1 fixed, 1 no change"
    )
    assert "2.13.0 ok\n      KeyError\n" in shown
