"""How calls of torch's functions are read as operations of cases: a row for each function with fixed parameters.

Functions that take sizes, indices or several forms have readers in `arithmetic`, `network` and `shapes`.
"""

from dataclasses import dataclass, field

from generators.program.case import Attr


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a torch function. `attribute`: of the operation; "" for a tensor."""

    name: str
    attribute: str = ""
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Spelling:
    """A function whose parameters are tensors and attributes. `fixed`: attributes that every call has."""

    kind: str
    parameters: tuple[Parameter, ...]
    fixed: dict[str, Attr] = field(default_factory=dict)


def _read(kind: str, parameters: str, **fixed: Attr) -> Spelling:
    """The spelling from words: `input!` is a tensor, `bias?` a tensor or None, `dim` an attribute, `k:dim` renamed."""
    parts = []
    for word in parameters.split():
        name, _, attribute = word.rstrip("!?").partition(":")
        parts.append(Parameter(name, "" if word[-1] in "!?" else attribute or name, word.endswith("?")))
    return Spelling(kind, tuple(parts), fixed)


_BINARY = "input! other!"
_UNARY = (
    *("exp", "sqrt", "rsqrt", "sigmoid", "tanh", "log", "sin", "cos", "square", "abs", "neg", "detach", "contiguous"),
    *(
        "sign",
        "floor",
        "ceil",
        "round",
        "reciprocal",
        "exp2",
        "erf",
        "log1p",
        "log2",
        "acos",
        "isnan",
        "isinf",
        "isfinite",
    ),
)
_IN_PLACE = (
    *("exp", "sqrt", "rsqrt", "sigmoid", "tanh", "log", "sin", "cos", "square", "reciprocal", "erf", "neg", "abs"),
    *("sign", "floor", "ceil", "round", "zero", "relu", "selu"),
)
_ACTIVATIONS = ("relu", "silu", "mish", "hardswish", "hardsigmoid", "relu6", "logsigmoid", "selu", "expm1")

SPELLINGS: dict[str, Spelling] = {
    **{name: _read(name, "input!") for name in (*_UNARY, *_ACTIVATIONS)},
    **{f"{name}_": _read(f"{name}_", "input!") for name in _IN_PLACE},
    "negative": _read("neg", "input!"),
    "absolute": _read("abs", "input!"),
    "__invert__": _read("logical_not", "input!"),
    "logical_not": _read("logical_not", "input!"),
    "bitwise_not": _read("logical_not", "input!"),
    **dict.fromkeys(("atan2", "arctan2"), _read("atan2", _BINARY)),
    "addcmul": _read("addcmul", "input! tensor1! tensor2! value"),
    "addcdiv": _read("addcdiv", "input! tensor1! tensor2! value"),
    "nan_to_num": _read("nan_to_num", "input! nan posinf neginf"),
    "nan_to_num_": _read("nan_to_num_", "input! nan posinf neginf"),
    "fill_": _read("fill_", "input! value"),
    "maximum": _read("maximum", _BINARY),
    "minimum": _read("minimum", _BINARY),
    "gelu": _read("gelu", "input! approximate"),
    "softplus": _read("softplus", "input! beta threshold"),
    "leaky_relu": _read("leaky_relu", "input! negative_slope"),
    "elu": _read("elu", "input! alpha"),
    "hardtanh": _read("hardtanh", "input! min_val max_val"),
    "leaky_relu_": _read("leaky_relu_", "input! negative_slope"),
    "elu_": _read("elu_", "input! alpha"),
    "hardtanh_": _read("hardtanh_", "input! min_val max_val"),
    "glu": _read("glu", "input! dim"),
    "linear": _read("linear", "input! weight! bias?"),
    "matmul": _read("matmul", _BINARY),
    "__matmul__": _read("matmul", _BINARY),
    "mm": _read("mm", "input! mat2!"),
    "bmm": _read("bmm", "input! mat2!"),
    "addmm": _read("addmm", "input! mat1! mat2! beta alpha"),
    "baddbmm": _read("baddbmm", "input! batch1! batch2! beta alpha"),
    "outer": _read("outer", "input! vec2!"),
    "softmax": _read("softmax", "input! dim dtype"),
    "log_softmax": _read("log_softmax", "input! dim dtype"),
    "logsumexp": _read("logsumexp", "input! dim keepdim"),
    "cumsum": _read("cumsum", "input! dim dtype"),
    "argsort": _read("argsort", "input! dim descending stable"),
    "embedding": _read("embedding", "input! weight!"),
    "dropout": _read("dropout", "input! p training:active"),
    "transpose": _read("transpose", "input! dim0 dim1"),
    "swapaxes": _read("transpose", "input! axis0:dim0 axis1:dim1"),
    "swapdims": _read("transpose", "input! dim0 dim1"),
    "mT": _read("mT", "input!"),
    "data": _read("detach", "input!"),
    "flatten": _read("flatten", "input! start_dim end_dim"),
    "unsqueeze": _read("unsqueeze", "input! dim"),
    "squeeze": _read("squeeze", "input! dim"),
    "select": _read("select", "input! dim index"),
    "expand_as": _read("expand_as", _BINARY),
    "type_as": _read("type_as", _BINARY),
    "unfold": _read("unfold", "input! dimension:dim size step"),
    "tril": _read("tril", "input! diagonal"),
    "triu": _read("triu", "input! diagonal"),
    "masked_fill": _read("masked_fill", "input! mask! value"),
    "masked_fill_": _read("masked_fill_", "input! mask! value"),
    "masked_scatter_": _read("masked_scatter_", "input! mask! source!"),
    "index_copy_": _read("index_copy_", "input! dim index! source!"),
    "index_add_": _read("index_add_", "input! dim index! source!"),
    "copy_": _read("copy_", "input! src!"),
    "lerp_": _read("lerp_", "input! end! weight"),
    "gather": _read("gather", "input! dim index!"),
    "scatter_add": _read("scatter_add", "input! dim index! src!"),
    "scatter_add_": _read("scatter_add_", "input! dim index! src!"),
    "index_select": _read("index_select", "input! dim index!"),
    "clone": _read("clone", "input!"),
    "bucketize": _read("bucketize", "input! boundaries! right"),
    "index_add": _read("index_add", "input! dim index! source!"),
    "histc": _read("histc", "input! bins min max"),
    **dict.fromkeys(("grouped_mm", "_grouped_mm"), _read("grouped_mm", "input! mat2! offs!")),
    "solve_triangular": _read("solve_triangular", "input! B! upper left unitriangular"),
    "_weight_norm": _read("_weight_norm", "v! g! dim"),
    "view_as_complex": _read("view_as_complex", "input!"),
    "view_as_real": _read("view_as_real", "input!"),
    "polar": _read("polar", "abs! angle!"),
    "as_strided": _read("as_strided", "input! size:sizes stride:strides storage_offset:offset"),
    "roll": _read("roll", "input! shifts dims"),
}
"""By the last part of the function's name."""

HARMLESS = frozenset(
    ("_stacklevel", "out", "device", "layout", "pin_memory", "non_blocking", "requires_grad", "norm_type", "copy")
)
"""Parameters whose value does not change a result."""
ABSENT = (False, 0, 0.0, 1, 1.0)
"""Values of other unread parameters at which they have no effect: max_norm, inplace, momentum, alpha, padding_idx."""
