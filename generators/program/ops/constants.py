"""Constants that a module makes: filled tensors, ranges, and the identity matrix."""

import math

from generators.errors import require
from generators.program.ops.rules import count_steps, given_dtype, own_or_given_dtype
from generators.program.ops.spec import Attribute, Kind, Line, Operands, OpSpec
from generators.program.sizes import Size
from generators.program.values import DTYPES, FLOATS, category


def _sizes(call: Operands) -> tuple[Size, ...]:
    return tuple(call.attrs["sizes"])


def _range(call: Operands) -> tuple[Size]:
    start, stop, step = (call.attrs[name] for name in ("start", "stop", "step"))
    first, last = (bound.value(call.dims) if isinstance(bound, Size) else bound for bound in (start, stop))
    fits = math.isfinite(last - first) and 0 < abs(step) < math.inf and (last - first) * step >= 0
    require(fits, f"no range from {start} to {stop} at steps of {step}")
    if all(isinstance(number, Size | int) for number in (start, stop, step)):
        return (count_steps(call, start, stop, step),)
    require(category(call.attrs["dtype"]) == 2, "a range of fractions needs a floating dtype")
    return (Size.of(math.ceil((last - first) / step)),)


def _write_creation(line: Line) -> str:
    attrs, words = line.attrs, [*line.args]
    if "sizes" in attrs:
        words = [f"({line.text('sizes')}{',' * (len(attrs['sizes']) == 1)})"]
    given = (name for name in ("rows", "columns", "start", "stop", "steps", "value") if attrs.get(name) is not None)
    words += map(line.text, given)
    words += [f"dtype=torch.{attrs['dtype']}"] if attrs["dtype"] else []
    words += [] if line.args else [f"device={line.device}"]
    return f"{line.args[0] if line.kind.startswith('new_') else 'torch'}.{line.kind}({', '.join(words)})"


def _arange_text(line: Line) -> str:
    step = "" if line.attrs["step"] == 1 else ", {step}"
    start = "" if line.attrs["start"] == Size.of(0) and not step else "{start}, "
    return line.fill(f"torch.arange({start}{{stop}}{step}, dtype=torch.{{dtype}}, device={{device}})")


_FLOAT, _INT, _BOOL = (Attribute(Kind.WORD, dtype, DTYPES) for dtype in ("float32", "int64", "bool"))
_SCALAR = "torch.tensor({value}, dtype=torch.{dtype}, device={device})"
_SIZE, _SIZES = Attribute(Kind.SIZE, required=True), {"sizes": Attribute(Kind.SIZES, required=True)}
_NUMBER = {"value": Attribute(Kind.NUMBER, 1.0), "dtype": _FLOAT}
_FULL = {"sizes": Attribute(Kind.SIZES, ()), "value": Attribute(Kind.NUMBER, 1.0, ("min",)), "dtype": _FLOAT}
_FILLED = {**_SIZES, "dtype": _BOOL}
_DTYPE = {"dtype": Attribute(Kind.WORD, None, DTYPES)}
_VALUE = {"value": _NUMBER["value"], **_DTYPE}
_RANGE = {"start": Attribute(Kind.BOUND, Size.of(0)), "stop": Attribute(Kind.BOUND, required=True)}
_RANGE |= {"step": Attribute(Kind.NUMBER, 1), "dtype": _INT}
_GRID = {"start": Attribute(Kind.NUMBER, 0), "stop": Attribute(Kind.NUMBER, 1), "steps": _SIZE}
_GRID |= {"dtype": Attribute(Kind.WORD, "float32", FLOATS)}
_EYE = {"rows": _SIZE, "columns": Attribute(Kind.SIZE), "dtype": _FLOAT}

OPS = [
    OpSpec("scalar", lambda _: (), given_dtype, text=_SCALAR, attributes=_NUMBER, arity=(0, 0), saves=False),
    OpSpec(
        "numbers",
        lambda call: (Size.of(len(call.attrs["values"])),),
        given_dtype,
        text="torch.tensor([{values}], dtype=torch.{dtype}, device={device})",
        attributes={"values": Attribute(Kind.AXES, required=True), "dtype": _INT},
        arity=(0, 0),
        saves=False,
    ),
    *(
        OpSpec(kind, shape, given_dtype, text=_write_creation, attributes=attributes, arity=(0, 0), saves=False)
        for kind, shape, attributes in (
            *(("full", _sizes, _FULL), ("ones", _sizes, _FILLED), ("zeros", _sizes, _FILLED)),
            ("linspace", lambda call: (call.attrs["steps"],), _GRID),
            ("eye", lambda call: (call.attrs["rows"], call.attrs["columns"] or call.attrs["rows"]), _EYE),
        )
    ),
    *(
        OpSpec(f"{kind}_like", dtype=own_or_given_dtype, text=_write_creation, attributes=attributes, saves=False)
        for kind, attributes in (("full", _VALUE), ("ones", _DTYPE), ("zeros", _DTYPE))
    ),
    *(
        OpSpec(f"new_{kind}", _sizes, own_or_given_dtype, text=_write_creation, attributes=attributes, saves=False)
        for kind, attributes in (("full", _SIZES | _VALUE), ("ones", _SIZES | _DTYPE), ("zeros", _SIZES | _DTYPE))
    ),
    OpSpec("arange", _range, given_dtype, text=_arange_text, attributes=_RANGE, arity=(0, 0), saves=False),
]
