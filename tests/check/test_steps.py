"""Steps of compiling are left out from a number on, by the switches of torch's own bisector."""

from typing import Any

import pytest

from fuzz.check.controls import apply_experiments
from fuzz.check.subject_builder import find
from fuzz.experiments import Trial
from fuzz.protocol import StepsTaken
from tests.check.in_process import run_subject
from tests.check.sources import source

pytestmark = pytest.mark.compiles

GATED = source(
    "scores = q @ k.transpose(-2, -1)", "return (F.silu(scores.exp() * 0.5) + scores).relu() @ v", dims="1, 2, 5, 8"
)


def take(subject: str, argument: str) -> tuple[StepsTaken, Any]:
    seen: list[StepsTaken] = []
    result = run_subject(apply_experiments(find(subject), [Trial(*argument.split())], seen.append), text=GATED)
    assert not result.verdict.is_finding
    return seen[0], result


@pytest.mark.parametrize(
    ("subject", "kind", "name"),
    [
        ("aot_eager_decomp_partition", "decomposition", "aten.silu"),
        ("passes", "pass", "remove_noop_ops"),
        ("inductor", "lowering", "relu"),
    ],
)
def test_each_step_can_be_the_last_and_has_a_name(subject: str, kind: str, name: str) -> None:
    whole, _ = take(subject, f"{kind} 1000")
    assert take(subject, f"{kind} 0")[0] == StepsTaken(0, "")
    assert name in {take(subject, f"{kind} {most}")[0].last for most in range(1, whole.count + 1)}


def test_without_passes_no_rewrite_is_applied() -> None:
    assert take("passes", "pass 0")[1].fired == ()
