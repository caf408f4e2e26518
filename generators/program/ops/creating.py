"""Tensors a module makes for itself: constants, ranges, masks."""

from generators.errors import CaseError
from generators.program.case import TensorType
from generators.program.dtypes import DTYPES
from generators.program.ops.spec import Attribute, Call, Kind, Line, OpSpec
from generators.program.sizes import Size

_DTYPE = Attribute(Kind.WORD, "float32", DTYPES)
_BOOL = Attribute(Kind.WORD, "bool", DTYPES)


def _infer_created(call: Call) -> TensorType:
    sizes = call.sizes("sizes")
    if any(s.value(call.dims) < 0 for s in sizes):
        raise CaseError("a size is negative")
    return TensorType(sizes, call.text("dtype"))


def _sizes_text(line: Line) -> str:
    value = line.attrs["sizes"]
    assert isinstance(value, tuple)
    return f"({line.sizes('sizes')}{',' if len(value) == 1 else ''})"


def _full_text(line: Line) -> str:
    value = line.number("value") if line.attrs["value"] != "min" else f"torch.finfo({line.dtype()}).min"
    return f"torch.full({_sizes_text(line)}, {value}, dtype={line.dtype()}, device={line.device})"


def _spec_filled_like(name: str) -> OpSpec:
    return OpSpec(
        name,
        (0, 0),
        _infer_created,
        lambda line: f"torch.{name}({_sizes_text(line)}, dtype={line.dtype()}, device={line.device})",
        {"sizes": Attribute(Kind.SIZES, required=True), "dtype": _BOOL},
    )


def _triangle(name: str) -> OpSpec:
    def infer(call: Call) -> TensorType:
        if call.args[0].rank < 2:
            raise CaseError("needs at least two axes")
        return call.args[0]

    def emit(line: Line) -> str:
        diagonal = line.attrs["diagonal"]
        return f"{line.args[0]}.{name}({'' if diagonal == Size.of(0) else diagonal})"

    return OpSpec(name, (1, 1), infer, emit, {"diagonal": Attribute(Kind.SIZE, Size.of(0))})


def _arange(call: Call) -> TensorType:
    length = call.size("stop") - call.size("start")
    if length.value(call.dims) < 0:
        raise CaseError("a size is negative")
    return TensorType((length,), call.text("dtype"))


def _arange_text(line: Line) -> str:
    start = "" if line.attrs["start"] == Size.of(0) else f"{line.attrs['start']}, "
    return f"torch.arange({start}{line.attrs['stop']}, dtype={line.dtype()}, device={line.device})"


OPS = [
    OpSpec(
        "scalar",
        (0, 0),
        lambda call: TensorType((), call.text("dtype")),
        lambda line: f"torch.tensor({line.number('value')}, dtype={line.dtype()}, device={line.device})",
        {"value": Attribute(Kind.NUMBER, 1.0), "dtype": _DTYPE},
    ),
    OpSpec(
        "full",
        (0, 0),
        _infer_created,
        _full_text,
        {"sizes": Attribute(Kind.SIZES, ()), "value": Attribute(Kind.NUMBER, 1.0, ("min",)), "dtype": _DTYPE},
    ),
    _spec_filled_like("ones"),
    _spec_filled_like("zeros"),
    _triangle("tril"),
    _triangle("triu"),
    OpSpec(
        "arange",
        (0, 0),
        _arange,
        _arange_text,
        {
            "start": Attribute(Kind.SIZE, Size.of(0)),
            "stop": Attribute(Kind.SIZE, required=True),
            "dtype": Attribute(Kind.WORD, "int64", DTYPES),
        },
    ),
]
