"""Regions: two texts with one meaning, and the runs of operations that each kind takes."""

from dataclasses import replace
from typing import Any

import pytest

from corpus.casefile import dumps, loads
from corpus.passes.program import drop_regions
from generators.errors import CaseError
from generators.program.case import Case, Input, LaterCall, Region, Values
from generators.program.emit import list_unplain, source
from generators.program.regions import REGIONS, call_directly
from generators.program.sizes import Size
from generators.program.type_check import check, is_valid, make_op, prune
from tests.generators.plain import close, in_float64
from tests.generators.test_sample import run_eager


def shape(*sizes: int | str) -> tuple[Size, ...]:
    return tuple(Size.of(size) for size in sizes)


CASE = Case(
    dims=(("B", 2), ("S", 3), ("D", 4)),
    inputs=(
        Input("q", shape("B", "S", "D"), "float32"),
        Input("k", shape("B", "S", "D"), "float32", Values(seed=1)),
        Input("w", shape("D", "D"), "float32", Values(seed=2), parameter=True),
        Input("state", shape("B", "S", "D"), "float32", Values(seed=3), parameter=True, buffer=True),
    ),
    ops=(
        make_op("kt", "transpose", ["k"], {}),
        make_op("scores", "matmul", ["q", "kt"], {}),
        make_op("probs", "softmax", ["scores"], {}),
        make_op("mixed", "matmul", ["probs", "k"], {}),
        make_op("out", "matmul", ["mixed", "w"], {}),
    ),
    returns=("out",),
    mode="training",
)
RUN = ("probs", "mixed", "out")


DROPPED = make_op("probs", "dropout", ["scores"], {"p": 0.5})


def with_region(kind: str, ops: tuple[str, ...] = RUN, over: str | None = None) -> Case:
    if over is None:
        over = "B" if kind in REGIONS and REGIONS[kind].loops else ""
    return replace(CASE, regions=(Region(kind, ops, over),))


def test_a_custom_operation_in_a_loop_sees_the_sizes_of_a_row() -> None:
    view = make_op("out", "view", ["probs"], {"sizes": shape("B", -1)})
    ops = (*CASE.ops[:3], view)
    regions = (Region("map", ("probs", "out"), "B"), Region("custom_op", ("probs", "out")))
    case = replace(CASE, ops=ops, mode="inference", regions=regions)
    check(case)
    ours, plain = (in_float64(source(case, plain=plain), training=False) for plain in (False, True))
    assert close(ours.outputs[0], plain.outputs[0])


@pytest.mark.parametrize("kind", [kind for kind in REGIONS if not REGIONS[kind].is_transform])
def test_both_texts_compute_the_operations(kind: str) -> None:
    case = with_region(kind)
    check(case)
    expected = in_float64(source(CASE), training=True)
    for plain in (False, True):
        found = in_float64(source(case, plain=plain), training=True)
        assert close(expected.outputs[0], found.outputs[0])
        if kind == "while_loop" and not plain:
            continue  # torch's own gradient of a while_loop is wrong: corpus/known/while-loop-gradient.case.yaml
        pairs = zip(expected.gradients, found.gradients, strict=True)
        assert all(one is not None and other is not None and close(one, other) for one, other in pairs)


def test_a_while_loop_takes_the_sizes_of_each_call() -> None:
    exp = make_op("out", "exp", ["x"], {})
    case = Case((("B", 3), ("D", 2)), (Input("x", shape("B", "D"), "float32"),), (exp,), ("out",))
    case = replace(case, calls=(LaterCall((("D", 5),)),), regions=(Region("while_loop", ("out",), "B"),))
    scope: dict[str, Any] = {}
    exec(source(case), scope)
    module = scope["Module"]()
    for (x,), size in zip(scope["calls"](module), (2, 5), strict=True):
        assert x.size(1) == size and module(x).equal(x.exp())


NESTED = [("scan", "cond"), ("map", "while_loop"), ("cond", "cond"), ("while_loop", "map"), ("checkpoint", "custom_op")]


def nest(outer: str, inner: str, ops: tuple[str, ...] = RUN[1:]) -> Case:
    case = with_region(outer)
    return replace(case, mode="inference", regions=(*case.regions, *with_region(inner, ops).regions))


