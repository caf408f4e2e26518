"""benchmarks.excuses draws programs with choices, and makes right results wrong."""

import pytest
import torch

from benchmarks.excuses import CHOICES, MISTAKES, draw_case, make_mistakes
from fuzz.check.run.program import Execution
from fuzz.protocol.failures import Value
from generators.program.indices import find_undefined_writes
from generators.program.type_check import types_of


@pytest.mark.samples
def test_programs_with_choices_have_them_and_are_defined() -> None:
    cases = [draw_case(3, index, choices=True) for index in range(6)]
    assert all(any(op.kind in CHOICES for op in case.ops) for case in cases)
    assert not any(find_undefined_writes(case, types_of(case)) for case in cases)


def test_each_mistake_is_in_one_value() -> None:
    names = Value("output", 0), Value("input", 0, is_gradient=True), Value("output", 1)
    values = torch.arange(6.0).view(3, 2), torch.ones(2, 2), torch.arange(3)
    run = Execution("(tensor, tensor)", {names[0]: values[0], names[2]: values[2]}, gradients={names[1]: values[1]})
    made = list(make_mistakes(run))
    assert [mistake for mistake, _ in made] == [*MISTAKES, "a tenth too large", "sign"]  # equal rows can't be swapped
    for _, wrong in made:
        assert sum(not torch.equal(wrong.values[name], run.values[name]) for name in names) == 1
    assert made[2][1].values[names[0]].tolist() == [[4.0, 5.0], [2.0, 3.0], [0.0, 1.0]]
