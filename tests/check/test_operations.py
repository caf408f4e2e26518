"""Operations of real models: each gives in eager what its type says, and is judged without a false alarm."""

import math
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from fuzz.evaluator import Evaluator
from generators.errors import CaseError
from generators.program.case import Case, Input, Op, Values
from generators.program.ops import OPS
from generators.program.sizes import Size
from generators.program.type_check import check, is_valid, make_op, prune
from tests.generators.test_sample import run_eager


def shape(*sizes: int | str) -> tuple[Size, ...]:
    return tuple(Size.of(size) for size in sizes)


GIVEN = Case(
    dims=(("B", 2), ("S", 6), ("D", 4)),
    inputs=(
        Input("x", shape("B", "S", "D"), "float32", Values(seed=1)),
        Input("y", shape("B", "S", "D"), "float32", Values(seed=2)),
        Input("fixed", shape("B", "S", "D"), "float32", Values(seed=12), requires_grad=False),
        Input("low", shape("B", "S", "D"), "bfloat16", Values(seed=3)),
        Input("matrix", shape("S", "D"), "float32", Values(seed=4)),
        Input("image", shape("B", "D", 7, 9), "float32", Values(seed=13)),
        Input("signal", shape("B", "D", 8), "float32", Values(seed=14)),
        Input("filters", shape(6, "D", 3, 2), "float32", Values(seed=15)),
        Input("grouped", shape(6, 2, 3), "float32", Values(seed=16)),
        Input("upward", shape("D", 3, 2, 2), "float32", Values(seed=17)),
        Input("six", shape(6), "float32", Values(seed=18)),
        Input("weight", shape("S", "D"), "float32", Values(seed=19)),
        Input("bias", shape("D"), "float32", Values(seed=20)),
        Input("scale", shape("D"), "float32", Values("constant", 21, 0.75), requires_grad=False),
        Input("row", shape("D"), "float32", Values(seed=5)),
        Input("counts", shape("B", "S", "D"), "int64", Values("signed", 6)),
        Input("keep", shape("B", "S", "D"), "bool", Values("random", 7, 0.5)),
        Input("drop", shape("S", "D"), "bool", Values("random", 8, 0.5)),
        Input("places", shape("D"), "int64", Values("permutation", 9)),
        Input("each", shape("B", "S", "D"), "int64", Values("permutation", 10)),
        Input("up", shape("B", "S", "D"), "int64", Values("small_counts", 22)),
        Input("whole", shape("B", "S", "D"), "int32", Values("signed", 23)),
        Input("tokens", shape("B", "S"), "int64", Values("tokens", 11, 2.0)),
    ),
    ops=(),
    returns=(),
)

MADE = (
    make_op("positive", "square", ["x"], {}),
    make_op("turned", "transpose", ["weight"], {}),
    make_op("square", "matmul", ["matrix", "turned"], {}),
    make_op("across", "transpose", ["x"], {}),
    make_op("squares", "matmul", ["across", "x"], {}),
    make_op("fixed_row", "detach", ["row"], {}),
    make_op("half", "mul", ["positive"], {"other": 0.5}),
    make_op("zero_dim", "scalar", [], {"value": 0.25}),
)


def op(kind: str, *args: str, **attrs: Any) -> Op:
    for name, value in attrs.items():
        if isinstance(value, list):
            attrs[name] = tuple(value) if name in ("dims", "axes") else shape(*value)
    return make_op("out", kind, args, attrs)


