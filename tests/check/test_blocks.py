"""How far a wrong value is off, block by block: what pictures are drawn from."""

import math
from collections.abc import Callable

import torch

from fuzz.check.oracle.constants import MAP_AXIS, MAP_BLOCKS
from fuzz.check.oracle.where import error_map
from fuzz.check.subject_builder import Subject
from fuzz.protocol import Result, Verdict, from_json
from tests.check.in_process import run_subject


def test_a_small_value_is_told_element_by_element() -> None:
    exact = torch.zeros(2, 3)
    value = exact.clone()
    value[1, 2], value[0, 0] = 0.5, 1e-9
    found = error_map("output 0", value.abs() > 0.1, value, exact)
    assert found is not None
    assert (found.shape, found.block, found.wrong) == ((2, 3), (1, 1), (5,))
    assert found.errors == (1e-9, 0.0, 0.0, 0.0, 0.0, 0.5)


def test_a_large_value_is_told_in_blocks_that_hide_no_wrong_element() -> None:
    exact = torch.zeros(3, 5, 1000, 77)
    value = exact.clone()
    value[2, 4, 999, 76] = 3.0
    found = error_map("out", value != 0, value, exact)
    assert found is not None
    assert math.prod(found.counts) == len(found.errors) <= MAP_BLOCKS
    assert max(found.counts) <= MAP_AXIS
    assert found.wrong == (len(found.errors) - 1,)
    assert found.errors[-1] == 3.0
    assert sum(found.errors) == 3.0


def test_what_is_not_finite_is_told_apart_from_what_is_not_judged() -> None:
    value, exact = torch.tensor([math.nan, math.nan, 1.0]), torch.tensor([1.0, math.inf, 1.0])
    found = error_map("out", torch.tensor([True, False, False]), value, exact)
    assert found is not None
    assert found.errors[0] == math.inf and math.isnan(found.errors[1]) and found.errors[2] == 0.0


def test_a_scalar_has_no_map() -> None:
    assert error_map("out", torch.tensor(True), torch.tensor(1.0), torch.tensor(0.0)) is None


def zeroed_head(module: torch.nn.Module, _dynamic: bool | None) -> Callable[..., torch.Tensor]:
    def call(*arguments: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = module(*arguments).clone()
        out[:, 1, 3:] = 0.0
        return out

    return call


def test_a_check_tells_the_map_where_it_is_asked_and_the_message_carries_it() -> None:
    subject = Subject("zeroed", zeroed_head)
    assert run_subject(subject).map is None
    result = run_subject(subject, with_error_map=True)
    assert result.verdict is Verdict.WRONG_RESULT and result.map is not None
    batches, heads, rows, features = result.map.shape
    marked = {number // features % (heads * rows) for number in result.map.wrong}
    assert marked == {rows + row for row in range(3, rows)}
    assert batches * len(marked) * features >= len(result.map.wrong)
    told = from_json(Result(1, None, (result,)).to_json())
    assert isinstance(told, Result) and told.results[0].map == result.map
