"""Operations of real models: each gives in eager what its type says, and is judged without a false alarm."""

from dataclasses import replace
from itertools import chain

import pytest

from fuzz.ask.evaluator import Evaluator
from fuzz.ask.question import Question, ask_accepted
from generators.errors import CaseError
from generators.program.case import Op
from generators.program.type_check import check, is_valid
from tests.check.operations import GROUPS, op, program
from tests.generators.test_sample import run_eager


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
    result = ask_accepted(shared, Question(program(GROUPS[group], mode), ("passes",)))
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
        (op("grouped_mm", "x", "experts", "ends"), "needs a matrix, a matrix for each group"),
        (op("grouped_mm", "few_rows", "experts", "ends"), "counts all rows"),
        (op("histc", "x", bins=4, max=0), "needs a bin and a range"),
        (op("bucketize", "x", "row"), "the boundaries are no rising range"),
        (op("meshgrid", "x", "row"), "needs one axis each"),
        (op("meshgrid", "row", "places"), "one dtype"),
        (op("grid_sample", "image", "signal"), "needs an image and a grid"),
        (op("_weight_norm", "weight", "matrix"), "axis 0 of the scale: S = 6 against 1 = 1"),
        (op("solve_triangular", "square", "row"), "needs two matrices"),
        (op("solve_triangular", "square", "turned"), "sides of both matrices"),
        (op("view_as_complex", "x"), "real and imaginary parts: D = 4 against 2 = 2"),
        (op("view_as_real", "x"), "needs a complex argument"),
        (op("add", "waves", "waves"), "takes no complex numbers"),
        (op("clone", "waves"), "'out0' is complex"),
        (op("as_strided", "x", sizes=["S"], strides=[10]), "reads place 50 of at most 48"),
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
