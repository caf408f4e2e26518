"""The simulated flash attention is right to within its budget, every mistake changes it, and the table counts both."""

import math
import operator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.oracle_power import correct, table
from benchmarks.oracle_power.cases import CONFIGURATIONS, VARIANTS, Configuration
from benchmarks.oracle_power.criteria import CRITERIA, Tried
from benchmarks.oracle_power.mistakes import MISTAKES, RIGHT, WEIGHTS_ROUNDED_FIRST
from benchmarks.oracle_power.problem import Outcome, Problem
from benchmarks.oracle_power.processes import run_parts
from benchmarks.oracle_power.simulated import simulated
from benchmarks.oracle_power.table import looked_for, printed, shared_problem, tasks
from fuzz.check.judge.attention.judge import judge
from fuzz.check.run.attention.call import Call
from fuzz.check.torch_api.exceptions import Unsupported

DTYPES = ("float32", "bfloat16", "float16")


def accused(problem: Problem, outcome: dict[str, Tensor], *rounds: str) -> str:
    """What the oracle finds wrong with what one call of a function that rounds weights, and `rounds`, gave; "" for
    nothing."""
    options = {name: value.detach() if isinstance(value, Tensor) else value for name, value in problem.options.items()}
    gradients = {name: value for name, value in outcome.items() if name != "out"}
    call = Call(problem.q, problem.k, problem.v, options, outcome["out"], problem.dout, gradients)
    judgement = judge(call, ("weights", *rounds), problem.with_mask_of(simulated()).kept)
    return f"{judgement.verdict}: {judgement.failure}" if judgement.verdict.is_finding else ""


@pytest.mark.samples
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_without_a_mistake_it_keeps_to_the_budget(variant: str, dtype: str) -> None:
    for configuration in ("short", "outliers"):
        problem = shared_problem(variant, dtype, "cpu", configuration)
        assert accused(problem, problem.run(simulated())) == "", configuration


@pytest.mark.samples
def test_gradients_of_rounded_weights_are_right_where_a_function_says_so() -> None:
    chance = torch.Generator().manual_seed(1)
    q, k, v, dout = (
        torch.rand((1, 1, rows, dim), generator=chance).sub(0.5).bfloat16()
        for rows, dim in ((64, 32), (254, 32), (254, 80), (64, 80))
    )
    problem = Problem(q, k, v, {"scale": 32**-0.5}, dout)
    outcome = problem.run(simulated(WEIGHTS_ROUNDED_FIRST))
    assert "wrong_gradient" in accused(problem, outcome)
    assert accused(problem, outcome, "backward_weights") == ""


def degenerate(equal: str, keys: int, dtype: torch.dtype, *, scale: float = 0.125) -> Problem:
    """A problem in which the tensors named by `equal`, letters of q, k, v and g (the gradient), have equal elements."""
    chance = torch.Generator().manual_seed(3)
    drawn = {name: torch.randn((1, 2, 5 if name in "qg" else keys, 64), generator=chance) for name in "qkvg"}
    q, k, v, dout = ((x.flatten()[:1].expand_as(x) if name in equal else x).to(dtype) for name, x in drawn.items())
    return Problem(q, k, v, {"scale": scale}, dout)


@pytest.mark.samples
@pytest.mark.parametrize("how", RIGHT)
def test_right_kernels_keep_to_the_budget_where_gradients_cancel(how: str) -> None:
    rounds = ("backward_weights",) if how == WEIGHTS_ROUNDED_FIRST else ()
    for equal, keys in (("qkvg", 2), ("qkvg", 255), ("qkv", 255), ("v", 17), ("k", 17)):
        problem = degenerate(equal, keys, torch.bfloat16)
        assert accused(problem, problem.run(simulated(how)), *rounds) == "", (equal, keys)
    problem = replace(problem, dout=torch.zeros_like(problem.q))
    assert accused(problem, problem.run(simulated(how)), *rounds) == ""


