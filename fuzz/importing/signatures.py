"""How torch's functions are read as operations of cases: a table of their signatures.

Functions whose results or views depend on sizes have readers in `arithmetic`, `network` and `shapes`.
"""

from dataclasses import dataclass, replace
from enum import Enum

from generators.program.case import Attr
from generators.program.ops import OPS
from generators.program.ops.spec import OpSpec


class Role(Enum):
    """How an argument is read; the value is its mark in the table."""

    ATTRIBUTE = ""  # an attribute of the operation
    GIVEN_ATTRIBUTE = "+"  # an attribute: without it, the next signature of the function holds
    TENSOR = "!"  # a tensor: without it, the next signature of the function holds
    OPTIONAL_TENSOR = "?"  # a tensor or None
    TENSOR_OR_ATTRIBUTE = "*"
    TRUTH = "~"  # a tensor, cast to booleans
    ELSEWHERE = "-"  # the function's reader reads it


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function of torch."""

    name: str
    role: Role
    attribute: str  # of the operation
    only: Attr = None  # the only value beside None that is read

    @classmethod
    def parse(cls, word: str) -> "Parameter":
        """Of `input!`: a name and the mark of its role; `k:dim`: an attribute of another name; `n=1`: reads 1 alone."""
        plain, _, only = word.partition("=")
        role = Role(plain[-1]) if not plain[-1].isalnum() else Role.ATTRIBUTE
        name, _, attribute = plain.removesuffix(role.value).partition(":")
        return cls(name, role, attribute or name, float(only) if only else None)


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """A way to call a function, as an operation for each of its results."""

    # kinds of operations, and the attributes that the function implies
    results: tuple[tuple[str, dict[str, Attr]], ...]
    parameters: tuple[Parameter, ...]

    @classmethod
    def parse(cls, text: str) -> "FunctionSignature":
        """Of "max argmax: input! dim+": kinds and parameters. In `sort.values` the word is an attribute's value."""
        kinds, _, words = text.partition(": ")
        parsed = (word.partition(".")[::2] for word in kinds.split())
        results = tuple((kind, _find_attribute(kind, word) if word else {}) for kind, word in parsed)
        return cls(results, tuple(map(Parameter.parse, words.split())))

    @property
    def in_place(self) -> "FunctionSignature":
        return replace(self, results=tuple((f"{kind}_", attrs) for kind, attrs in self.results))


def _find_attribute(kind: str, word: str) -> dict[str, Attr]:
    return {name: word for name, attribute in OPS[kind].attributes.items() if word in attribute.words}


