"""What is refused as a program, and in which words."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from generators.errors import CaseError
from generators.program.attention_options import Contract
from generators.program.case import Attr, Case, Input, Op, Values
from generators.program.emit import source
from generators.program.sizes import Size
from generators.program.type_check import check, make_op, prune
from tests.generators.test_sample import run_eager


def shape(*sizes: int | str) -> tuple[Size, ...]:
    return tuple(Size.of(s) for s in sizes)


PLAIN = Case(
    dims=(("B", 2), ("S", 3), ("D", 4)),
    inputs=(
        Input("q", shape("B", "S", "D"), "float32"),
        Input("k", shape("B", "S", "D"), "float32"),
        Input("keep", shape("B", "S", "S"), "bool", Values("random", scale=0.5)),
        Input("ranks", shape("B", "S", "D"), "int64", Values("permutation")),
        Input("at", shape("S"), "int64", Values("zero_one")),
    ),
    ops=(
        make_op("kt", "transpose", ["k"], {}),
        make_op("scores", "matmul", ["q", "kt"], {}),
        make_op("probs", "softmax", ["scores"], {}),
    ),
    returns=("probs",),
)


def with_op(op: Op) -> Case:
    return replace(PLAIN, ops=(*PLAIN.ops, op), returns=(op.name,))


def test_a_plain_case_is_accepted() -> None:
    assert [str(s) for s in check(PLAIN)["probs"].shape] == ["B", "S", "S"]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (with_op(Op("x", "system", ("q",))), "unknown operation 'system'"),
        (with_op(Op("x", "softmax", ("q",), (("dims", 1),))), "softmax has no attribute 'dims'; it has: dim"),
        (with_op(Op("x", "view", ("q",))), "view needs the attribute 'sizes'"),
        (with_op(Op("x", "softmax", ("q",), (("dim", "S"),))), "dim is 'S', expected an integer"),
        (with_op(Op("x", "softmax", ("q",), (("dim", True),))), "dim is True, expected an integer"),
        (with_op(make_op("x", "softmax", ["q"], {"dim": 3})), "dim 3 is not an axis of a tensor of rank 3"),
        (with_op(make_op("x", "matmul", ["q", "k"], {})), "inner sizes of the product: D = 4 against S = 3"),
        (with_op(make_op("x", "matmul", ["q"], {})), "(matmul): takes 2 arguments, got 1"),
        (with_op(make_op("x", "add", ["q", "nowhere"], {})), "'nowhere' is not defined before it"),
        (with_op(make_op("x", "add", ["q"], {})), "takes two arguments, or an argument and 'other'"),
        (with_op(make_op("x", "view", ["q"], {"sizes": shape("B", 5)})), "number of elements of [B, 5]"),
        (with_op(make_op("x", "add", ["k"], {"other": 1, "form": "in_place"})), "only a new tensor with no other use"),
        (with_op(make_op("x", "einsum", ["q", "k"], {"equation": "os.x"})), "expected an einsum equation"),
        (with_op(make_op("x", "add", ["q"], {"other": 1, "alpha": 2, "reverse": True})), "takes alpha or reverse"),
        (with_op(make_op("x", "addmm", ["q", "q", "kt"], {})), "needs 2 axes on both sides"),
        (with_op(make_op("x", "bmm", ["q", "at"], {})), "needs 3 axes on both sides"),
        (with_op(make_op("x", "where", ["keep"], {"value": 1.0})), "takes a condition and two values"),
        (with_op(make_op("x", "where", ["keep"], {"value": 1.0, "other": "min"})), "'min'"),
        (with_op(make_op("x", "scatter", ["ranks", "ranks"], {"value": 0.5})), "int64 can't hold 0.5"),
        (with_op(make_op("x", "scatter", ["q", "keep"], {})), "needs an int64 index"),
        (with_op(make_op("x", "scatter", ["scores", "ranks"], {"dim": 0})), "is longer than"),
        (with_op(make_op("class", "neg", ["q"], {})), "name 'class'"),
        (with_op(make_op("torch", "neg", ["q"], {})), "name 'torch'"),
        (with_op(make_op("q", "neg", ["q"], {})), "name 'q' is defined twice"),
        (replace(PLAIN, dims=(("B", 2), ("S", 3), ("D", -1))), "D is -1, expected 0 to"),
        (replace(PLAIN, dims=(("b", 2),)), "'b' is not a capitalised name"),
        (replace(PLAIN, dims=PLAIN.dims[:2]), "dimension 'D' is not defined"),
        (replace(PLAIN, dims=(("B", 1 << 19), ("S", 1 << 12), ("D", 4))), "at most"),
        (replace(PLAIN, returns=()), "nothing is returned"),
        (replace(PLAIN, returns=("gone",)), "'gone' is not defined"),
        (
            replace(PLAIN, mode="eval"),
            "mode is 'eval', expected one of inference, inference_mode, training, training_on_sum",
        ),
        (replace(PLAIN, inputs=(replace(PLAIN.inputs[0], dtype="float8"), PLAIN.inputs[1])), "dtype 'float8'"),
        (
            replace(PLAIN, inputs=(replace(PLAIN.inputs[0], values=Values("secret")), PLAIN.inputs[1])),
            "expected one of normal",
        ),
        (replace(PLAIN, inputs=(replace(PLAIN.inputs[0], layout="wild"), PLAIN.inputs[1])), "layout 'wild'"),
        (replace(PLAIN, contracts=(Contract("q", "k", "gone", "probs", "bsd"),)), "contract: v names 'gone'"),
    ],
)
def test_what_breaks_a_rule_is_named(case: Case, message: str) -> None:
    with pytest.raises(CaseError) as error:
        check(case)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.samples
@pytest.mark.parametrize(
    "op",
    [
        make_op("x", "add", ["q", "k"], {"alpha": 0.5}),
        make_op("x", "add", ["ranks"], {"other": 1, "alpha": 2}),
        make_op("x", "sub", ["scores", "at"], {"alpha": -1, "form": "function"}),
        make_op("x", "add", ["scores", "keep"], {"alpha": 2, "form": "in_place"}),
        make_op("x", "where", ["keep"], {"value": 0.0, "other": float("-inf")}),
        make_op("x", "where", ["keep"], {"value": 1, "other": 0, "reverse": True}),
        make_op("x", "where", ["keep", "scores"], {"other": "min"}),
        make_op("x", "scatter", ["keep", "keep_at"], {"dim": 1}),
        make_op("x", "scatter_reduce", ["q", "ranks", "k"], {"reduce": "amax", "include_self": False}),
        make_op("x", "addmm", ["at_float", "matrix", "matrix"], {}),
    ],
)
def test_an_operation_gives_in_eager_what_its_type_says(op: Op) -> None:
    made = (
        make_op("keep_at", "cast", ["keep"], {"dtype": "int64"}),
        make_op("matrix", "select", ["scores"], {"dim": 0}),
        make_op("at_float", "cast", ["at"], {"dtype": "float32"}),
    )
    case = prune(replace(PLAIN, ops=(*PLAIN.ops[:2], *made, op), returns=("x",)))
    (found,) = run_eager(case)
    expected = check(case)["x"]
    assert (tuple(found.shape), str(found.dtype)) == (expected.sizes(case.sizes), f"torch.{expected.dtype}")


def test_a_program_of_parameters_keeps_them_and_an_argument() -> None:
    weights = tuple(Input(name, shape("D", "D"), "float32", parameter=True) for name in ("w", "u"))
    case = replace(
        PLAIN, inputs=(*PLAIN.inputs, *weights), ops=(make_op("x", "matmul", ["w", "u"], {}),), returns=("x",)
    )
    assert [item.name for item in prune(case).inputs] == ["q", "w", "u"]


def test_pruning_keeps_what_the_returned_values_need() -> None:
    case = prune(replace(PLAIN, returns=("kt",)))
    assert [op.name for op in case.ops] == ["kt"]
    assert [i.name for i in case.inputs] == ["k"]


def test_the_id_tells_apart_what_differs_and_nothing_else() -> None:
    reordered = replace(PLAIN, dims=PLAIN.dims[::-1], inputs=PLAIN.inputs[::-1])
    assert reordered.id == PLAIN.id
    ids = {with_op(make_op("x", "mul", ["q"], {"other": other})).id for other in (1, 1.0, 2, 0.1, 0.1 + 2**-56)}
    assert len(ids) == 5


def test_source_reads_sizes_from_the_arguments_when_shapes_are_dynamic() -> None:
    case = with_op(make_op("x", "view", ["q"], {"sizes": shape("B*S", "D")}))
    assert "S = q.size(1)" not in source(case)
    assert "S = q.size(1)" in source(replace(case, dynamic=True))


STATE = Case(
    dims=PLAIN.dims,
    inputs=(
        replace(PLAIN.inputs[0], values=Values(seed=1)),
        *PLAIN.inputs[1:],
        Input("state", shape("B", "S", "D"), "float32", Values(seed=2), parameter=True, buffer=True),
        Input("places", shape("S"), "int64", Values("permutation")),
        Input("each", shape("B", "S", "D"), "int64", Values("permutation")),
        Input("kept", shape("S", "D"), "bool", Values("random", scale=0.5)),
    ),
    ops=(make_op("own", "clone", ["k"], {}), make_op("flipped", "transpose", ["own"], {})),
    returns=("own",),
)


def with_write(kind: str, *args: str, mode: str = "inference", **attrs: Attr) -> Case:
    return replace(STATE, ops=(*STATE.ops, make_op("written", kind, args, attrs)), mode=mode)


def run_module(case: Case) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    scope: dict[str, Any] = {}
    exec(source(case), scope)
    module, given = scope["Module"](), scope["inputs"]()
    with torch.no_grad():
        found = module(*given)
    return list(found) if isinstance(found, tuple) else [found], given


@pytest.mark.parametrize(
    "case",
    [
        with_write("copy_", "own", "q"),
        with_write("set_slice", "own", other=1.0, stop="D", start=1, step=2),
        with_write("set_select", "flipped", dim=1, index=1, other=2),
        with_write("add_", "own", "q", form="operator"),
        with_write("mul_", "flipped", other=0.5),
        with_write("lerp_", "state", "q", weight=0.1),
        with_write("index_put_", "own", "places", "q", dim=1),
        with_write("index_copy_", "state", "places", "q", dim=1),
        with_write("index_add_", "own", "places", "q", dim=1),
        with_write("masked_scatter_", "own", "kept", "q"),
        with_write("masked_fill_", "own", "kept", value=2.0),
    ],
    ids=lambda case: case.ops[-1].kind,
)
def test_what_is_written_is_what_eager_writes(case: Case) -> None:
    check(case)
    target = case.ops[-1].args[0]
    before, _ = run_module(replace(case, ops=STATE.ops, returns=(target,)))
    (after, result), _ = run_module(replace(case, returns=(target, "written")))
    assert result is after
    assert not torch.equal(after, before[0])


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (with_write("copy_", "own", "kept", mode="training"), ""),
        (with_write("copy_", "state", "q", mode="training"), ""),
        (with_write("copy_", "each", "q"), "writes float32 into int64"),
        (with_write("index_copy_", "own", "places", "kept", dim=1), "values of [S, D] where [B, S, D] is written"),
        (with_write("index_put_", "own", "places", "each", dim=1), "writes int64 into float32"),
        (with_write("set_slice", "own", "q", stop=2), "do not broadcast"),
        (with_write("copy_", "own", "own"), "of which it also reads"),
        (with_write("add_", "q", other=1.0, mode="training"), "which needs a gradient"),
        (
            replace(with_write("add_", "own", other=1.0), contracts=(Contract("q", "k", "k", "own", "bsd"),)),
            "contracts",
        ),
    ],
)
def test_writes_are_refused_where_eager_refuses_them(case: Case, message: str) -> None:
    if not message:
        check(case)
        return
    with pytest.raises(CaseError) as error:
        check(case)
    assert message in str(error.value)


@pytest.mark.parametrize("between", ["reshape", "expand", "square"])
def test_memory_is_not_written_into_where_views_or_gradients_leave_doubt(between: str) -> None:
    sizes = {} if between == "square" else {"sizes": shape("B", "S", "D")}
    ops = (STATE.ops[0], make_op("seen", between, ["own"], sizes), make_op("written", "add_", ["own"], {"other": 1}))
    target = "seen" if between == "expand" else "own"
    case = replace(STATE, ops=(*ops[:2], replace(ops[2], args=(target,))), mode="training", returns=("seen",))
    with pytest.raises(CaseError):
        check(case)


@pytest.mark.parametrize(("index", "message"), [(1, ""), (0, "of which it also reads")])
def test_a_part_of_an_axis_may_be_written_from_another_part(index: int, message: str) -> None:
    parts = (
        make_op("first", "select", ["own"], {"dim": 1}),
        make_op("other", "select", ["own"], {"dim": 1, "index": 1}),
    )
    half = make_op("read", "narrow", ["other" if index else "first"], {"dim": 0, "stop": Size.of(1)})
    case = replace(STATE, ops=(*STATE.ops, *parts, half, make_op("written", "copy_", ["first", "read"], {})))
    with pytest.raises(CaseError, match=message) if message else nullcontext():
        check(case)


def test_pruning_keeps_the_writes_that_something_sees() -> None:
    writes = (
        make_op("unseen", "neg", ["q"], {}),
        make_op("lost", "add_", ["unseen"], {"other": 1.0}),
        make_op("into_view", "add_", ["flipped"], {"other": 1.0}),
        make_op("into_state", "copy_", ["state", "q"], {}),
        make_op("result", "add", ["own"], {"other": 1.0}),
        make_op("late", "mul_", ["own"], {"other": 2.0}),
    )
    case = prune(replace(STATE, ops=(*STATE.ops, *writes), returns=("result",)))
    assert [op.name for op in case.ops] == ["own", "flipped", "into_view", "into_state", "result"]
