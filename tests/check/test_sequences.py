"""Several calls of one compiled module: what holds over calls, what a wrong one does, and its shortest sequence."""

from collections.abc import Callable
from dataclasses import astuple, fields, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.planted_torch.torch_defects import FUNCTIONS
from corpus.casefile import dumps, loads
from corpus.shrink import shrink
from fuzz.check.run.program import Program, execute
from fuzz.check.run.subject_builder import Subject, find
from fuzz.check.torch_api.torch_internals import wrap
from fuzz.protocol import Check, SubjectResult, Verdict
from generators.errors import CaseError
from generators.program.calls import at_call
from generators.program.case import Case, Change, Input, LaterCall, Op, Values
from generators.program.emit import source
from generators.program.ops import make_op
from generators.program.sizes import Size
from generators.program.type_check import check as check_case
from generators.sampling.choices import Choices
from generators.sampling.mutations import MUTATIONS
from generators.sampling.sample import draw
from tests.check.in_process import check_here, judge_case

Compiled = Callable[..., Any]
CALLS = (
    LaterCall(values="other"),
    LaterCall(sizes=(("S", 5),), layouts=(("x", "transposed"),)),
    LaterCall(under="inference"),
    LaterCall(values="same", step="sgd"),
)


X = Input("x", (Size.of("B"), Size.of("S"), Size.of("D")), "float32")
W = Input("w", (Size.of("D"),), "float32", Values(seed=1), parameter=True)


def products(mode: str = "training", calls: tuple[LaterCall, ...] = CALLS, drops: bool = False) -> Case:
    """softmax((x * w) @ x.mT) with a learned w [D], where `drops` after dropout."""
    ops = (
        make_op("weighted", "mul", ["x", "w"], {}),
        *([make_op("kept", "dropout", ["weighted"], {"p": 0.5})] if drops else []),
        make_op("xt", "transpose", ["x"], {}),
        make_op("scores", "matmul", ["kept" if drops else "weighted", "xt"], {}),
        make_op("out", "softmax", ["scores"], {}),
    )
    return Case((("B", 2), ("S", 3), ("D", 4)), (X, W), ops, ("out",), mode, calls=calls)


def test_the_first_call_by_itself_has_no_change_although_a_later_call_equals_it() -> None:
    case = products(calls=(LaterCall(changes=(Change("replaced", "w"),)), LaterCall()))
    assert [len(at_call(case, place).setup) for place in range(3)] == [0, 1, 1]


def test_a_call_by_itself_has_the_inputs_that_it_has_among_others() -> None:
    case = products(calls=(LaterCall(values="other"), LaterCall(sizes=(("S", 5),)), LaterCall(values="other")))
    together: dict[str, Any] = {}
    exec(source(case), together)
    for place, inputs in enumerate(together["calls"](None)):
        alone: dict[str, Any] = {}
        exec(source(at_call(case, place)), alone)
        assert all(map(torch.equal, inputs, alone["inputs"]()))


def run(case: Case, compile_module: Callable[[nn.Module, bool | None], Compiled]) -> SubjectResult:
    return judge_case(case, Subject("asked", compile_module))


def as_it_is(module: nn.Module, _dynamic: bool | None) -> Compiled:
    return module


def of_first_size(module: nn.Module, _dynamic: bool | None) -> Compiled:
    """A guard that ignores sizes: what was written for the first one is computed for all."""
    sizes: list[int] = []

    def call(x: Tensor) -> Any:
        sizes.append(x.shape[1])
        return module(torch.cat([x[:, : sizes[0]], 0 * x[:, sizes[0] :]], 1))

    return call


def of_first_layout(module: nn.Module, _dynamic: bool | None) -> Compiled:
    """A guard that ignores strides."""
    strides: dict[torch.Size, tuple[int, ...]] = {}
    return lambda x: module(x.as_strided(x.shape, strides.setdefault(x.shape, x.stride()), x.storage_offset()))


def of_first_mode(module: nn.Module, _dynamic: bool | None) -> Compiled:
    """A guard that ignores whether the module is in training."""
    training = module.training

    def call(x: Tensor) -> Any:
        return module.train(training)(x)

    return call


def of_first_weights(module: nn.Module, _dynamic: bool | None) -> Compiled:
    """Weights that are constants of the compiled code."""
    first = {name: value.detach().clone() for name, value in module.named_parameters()}

    def call(x: Tensor) -> Any:
        weights = {name: value + (first[name] - value).detach() for name, value in module.named_parameters()}
        return torch.func.functional_call(module, weights, x)

    return call


def of_first_values(module: nn.Module, _dynamic: bool | None) -> Compiled:
    """An input that is copied once and never again."""
    copies: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
    return lambda x: module(x + (copies.setdefault((x.shape, x.dtype), x.detach().clone()) - x).detach())