def _derive_parameters(spec: OpSpec) -> str:
    """The parameters of an operation of one tensor: its attributes. Of two tensors without attributes: the tensors."""
    names = [name for name in spec.attributes if name != "form"]
    return " ".join({(1, 1): ["input!", *names], (2, 2): [] if names else ["input!", "other!"]}.get(spec.arity, []))


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BITWISE = ("bitwise_{}", "__{}__", "__r{}__")
_BY_OPERATION: dict[str, str] = {
    **{kind: declared for kind, spec in OPS.items() if (declared := _derive_parameters(spec))},
    "clone": "input!",
    **dict.fromkeys(("addcmul", "addcdiv"), "input! tensor1! tensor2! value"),
    "linear": "input! weight! bias?",
    **dict.fromkeys(("mm", "bmm"), "input! mat2!"),
    "addmm": "input! mat1! mat2! beta alpha",
    "baddbmm": "input! batch1! batch2! beta alpha",
    "outer": "input! vec2!",
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "argmax", "argmin"), "input! dim keepdim dtype"),
    **dict.fromkeys(("any", "all"), "input! dim keepdim"),
    "logsumexp": "input! dim keepdim",
    **dict.fromkeys((*_COMPARISONS, "remainder", "fmod", "floor_divide"), "input! other*"),
    **dict.fromkeys((f"logical_{name}" for name in ("and", "or", "xor")), "input! other*"),
    **dict.fromkeys(("shift_left", "shift_right"), "input! other*"),
    **dict.fromkeys(("add_", "sub_"), "input! other* alpha=1"),
    **dict.fromkeys(("mul_", "div_", "pow_"), "input! other*"),
    "dropout": "input! p training-",
    "normalize": "input! p=2 dim eps=1e-12",
    "diff": "input! n=1 dim prepend?",
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
    "grid_sample": "input! grid! mode padding_mode align_corners",
    "layer_norm": "input! normalized_shape:last weight? bias? eps",
    "rms_norm": "input! normalized_shape:last weight? eps",
    "group_norm": "input! num_groups:groups weight? bias? eps",
    **{f"max_pool{n}d": "input! kernel_size:kernel stride padding dilation=1 ceil_mode" for n in (1, 2, 3)},
    **{f"avg_pool{n}d": "input! kernel_size:kernel stride padding ceil_mode count_include_pad" for n in (1, 2, 3)},
    "pad": "input! pad:sizes mode value",
    "solve_triangular": "input! B! upper left unitriangular",
    "_weight_norm": "v! g! dim",
    "polar": "abs! angle!",
    "as_strided": "input! size:sizes stride:strides storage_offset:offset",
}
"""The parameters of operations that are called as the function."""
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
    "grid_sampler": "grid_sample",
    **{f"__{name}__": name for name in _COMPARISONS},
    "__floordiv__": "floor_divide",
    **dict.fromkeys(("__lshift__", "bitwise_left_shift"), "shift_left"),
    **dict.fromkeys(("__rshift__", "bitwise_right_shift"), "shift_right"),
    **{spelling.format(name): f"logical_{name}" for name in ("and", "or", "xor") for spelling in _BITWISE},
    **{f"max_pool{n}d_with_indices": f"max_pool{n}d" for n in (1, 2, 3)},
}
_ALIASES |= {"greater": "gt", "less": "lt", "greater_equal": "ge", "less_equal": "le", "not_equal": "ne"}
_ALIASES |= {"__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_", "__ipow__": "pow_"}
_SPREAD = ("{}: input! unbiased+ dim keepdim", "{}: input! dim unbiased keepdim correction:unbiased")
_EXTREME = ("{0}imum: input! dim!", "{0}imum: input! other!", "{0} arg{0}: input! dim+ keepdim", "{0}: input! dim")
_CLAMP = ("clamp: input! min! max!", "clamp: input! min!", "clamp.max: input! min- max!", "clamp: input! min max")

_SIGNATURES = {
    **{kind: (f"{kind}: {parameters}",) for kind, parameters in _BY_OPERATION.items()},
    **{function: (f"{kind}: {_BY_OPERATION[kind]}",) for function, kind in _ALIASES.items()},
    "swapaxes": ("transpose: input! axis0:dim0 axis1:dim1",),
    "logical_not": ("logical_not: input~",),
    # The operations `logical_and` and so on are the operators; torch's functions of these names tell zeros apart.
    **{f"logical_{name}": (f"nonzero_{name}: input! other!",) for name in ("and", "or", "xor")},
    **{kind: tuple(text.format(kind) for text in _SPREAD) for kind in ("var", "std")},
    **{kind: tuple(text.format(kind) for text in _EXTREME) for kind in ("max", "min")},
    **dict.fromkeys(("clamp", "clip"), _CLAMP),
    "clamp_min": ("clamp: input! min*",),
    "clamp_max": ("clamp.max: input! max!", "clamp: input! max"),
    "scatter": ("scatter: input! dim index! src!", "scatter: input! dim index! src:value value"),
    **dict.fromkeys(("norm", "vector_norm"), ("norm: input! p- dim keepdim",)),
    "scaled_dot_product_attention": ("sdpa: query! key! value! attn_mask? dropout_p is_causal scale enable_gqa",),
    "topk": ("topk.values topk.indices: input! k dim largest sorted",),
    "sort": ("sort.values sort.indices: input! dim descending stable",),
}
_PARSED = {function: tuple(map(FunctionSignature.parse, texts)) for function, texts in _SIGNATURES.items()}
_IN_PLACE = {f"{function}_": tuple(row.in_place for row in rows) for function, rows in _PARSED.items()}
SIGNATURES = {name: rows for name, rows in _IN_PLACE.items() if all(kind in OPS for kind, _ in rows[0].results)}
SIGNATURES |= _PARSED
"""By the last part of a function's name: how it can be called. The first signature that holds is taken."""

HARMLESS = frozenset(
    ("_stacklevel", "out", "device", "layout", "pin_memory", "non_blocking", "requires_grad", "norm_type", "copy")
)
"""Parameters whose value does not change a result."""
ABSENT = (False, 0, 0.0, 1, 1.0)
"""Values of other unread parameters at which they have no effect: max_norm, inplace, momentum, alpha, padding_idx."""
