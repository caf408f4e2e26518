"""Dropout masks that a program returns are independent, or a repeat is found and named."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.planted_torch.torch_defects import FUNCTIONS
from corpus import casefile
from fuzz.ask.evaluator import build_check
from fuzz.check.check import check
from fuzz.check.judge import constants
from fuzz.check.judge.repeated_masks import find_repeated_mask
from fuzz.check.run.program import Execution
from fuzz.check.run.subject_builder import Subject, find
from fuzz.check.torch_api.settings import configure_torch
from fuzz.check.torch_api.torch_internals import wrap
from fuzz.protocol import Dropout, SubjectResult, Verdict
from fuzz.protocol.failures import RepeatedMask, Value
from fuzz.protocol.render import describe
from generators.program.case import Case
from generators.program.emit import list_shown_dropouts

P = 0.25
CASE = casefile.loads(f"""
case_format: 1
dims: {{B: 2, H: 3, S: 8}}
inputs:
  x: {{shape: [B, H, S, S], dtype: float32, values: {{seed: 0}}}}
  z: {{shape: [B, H, S, S], dtype: float32, values: {{seed: 1}}}}
ops:
  - {{name: a, op: dropout, args: [x], p: {P}}}
  - {{name: b, op: dropout, args: [z], p: 0.5}}
returns: [x, a, z, b]
mode: training
""")
TEXT = casefile.dumps(CASE).replace("training", "inference").replace("op: dropout,", "op: dropout, active: always,")
CALLED = casefile.loads(TEXT)
A, B = Value("output", 1), Value("output", 3)


def draw(like: Tensor, p: float, shape: tuple[int, ...] | None = None) -> Tensor:
    return torch.where(torch.rand(shape or like.shape).expand(like.shape) >= p, like / (1 - p), 0.0)


def share_seed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    drawn = torch.rand(x.shape)
    return torch.where(drawn >= P, x / (1 - P), 0.0), torch.where(drawn >= 0.5, y / 0.5, 0.0)


def drop_the_rest(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    kept = torch.rand(x.shape) >= 0.5
    return torch.where(kept, x / 0.5, 0.0), torch.where(kept, 0.0, y / 0.5)


def draw_once_in_two_calls() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    calls, drawn = itertools.count(), dict[str, Tensor]()

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if next(calls) % 2 == 0:
            drawn["x"] = torch.rand(x.shape)
        return torch.where(drawn["x"] >= P, x / (1 - P), 0.0), draw(y, 0.5)

    return run


def judge(subject: Subject, case: Case) -> SubjectResult:
    return check(
        build_check(case, (subject.name,)), {subject.name: subject}, "cpu", lambda _: None, lambda: 0.0
    ).results[0]


def judge_masks(drop: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], case: Case = CALLED) -> SubjectResult:
    def run(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        torch.rand(1)
        a, b = drop(x, y)
        return x, a, y, b

    return judge(Subject("package.module:planted", lambda module, dynamic: run), case)


WRONG: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], dict[str, Any]]] = {
    "two dropouts": (share_seed, {"value": A, "other": B}),
    "heads": (lambda x, y: (draw(x, P, (2, 1, 8, 8)), draw(y, 0.5)), {"value": A, "axis": 1, "lag": 1}),
    "rows": (lambda x, y: (draw(x, P), draw(y, 0.5, (2, 3, 1, 8))), {"value": B, "axis": None, "lag": 8}),
    "two calls": (draw_once_in_two_calls(), {"value": A}),
    "never both": (drop_the_rest, {"value": A, "other": B}),
}


@pytest.mark.parametrize("name", WRONG)
def test_masks_that_repeat_are_found_and_named(name: str) -> None:
    drop, fields = WRONG[name]
    case = casefile.loads(TEXT.replace("0.25", "0.5")) if name == "never both" else CALLED
    result = judge_masks(drop, case)
    assert result.verdict is Verdict.WRONG_RESULT and isinstance(result.failure, RepeatedMask)
    assert {field: getattr(result.failure, field) for field in fields} == fields
    assert result.failure.doubt == result.numbers["ratio"] > math.log(1 / constants.REPEATED_FALSE_ALARMS)
    assert "dropout mask" in describe(result)


def test_masks_that_are_independent_or_too_small_are_right() -> None:
    assert judge_masks(lambda x, y: (draw(x, P), draw(y, 0.5))).verdict is Verdict.RANDOM_STREAM
    small = replace(CALLED, dims=(("B", 1), ("H", 1), ("S", 1)))
    assert judge_masks(share_seed, small).verdict is Verdict.RANDOM_STREAM


def test_dropouts_show_their_masks_if_argument_and_result_are_returned_as_they_were() -> None:
    assert list_shown_dropouts(CASE) == [(0, 1, P), (2, 3, 0.5)]
    assert list_shown_dropouts(replace(CASE, returns=("a", "z", "b"))) == [(1, 2, 0.5)]
    assert list_shown_dropouts(replace(CASE, mode="inference")) == []
    written = TEXT.replace("ops:", "ops:\n- {name: c, op: mul_, args: [z], other: 2.0}")
    assert list_shown_dropouts(casefile.loads(written)) == [(0, 1, P)]


@pytest.mark.samples
def test_few_independent_masks_are_called_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a limit of a tenth, since none in 1e9 can't be seen."""
    monkeypatch.setattr(constants, "REPEATED_FALSE_ALARMS", 0.1)
    rows, alarms = (Dropout(0, 1, 0.1), Dropout(0, 2, 0.1), Dropout(0, 3, 0.9)), 0
    given, runs = torch.ones(2, 3, 8), 200
    torch.manual_seed(0)
    for _ in range(runs):
        outputs = {Value("output", 0, call=call): given for call in (1, 2, 3, 4)}
        outputs |= {Value("output", row.result, call=call): draw(given, row.p) for row in rows for call in (1, 2, 3, 4)}
        alarms += find_repeated_mask(Execution("", outputs), rows, 4) is not None
    assert alarms <= 0.1 * runs


@pytest.mark.compiles
@pytest.mark.parametrize(("plant", "fields"), [("seeds_shared", {"other": B}), ("mask_rows_repeated", {"lag": 8})])
def test_repeats_planted_in_torch_are_found(plant: str, fields: dict[str, Any]) -> None:
    configure_torch()
    subject, own_random = find("inductor_random"), torch._inductor.config.patch(fallback_random=False)
    assert judge(subject, CASE).verdict is Verdict.RANDOM_STREAM
    with wrap(*FUNCTIONS[plant]), own_random:
        result = judge(subject, CASE)
        assert isinstance(result.failure, RepeatedMask)
        assert {field: getattr(result.failure, field) for field in fields} == fields
