"""What a campaign's own path, workers and all, makes of a bug that Inductor plants: the smallest program that has
it."""

from collections.abc import Sequence

import pytest

from fuzz.ask.evaluator import Evaluator
from fuzz.campaign.investigation import Investigation
from fuzz.protocol import SubjectResult, Verdict
from fuzz.run_store import SuspicionOutcome
from generators.program.case import Case, Input
from generators.program.emit import source
from generators.program.sizes import Size
from generators.program.type_check import make_op

pytestmark = [pytest.mark.worker, pytest.mark.compiles]

MINIMUM = """
class Module(nn.Module):
    def forward(self, x):
        out = F.relu(x)
        return out
"""
PLANTED = "tests.check.planted:relu_accuracy"


def attention_with_relu() -> Case:
    """relu(x x^T) x."""
    inputs = (Input("x", tuple(Size.of(name) for name in ("B", "S", "E")), "float32"),)
    lines = [
        make_op("kt", "transpose", ["x"], {}),
        make_op("scores", "matmul", ["x", "kt"], {}),
        make_op("kept", "relu", ["scores"], {}),
        make_op("out", "matmul", ["kept", "x"], {}),
    ]
    return Case((("B", 2), ("S", 5), ("E", 8)), inputs, tuple(lines), ("out",))


def test_a_planted_relu_comes_down_to_one_relu(shared: Evaluator) -> None:
    if shared.hello.cxx is None:
        pytest.skip("no C++ compiler")

    def probe(probes: Sequence[tuple[Case, str]], *, fresh: bool = False) -> list[SubjectResult]:
        return [shared.judge(case, subject) for case, subject in probes]

    case = attention_with_relu()
    suspect = shared.judge(case, PLANTED)
    assert suspect.verdict is Verdict.WRONG_RESULT
    found = Investigation(case, suspect, (PLANTED,), probe, lambda: False).run()
    assert found.outcome is SuspicionOutcome.FINDING
    assert [op.kind for op in found.case.ops] == ["relu"]
    assert MINIMUM in source(found.case)
