"""Which sizes of a dimension fail, in words."""

import pytest

from triage.attribution.size_rule import describe_sizes


@pytest.mark.parametrize(
    ("failing", "passing", "text"),
    [
        (range(65, 131), range(1, 65), "S > 64"),
        ({100, 200}, {30, 50}, "S > 64"),
        ({1, 2}, {3, 4, 100}, "S < 3"),
        ({s for s in range(1, 131) if s % 64}, {64, 128}, "S % 64 != 0"),
        ({64, 128}, {s for s in range(1, 131) if s % 64}, "S % 64 == 0"),
        ({s for s in range(1, 131) if s > 64 and s % 64}, {*range(1, 65), 128}, "S > 64 and S % 64 != 0"),
        ({s for s in range(1, 131) if s % 32 == 1}, {s for s in range(1, 131) if s % 32 != 1}, "S % 32 == 1"),
        ({s for s in range(1, 131) if s % 64 > 32}, {s for s in range(1, 131) if s % 64 <= 32}, "S % 64 > 32"),
        ({7, 9, 23}, {8, 11, 20, 39, 41}, "S = 7, 9, 23"),
        ({17}, {16, 18}, "S = 17"),
        ({64}, {1, 2, 63, 65, 128}, "S = 64"),
        ({1}, set(), "S = 1"),
    ],
)
def test_sizes_that_fail_are_told_by_a_rule(failing: set[int], passing: set[int], text: str) -> None:
    assert describe_sizes(set(failing), set(passing), "S") == text
