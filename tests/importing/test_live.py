"""A user's module is judged as it is: with its own arguments, parameters and modes."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from benchmarks.planted_torch.torch_defects import FUNCTIONS, STRUCTURES
from fuzz.check.check import check
from fuzz.check.module.module_session import ModuleSession
from fuzz.check.run.subject_builder import Subject, available
from fuzz.check.torch_api.settings import configure_torch
from fuzz.check.torch_api.torch_internals import wrap
from fuzz.protocol import Check, Live, Parted, Result, Verdict
from fuzz.protocol.failures import FaultyOperation
from fuzz.protocol.recording import Loaded, LoadModule
from tests.check.in_process import changing
from tests.importing import shared_memory
from tests.importing.structured import CacheWriter, KeyCache

HARMLESS = {Verdict.OK, Verdict.ROUNDING}


def judge(factory: str, live: Live, *names: str, subjects: dict[str, Subject] | None = None) -> Result:
    configure_torch()
    session = ModuleSession("cpu")
    loaded = session.answer(LoadModule(f"tests.importing.{factory}"))
    assert isinstance(loaded, Loaded), loaded
    return check(
        Check(0, "", names or ("passes",), hashes=True, live=live),
        subjects or available(),
        "cpu",
        open_live=session.open,
    )


@pytest.mark.parametrize("defect", STRUCTURES)
def test_a_defect_that_needs_structure_is_seen(defect: str) -> None:
    with wrap(*FUNCTIONS[defect]):
        (wrong,) = judge(f"structured:{defect}", Live("")).results
    assert wrong.verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT)
    (right,) = judge(f"structured:{defect}", Live("")).results
    assert right.verdict in HARMLESS


def test_a_block_meets_the_arguments_of_its_own_call() -> None:
    with wrap(*FUNCTIONS["padded_left"]):
        (wrong,) = judge("structured:padded_left", Live("attn")).results
        (right,) = judge("structured:padded_left", Live("norm")).results
    assert (wrong.verdict, right.verdict in HARMLESS) == (Verdict.WRONG_RESULT, True)


def test_the_first_block_that_is_wrong_is_named() -> None:
    with wrap(*FUNCTIONS["padded_left"]):
        (result,) = judge("structured:padded_left", Live("", watched=("attn", "norm"))).results
    # All results of one compiled program are spoiled, so the block that ends first is named.
    assert result.observations == (Parted("norm"),)


@pytest.mark.parametrize("factory", ["block", "training", "cached", "stack", "counting", "cast", "left_out"])
def test_right_modules_are_right(factory: str) -> None:
    result = judge(f"modules:{factory}", Live("", drops=False))
    assert result.rejected is None
    assert {one.verdict for one in result.results} <= HARMLESS


def test_what_no_case_can_say_is_judged() -> None:
    (result,) = judge("structured:straight_through", Live("")).results
    assert result.verdict in HARMLESS


def test_a_product_without_a_float64_kernel_has_a_reference() -> None:
    assert judge("modules:experts", Live(""), "eager").results[0].verdict in HARMLESS


def test_dropout_can_be_off() -> None:
    on, off = (judge("modules:training", Live("", drops=drops)) for drops in (True, False))
    assert on.hashes != off.hashes


def test_a_fused_kernel_that_eager_calls_too_is_accused() -> None:
    """A row of the lowest number loses the logarithm of its keys, so the backward kernel takes weights of 1."""
    (wrong,) = judge("structured:row_masked_in_training", Live("")).results
    assert isinstance(wrong.failure, FaultyOperation)
    assert wrong.failure.operation == "aten._scaled_dot_product_flash_attention_for_cpu_backward"
    assert wrong.failure.given == pytest.approx(6 * wrong.failure.exact, rel=1e-3)


def test_float64_reads_the_limits_of_the_dtype_of_the_module() -> None:
    (result,) = judge("structured:limited", Live(""), "eager").results
    assert (result.verdict, result.numbers["ratio"]) == (Verdict.OK, 0.0)


@pytest.mark.parametrize("is_of_call", [True, False])
def test_writes_into_objects_are_compared(*, is_of_call: bool) -> None:
    def compile_wrongly(module: nn.Module, _dynamic: bool | None) -> Callable[..., Any]:
        def run(q: Tensor, cache: KeyCache) -> Any:
            out = module(q, cache)
            (cache if is_of_call else cast("CacheWriter", module).own).keys[:, :, 2] *= 1.1
            return out

        return run

    subjects = {"wrong": Subject("wrong", compile_wrongly), "eager": available()["eager"]}
    wrong, right = judge("structured:cache_written", Live(""), *subjects, subjects=subjects).results
    assert (wrong.verdict, right.verdict) == (Verdict.WRONG_RESULT, Verdict.OK)


def test_complex_results_are_judged() -> None:
    subjects = {"wrong": changing(lambda out: 1.1 * out, "wrong"), "eager": available()["eager"]}
    wrong, right = judge("structured:spectrum", Live(""), *subjects, subjects=subjects).results
    assert (wrong.verdict, right.verdict) == (Verdict.WRONG_RESULT, Verdict.OK)


@pytest.mark.parametrize("factory", ["of_buffer", "of_parameter", "of_argument", "transposed"])
def test_arguments_stay_views_of_what_the_module_writes_into(factory: str) -> None:
    """Copies that lie apart would call a compiler right that mixes up their memory."""
    module, given = getattr(shared_memory, factory)()
    expected = module(*given)
    session = ModuleSession("cpu")
    assert isinstance(session.answer(LoadModule(f"tests.importing.shared_memory:{factory}")), Loaded)
    program = session.open(Live(""))
    for exact in (False, True):
        live = program.module(False)
        live = live.double() if exact else live
        (inputs,) = program.calls(live, Tensor.double if exact else None)
        assert inputs[-1]._base is not None
        for mine, other in zip(live(*inputs), expected, strict=True):
            torch.testing.assert_close(mine.float(), other)
