"""What is refused as a program, and in which words."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from generators.errors import CaseError
from generators.program.case import Attr, Case, Input, Op, Values
from generators.program.emit import source
from generators.program.sizes import Size
from generators.program.type_check import check, make_op, prune


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
