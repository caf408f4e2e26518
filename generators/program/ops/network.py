"""What works along an axis, sums, softmax and norms, and the other layers: embedding, dropout."""

from generators.errors import require
from generators.program.case import TensorType
from generators.program.dtypes import FLOATS, category
from generators.program.ops import spec
from generators.program.ops.spec import Attribute, Call, Kind, Line, OpSpec, flag, must_equal, same_float, word
from generators.program.sizes import Size


def _reduce(call: Call) -> TensorType:
    same_float(call)
    axis = call.axis()
    kept = (Size.of(1),) if call.attrs["keepdim"] else ()
    return call.reshape(*call.shape[:axis], *kept, *call.shape[axis + 1 :])


def _reduction_text(line: Line) -> str:
    keepdim = ", keepdim=True" if line.attrs["keepdim"] else ""
    correction = ", correction={correction}" if line.attrs.get("correction", 1) != 1 else ""
    return line.fill(f"{{0}}.{line.kind}(dim={{dim}}{correction}{keepdim}){'[0]' if line.kind == 'max' else ''}")


def _along_axis(call: Call) -> TensorType:
    same_float(call)
    call.axis()
    return call.args[0]


def _ordered(call: Call) -> TensorType:
    """Values or their indices; `k`: so many of the largest."""
    axis, shape = call.axis(), list(call.shape)
    require(category(call.args[0].dtype) > 0, "booleans have no order")
    if "k" in call.attrs:
        count, size = call.value("k"), shape[axis].value(call.dims)
        require(0 <= count <= size, f"k is {count}, of {size} elements")
        shape[axis] = call.attrs["k"]
    return TensorType(tuple(shape), call.args[0].dtype if call.attrs["gives"] == "values" else "int64")


def _ordered_text(line: Line) -> str:
    words = line.options(*(name for name in line.attrs if name != "gives"))
    return f"{line.args[0]}.{line.kind}({', '.join(words)})[{0 if line.attrs['gives'] == 'values' else 1}]"


def _rotate(call: Call) -> TensorType:
    x, angles = call.args
    same_float(call)
    require(x.rank >= 1 and angles.rank >= 1 and angles.dtype == "float32", "needs axes, and angles in float32")
    must_equal(x.shape[-1], angles.shape[-1] * 2, call.dims, "twice the number of angles")
    spec.must_broadcast(angles.shape[:-1], x.shape[:-1], call.dims, "angles")
    return x


def _softmax(call: Call) -> TensorType:
    call.axis()
    dtype = call.attrs["dtype"]
    if dtype is None:
        return same_float(call)
    require(category(call.args[0].dtype) > 0, "softmax of booleans")
    return TensorType(call.shape, dtype)


def _softmax_text(line: Line) -> str:
    if line.attrs["form"] == "module":
        return f"self.{line.name}({line.args[0]})"
    dtype = "" if line.attrs["dtype"] is None else ", dtype=torch.{dtype}"
    return spec.spell(line.attrs["form"], line.kind, line.args[0], line.fill("dim={dim}" + dtype))


def _softmax_module(line: Line) -> str | None:
    name = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[line.kind]
    return f"nn.{name}(dim={line.attrs['dim']})" if line.attrs["form"] == "module" else None


def _norm(call: Call) -> TensorType:
    x, *affine = call.args
    same_float(call)
    require(x.rank >= 1, "needs an axis to normalise over")
    for weight in affine:
        # What autocast makes of a product is normalised with weights that stay in float32.
        fits = weight.rank == 1 and weight.dtype in (x.dtype, "float32" if call.autocast else x.dtype)
        require(fits, f"needs weights of one axis and dtype {x.dtype}")
        must_equal(weight.shape[0], x.shape[-1], call.dims, "normalised size")
    return x


def _norm_text(line: Line) -> str:
    x, *affine = line.args
    words = [x, f"({line.types[0].shape[-1]},)", *affine, *line.options("eps")]
    return f"F.{line.kind}({', '.join(words)})"


