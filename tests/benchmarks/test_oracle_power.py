"""Lines of the table of mistakes, and counts over right implementations."""

import operator
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.oracle_power import correct, table
from benchmarks.oracle_power.cases import CONFIGURATIONS, Configuration
from benchmarks.oracle_power.criteria import CRITERIA
from benchmarks.oracle_power.processes import run_parts
from benchmarks.oracle_power.table import RIGHT, looked_for, printed, tasks
from fuzz.check.torch_api.exceptions import Unsupported

pytestmark = pytest.mark.samples


def test_a_mistake_makes_a_line_and_none_a_line_without_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "CONFIGURATIONS", {"short": CONFIGURATIONS["short"]})
    monkeypatch.setattr(table, "shared_problem", partial(table.shared_problem, configuration="short"))
    assert tasks(["first_row_zeroed"], ["float32"]) == [("causal", "float32", (RIGHT, "first_row_zeroed"))]
    right, zeroed = looked_for("features", "bfloat16", (RIGHT, "first_row_zeroed"), "cpu")
    assert not right.seen and not any(right.criteria.values())
    assert zeroed.seen and zeroed.verdict == "wrong_result" and zeroed.configuration == "short"
    assert {name: zeroed.criteria[name] for name in CRITERIA if name != "xformers"} == dict.fromkeys(
        ("FA", "PyTorch", "flex", "same", "cuDNN"), True
    )
    text = printed([right, zeroed])
    assert text[1].startswith("first_row_zeroed") and "wrong_result, out worst" in text[1]
    assert text[-1] == "without a mistake, 1 kinds and dtypes: ours raises 0; the criteria raise none"


def test_a_part_that_gets_lost_is_told() -> None:
    lost: list[str] = []
    assert list(run_parts("cpu", 1, lost, operator.floordiv, [(4, 2), (1, 0), (9, 3)])) == [2, 3]
    assert len(lost) == 1


def test_right_implementations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correct, "SHARES", dict.fromkeys(correct.SHARES, 0))
    counts = correct.judged(1, range(4), "cpu")
    assert counts.cases == 4 and not counts.findings
    assert counts.verdicts[correct.MATH].total() == 4
    assert 0 < counts.judged[correct.SIMULATED, "same"] <= 4
    assert counts.judged[correct.SIMULATED, "cuDNN"] == counts.judged[correct.SIMULATED, "FA"]


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_flash_is_not_asked_where_it_multiplies_masked_scores_by_no_positive_scale(scale: float) -> None:
    with pytest.raises(Unsupported, match="scale"):
        correct._where_right(refuse_to_run)(*torch.zeros(3, 1, 1, 2, 2), scale=scale, causal="top_left")


def test_flash_is_not_asked_where_elements_of_the_query_overlap() -> None:
    q = torch.zeros(1, 2, 5).unfold(
        2, 4, 1
    )  # [batch, seq_len, heads, head_dim]: features of neighbouring heads overlap
    with pytest.raises(Unsupported, match="query"):
        correct._where_right(refuse_to_run)(q.transpose(1, 2), *torch.zeros(2, 1, 2, 2, 4), scale=0.5)


def refuse_to_run(*_args: Any, **_options: Any) -> Any:
    raise AssertionError


def test_what_six_published_criteria_pass_in_bfloat16_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = {
        "scores_in_low_precision": "worst",
        "weights_truncated": "bias",
        "sums_in_low_precision": "rms",
        "log2e_in_three_digits": "scale",
        "scale_off_by_a_thousandth": "scale",
        "last_key_dropped": "worst",
    }
    monkeypatch.setattr(table, "shared_problem", lambda *_: None)
    monkeypatch.setattr(table, "_published", lambda _problem, _name: {})
    monkeypatch.setattr("fuzz.check.attention_check.measure_calls", lambda judgement, *_: judgement)
    monkeypatch.setitem(CONFIGURATIONS, "normal", Configuration(1, 384, 32))
    lines = looked_for("causal", "bfloat16", tuple(statistics), "cpu")
    assert all(line.seen for line in lines)
    assert {line.mistake: line.statistic for line in lines} == {n: f"out {word}" for n, word in statistics.items()}
