"""Tensors a module makes for itself: constants, ranges, masks."""

from generators.errors import require
from generators.program.case import TensorType
from generators.program.dtypes import DTYPES
from generators.program.ops.spec import Attribute, Call, Kind, Line, OpSpec
from generators.program.sizes import Size


def _create(call: Call) -> TensorType:
    sizes = call.attrs["sizes"]
    require(all(s.value(call.dims) >= 0 for s in sizes), "a size is negative")
    return TensorType(sizes, call.attrs["dtype"])


def _write_creation(line: Line) -> str:
    shape = "({sizes},)" if len(line.attrs["sizes"]) == 1 else "({sizes})"
    value = ", {value}" if "value" in line.attrs else ""
    return line.fill(f"torch.{line.kind}({shape}{value}, dtype=torch.{{dtype}}, device={{device}})")


def _triangle(call: Call) -> TensorType:
    require(call.args[0].rank >= 2, "needs at least two axes")
    return call.args[0]


def _triangle_text(line: Line) -> str:
    return line.fill(f"{{0}}.{line.kind}({'' if line.attrs['diagonal'] == _ZERO else '{diagonal}'})")


def _arange(call: Call) -> TensorType:
    length = call.attrs["stop"] - call.attrs["start"]
    require(length.value(call.dims) >= 0, "a size is negative")
    return TensorType((length,), call.attrs["dtype"])


def _arange_text(line: Line) -> str:
    start = "" if line.attrs["start"] == _ZERO else "{start}, "
    return line.fill(f"torch.arange({start}{{stop}}, dtype=torch.{{dtype}}, device={{device}})")


_ZERO = Size.of(0)
_SIZE = Attribute(Kind.SIZE, required=True)
_FLOAT, _INT, _BOOL = (Attribute(Kind.WORD, dtype, DTYPES) for dtype in ("float32", "int64", "bool"))
_FULL = {"sizes": Attribute(Kind.SIZES, ()), "value": Attribute(Kind.NUMBER, 1.0, ("min",)), "dtype": _FLOAT}
_FILLED = {"sizes": Attribute(Kind.SIZES, required=True), "dtype": _BOOL}
_RANGE = {"start": Attribute(Kind.SIZE, _ZERO), "stop": _SIZE, "dtype": _INT}

OPS = [
    OpSpec(
        "scalar",
        (0, 0),
        lambda call: TensorType((), call.attrs["dtype"]),
        "torch.tensor({value}, dtype=torch.{dtype}, device={device})",
        {"value": Attribute(Kind.NUMBER, 1.0), "dtype": _FLOAT},
    ),
    OpSpec("full", (0, 0), _create, _write_creation, _FULL),
    *(OpSpec(kind, (0, 0), _create, _write_creation, _FILLED) for kind in ("ones", "zeros")),
    *(OpSpec(kind, (1, 1), _triangle, _triangle_text, {"diagonal": _RANGE["start"]}) for kind in ("tril", "triu")),
    OpSpec("arange", (0, 0), _arange, _arange_text, _RANGE),
]