def without_accumulation(module: nn.Module, _dynamic: bool | None) -> Compiled:
    """Gradients that are overwritten, not added up."""

    def call(x: Tensor) -> Any:
        module.zero_grad()
        return module(x)

    return call


WRONG = [
    (of_first_size, CALLS, {"sizes"}),
    (of_first_layout, (CALLS[0], LaterCall(layouts=(("x", "transposed"),))), {"layouts"}),
    (of_first_mode, CALLS[:3], {"under"}),
    (of_first_weights, CALLS, {"step"}),
    (of_first_values, CALLS, {"values"}),
    (without_accumulation, (LaterCall(values="other"), LaterCall(sizes=(("B", 3),))), set()),
]


def test_two_optimizers_step_in_turn() -> None:
    case = products(calls=(LaterCall(step="sgd"), LaterCall(step="adamw"), LaterCall(step="sgd")))
    check_case(case)
    names: dict[str, Any] = {}
    exec(source(case), names)
    module, weights = names["Module"](), list[Tensor]()
    for inputs in names["calls"](module):
        weights.append(module.w.detach().clone())
        module(*inputs).square().sum().backward()
    steps = [(after - before).abs().max().item() for before, after in pairwise(weights)]
    assert steps[1] == pytest.approx(1e-3, rel=0.1)  # the first step of AdamW is its rate
    assert min(steps[0], steps[2]) > 0 and not {steps[0], steps[2]} & {steps[1]}


def test_calls_are_part_of_a_case_file() -> None:
    case = replace(products(), checkpoint="full")
    assert loads(dumps(case)) == case
    assert case.id != replace(case, calls=case.calls[1:]).id


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_right_compiler_is_right_at_every_call(mode: str, drops: bool) -> None:
    calls = CALLS if mode == "training" else (*CALLS[:2], LaterCall(under="training"))
    assert run(products(mode, calls, drops=drops), as_it_is).verdict is Verdict.OK


def test_a_gradient_of_the_loss_is_the_same_at_every_run() -> None:
    """A view passes it on as it is, and the next call adds to that in place."""
    case = Case(
        (("B", 2), ("S", 3), ("D", 4)), (X,), (make_op("out", "unsqueeze", ["x"], {"dim": 0}),), ("out",), "training"
    )
    assert run(replace(case, calls=(LaterCall(values="same"),)), as_it_is).verdict is Verdict.OK


@pytest.mark.samples
@pytest.mark.parametrize(("compile_module", "calls", "differences"), WRONG)
def test_what_goes_wrong_at_a_later_call_is_found_and_needs_two_calls(
    compile_module: Callable[[nn.Module, bool | None], Compiled], calls: tuple[LaterCall, ...], differences: set[str]
) -> None:
    def fails(case: Case) -> bool:
        return run(case, compile_module).verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT)

    case = products(calls=calls, drops=compile_module is of_first_mode)
    assert fails(case)
    smallest = shrink(case, fails)[-1]
    assert (len(smallest.calls), len(smallest.ops) <= 2) == (1, True)
    told = zip(fields(LaterCall), astuple(smallest.calls[0]), strict=True)
    assert {field.name for field, value in told if value != field.default} == differences


def write(*ops: Op, calls: tuple[LaterCall, ...] = (), returns: str = "x") -> Case:
    """Operations on x and values [4, 8], a buffer of that shape, a row of values and a position."""
    shape = (Size.of("S"), Size.of("D"))
    inputs = (
        Input("x", shape, "float32"),
        Input("values", shape, "float32", Values(seed=1)),
        Input("buffer", shape, "float32", Values(seed=2), parameter=True, buffer=True),
    )
    return Case((("S", 4), ("D", 8)), inputs, ops, (returns,), calls=calls)


SCALED = make_op("out", "mul", ["x"], {"other": 0.3})
ADDED = make_op("x2", "add_", ["x", "values"], {})
PLANTED = {
    "write_dropped": write(ADDED, make_op("y", "neg", ["values"], {}), returns="y"),
    "write_reordered": write(
        make_op("xt", "transpose", ["x"], {}), ADDED, make_op("y", "neg", ["xt"], {}), returns="y"
    ),
    "stale_base": write(
        make_op("x2", "set_slice", ["x"], {"stop": Size.of(3), "other": 0.0}),
        make_op("x3", "set_slice", ["x2"], {"dim": 0, "stop": Size.of(2), "other": 1.0}),
        make_op("y", "neg", ["x3"], {}),
        returns="y",
    ),
    "size_unguarded": replace(products("inference"), calls=(LaterCall(sizes=(("B", 3),)),)),
    "stride_unguarded": write(SCALED, calls=(LaterCall(layouts=(("x", "transposed"),)),), returns="out"),
    "constants_cached": replace(
        write(SCALED, calls=(LaterCall(dtype="float32"),), returns="out"),
        inputs=(Input("x", (Size.of("S"), Size.of("D")), "bfloat16"),),
    ),
    "recomputed_at_random": replace(products(drops=True, calls=CALLS[:1]), checkpoint="full"),
    "gradients_overwritten": products(calls=(LaterCall(values="other"),)),
    "buffer_update_lost": write(
        make_op("b2", "add_", ["buffer", "x"], {}), calls=(LaterCall(values="other"),), returns="b2"
    ),
}


