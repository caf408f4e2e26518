"""A case as YAML that a person can read and write, and back, unchanged.

    case_format: 1
    dims: {B: 2, S: 4, D: 8}
    mode: inference                 # or training; left out: inference
    dynamic: false                  # left out: false
    autocast: bfloat16              # or float16; left out: none
    settings: {cpp.threads: 4}      # names of generators.program.settings; left out: none
    inputs:
      q: {shape: [B, S, D], dtype: float32, values: {kind: normal, seed: 0, scale: 1.0}, layout: contiguous}
      w: {shape: [D, D], dtype: float32, values: {seed: 1}, parameter: true}
    ops:
      - {name: scores, op: matmul, args: [q, w]}
      - {name: out, op: softmax, args: [scores], dim: -1}
    returns: [out]

    an input has                       it is
    neither                            an argument of `forward`
    parameter: true                    a parameter of the module
    parameter: true, buffer: true      a buffer of the module

Values of `kind: given` are exact: `numbers`, or the `sha256` of a file (`generators.program.given`); they are `like` a
distribution. The order of inputs counts. Sizes are integers or text such as `3*H*D + 1`. Attributes of an operation
stand beside `name`, `op` and `args`. Defaults are those of `generators.program.case` and of the table of operations.

- `contracts`: mappings with the fields of `Contract`
- `calls`: mappings with the fields of `LaterCall`
- `checkpoint`: as in `Case`
- `regions`: mappings with the fields of `Region`
- `setup`, and `changes` of a call: mappings with the fields of `Change`
- `numbers`: mappings by name, with the fields of `Number`
- `around`, `around_backward`: as in `Case`
- `before`: mappings with the fields of `Earlier`; a case in it has no `case_format`
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from corpus.strict_yaml import Data, Document, dump, parse
from generators.errors import CaseError
from generators.program.case import Case, Op, TensorType, Values
from generators.program.edits import input_like
from generators.program.given import Given
from generators.program.ops import OPS, make_op
from generators.program.ops.spec import Kind
from generators.program.sizes import Size
from generators.program.type_check import check
from generators.records import Codec, RecordError, RecordForm, at, describe_data, read_mapping

_FORMAT = 1
KEYS = (*dict.fromkeys(("case_format", "dims", "mode", "dynamic", "autocast", *(one.name for one in fields(Case)))),)


def loads(content: bytes | str, origin: str = "case") -> Case:
    """The case in a text that holds nothing else. Raises CaseError: a line of text with `origin` and line number."""
    return decode(parse(content, origin))


def dumps(case: Case) -> str:
    """The case as YAML text; `loads` gives back an equal case."""
    return dump(encode(case))


def decode(document: Document, beside: tuple[str, ...] = ()) -> Case:
    """The case in a file, which may also hold the keys `beside`. Raises CaseError."""
    document.require_format("case_format", _FORMAT)
    case = document.decode(_CODEC, Case, beside=("case_format", *beside))
    try:
        check(case)
    except CaseError as error:
        field, name = error.place
        position = {op.name: index for index, op in enumerate(case.ops)}
        document.fail(str(error), (field, position.get(name, name) if field == "ops" else name))
    return case


def encode(case: Case) -> dict[str, Data]:
    """The case as data for `corpus.strict_yaml.dump`."""
    data = {"case_format": _FORMAT, **_CODEC.encode(case)}
    return {key: data[key] for key in KEYS if key in data}


@dataclass(frozen=True, slots=True)
class _OpHead:
    """The keys of an operation besides its attributes."""

    name: str
    op: str
    args: tuple[str, ...] = ()


def _read_op(data: Any) -> Op:
    """The operation in a mapping. `check` judges its name, its kind and most of its attributes."""
    head = _CODEC.decode(_OpHead, data, beside=tuple(read_mapping(data)))
    known = OPS[head.op].attributes if head.op in OPS else {}
    attrs = {}
    for key, value in data.items():
        if key not in _OpHead.__slots__:
            hint = _LISTS.get(known[key].kind) if key in known else None
            attrs[key] = value if value is None or hint is None else at(key, _CODEC.read, hint, value)
    return make_op(head.name, head.op, head.args, attrs)


def _write_op(op: Op) -> dict[str, Data]:
    args = {"args": list(op.args)} if op.args else {}
    return {"name": op.name, "op": op.kind, **args, **{key: _CODEC.encode(value) for key, value in op.attrs}}


def _read_values(data: Any) -> Values:
    """A distribution, or given values with the distribution that they are `like`; by default the plainest."""
    if read_mapping(data).get("kind") != _GIVEN:
        return _FIELDS.decode(Values, data, given=None)
    given = _FIELDS.decode(Given, data, beside=("kind", "like"))
    if "like" in data:
        like: Values = at("like", _FIELDS.decode, Values, data["like"])
        return replace(like, given=given)
    return replace(input_like("", TensorType((), given.dtype), 0).values, given=given)


def _write_values(values: Values) -> dict[str, Data]:
    like: dict[str, Data] = _FIELDS.encode(replace(values, given=None))
    return {"kind": _GIVEN, **_FIELDS.encode(values.given), "like": like} if values.given is not None else like


def _read_size(data: Any) -> Size:
    if type(data) not in (int, str):
        raise RecordError(f"expected a size such as 3*H*D, got {describe_data(data)}")
    return Size.of(data)


def _write_size(size: Size) -> Data:
    return size.constant if size.constant is not None else str(size)


_LISTS = {Kind.SIZES: tuple[Size, ...], Kind.AXES: tuple[int, ...]}
_GIVEN = "given"
_FIELDS = Codec(strict=True)
_CODEC = Codec(
    strict=True,
    forms={
        Op: RecordForm(_read_op, _write_op),
        Size: RecordForm(_read_size, _write_size),
        Values: RecordForm(_read_values, _write_values),
    },
)
