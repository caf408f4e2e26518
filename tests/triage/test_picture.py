"""Pictures of what is wrong: the grids they are drawn from, and that they are drawn."""

import math

import pytest
import torch

from fuzz.check.oracle.where import error_map, locate
from fuzz.error_location import describe_where
from fuzz.protocol import ErrorMap, SubjectResult, Verdict
from generators.program.case import Case
from triage.report import picture
from triage.report.picture import describe, panels

SHAPE = (2, 4, 8, 16)


def found(name: str, wrong: torch.Tensor) -> SubjectResult:
    """A result whose wrong elements are off by 1, the others by 1e-8."""
    errors = error_map(name, wrong, wrong.double().clamp(min=1e-8), torch.zeros(wrong.shape))
    return SubjectResult(
        "inductor", Verdict.WRONG_RESULT, numbers={"eager_error": 2e-7}, where=locate(name, wrong), map=errors
    )


def planted() -> SubjectResult:
    """Wrong in head 2 of batch 1, from row 5 on, in feature 3."""
    wrong = torch.zeros(SHAPE, dtype=torch.bool)
    wrong[1, 2, 5:, 3] = True
    return found("output 0", wrong)


def test_a_wrong_head_row_and_feature_show_where_they_were_planted(case: Case) -> None:
    result = planted()
    assert result.map is not None
    by_head, by_feature = panels(case, result.map)
    assert (by_head.title, by_feature.title) == ("by batch, head and query row", "by query row and feature")
    assert {(y, x) for y, row in enumerate(by_head.wrong) for x, cell in enumerate(row) if cell} == {
        (6, 5),
        (6, 6),
        (6, 7),
    }
    assert {(y, x) for y, row in enumerate(by_feature.wrong) for x, cell in enumerate(row) if cell} == {
        (5, 3),
        (6, 3),
        (7, 3),
    }
    assert by_head.errors[6][4:].tolist() == [1e-8, 1.0, 1.0, 1.0]
    assert (by_head.rows.label(6), by_head.columns.label(7), by_head.columns.label(8)) == ("1, 2", "7", "")


def test_the_picture_is_told_in_words_too(case: Case) -> None:
    result = planted()
    assert describe(case, result) == (
        "Error of output 0 against float64, by batch, head and query row, and by query row and feature. Wrong: batch 1,"
        " head 2, last 3 query rows, feature 3."
    )
    assert describe_where(case, result.where).startswith("output 0: batch 1, head 2, last 3 query rows")


@pytest.mark.parametrize("error", [0.0, math.inf, math.nan, 1e300])
def test_any_numbers_can_be_drawn(case: Case, error: float) -> None:
    result = SubjectResult(
        "inductor", Verdict.NONFINITE, map=ErrorMap("output 0", (2, 3), (1, 1), (error,) * 6, (0, 5))
    )
    assert picture.png(case, result) is not None


def test_blocks_are_named_by_their_first_element(case: Case) -> None:
    by_rows = panels(case, ErrorMap("output 0", (1, 1, 1000, 1), (1, 1, 8, 1), (0.0,) * 125, (124,)))[0]
    assert by_rows.title == "by query row"
    assert by_rows.columns.label(16) == "128"
    assert by_rows.wrong[0][124] and not by_rows.wrong[0][123]


def test_a_single_number_has_no_picture(case: Case) -> None:
    result = SubjectResult("inductor", Verdict.WRONG_RESULT, map=ErrorMap("output 0", (1, 1), (1, 1), (0.5,), (0,)))
    assert picture.png(case, result) is None and describe(case, result) == ""
    assert picture.png(case, SubjectResult("inductor", Verdict.WRONG_RESULT)) is None
