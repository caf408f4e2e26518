"""Which sizes of a dimension fail, in words."""

import pytest

from triage.attribution.size_search import tile_rule


@pytest.mark.parametrize(
    ("failing", "passing", "text"),
    [
        (range(65, 131), range(1, 65), "only where S > 64"),
        ({100, 200}, {30, 50}, "only where S > 64"),
        ({1, 2}, {3, 4, 100}, "only where S < 3"),
        ({s for s in range(1, 131) if s % 64}, {64, 128}, "only where S % 64 != 0"),
        ({64, 128}, {s for s in range(1, 131) if s % 64}, "only where S % 64 == 0"),
        ({s for s in range(1, 131) if s > 64 and s % 64}, {*range(1, 65), 128}, "only where S > 64 and S % 64 != 0"),
        (
            {s for s in range(1, 131) if s % 32 == 1},
            {s for s in range(1, 131) if s % 32 != 1},
            "only where S % 32 == 1",
        ),
        (
            {s for s in range(1, 131) if s % 64 > 32},
            {s for s in range(1, 131) if s % 64 <= 32},
            "only where S % 64 > 32",
        ),
        ({7, 9, 23}, {8, 11, 20, 39, 41}, "only at S = 7, 9, 23"),
        ({17}, {16, 18}, "only at S = 17"),
        ({64}, {1, 2, 63, 65, 128}, "only at S = 64"),
        ({1}, set(), "at every size tried"),
        (set(), {1}, "at no size tried"),
    ],
)
def test_sizes_that_fail_are_told_by_a_rule(failing: set[int], passing: set[int], text: str) -> None:
    assert tile_rule(set(failing), set(passing)) == text
