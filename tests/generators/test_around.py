"""Autocasts around calls: their text, their dtypes, what eager computes under them, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from corpus.casefile import dumps, loads
from corpus.passes.program import simplify_mode
from fuzz.check.judge.modes import reference
from fuzz.check.run.program import Execution, Program
from fuzz.protocol.failures import Value
from generators.errors import CaseError
from generators.program.calls import at_call, list_arounds
from generators.program.case import Case, Change, Input, LaterCall, Region, Values
from generators.program.emit import source
from generators.program.ops import make_op
from generators.program.simplicity import sort_key
from generators.program.sizes import Size
from generators.program.type_check import check, is_valid
from generators.sampling.parts import WithParts
from tests.check.in_process import run_case

S = Size.of("S")
OFF = Region("autocast", ("first", "second"), option="off")
CASE = Case(
    dims=(("S", 8),),
    inputs=(Input("x", (S, S), "float32"), Input("w", (S, S), "float32", Values(seed=1), parameter=True)),
    ops=(make_op("first", "matmul", ["x", "w"], {}), make_op("second", "matmul", ["first", "w"], {})),
    returns=("second",),
    mode="training",
    around="bfloat16",
)


def gradient(run_: Execution) -> Tensor:
    return run_.gradients[Value("parameter", "w", is_gradient=True)]


def test_each_call_has_its_own_autocast_and_its_dtype() -> None:
    later = ("float16+uncached", "kept", "off", "")
    case = replace(CASE, calls=tuple(LaterCall(around=around) for around in later))
    assert loads(dumps(case)) == case
    assert list_arounds(case) == ["bfloat16", "float16+uncached", "float16+uncached", "", "bfloat16"]
    dtypes = [check(at_call(case, place))["second"].dtype for place, _ in enumerate(case.calls, 1)]
    found = [str(value.dtype).removeprefix("torch.") for value in run_case(case).outputs.values()]
    assert found == ["bfloat16", *dtypes] == ["bfloat16", "float16", "float16", "float32", "bfloat16"]


def test_a_call_keeps_the_autocast_of_the_call_right_before_it() -> None:
    later = ("kept", "off", "kept")
    assert not is_valid(replace(CASE, calls=tuple(LaterCall(around=around) for around in later)))
    assert is_valid(replace(CASE, calls=tuple(LaterCall(around=around) for around in later[:2])))


def test_calls_share_the_casts_of_an_autocast_that_is_kept() -> None:
    case = replace(CASE, calls=(LaterCall(under="no_grad"), LaterCall(around="kept", values="other")))
    lines = source(case).splitlines()
    opened = [line for line in lines if "autocast(" in line]
    assert len(opened) == 2
    assert lines[-1] == "        yield inputs(seed=200)"
    casts = {
        cached: run_case(replace(case, around=around)) for cached, around in ((1, "bfloat16"), (0, "bfloat16+uncached"))
    }
    # One cast has one gradient, in the lower dtype; casts of their own have gradients that add up in float32.
    assert (gradient(casts[1]) - gradient(casts[0])).abs().max() > 0


@pytest.mark.parametrize("over_backward", [False, True])
def test_autocast_is_around_forward_alone_or_around_the_backward_pass_too(over_backward: bool) -> None:
    """A value left in float32 has a gradient in float32, unless autocast is around the backward pass."""
    case = replace(CASE, regions=(OFF,), around_backward=over_backward)
    plain = run_case(replace(case, around="", regions=()))
    assert loads(dumps(case)) == case
    assert torch.equal(gradient(run_case(case)), gradient(plain)) != over_backward


def test_the_reference_casts_nothing() -> None:
    for case in (CASE, replace(CASE, around_backward=True), replace(CASE, calls=(LaterCall(around="kept"),))):
        found = []
        for one in (case, replace(case, around="", around_backward=False, calls=(LaterCall(),) * len(case.calls))):
            program = Program(source(one))
            found.append(
                reference(program.module(True), program.calls, training=True, cotangents=run_case(one).cotangents)
            )
        assert gradient(found[0]).dtype == torch.float64
        first = Value("output", 0)
        assert torch.equal(found[0].outputs[first], found[1].outputs[first])


def test_inputs_without_a_gradient_are_told_if_a_later_call_trains() -> None:
    fixed = replace(CASE.inputs[0], requires_grad=False)
    case = replace(CASE, mode="inference", inputs=(fixed, *CASE.inputs[1:]), calls=(LaterCall(under="training"),))
    assert "without_gradient = ['x']" in source(case)
    assert [name.kind for name in run_case(case).gradients] == ["parameter"]


def test_what_eager_reads_from_before_a_change_is_refused() -> None:
    kept = (LaterCall(around="kept", step="sgd"),)
    changed = (LaterCall(around="kept", changes=(Change("data_written", "w"),)),)
    written = (*CASE.ops[:1], make_op("more", "add_", ["w"], {"other": 1.0}), *CASE.ops[1:])
    refused: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"calls": kept}, {"around": "bfloat16+uncached"}),
        ({"calls": changed}, {"around": "bfloat16+uncached"}),
        ({"ops": written, "mode": "inference"}, {"around": ""}),
    )
    for change, mend in refused:
        with pytest.raises(CaseError, match="cast"):
            check(replace(CASE, **change))
        assert is_valid(replace(CASE, **change, **mend))
    malformed: tuple[dict[str, Any], ...] = ({"around": "off"}, {"around": "", "around_backward": True})
    assert not any(is_valid(replace(CASE, **change)) for change in malformed)


def test_shrinking_takes_autocasts_away() -> None:
    case = replace(CASE, around="float16+uncached", around_backward=True)
    simpler = [one for one in simplify_mode(case) if is_valid(one) and sort_key(one) < sort_key(case)]
    assert {(one.around, one.around_backward) for one in simpler} >= {("", False), ("bfloat16", False)}


@pytest.mark.samples
def test_drawn_cases_are_around_every_kind_of_call() -> None:
    draw = WithParts(("autocast_around",))
    cases = [draw.sample(3, index) for index in range(80)]
    assert all(case.has_around and loads(dumps(case)) == case for case in cases)
    found = {case.around for case in cases} | {call.around for case in cases for call in case.calls}
    assert found >= {"", "off", "bfloat16", "float16", "bfloat16+uncached", "kept"}
    assert {case.around_backward for case in cases if case.may_train} == {False, True}