SHAPING = [
    op("repeat", "x", sizes=[2, 1, "D"]),
    op("repeat", "row", sizes=["B", 3]),
    op("split", "x", size=4, dim=1, index=1),
    op("split", "x", size=2, index=1),
    op("split", "x", sizes=[1, 3], dim=-1, index=1),
    op("stack", "x", "y", "y"),
    op("stack", "x", "y", dim=-1),
    op("cat", "x"),
    op("transpose", "matrix", form="t"),
    op("transpose", "matrix", form="T"),
    op("flatten", "x"),
    op("flatten", "x", start_dim=1),
    op("unflatten", "x", dim=1, sizes=[-1, 2]),
    op("pad", "x", sizes=[1, 2]),
    op("pad", "x", sizes=[0, -1, "S", 0], value=0.5),
    op("pad", "counts", sizes=[1, 0], value=3),
    op("flip", "x", dims=[0, -1]),
    op("roll", "x", shifts=[-1, "S"], dims=[1, 2]),
    op("gather", "x", "each"),
    op("index_select", "x", "places", dim=2),
    op("index", "matrix", "tokens"),
    op("index", "x", "tokens", "tokens", dim=1),
    op("pad", "x", sizes=[1, 3], mode="reflect"),
    op("pad", "image", sizes=[1, 0, 2, "D"], mode="reflect"),
    op("pad", "low", sizes=[1, 2, 0, 3], mode="replicate"),
    op("pad", "low", sizes=[1, 2], mode="reflect"),
    op("pad", "signal", sizes=[8, 1], mode="circular"),
    op("tile", "x", sizes=[2]),
    op("tile", "x", sizes=[2, 1, 1, "B"]),
    op("scatter", "x", "each", "y"),
    op("scatter", "x", "each", value=0.5),
    op("scatter", "counts", "each", "up", dim=2),
    op("scatter_add", "x", "each", "y"),
    op("scatter_add", "counts", "each", "up"),
    op("arange", stop="S", step=2),
    op("arange", start=1, stop="S", step=2, dtype="float32"),
    op("arange", start="S", stop=0, step=-1),
    op("arange", start=0.5, stop="S", dtype="float32"),
    op("arange", stop=2.0, step=0.3, dtype="float32"),
    op("linspace", steps="S"),
    op("linspace", start=-0.5, stop=5.5, steps=7, dtype="bfloat16"),
    op("eye", rows="S"),
    op("eye", rows="S", columns=2, dtype="bool"),
]
POINTWISE = [
    op("clamp", "x", min=-0.5),
    op("clamp", "x", min=-0.5, max=1),
    op("clamp", "counts", max=1),
    op("clamp", "counts", min=0.5),
    op("maximum", "x", "row"),
    op("minimum", "counts", "each"),
    op("logical_or", "keep", "drop"),
    op("logical_xor", "keep", "drop"),
    *(op(kind, "x") for kind in ("sign", "floor", "ceil", "round", "reciprocal", "exp2", "expm1", "erf")),
    *(op(kind, "counts") for kind in ("sign", "floor", "ceil", "round")),
    op("log1p", "positive"),
    *(op(kind, "x") for kind in ("mish", "hardswish", "hardsigmoid", "relu6", "logsigmoid", "selu", "softplus")),
    op("softplus", "x", beta=2.0, threshold=1.0),
    op("leaky_relu", "x", negative_slope=0.2),
    op("leaky_relu", "low"),
    op("elu", "x", alpha=0.5),
    op("hardtanh", "x", min_val=-0.5, max_val=0.25),
    op("remainder", "x", other=0.75),
    op("remainder", "counts", other=-3),
    op("remainder", "x", "y"),
    op("floor_divide", "fixed", other=0.75),
    op("floor_divide", "counts", other=2),
    op("floor_divide", "counts", other=2, form="floor"),
    op("floor_divide", "x", "y", form="trunc"),
    op("full_like", "x", value=2.0),
    op("full_like", "x", value=2, dtype="int64"),
    op("zeros_like", "counts"),
    op("ones_like", "x", dtype="bool"),
    op("new_full", "x", sizes=["S"], value=0.5),
    op("new_ones", "counts", sizes=["S", 2]),
    op("new_zeros", "x", sizes=[], dtype="int64"),
    op("clamp", "x", "row"),
    op("clamp", "low", "zero_dim", bound="max"),
    op("clamp", "counts", "each", "up"),
    op("logical_and", "keep", other=True),
    op("logical_or", "keep", other=False),
    op("pow", "positive", "row"),
    op("pow", "counts", "up"),
    op("pow", "counts"),
    op("pow", "counts", exponent=0.5),
    op("pow", "x", base=10000),
    op("pow", "up", base=10000.0),
    op("pow", "up", base=-2),
    op("pow", "low", "zero_dim"),
    op("fmod", "x", other=0.75),
    op("fmod", "counts", other=-2),
    op("atan2", "x", "row"),
    op("lerp", "x", "y", weight=0.25),
    op("lerp", "x", "y", "row"),
    op("addcmul", "low", "x", "row", value=2),
    op("addcdiv", "x", "row", "positive"),
    *(op(kind, "half") for kind in ("isnan", "isinf", "isfinite")),
    op("nan_to_num", "x"),
    op("nan_to_num", "low", nan=1.0, neginf=-2.0),
    op("glu", "x"),
    op("glu", "low", dim=1),
    op("masked_fill", "counts", "keep", value=3),
    op("masked_fill", "keep", "drop", value=0),
    op("where", "keep", "x", "zero_dim"),
    op("where", "keep", "low", "zero_dim"),
]
REDUCTIONS = [
    *(op(kind, "x", axes=[1, -1], keepdim=True) for kind in ("sum", "mean", "amax", "amin", "logsumexp", "var", "std")),
    *(op(kind, "x", axes=[]) for kind in ("sum", "mean", "amax", "max", "min", "argmax", "norm", "var", "prod")),
    *(op(kind, "counts") for kind in ("sum", "amax", "amin", "max", "prod", "cumsum", "argmax")),
    *(op(kind, "keep", dim=0) for kind in ("sum", "any", "all", "max", "cumsum")),
    *(op(kind, "x", dim=1) for kind in ("argmax", "argmin", "max", "norm", "var", "prod", "cumsum")),
    op("any", "keep", axes=[0, 2]),
    op("argmax", "x", keepdim=True),
    op("max", "x", keepdim=True, form="item"),
    op("min", "low", form="item"),
    op("norm", "x", axes=[0, 1]),
    op("norm", "x", keepdim=True, form="linalg"),
    op("norm", "x", axes=[], form="linalg"),
    op("var", "x", unbiased=False, keepdim=True),
    op("std", "x", axes=[], unbiased=False),
    op("sum", "low", dtype="float32"),
    op("sum", "counts", axes=[], dtype="float32"),
    op("mean", "keep", keepdim=True, dtype="float32"),
    op("prod", "low", dtype="float32"),
    op("cumsum", "whole"),
    op("cumsum", "whole", dim=1, dtype="int32"),
    op("cumsum", "keep", dtype="float32"),
    op("norm", "x", order=1),
    op("norm", "x", axes=[0, 1], order=math.inf, keepdim=True),
    op("norm", "x", order=1, form="linalg"),
    op("norm", "x", axes=[], order=3.0, form="linalg"),
    op("diff", "x"),
    op("diff", "counts", "up", dim=1),
]
ORDERING = [
    op("topk", "x", k=2),
    op("topk", "x", k="D", dim=1, part="indices"),
    op("topk", "counts", k=1, largest=False, sorted=False),
    op("topk", "low", k=3, largest=False, part="indices"),
    op("sort", "x"),
    op("sort", "x", dim=0, descending=True, part="indices"),
    op("sort", "keep", stable=True),
    op("argsort", "x", dim=1),
    op("argsort", "counts", descending=True, stable=True),
]
WRITES = [
    op("sub_", "x", "row"),
    op("sub_", "counts", other=2, form="operator"),
    op("div_", "x", "positive"),
    op("div_", "x", other=0.5, form="operator"),
    op("pow_", "x", other=3),
    op("pow_", "positive", other=0.5, form="operator"),
    *(op(kind, "x") for kind in ("relu_", "silu_", "mish_", "hardswish_", "hardsigmoid_", "relu6_", "selu_")),
    op("leaky_relu_", "x", negative_slope=0.2),
    op("elu_", "x"),
    op("hardtanh_", "low", min_val=-0.5, max_val=0.25),
    *(op(kind, "x") for kind in ("exp_", "sigmoid_", "tanh_", "sin_", "cos_", "square_", "erf_", "neg_", "abs_")),
    *(op(kind, "half") for kind in ("sqrt_", "rsqrt_", "log_", "reciprocal_")),
    *(op(kind, "x") for kind in ("sign_", "floor_", "ceil_", "round_", "nan_to_num_", "zero_")),
    op("clamp_", "x", min=-0.5, max=0.5),
    op("clamp_", "x", "row", bound="max"),
    op("fill_", "x", value=0.5),
    op("fill_", "counts", value=2),
    op("zero_", "counts"),
    op("scatter_", "x", "each", "y"),
    op("scatter_", "counts", "each", value=3),
    op("scatter_add_", "x", "each", "y"),
    op("masked_fill_", "counts", "keep", value=3),
]
VISION = [
    op("conv2d", "image", "filters"),
    op("conv2d", "image", "filters", "six", stride=[2], padding=[1]),
    op("conv2d", "image", "filters", stride=[2, 1], padding=[0, 1], dilation=[1, 2]),
    op("conv1d", "signal", "grouped", "six", groups=2),
    op("conv1d", "signal", "grouped", padding=[2], dilation=[2], groups=2),
    op("conv_transpose2d", "image", "upward", stride=[2], padding=[1]),
    op("conv_transpose2d", "image", "upward", stride=[3, 2], output_padding=[2, 1]),
    op("max_pool2d", "image", kernel=[3], stride=[2], padding=[1]),
    op("max_pool2d", "image", kernel=[2, 3]),
    op("max_pool2d", "image", kernel=[2], ceil_mode=True),
    op("max_pool2d", "image", kernel=[2], stride=[3], padding=[1], ceil_mode=True),
    op("max_pool1d", "signal", kernel=[3], stride=[1]),
    op("avg_pool2d", "image", kernel=[3], stride=[2], padding=[1], ceil_mode=True),
    op("avg_pool2d", "image", kernel=[3], padding=[1], count_include_pad=False),
    op("avg_pool1d", "signal", kernel=[2]),
    op("adaptive_avg_pool2d", "image", sizes=[1]),
    op("adaptive_avg_pool2d", "image", sizes=[3, 2]),
    op("adaptive_avg_pool1d", "signal", sizes=[3]),
    op("batch_norm", "image"),
    op("batch_norm", "image", "row", "bias", affine=True, eps=1e-3),
    op("batch_norm", "signal", "fixed_row", "scale", statistics="running"),
    op("batch_norm", "image", "fixed_row", "scale", "row", "bias", statistics="running", affine=True),
    op("group_norm", "image", groups=2),
    op("group_norm", "signal", "row", "bias", groups=4, eps=1e-6),
    op("layer_norm", "x", "weight", "matrix", last=2),
    op("rms_norm", "x", last=2),
    op("interpolate", "image", scale=2.0),
    op("interpolate", "image", sizes=[10, 5]),
    op("interpolate", "signal", scale=1.5, mode="nearest-exact"),
    op("interpolate", "signal", sizes=[13], mode="linear"),
    op("interpolate", "image", sizes=[4], mode="bilinear", antialias=True),
    op("interpolate", "image", scale=0.5, mode="bilinear"),
    op("interpolate", "image", sizes=[9, 14], mode="bicubic", align_corners=True),
]
PRODUCTS = [
    op("mm", "matrix", "turned"),
    op("addmm", "bias", "square", "weight", beta=0.5, alpha=2),
    op("baddbmm", "x", "x", "squares", beta=0.5, alpha=0.25),
    op("outer", "row", "six"),
    op("einsum", "x", "weight", "row", equation="bsd,sd,d->bd"),
    op("einsum", "x", equation="bsd->db"),
    op("einsum", "row", "bias", equation="i,i->"),
    op("normalize", "x"),
    op("normalize", "x", dim=1),
    op("one_hot", "tokens", classes=2),
    op("one_hot", "places", classes="D"),
]
GROUPS = {"shaping": SHAPING, "pointwise": POINTWISE, "reductions": REDUCTIONS, "ordering": ORDERING, "writes": WRITES}
GROUPS |= {"vision": VISION, "products": PRODUCTS}