@pytest.mark.compiles
@pytest.mark.parametrize("plant", PLANTED)
def test_mistakes_planted_in_torch_are_found(plant: str) -> None:
    with wrap(*FUNCTIONS[plant]):
        assert run(PLANTED[plant], find("passes").compile).verdict.is_finding
    assert not run(PLANTED[plant], find("passes").compile).verdict.is_finding


def test_training_twice_is_refused_if_a_buffer_keeps_the_first_graph() -> None:
    added = make_op("b2", "add_", ["buffer", "learned"], {})
    case = write(added, calls=(LaterCall(under="training"), LaterCall()), returns="b2")
    case = replace(case, inputs=(*case.inputs, Input("learned", (Size.of("D"),), "float32", parameter=True)))
    check_case(case)
    with pytest.raises(CaseError):
        check_case(replace(case, calls=(*case.calls, LaterCall(under="training"))))


def test_indices_of_a_later_call_stay_inside_their_axis() -> None:
    table = Input("table", (Size.of("P"), Size.of("D")), "float32", parameter=True)
    places = make_op("places", "arange", [], {"stop": "S"})
    embedded = make_op("rows", "embedding", ["places", "table"], {})
    case = Case((("S", 3), ("D", 4), ("P", 5)), (replace(X, shape=X.shape[1:]), table), (places, embedded), ("rows",))
    check_case(replace(case, calls=(LaterCall(sizes=(("S", 5),)),)))
    with pytest.raises(CaseError):
        check_case(replace(case, calls=(LaterCall(sizes=(("S", 6),)),)))


def test_every_candidate_of_the_shrinker_has_parameters_to_step() -> None:
    asked: list[Case] = []

    def steps(case: Case) -> bool:
        asked.append(case)
        return any(call.step for call in case.calls)

    shrink(replace(products(calls=(LaterCall(step="sgd"),)), returns=("xt",)), steps)
    assert len(asked) > 10
    for case in asked:
        scope: dict[str, Any] = {}
        exec(source(case), scope)
        if case.calls:
            list(scope["calls"](scope["Module"]()))


def test_the_reference_of_a_call_under_inference_mode_casts_to_float64() -> None:
    rounded = make_op("low", "cast", ["x"], {"dtype": "float16"})
    product = make_op("out", "matmul", ["low", "table"], {})
    table = Input("table", (Size.of("D"), Size.of("S")), "float16")
    case = write(rounded, product, calls=(LaterCall(values="same", under="inference_mode"),), returns="out")
    assert run(replace(case, inputs=(case.inputs[0], table)), as_it_is).verdict is Verdict.OK


@pytest.mark.samples
def test_sampled_calls_run_in_eager() -> None:
    drawn = [draw(Choices(f"{i}"), Choices(f"{i}:x")) for i in range(50)]
    cases = [MUTATIONS["calls"].draw(case, Choices(f"{i}:calls")) for i, case in enumerate(drawn)]
    called = [case for case in cases if case.calls]
    assert len(called) > 45
    results = [check_here(Check(0, source(case), (), training=case.training)).rejected for case in called]
    assert not any(results), results


def test_gradients_of_another_dropout_mask_are_wrong_under_eager_s_random_stream() -> None:
    def call_with_other_mask(module: nn.Module, _dynamic: bool | None) -> Compiled:
        def call(x: Tensor) -> Any:
            out = module(x)
            other = module(x)
            return out.detach() + other - other.detach()

        return call

    assert run(products(calls=(), drops=True), call_with_other_mask).verdict is Verdict.WRONG_GRADIENT


def test_a_module_that_raises_leaves_no_inference_mode_while_its_exception_is_kept() -> None:
    text = """
import torch

class Module(torch.nn.Module):
    def forward(self, x):
        raise KeyError("x")

def inputs():
    return [torch.ones(1)]

def calls(module):
    with torch.inference_mode():
        yield inputs()
"""
    program = Program(text)
    module = program.module(training=False)
    with pytest.raises(KeyError) as kept:
        execute(module, module, program.calls(module), training=False)
    assert kept.value is not None
    assert not torch.is_inference_mode_enabled()