def of_equal_features(operands: str, keys: int, dim: int) -> Problem:
    """A problem in float32; all features of a row are equal in the operands named by letters of q, k, v and g."""
    chance = torch.Generator().manual_seed(2)
    drawn = {name: 3 * torch.randn((1, 1, 64 if name in "qg" else keys, dim), generator=chance) for name in "qkvg"}
    q, k, v, dout = (x[..., :1].expand_as(x) if name in operands else x for name, x in drawn.items())
    return Problem(q, k, v, {"scale": dim**-0.5, "bias": torch.randn((1, 1, 64, keys), generator=chance)}, dout)


@pytest.mark.samples
@pytest.mark.parametrize("how", RIGHT)
@pytest.mark.parametrize(("operands", "keys", "dim"), [("qkvg", 129, 128), ("vg", 64, 256)])
def test_right_kernels_keep_to_the_budget_where_the_terms_of_sums_are_equal(
    how: str, operands: str, keys: int, dim: int
) -> None:
    problem = of_equal_features(operands, keys, dim)
    assert accused(problem, problem.run(simulated(how))) == ""
    assert accused(problem, problem.run(simulated("products_in_ten_bits"))) != ""


@pytest.mark.samples
@pytest.mark.parametrize("how", RIGHT)
def test_right_kernels_keep_to_the_budget_where_queries_round_alike(how: str) -> None:
    rounds = ("backward_weights",) if how == WEIGHTS_ROUNDED_FIRST else ()
    chance = torch.Generator().manual_seed(3)
    q, k, v, dout = (torch.randn((1, 1, 128, 64), generator=chance).bfloat16() for _ in range(4))
    q, v, dout = (x[:, :, :1].expand_as(x) for x in (q, v, dout))
    problem = Problem(q, k, v, {"scale": 0.125, "causal": "top_left"}, dout)
    assert accused(problem, problem.run(simulated(how)), *rounds) == ""


@pytest.mark.samples
@pytest.mark.parametrize("how", RIGHT)
def test_right_kernels_keep_to_the_budget_where_large_scores_stand_beside_sinks(how: str) -> None:
    problem = degenerate("qkv", 127, torch.float32, scale=500.0)
    problem = replace(problem, options={**problem.options, "sinks": torch.tensor([0.5, -math.inf])})
    assert accused(problem, problem.run(simulated(how))) == ""


@pytest.mark.samples
def test_a_wrong_gradient_is_seen_where_the_right_one_cancels() -> None:
    problem = degenerate("v", 17, torch.bfloat16)
    assert "wrong_gradient" in accused(problem, problem.run(simulated("delta_omitted")))
    assert "wrong_gradient" in accused(problem, problem.run(simulated("delta_of_half_the_features")))


@pytest.mark.samples
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_changes_what_it_gives(name: str) -> None:
    mistake = MISTAKES[name]
    for dtype in mistake.dtypes:
        problems = (shared_problem(mistake.variant, dtype, "cpu", where) for where in ("short", "one_key"))
        assert any(different(problem.run(simulated()), problem.run(simulated(name))) for problem in problems), dtype


@pytest.mark.samples
@pytest.mark.parametrize("name", [name for name, mistake in MISTAKES.items() if mistake.where == "backward"])
def test_a_mistake_of_the_backward_pass_leaves_the_output_alone(name: str) -> None:
    problem = shared_problem(MISTAKES[name].variant, "float16", "cpu", "short")
    assert torch.equal(problem.run(simulated())["out"], problem.run(simulated(name))["out"])


@pytest.mark.samples
@pytest.mark.parametrize("criterion", CRITERIA)
def test_criteria_accept_it_in_low_precision(criterion: str) -> None:
    problem = shared_problem("causal", "bfloat16", "cpu", "normal")
    assert CRITERIA[criterion](Tried(problem, simulated(), problem.run(simulated())))


