"""benchmarks.sensitivity makes right results wrong."""

import torch

from benchmarks.sensitivity import MISTAKES, ZEROED, make_mistakes
from fuzz.check.run.program import Execution
from fuzz.protocol.failures import Value


def test_each_value_is_made_wrong_alone_and_gradients_at_once() -> None:
    value = torch.tensor([[3.0, 1.0], [0.0, 0.0], [2.0, -1.0]])
    unknown = torch.tensor([torch.nan, 1.0])
    out, first, second = Value("output", 0), *(Value("input", index, is_gradient=True) for index in (0, 1))
    run = Execution("tensor", {out: value, Value("output", 1): unknown}, gradients={first: value, second: value})
    made = [(name, wrong.values) for name, wrong in make_mistakes(run)]
    assert [name for name, _ in made] == [ZEROED, *(name for name in MISTAKES if name != ZEROED for _ in range(3))]
    changed = [{key for key in values if values[key] is not run.values[key]} for _, values in made]
    assert changed == [{first, second}, *[{out}, {first}, {second}] * 3]
    rows = dict(made)["smallest row zeroed"][second], dict(made)["row 0 is the last"][second]
    assert [row.tolist() for row in rows] == [[[3, 1], [0, 0], [0, 0]], [[2, -1], [0, 0], [2, -1]]]