def program(operations: list[Op], mode: str = "inference") -> Case:
    """A program that returns the results of all operations, with gradients of those that differentiate floats.

    Each operation that writes has a target of its own.
    """
    ops = [*MADE]
    for number, item in enumerate(operations):
        args = item.args
        if OPS[item.kind].writes:
            ops.append(make_op(f"own{number}", "clone", args[:1], {}))
            args = (f"own{number}", *args[1:])
        ops.append(replace(item, name=f"out{number}", args=args))
    returns = tuple(f"out{number}" for number in range(len(operations)))
    return prune(replace(GIVEN, ops=tuple(ops), returns=returns, mode=mode))


@pytest.mark.parametrize("item", [*chain(*GROUPS.values())], ids=lambda item: f"{item.kind}({', '.join(item.args)})")
def test_an_operation_gives_in_eager_what_its_type_says(item: Op) -> None:
    plain = program([item])
    for case in filter(is_valid, (plain, replace(plain, autocast="bfloat16"))):
        (found,) = run_eager(case)
        expected = check(case)["out0"]
        assert (tuple(found.shape), str(found.dtype)) == (expected.sizes(case.sizes), f"torch.{expected.dtype}")


@pytest.mark.worker
@pytest.mark.samples
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("group", GROUPS)
def test_right_results_of_operations_are_accepted(shared: Evaluator, group: str, mode: str) -> None:
    result = shared.evaluate_or_raise(program(GROUPS[group], mode), "passes")
    assert not result.verdict.is_finding, result


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (op("repeat", "x", sizes=[2, 2]), "takes at least 3 numbers"),
        (op("split", "x", index=0), "takes the attribute 'size' or 'sizes'"),
        (op("split", "x", size=3, index=2), "index 2 of parts of 3 of an axis of 4"),
        (op("split", "x", sizes=[1, 2]), "the sum of the sizes: D = 4 against 3 = 3"),
        (op("stack", "x", "matrix"), "needs equal ranks"),
        (op("transpose", "x", form="t"), "exchanges the two axes of a matrix"),
        (op("flatten", "x", start_dim=2, end_dim=1), "start_dim 2 comes after end_dim 1"),
        (op("pad", "row", sizes=[1, 2, 3, 4]), "is not a pair for each of at most 1 axes"),
        (op("pad", "x", sizes=[-5, 0]), "negative size"),
        (op("flip", "x", dims=[0, -3]), "are not different axes"),
        (op("roll", "x", shifts=[1], dims=[0, 1]), "takes a shift for each of the axes"),
        (op("gather", "x", "places"), "needs an int64 index of as many axes"),
        (op("gather", "x", "each", dim=0), "reach beyond an axis of 2"),
        (op("index_select", "x", "tokens"), "needs int64 indices of one axis"),
        (op("index_select", "x", "places"), "reach beyond an axis of 2"),
        (op("index", "x", "places"), "reach beyond an axis of 2"),
        (op("index", "x", "keep"), "needs int64 indices"),
        (op("sum", "x", axes=[0, 3]), "are not different axes"),
        (op("max", "x", axes=[0, 1]), "max takes one axis, or all"),
        (op("sum", "x", axes=[], keepdim=True), "needs axes"),
        (op("mean", "counts"), "needs a floating-point argument"),
        (op("conv2d", "signal", "filters"), "needs an argument of 4 axes"),
        (op("conv2d", "image", "grouped"), "needs a weight of 4 axes"),
        (op("conv2d", "image", "filters", "row"), "bias of the channels"),
        (op("conv2d", "image", "filters", groups=2), "channels of the argument and of the weight"),
        (op("conv2d", "image", "filters", stride=[0]), "stride is [0], expected 1 or 2 numbers of at least 1"),
        (op("conv2d", "image", "filters", dilation=[4]), "do not fit into an axis of 7"),
        (op("conv_transpose2d", "image", "upward", output_padding=[1]), "is not smaller than stride"),
        (op("max_pool2d", "image", kernel=[2], padding=[2]), "is more than half of kernel"),
        (op("batch_norm", "image", "six", "bias", affine=True), "normalised size"),
        (op("batch_norm", "image", "row", affine=True), "takes 3 arguments, got 2"),
        (op("group_norm", "image", groups=3), "4 channels do not split into 3 groups"),
        (op("interpolate", "image"), "takes the attribute 'sizes' or 'scale'"),
        (op("interpolate", "signal", scale=2, mode="bilinear"), "bilinear takes no argument of 3 axes"),
        (op("layer_norm", "x", "row", last=2), "needs weights of shape [S, D]"),
        (op("einsum", "x", "row", equation="bsd,d,d->b"), "takes 3 arguments"),
        (op("einsum", "x", equation="bsd->dbs"), "only permutes axes"),
        (op("outer", "x", "row"), "needs arguments of one axis"),
        (op("one_hot", "places", classes=3), "reach beyond an axis of 3"),
        (op("clamp", "x"), "takes the attribute 'min', 'max' or both"),
        (op("maximum", "x", "tokens"), "do not broadcast"),
        (op("remainder", "keep", other=2), "takes no booleans"),
        (op("clamp", "x", "row", min=0), "takes the attribute 'min', 'max' or both, or tensors instead"),
        (op("pow", "x", "y", base=2), "takes a tensor as exponent, 'exponent' or 'base'"),
        (op("pow", "counts", exponent=-1), "integers take no negative power"),
        (op("lerp", "x", "y"), "takes three arguments, or two and 'weight'"),
        (op("glu", "grouped"), "axis of 3 has no halves"),
        (op("masked_fill", "counts", "keep"), "int64 can't hold -inf"),
        (op("logical_and", "keep"), "takes two arguments, or an argument and 'other'"),
        (op("pad", "x", sizes=[4, 0], mode="reflect"), "mode reflect can't pad [B, S, D] by [4, 0]"),
        (op("pad", "x", sizes=[1, 1, 1, 1], mode="circular"), "mode circular takes no 2 pairs for 3 axes"),
        (op("scatter", "x", "each", "low"), "needs a source of dtype float32 and at least [B, S, D]"),
        (op("scatter", "x", "each", "y", value=2), "takes a tensor or 'value', not both"),
        (op("scatter_add", "x", "each", "y", dim=0), "reach beyond an axis of 2"),
        (op("arange", stop="S", step=0), "no range from 0 to S at steps of 0"),
        (op("arange", stop=2.5), "a range of fractions needs a floating dtype"),
        (op("topk", "x", k=5), "k is 5 of an axis of 4"),
        (op("diff", "x", "low"), "needs equal ranks and dtypes"),
        (op("norm", "x", order=0), "the order of a norm is positive"),
        (op("mean", "x", dtype="int64"), "needs a floating-point argument or a floating dtype, got int64"),
        (op("clamp_", "counts", min=0.5), "can't hold [B, S, D] of float32 in [B, S, D] of int64"),
        (op("clamp_", "row", "x"), "can't hold [B, S, D] of float32 in [D] of float32"),
        (op("fill_", "counts", value=0.5), "int64 can't hold 0.5"),
        (op("div_", "counts", other=2), "needs a floating-point argument"),
        (op("floor_divide", "x"), "takes two arguments, or an argument and 'other'"),
    ],
)
def test_an_operation_on_wrong_arguments_is_refused(item: Op, message: str) -> None:
    with pytest.raises(CaseError) as error:
        check(program([item]))
    assert message in str(error.value)


def test_autocast_is_refused_where_the_dtype_would_depend_on_the_contraction() -> None:
    with pytest.raises(CaseError):
        check(replace(program([op("einsum", "x", "weight", "row", equation="bsd,sd,d->bd")]), autocast="bfloat16"))
