"""Programs: what is refused and written; regions: two texts with one meaning, and the runs that each kind takes."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from corpus.casefile import dumps, loads
from corpus.passes.program import simplify_regions
from generators.errors import CaseError
from generators.program.case import Attr, Case, Input, LaterCall, Op, Region, Values
from generators.program.emit import list_unplain, source
from generators.program.ops import make_op
from generators.program.regions import FUNCTION, REGIONS, SHARED, call_directly
from generators.program.sizes import Size
from generators.program.type_check import check, is_valid, prune
from tests.generators.plain import close, in_float64
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


def written_through(view: Op, kind: str = "fill_", mode: str = "inference") -> Case:
    """A write through a view of the clone `own`, which is returned."""
    attrs = {"value": 2.0} if kind == "fill_" else {"other": 2.0} if kind == "add_" else {}
    write = make_op("written", kind, ["view"] * 2 if kind == "copy_" else ["view"], attrs)
    return replace(STATE, ops=(STATE.ops[0], view, write), mode=mode, returns=("own",))


def view_of_own(kind: str, **attrs: Any) -> Op:
    return make_op("view", kind, ["own"], attrs)


EXPANDED = view_of_own("expand", sizes=(Size.of(2), *STATE.inputs[0].shape))


@pytest.mark.parametrize(
    ("view", "kind"),
    [
        (EXPANDED, "fill_"),
        (EXPANDED, "zero_"),
        (view_of_own("unfold", dim=1, size="1", step=2), "add_"),
        (view_of_own("chunk", dim=1, chunks=1), "add_"),
        (view_of_own("unbind", dim=1), "fill_"),
        (view_of_own("diagonal"), "add_"),
        (view_of_own("transpose"), "copy_"),
    ],
    ids=lambda part: part if isinstance(part, str) else part.kind,
)
def test_eager_writes_through_odd_views(view: Op, kind: str) -> None:
    case = written_through(view, kind)
    check(case)
    (found,), _ = run_module(case)
    (before,), _ = run_module(replace(case, ops=case.ops[:1]))
    assert torch.equal(found, before) == (kind == "copy_")
    assert loads(dumps(case)) == case


@pytest.mark.parametrize(
    ("view", "kind", "mode", "message"),
    [
        (EXPANDED, "add_", "inference", "several elements have one place"),
        (view_of_own("unfold", dim=1, size="2"), "fill_", "inference", "several elements have one place"),
        (view_of_own("unbind", dim=1), "fill_", "training", "one of several views"),
    ],
)
def test_writes_that_torch_refuses_are_refused(view: Op, kind: str, mode: str, message: str) -> None:
    with pytest.raises(CaseError, match=message):
        check(written_through(view, kind, mode))


def test_slices_of_one_tensor_may_be_read_and_written_where_they_are_apart() -> None:
    slices = (
        view_of_own("narrow", dim=1, stop="1"),
        make_op("read", "narrow", ["own"], {"dim": 1, "start": 1, "stop": 2}),
    )
    write = make_op("written", "copy_", ["view", "read"], {})
    check(replace(STATE, ops=(STATE.ops[0], *slices, write), returns=("own",)))
    overlapping = make_op("read", "narrow", ["own"], {"dim": 1, "stop": Size.of(1)})
    with pytest.raises(CaseError, match="of which it also reads"):
        check(replace(STATE, ops=(STATE.ops[0], slices[0], overlapping, write), returns=("own",)))


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
    return replace(CASE, regions=(Region(kind, ops, over, REGIONS[kind].options[0] if kind in REGIONS else ""),))


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


@pytest.mark.parametrize("kind", [kind for kind in REGIONS if REGIONS[kind].is_transform and kind != FUNCTION])
def test_both_texts_differentiate(kind: str) -> None:
    case = with_region(kind, ("scores", "probs", "mixed"))
    check(case)
    ours, plain = (in_float64(source(case, plain=plain), training=True) for plain in (False, True))
    assert close(ours.outputs[0], plain.outputs[0])
    assert not close(ours.outputs[0], in_float64(source(replace(case, regions=())), training=True).outputs[0])


DOUBLED = replace(
    CASE,
    ops=(make_op("twice", "add", ["k", "q"], {}), make_op("out", "mul", ["twice"], {"other": 2.0})),
    returns=("out",),
)
BY_RULE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "straight": lambda gradient, _: gradient,
    "scaled": lambda gradient, _: gradient * -0.5,
    "clipped": lambda gradient, _: gradient.clamp(-0.5, 0.5),
    "of_argument": lambda gradient, x: gradient * x.cos(),
    "of_result": lambda gradient, x: gradient * x.cos(),
}


@pytest.mark.parametrize("option", REGIONS[FUNCTION].options)
def test_a_function_has_the_gradients_of_its_rule_in_both_texts(option: str) -> None:
    rule, _, style = option.partition("+")
    case = replace(DOUBLED, regions=(Region(FUNCTION, ("twice", "out"), option=option),))
    check(case)
    assert loads(dumps(case)) == case
    for plain in (False, True):
        run = in_float64(source(case, plain=plain), training=True)
        out, gradients = run.outputs[0], run.gradients
        assert close(out, in_float64(source(DOUBLED), training=True).outputs[0])
        first = in_float64(source(replace(DOUBLED, returns=("k",))), training=True).outputs[0]
        saved = out if rule == "of_result" or style.startswith("dirty") else first
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
        of_second, of_first, *_ = gradients
        assert of_first is not None and close(of_first, BY_RULE[rule](cotangent, saved))
        assert (of_second is not None) == rule.startswith("of")


def test_transforms_take_functions_in_the_style_that_they_need() -> None:
    styles = {option.partition("+")[2] for option in REGIONS[FUNCTION].options}
    taken = {
        kind: {style for style in styles if is_valid(_within(kind, "+".join(filter(None, ["straight", style]))))}
        for kind in ("grad", "vmap", "jvp", "checkpoint")
    }
    assert taken == {
        "grad": {"setup", "vmap", "jvp", "dirty_setup"},
        "vmap": {"vmap", "jvp"},
        "jvp": {"jvp"},
        "checkpoint": styles,
    }


def _within(kind: str, option: str) -> Case:
    outer = Region(kind, ("twice", "out"), "B" if REGIONS[kind].loops else "")
    return replace(DOUBLED, regions=(outer, Region(FUNCTION, ("twice", "out"), option=option)))


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


@pytest.mark.parametrize("kind", ["custom_op", "functionalize"])
def test_regions_write_into_their_arguments(kind: str) -> None:
    case = replace(writing(kind, "inference"), returns=("mixed", "written"))
    if kind == "functionalize":
        with pytest.raises(CaseError, match="no argument of its own"):
            check(case)
        write = make_op("written", "copy_", ["q", "out"], {})
        case = replace(case, ops=(*CASE.ops, write))
    check(case)
    texts = [source(one) for one in (replace(case, regions=()), case)]
    assert ("mutates_args=('state',)" in texts[1]) == (kind == "custom_op")
    (one, other) = (in_float64(text, training=False).outputs for text in texts)
    assert all(map(close, one, other))
    for refused in (writing("cond", "inference"), writing(kind, "training")):
        with pytest.raises(CaseError, match="does not write into"):
            check(refused)


def test_files_shrinking_and_pruning_keep_regions_whole() -> None:
    case = replace(with_region("custom_op"), calls=(LaterCall(under="inference"),))
    assert loads(dumps(case)) == case
    assert {one.regions[0].ops for one in simplify_regions(case) if is_valid(one) and one != case} == {
        RUN[1:],
        RUN[:-1],
    }
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


def alike(option: str, kinds: tuple[str, ...] = ("mul", "mul")) -> Case:
    """Two regions that share a function, and differ in a number."""
    numbers = (2.0, 3.0)
    ops = tuple(
        make_op(name, kind, [read], {"other": number})
        for name, kind, read, number in zip(("a", "b"), kinds, ("k", "a"), numbers, strict=True)
    )
    regions = tuple(Region("compile_region", (op.name,), option=option) for op in ops)
    return replace(PLAIN, inputs=PLAIN.inputs[1:2], ops=ops, returns=("b",), regions=regions)


@pytest.mark.parametrize("option", SHARED)
def test_regions_that_are_alike_share_a_function(option: str) -> None:
    case = alike(option)
    check(case)
    assert loads(dumps(case)) == case
    expected = in_float64(source(replace(case, regions=())), training=False).outputs[0]
    for plain in (False, True):
        text = source(case, plain=plain)
        assert text.count("nested_compile_region") == (0 if plain else 1 + (option == "layer_in_layer"))
        assert (text.count("k * 2.0"), text.count("k * 3.0")) == (1, 1)
        assert close(in_float64(text, training=False).outputs[0], expected)
    assert source(alike(option, ("mul", "add"))).count("+ 3.0") == 1
    assert is_valid(replace(case, regions=tuple(replace(one, option="") for one in case.regions)))


def test_a_function_outside_of_the_module_has_no_layers_of_the_module() -> None:
    case = alike("layer")
    for around, fits in (("checkpoint", True), ("cond", True), ("scan", False), ("custom_op", False)):
        over = "B" if REGIONS[around].loops else ""
        assert is_valid(replace(case, regions=(Region(around, ("a", "b"), over), *case.regions))) == fits


def test_the_innermost_autocast_decides_dtypes() -> None:
    regions = (
        Region("autocast", ("scores", "probs", "mixed"), option="off"),
        Region("autocast", ("mixed",), option="float16"),
    )
    case = replace(CASE, autocast="bfloat16", regions=regions, returns=("scores", "mixed", "out"))
    types = check(case)
    assert loads(dumps(case)) == case
    assert [types[name].dtype for name in case.returns] == ["float32", "float16", "bfloat16"]
    assert [str(value.dtype) for value in run_eager(case)] == ["torch.float32", "torch.float16", "torch.bfloat16"]
    with pytest.raises(CaseError, match="does not train"):
        check(replace(case, regions=(Region("custom_op", ("out",)),)))
