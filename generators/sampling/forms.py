"""Forms that compilers of inference programs get wrong again and again, drawn on purpose: chains of operations on the
values of a program, or on its arguments alone."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from generators.errors import CaseError, require
from generators.program.ops import OPS
from generators.program.sizes import product
from generators.program.values import category
from generators.reasons import Reason
from generators.sampling.builder import Builder, Writer
from generators.sampling.choices import Choices
from generators.sampling.dtypes import write_integers, write_truths
from generators.sampling.operations import apply
from generators.sampling.products import UNSEEN, write_masked_attention, write_product
from generators.sampling.windows import write_reduction, write_window


class DrawnForm(NamedTuple):
    """A row of `FORMS`."""

    weight: float  # how often it is drawn
    write: Writer
    integral: bool = False  # whether it also takes integers and booleans


def _any_of(*kinds: str, least_rank: int = 1) -> Writer:
    """A form that is one operation of these kinds, with random arguments and attributes."""

    def write(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:
        require(b.rank(value) >= least_rank, "needs an axis")
        made = apply(b, c, OPS[c.pick(kinds)], value, others)
        _require_defined(b, made)
        return made

    return write


def _require_defined(b: Builder, made: str) -> None:
    """Raises CaseError where torch leaves the result open: casts of floating values to integers, and orders."""
    op = b.ops[-1]
    dtype = op.attr("dtype")
    casts = isinstance(dtype, str) and category(dtype) == 1 and any(map(b.is_float, op.args))
    require(op.name == made and not casts, "casts floating values to integers", Reason.CAST_RANGE)
    require(op.attr("sorted") is not False, "may have any order", Reason.ANY_ORDER)


_SHAPES = (
    *("reshape", "flatten", "permute", "transpose", "squeeze", "expand", "repeat", "tile", "repeat_interleave"),
    *("chunk", "split", "unbind", "select", "narrow", "meshgrid", "unfold", "cat", "stack", "pad", "flip", "roll"),
)
_INDICES = ("gather", "index_select", "index", "scatter", "scatter_add") * 2 + ("index_add", "scatter_reduce")
_ELEMENTWISE = (
    *("add", "sub", "mul", "div", "maximum", "minimum", "remainder", "fmod", "floor_divide", "atan2", "lerp", "pow"),
    *("addcmul", "addcdiv", "clamp", "clamp", "where", "masked_fill", "nan_to_num", "abs", "sign", "floor", "ceil"),
    *("round", "exp", "sqrt", "rsqrt", "sigmoid", "tanh", "log", "log1p", "expm1", "exp2", "erf", "reciprocal", "sin"),
    *("cos", "square", "neg", "isfinite", "isnan", "tril", "triu", "bucketize"),
)
_ACTIVATIONS = (
    *("gelu", "gelu", "relu", "silu", "mish", "hardswish", "hardsigmoid", "relu6", "logsigmoid", "selu", "softplus"),
    *("leaky_relu", "elu", "hardtanh", "glu"),
)
_WRITES = (
    "set_slice",
    "set_select",
    "copy_",
    "add_",
    "mul_",
    "index_put_",
    "index_copy_",
    "index_add_",
    "masked_fill_",
)

FORMS: Mapping[str, DrawnForm] = {
    "product": DrawnForm(5.0, write_product),
    "attention": DrawnForm(5.0, write_masked_attention),
    "integers": DrawnForm(4.0, write_integers, integral=True),
    "truths": DrawnForm(2.5, write_truths, integral=True),
    "reductions": DrawnForm(5.0, write_reduction, integral=True),
    "places": DrawnForm(1.5, _any_of("argmax", "argmin", "topk", "sort", "argsort"), integral=True),
    "shapes": DrawnForm(3.0, _any_of(*_SHAPES), integral=True),
    "indices": DrawnForm(2.5, _any_of(*_INDICES), integral=True),
    "elementwise": DrawnForm(4.0, _any_of(*_ELEMENTWISE, least_rank=0), integral=True),
    "activations": DrawnForm(2.0, _any_of(*_ACTIVATIONS, least_rank=0)),
    "norms": DrawnForm(2.5, _any_of("layer_norm", "rms_norm", "group_norm", "batch_norm", "normalize", "_weight_norm")),
    "softmax": DrawnForm(1.0, _any_of("softmax", "log_softmax", "logsumexp")),
    "windows": DrawnForm(2.5, write_window),
    "writes": DrawnForm(1.0, _any_of(*_WRITES)),
}
"""By name."""
_LENGTHS = {1: 1.0, 2: 3.0, 3: 3.0, 4: 2.0, 5: 1.0}
_CHAINED_SHARE = 0.6  # the share of forms that work on the result of the form before
_INTEGRAL_SHARE = 0.3  # the share of forms on integers or booleans, where a program has some
_MOST_ELEMENTS = 1 << 15
_TRIES = 4


def write_forms(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001 - a `Writer`
    """A chain of forms, the first on the value."""
    made = value
    for _ in range(c.draw(_LENGTHS)):
        of = made if made == value or c.chance(_CHAINED_SHARE) else ""
        made = next(filter(None, (_add_form(b, c, of) for _ in range(_TRIES))), made)
    require(made != value, "no form fits", Reason.NOTHING)
    return made


def _add_form(b: Builder, c: Choices, value: str) -> str:
    """Adds a form on the value, by default any. The name of the result, "" if it does not fit."""
    floats = [name for name in b.list_floats() if not name.startswith(UNSEEN)]
    form = FORMS[c.draw({name: form.weight for name, form in FORMS.items()})]
    n_inputs, n_ops = len(b.inputs), len(b.ops)
    with suppress(CaseError):
        integral = [op.name for op in b.ops if not b.is_float(op.name)]
        if not value and form.integral and integral and c.chance(_INTEGRAL_SHARE):
            value = c.pick(integral)
        require(bool(value or floats), "there is nothing to compute with")
        value = value or c.pick(floats)
        require(form.integral or b.is_float(value), "needs a floating value")
        made = form.write(b, c, value, floats)
        require(b.size(product(b.shape(made))) <= _MOST_ELEMENTS, "the result is too large", Reason.SIZE)
        return made
    b.undo(n_inputs, n_ops)
    return ""
