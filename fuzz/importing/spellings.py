"""How calls of torch's functions are read as operations of cases: a row for each function with fixed parameters.

Functions that take sizes, indices or several forms have readers in `arithmetic`, `network` and `shapes`.
"""

from generators.program.ops import OPS
from generators.program.ops.spec import OpSpec


def _derive_parameters(spec: OpSpec) -> str:
    """The parameters of an operation of one tensor: its attributes. Of two tensors without attributes: those two."""
    names = [name for name in spec.attributes if name != "form"]
    return " ".join({(1, 1): ["input!", *names], (2, 2): [] if names else ["input!", "other!"]}.get(spec.arity, []))


_PARAMETERS = {
    **{kind: declared for kind, spec in OPS.items() if (declared := _derive_parameters(spec))},
    "clone": "input!",
    **dict.fromkeys(("addcmul", "addcdiv"), "input! tensor1! tensor2! value"),
    "linear": "input! weight! bias?",
    **dict.fromkeys(("mm", "bmm"), "input! mat2!"),
    "addmm": "input! mat1! mat2! beta alpha",
    "baddbmm": "input! batch1! batch2! beta alpha",
    "outer": "input! vec2!",
    "logsumexp": "input! dim keepdim",
    "dropout": "input! p training:active",
    "unfold": "input! dimension:dim size step",
    "masked_fill": "input! mask! value",
    "masked_scatter_": "input! mask! source!",
    **dict.fromkeys(("index_copy_", "index_add"), "input! dim index! source!"),
    "copy_": "input! src!",
    "lerp": "input! end! weight*",
    "pow": "input:base* exponent*",
    **dict.fromkeys(("gather", "index_select"), "input! dim index!"),
    "scatter_add": "input! dim index! src!",
    "scatter_reduce": "input! dim index! src! reduce include_self",
    "bucketize": "input! boundaries! right",
    "grouped_mm": "input! mat2! offs!",
    "group_norm": "input! num_groups:groups weight? bias? eps",
    "pad": "input! pad:sizes mode value",
    "solve_triangular": "input! B! upper left unitriangular",
    "_weight_norm": "v! g! dim",
    "polar": "abs! angle!",
    "as_strided": "input! size:sizes stride:strides storage_offset:offset",
}
"""By operation, which is called as the function: `input!` is a tensor, `bias?` a tensor or None, `dim` an attribute,
`k:dim` an attribute of another name, `weight*` a tensor or an attribute."""
_ALIASES = {
    "negative": "neg",
    "absolute": "abs",
    **dict.fromkeys(("__invert__", "bitwise_not"), "logical_not"),
    "arctan2": "atan2",
    "__matmul__": "matmul",
    "__pow__": "pow",
    "swapdims": "transpose",
    "data": "detach",
    "_grouped_mm": "grouped_mm",
}

_SPELLINGS = {kind: (kind, parameters) for kind, parameters in _PARAMETERS.items()}
_SPELLINGS |= {function: (kind, _PARAMETERS[kind]) for function, kind in _ALIASES.items()}
_SPELLINGS |= {"swapaxes": ("transpose", "input! axis0:dim0 axis1:dim1")}
_IN_PLACE = {f"{function}_": (f"{kind}_", words) for function, (kind, words) in _SPELLINGS.items()}
SPELLINGS = {function: row for function, row in _IN_PLACE.items() if row[0] in OPS} | _SPELLINGS
"""The operation and its parameters, by the last part of the function's name."""

HARMLESS = frozenset(
    ("_stacklevel", "out", "device", "layout", "pin_memory", "non_blocking", "requires_grad", "norm_type", "copy")
)
"""Parameters whose value does not change a result."""
ABSENT = (False, 0, 0.0, 1, 1.0)
"""Values of other unread parameters at which they have no effect: max_norm, inplace, momentum, alpha, padding_idx."""
