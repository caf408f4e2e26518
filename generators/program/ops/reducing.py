"""Operations that combine along an axis: sums, extremes, the softmax family."""

from collections.abc import Callable

from generators.errors import CaseError
from generators.program.case import TensorType
from generators.program.dtypes import FLOATS, category
from generators.program.ops.spec import Attribute, Call, Kind, Line, OpSpec, flag, must_float, spell, word
from generators.program.sizes import Size


def _reduced(call: Call) -> TensorType:
    must_float(call)
    shape, axis = call.args[0].shape, call.axis()
    kept = (Size.of(1),) if call.attrs["keepdim"] else ()
    return TensorType((*shape[:axis], *kept, *shape[axis + 1 :]), call.args[0].dtype)


def _along_axis(call: Call) -> TensorType:
    must_float(call)
    call.axis()
    return call.args[0]


def _method(name: str, suffix: str = "") -> Callable[[Line], str]:
    def text(line: Line) -> str:
        keepdim = ", keepdim=True" if line.attrs["keepdim"] else ""
        return f"{line.args[0]}.{name}(dim={line.attrs['dim']}{keepdim}){suffix}"

    return text


def _softmax(call: Call) -> TensorType:
    call.axis()
    dtype = call.attrs["dtype"]
    if dtype is None:
        must_float(call)
        return call.args[0]
    if category(call.args[0].dtype) == 0:
        raise CaseError("softmax of booleans")
    return TensorType(call.args[0].shape, str(dtype))


def _softmax_text(name: str) -> Callable[[Line], str]:
    def text(line: Line) -> str:
        dtype = "" if line.attrs["dtype"] is None else f", dtype={line.dtype()}"
        axis = f"dim={line.attrs['dim']}"
        form = str(line.attrs["form"])
        return (
            f"self.{line.name}({line.args[0]})" if form == "module" else spell(form, name, line.args[0], axis + dtype)
        )

    return text


def _softmax_module(name: str) -> Callable[[Line], str | None]:
    def init(line: Line) -> str | None:
        return f"nn.{name}(dim={line.attrs['dim']})" if line.attrs["form"] == "module" else None

    return init


_DIM = Attribute(Kind.AXIS, -1)
_REDUCE = {"dim": _DIM, "keepdim": flag()}
_SOFTMAX = {
    "dim": _DIM,
    "dtype": Attribute(Kind.WORD, None, FLOATS),
    "form": word("method", "functional", "torch", "module"),
}

OPS = [
    *(OpSpec(name, (1, 1), _reduced, _method(name), _REDUCE) for name in ("sum", "mean", "amax", "logsumexp")),
    OpSpec("max", (1, 1), _reduced, _method("max", "[0]"), _REDUCE, cost=2),
    OpSpec(
        "cumsum", (1, 1), _along_axis, lambda line: f"{line.args[0]}.cumsum(dim={line.attrs['dim']})", {"dim": _DIM}
    ),
    OpSpec(
        "normalize",
        (1, 1),
        _along_axis,
        lambda line: f"F.normalize({line.args[0]}, dim={line.attrs['dim']})",
        {"dim": _DIM},
        cost=3,
    ),
    OpSpec("softmax", (1, 1), _softmax, _softmax_text("softmax"), _SOFTMAX, init=_softmax_module("Softmax")),
    OpSpec(
        "log_softmax",
        (1, 1),
        _softmax,
        _softmax_text("log_softmax"),
        _SOFTMAX,
        init=_softmax_module("LogSoftmax"),
        cost=2,
    ),
]
