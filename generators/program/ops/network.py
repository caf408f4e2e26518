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
    return line.fill(f"{{0}}.{line.kind}(dim={{dim}}{keepdim})")


def _softmax(call: Call) -> TensorType:
    call.axis()
    dtype = call.attrs["dtype"]
    if dtype is None:
        return same_float(call)
    require(category(call.args[0].dtype) > 0, "softmax of booleans")
    return TensorType(call.shape, dtype)


def _softmax_text(line: Line) -> str:
    dtype = "" if line.attrs["dtype"] is None else ", dtype=torch.{dtype}"
    return spec.spell(line.attrs["form"], line.kind, line.args[0], line.fill("dim={dim}" + dtype))


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


_DIM = {"dim": Attribute(Kind.AXIS, -1)}
_REDUCE = {**_DIM, "keepdim": flag()}
_SOFTMAX = {**_DIM, "dtype": Attribute(Kind.WORD, None, FLOATS), "form": word("method", "functional", "torch")}
_EPS = {"eps": Attribute(Kind.NUMBER)}
_DROPOUT = {
    "p": Attribute(Kind.NUMBER, 0.0),
    "active": word("mode", "always", "never"),
    "form": word("functional", "torch", "module"),
}

OPS = [
    *(OpSpec(kind, (1, 1), _reduce, _reduction_text, _REDUCE) for kind in ("sum", "mean", "amax", "logsumexp")),
    OpSpec("softmax", (1, 1), _softmax, _softmax_text, _SOFTMAX),
    OpSpec("log_softmax", (1, 1), _softmax, _softmax_text, _SOFTMAX, cost=2),
    OpSpec("layer_norm", (1, 3), _norm, _norm_text, _EPS, cost=2),
    OpSpec("rms_norm", (1, 2), _norm, _norm_text, _EPS, cost=2),
    spec.function("F.embedding", (2, 2), _embedding),
    OpSpec("dropout", (1, 1), _dropout, _dropout_text, _DROPOUT, owns_memory=False, init=_dropout_module, random=True),
]