@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_both_texts_of_a_region_within_a_region_compute_its_operations(outer: str, inner: str) -> None:
    case = nest(outer, inner)
    check(case)
    expected = in_float64(source(CASE), training=False)
    for plain in (False, True):
        assert close(expected.outputs[0], in_float64(source(case, plain=plain), training=False).outputs[0])


@pytest.mark.parametrize("kind", [kind for kind in REGIONS if REGIONS[kind].is_transform])
def test_both_texts_differentiate(kind: str) -> None:
    case = with_region(kind, ("scores", "probs", "mixed"))
    check(case)
    ours, plain = (in_float64(source(case, plain=plain), training=True) for plain in (False, True))
    assert close(ours.outputs[0], plain.outputs[0])
    assert not close(ours.outputs[0], in_float64(source(replace(case, regions=())), training=True).outputs[0])


def test_torch_takes_no_scan_within_a_gradient_or_a_recomputation() -> None:
    op = make_op("out", "decayed_sum", ["q", "k"], {"form": "scan"})
    for changes in ({"regions": (Region("grad", ("out",)),)}, {"checkpoint": "full"}, {"autocast": "bfloat16"}):
        case = replace(CASE, inputs=CASE.inputs[:2], ops=(op,), **changes)
        assert is_valid(case) == ("autocast" in changes)
        assert is_valid(call_directly(case, "scan"))


def writing(kind: str, mode: str) -> Case:
    """A region that writes into a buffer."""
    write = make_op("written", "copy_", ["state", "out"], {})
    return replace(CASE, ops=(*CASE.ops, write), mode=mode, regions=(Region(kind, ("out", "written")),))


def test_a_custom_operation_writes_into_its_arguments() -> None:
    case = replace(writing("custom_op", "inference"), returns=("mixed", "written"))
    check(case)
    texts = [source(one) for one in (replace(case, regions=()), case)]
    assert "mutates_args=('state',)" in texts[1]
    (one, other) = (in_float64(text, training=False).outputs for text in texts)
    assert all(map(close, one, other))
    for refused in (writing("cond", "inference"), writing("custom_op", "training")):
        with pytest.raises(CaseError, match="does not write into"):
            check(refused)


def test_files_shrinking_and_pruning_keep_regions_whole() -> None:
    case = replace(with_region("custom_op"), calls=(LaterCall(under="inference"),))
    assert loads(dumps(case)) == case
    assert next(drop_regions(case)) == replace(case, regions=())
    assert {one.regions[0].ops for one in drop_regions(case) if one.regions} == {RUN[1:], RUN[:-1]}
    shorter = prune(replace(case, returns=("mixed",)))
    assert shorter.regions == (Region("custom_op", ("probs", "mixed")),)
    run_eager(shorter)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", ["scan", "associative_scan"])
@pytest.mark.parametrize(("axis", "decay"), [(1, (1, "S", "D")), (-1, ("B", 1, 1)), (0, ("B", "S", "D"))])
def test_recurrences_are_their_loops(form: str, axis: int, decay: tuple[int | str, ...], reverse: bool) -> None:
    op = make_op("out", "decayed_sum", ["q", "decay"], {"dim": axis, "reverse": reverse, "form": form})
    inputs = CASE.inputs[0], Input("decay", shape(*decay), "float32", Values("uniform", seed=4))
    case = replace(CASE, inputs=inputs, ops=(op,), returns=("q", "decay", "out"))
    check(case)
    assert list_unplain(case) == (form,) and not list_unplain(call_directly(case, form))
    ours, plain = (in_float64(source(case, plain=plain), training=True) for plain in (False, True))
    pairs = zip((*ours.outputs, *ours.gradients), (*plain.outputs, *plain.gradients), strict=True)
    assert all(one is not None and other is not None and close(one, other) for one, other in pairs)
    whole = ours.outputs[-1]
    x, factor, out = (value.expand_as(whole).movedim(axis, 0).flip([0] * reverse) for value in ours.outputs)
    assert close(out[0], x[0]) and close(out[1:], factor[1:] * out[:-1] + x[1:])
