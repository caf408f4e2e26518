"""Planted defects change the text of the kernels as they are now; benchmarks that make right results wrong do so."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import reach, sensitivity
from benchmarks.defects import DEFECTS, KERNELS
from benchmarks.excuses import CHOICES, MISTAKES, draw_case, make_mistakes
from benchmarks.sensitivity import ZEROED
from fuzz.check.run.program import Execution
from fuzz.protocol.failures import Value
from generators.program.indices import find_undefined_writes
from generators.program.type_check import types_of

PLAIN = Path(__file__).parents[2] / "benchmarks" / "plain.py"


@pytest.mark.parametrize("name", DEFECTS)
def test_the_kernels_have_the_text_that_a_defect_changes(name: str) -> None:
    defect = DEFECTS[name]
    text = (PLAIN if defect.file == PLAIN.name else KERNELS / defect.file).read_text()
    assert defect.old in text
    assert defect.also[0] in text


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


def test_each_value_is_made_wrong_alone_and_gradients_at_once() -> None:
    value = torch.tensor([[3.0, 1.0], [0.0, 0.0], [2.0, -1.0]])
    unknown = torch.tensor([torch.nan, 1.0])
    out, first, second = Value("output", 0), *(Value("input", index, is_gradient=True) for index in (0, 1))
    run = Execution("tensor", {out: value, Value("output", 1): unknown}, gradients={first: value, second: value})
    made = [(name, wrong.values) for name, wrong in sensitivity.make_mistakes(run)]
    assert [name for name, _ in made] == [
        ZEROED,
        *(name for name in sensitivity.MISTAKES if name != ZEROED for _ in range(3)),
    ]
    changed = [{key for key in values if values[key] is not run.values[key]} for _, values in made]
    assert changed == [{first, second}, *[{out}, {first}, {second}] * 3]
    rows = dict(made)["smallest row zeroed"][second], dict(made)["row 0 is the last"][second]
    assert [row.tolist() for row in rows] == [[[3, 1], [0, 0], [0, 0]], [[2, -1], [0, 0], [2, -1]]]


@pytest.mark.worker
def test_a_search_is_run_kept_told_and_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["reach", *map(str, arguments)])
        assert reach.main() == 0
        return capsys.readouterr().out

    kept = tmp_path / "kept.json"
    done = run("--engine", "guided", "--cases", "4", "--at-once", "1", "--json", kept)
    (told,) = json.loads(kept.read_text())
    assert told["rewrites"] == sorted(told["rewrites"]) and told["rewrites"][-1] > 3
    assert sum(told["made"].values()) == told["cases"] == 4
    assert run("--from", kept, "--plot", tmp_path / "reach.png") == done
    assert (tmp_path / "reach.png").stat().st_size > 5000