@pytest.mark.samples
@pytest.mark.parametrize("criterion", ["FA", "PyTorch", "flex", "same", "cuDNN"])
def test_criteria_see_what_is_plainly_wrong(criterion: str) -> None:
    problem = shared_problem("causal", "bfloat16", "cpu", "normal")

    def doubled(*args: Any, **options: Any) -> Tensor:
        return 2 * simulated()(*args, **options)

    assert not CRITERIA[criterion](Tried(problem, doubled, problem.run(doubled)))


@pytest.mark.samples
def test_xformers_sees_what_reads_beside_its_inputs() -> None:
    problem = shared_problem("causal", "bfloat16", "cpu", "short")

    def reaching(q: Tensor, *args: Any, **options: Any) -> Tensor:
        if q.stride(2) > q.size(3):
            q = q.as_strided((*q.shape[:3], q.size(3) + 1), q.stride())[..., 1:]
        return simulated()(q, *args, **options)

    assert CRITERIA["xformers"](Tried(problem, simulated(), problem.run(simulated())))
    assert not CRITERIA["xformers"](Tried(problem, reaching, problem.run(reaching)))


def different(one: Outcome, other: Outcome) -> bool:
    return any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.samples
def test_a_mistake_makes_a_line_and_none_a_line_without_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "CONFIGURATIONS", {"short": CONFIGURATIONS["short"]})
    monkeypatch.setattr(table, "shared_problem", partial(table.shared_problem, configuration="short"))
    assert tasks(["first_row_zeroed"], ["float32"]) == [("causal", "float32", (table.RIGHT, "first_row_zeroed"))]
    right, zeroed = looked_for("features", "bfloat16", (table.RIGHT, "first_row_zeroed"), "cpu")
    assert not right.seen and not any(right.criteria.values())
    assert zeroed.seen and zeroed.verdict == "wrong_result" and zeroed.configuration == "short"
    assert {name: zeroed.criteria[name] for name in CRITERIA if name != "xformers"} == dict.fromkeys(
        ("FA", "PyTorch", "flex", "same", "cuDNN"), True
    )
    text = printed([right, zeroed])
    assert text[1].startswith("first_row_zeroed") and "wrong_result, out worst" in text[1]
    assert text[-1] == "without a mistake, 1 kinds and dtypes: ours raises 0; the criteria raise none"


@pytest.mark.samples
def test_a_part_that_gets_lost_is_told() -> None:
    lost: list[str] = []
    assert list(run_parts("cpu", 1, lost, operator.floordiv, [(4, 2), (1, 0), (9, 3)])) == [2, 3]
    assert len(lost) == 1


@pytest.mark.samples
def test_right_implementations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correct, "SHARES", dict.fromkeys(correct.SHARES, 0))
    counts = correct.judged(1, range(4), "cpu")
    assert counts.cases == 4 and not counts.findings
    assert counts.verdicts[correct.MATH].total() == 4
    assert 0 < counts.judged[correct.SIMULATED, "same"] <= 4
    assert counts.judged[correct.SIMULATED, "cuDNN"] == counts.judged[correct.SIMULATED, "FA"]


@pytest.mark.samples
@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_flash_is_not_asked_where_it_multiplies_masked_scores_by_no_positive_scale(scale: float) -> None:
    with pytest.raises(Unsupported, match="scale"):
        correct._where_right(refuse_to_run)(*torch.zeros(3, 1, 1, 2, 2), scale=scale, causal="top_left")


@pytest.mark.samples
def test_flash_is_not_asked_where_elements_of_the_query_overlap() -> None:
    q = torch.zeros(1, 2, 5).unfold(
        2, 4, 1
    )  # [batch, seq_len, heads, head_dim]: features of neighbouring heads overlap
    with pytest.raises(Unsupported, match="query"):
        correct._where_right(refuse_to_run)(q.transpose(1, 2), *torch.zeros(2, 1, 2, 2, 4), scale=0.5)


def refuse_to_run(*_args: Any, **_options: Any) -> Any:
    raise AssertionError


@pytest.mark.samples
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
