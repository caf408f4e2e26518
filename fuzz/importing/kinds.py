"""The operations that torch's functions are, and the attributes that their parameters are, where the names differ."""

from generators.program.ops import OPS

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BITWISE = ("bitwise_{}", "__{}__", "__r{}__")
_KINDS = {
    "negative": "neg",
    "absolute": "abs",
    **dict.fromkeys(("__invert__", "bitwise_not"), "logical_not"),
    "arctan2": "atan2",
    "__matmul__": "matmul",
    "__pow__": "pow",
    **dict.fromkeys(("swapdims", "swapaxes"), "transpose"),
    "broadcast_to": "expand",
    "data": "detach",
    "_grouped_mm": "grouped_mm",
    "grid_sampler": "grid_sample",
    **{f"__{name}__": name for name in _COMPARISONS},
    "__floordiv__": "floor_divide",
    **dict.fromkeys(("__lshift__", "bitwise_left_shift"), "shift_left"),
    **dict.fromkeys(("__rshift__", "bitwise_right_shift"), "shift_right"),
    **{spelling.format(name): f"logical_{name}" for name in ("and", "or", "xor") for spelling in _BITWISE},
    # The operations `logical_and` and so on are the operators; torch's functions of these names tell zeros apart.
    **{f"logical_{name}": f"nonzero_{name}" for name in ("and", "or", "xor")},
    **{f"max_pool{n}d_with_indices": f"max_pool{n}d" for n in (1, 2, 3)},
    **dict.fromkeys(("clip", "clamp_min", "clamp_max"), "clamp"),
    "vector_norm": "norm",
    "scaled_dot_product_attention": "sdpa",
}
_KINDS |= {"greater": "gt", "less": "lt", "greater_equal": "ge", "less_equal": "le", "not_equal": "ne"}
_KINDS |= {"__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_", "__ipow__": "pow_"}
_UNREAD = ("flex_attention", "index", "index_put_")
"""Operations of other arguments than the function of this name."""

ATTRIBUTES = {
    **dict.fromkeys(("size", "shape", "repeats", "dims", "pad", "output_size"), "sizes"),
    "stride": "strides",
    "storage_offset": "offset",
    "dimension": "dim",
    "axis0": "dim0",
    "axis1": "dim1",
    "kernel_size": "kernel",
    "normalized_shape": "last",
    "num_groups": "groups",
    "num_classes": "classes",
    "end": "stop",
    "n": "rows",
    "m": "columns",
    "correction": "unbiased",
    "input": "base",
    "exponent": "other",
    "src": "value",
    "p": "order",
    "ord": "order",
}
"""By parameter: the attribute that it is, of operations without one of the parameter's name."""


def find_kind(function: str) -> str:
    """The operation that is called as this function, by the last part of its name; "" without one."""
    kind = _KINDS.get(function, function)
    if kind not in OPS and function.endswith("_"):
        kind = f"{_KINDS.get(function[:-1], function[:-1])}_"
    return kind if kind in OPS and kind not in _UNREAD else ""


READABLE = frozenset(filter(find_kind, [name for plain in (*OPS, *_KINDS) for name in (plain, f"{plain}_")]))
"""The last parts of the names of functions that are an operation."""