def _embedding(call: Call) -> TensorType:
    tokens, table = call.args
    fits = tokens.dtype in ("int64", "int32") and table.rank == 2
    require(fits, "needs int64 or int32 tokens and a table of two axes")
    return TensorType((*tokens.shape, table.shape[1]), table.dtype)


def _dropout(call: Call) -> TensorType:
    same_float(call)
    call.check_probability("p")
    return call.args[0]


def _dropout_text(line: Line) -> str:
    if line.attrs["form"] == "module":
        return f"self.{line.name}({line.args[0]})"
    when = {"mode": "self.training", "always": "True", "never": "False"}[line.attrs["active"]]
    return spec.spell(line.attrs["form"], "dropout", line.args[0], line.text("p"), when)


def _dropout_module(line: Line) -> str | None:
    return f"nn.Dropout({line.attrs['p']})" if line.attrs["form"] == "module" else None


_PAIRS = "torch.view_as_complex({0}.float().unflatten(-1, (-1, 2)))"
_ROTATE = f"torch.view_as_real({_PAIRS} * torch.polar(torch.ones_like({{1}}), {{1}})).flatten(-2).type_as({{0}})"
"""Rotary positions as complex numbers: neighbours on the last axis are a pair, of one of the head_dim / 2 angles."""
_DIM = {"dim": Attribute(Kind.AXIS, -1)}
_REDUCE = {**_DIM, "keepdim": flag()}
_SPREAD = {**_REDUCE, "correction": Attribute(Kind.INT, 1)}
_SORT = {**_DIM, "descending": flag(), "gives": word("values", "indices")}
_TOP = {"k": Attribute(Kind.SIZE, required=True), **_DIM, "gives": _SORT["gives"]}
_SOFTMAX = {
    **_DIM,
    "dtype": Attribute(Kind.WORD, None, FLOATS),
    "form": word("method", "functional", "torch", "module"),
}
_EPS = {"eps": Attribute(Kind.NUMBER)}
_DROPOUT = {
    "p": Attribute(Kind.NUMBER, 0.0),
    "active": word("mode", "always", "never"),
    "form": word("functional", "torch", "module"),
}

OPS = [
    *(OpSpec(kind, (1, 1), _reduce, _reduction_text, _REDUCE) for kind in ("sum", "mean", "amax", "logsumexp")),
    OpSpec("max", (1, 1), _reduce, _reduction_text, _REDUCE, cost=2),
    *(OpSpec(kind, (1, 1), _reduce, _reduction_text, _SPREAD) for kind in ("var", "std")),
    *(OpSpec(kind, (1, 1), _along_axis, f"{{0}}.{kind}(dim={{dim}})", _DIM) for kind in ("cumsum", "cumprod")),
    OpSpec("sort", (1, 1), _ordered, _ordered_text, _SORT, cost=2),
    OpSpec("topk", (1, 1), _ordered, _ordered_text, _TOP, cost=2),
    OpSpec("normalize", (1, 1), _along_axis, "F.normalize({0}, dim={dim})", _DIM, cost=3),
    OpSpec("softmax", (1, 1), _softmax, _softmax_text, _SOFTMAX, init=_softmax_module),
    OpSpec("log_softmax", (1, 1), _softmax, _softmax_text, _SOFTMAX, init=_softmax_module, cost=2),
    OpSpec("layer_norm", (1, 3), _norm, _norm_text, _EPS, cost=2),
    OpSpec("rms_norm", (1, 2), _norm, _norm_text, _EPS, cost=2),
    spec.function("F.embedding", (2, 2), _embedding),
    OpSpec("rotate_complex", (2, 2), _rotate, _ROTATE, cost=4),
    OpSpec("dropout", (1, 1), _dropout, _dropout_text, _DROPOUT, owns_memory=False, init=_dropout_module, random=True),
]
