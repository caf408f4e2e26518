"""A case as YAML that a person can read and write, and back, unchanged.

    case_format: 1
    dims: {B: 2, S: 4, D: 8}
    mode: inference                 # or training; left out: inference
    dynamic: false                  # left out: false
    autocast: bfloat16              # or float16; left out: none
    inputs:
      q: {shape: [B, S, D], dtype: float32, values: {kind: normal, seed: 0, scale: 1.0}, layout: contiguous}
      w: {shape: [D, D], dtype: float32, values: {seed: 1}, parameter: true}
    ops:
      - {name: scores, op: matmul, args: [q, w]}
      - {name: out, op: softmax, args: [scores], dim: -1}
    returns: [out]

An input is an argument of `forward`, or with `parameter: true` a parameter of the module; order counts. Of `values`,
`layout` and `parameter` what is left out has the defaults of `generators.case`, as have an operation's attributes,
which stand beside `name`, `op` and `args`. Sizes are whole numbers or text such as `3*H*D + 1`. `contracts` lists
mappings with the fields of `generators.case.Contract`.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields

from corpus.strict_yaml import Data, Node, dump, parse
from generators.errors import CaseError
from generators.program.case import Attr, Case, Contract, Input, Op, Values
from generators.program.ops import OPS
from generators.program.ops.spec import Attribute, Kind
from generators.program.sizes import Size
from generators.program.type_check import MAX_LINES, MAX_RANK, check, make_op

FORMAT = 1
KEYS = ("case_format", "dims", "mode", "dynamic", "autocast", "inputs", "ops", "returns", "contracts")
_REQUIRED = ("case_format", "dims", "inputs", "ops", "returns")
_OPTIONAL = ("mode", "dynamic", "autocast", "contracts")
_OP_KEYS = ("name", "op", "args")
_MAX_DIMS = 32
_MAX_CONTRACTS = 32
_SPARE_RANK = 2 * MAX_RANK
"""Lists of axes and sizes may be this long; what is longer than a rank is refused where it is used."""


def loads(content: bytes | str, origin: str = "case") -> Case:
    """The case that a text holds, and nothing else beside it. Raises CaseError: one line with `origin` and line."""
    root = parse(content, origin)
    check_format(root)
    root.record(_REQUIRED, _OPTIONAL)
    return decode(root)


def dumps(case: Case) -> str:
    """The case as YAML text; `loads` gives back an equal case."""
    return dump(encode(case))


def check_format(root: Node) -> None:
    """Raises CaseError unless the file says a `case_format` that this version reads."""
    node = root.entries().get("case_format")
    if node is None:
        root.fail(f"the key 'case_format' is missing, so this is no case file; this version reads format {FORMAT}")
    if node.whole() != FORMAT:
        node.fail(f"format {node.value} is unknown; this version reads format {FORMAT}")


def decode(root: Node) -> Case:
    """The case in a parsed file; keys other than `KEYS` are not looked at. Raises CaseError."""
    check_format(root)
    entries = root.entries()
    for key in _REQUIRED:
        if key not in entries:
            root.fail(f"the key {key!r} is missing")
    case = Case(
        dims=_dims(entries["dims"]),
        inputs=tuple(_input(name, node) for name, node in entries["inputs"].entries().items()),
        ops=tuple(_op(node) for node in entries["ops"].items(MAX_LINES)),
        returns=tuple(node.text() for node in entries["returns"].items(MAX_LINES)),
        mode=entries["mode"].text() if "mode" in entries else "inference",
        dynamic="dynamic" in entries and entries["dynamic"].flag(),
        contracts=tuple(_contract(n) for n in entries["contracts"].items(_MAX_CONTRACTS))
        if "contracts" in entries
        else (),
        autocast=entries["autocast"].text() if "autocast" in entries else None,
    )
    try:
        check(case)
    except CaseError as error:
        _place(entries, case, str(error)).fail(str(error))
    return case


def _place(entries: Mapping[str, Node], case: Case, message: str) -> Node:
    """The line that a message of `check` is about: that of the input, operation or section it begins with."""
    named = re.match(r"(?:op|input|parameter|name) '([^']*)'", message)
    if named is None:
        section = {"contract": "contracts", "nothing": "returns"}.get(word := re.split(r"\W", message)[0], word)
        node = entries.get(section, entries["case_format"])
    else:
        lines = dict(zip((op.name for op in case.ops), entries["ops"].items(), strict=True))
        inputs = entries["inputs"].entries()
        first, second = (lines, inputs) if message.startswith(("op", "name")) else (inputs, lines)
        node = first.get(named[1]) or second.get(named[1]) or entries["case_format"]
    return Node(None, node.origin, node.line)


def _dims(node: Node) -> tuple[tuple[str, int], ...]:
    entries = node.entries()
    if len(entries) > _MAX_DIMS:
        node.fail(f"{len(entries)} dimensions; at most {_MAX_DIMS} are allowed")
    return tuple((name, size.whole()) for name, size in entries.items())


def _input(name: str, node: Node) -> Input:
    entries = node.record(("shape", "dtype"), ("values", "layout", "parameter"))
    return Input(
        name,
        shape=_sizes(entries["shape"]),
        dtype=entries["dtype"].text(),
        values=_values(entries["values"]) if "values" in entries else Values(),
        layout=entries["layout"].text() if "layout" in entries else "contiguous",
        parameter="parameter" in entries and entries["parameter"].flag(),
    )


def _values(node: Node) -> Values:
    entries = node.record((), ("kind", "seed", "scale"))
    return Values(
        kind=entries["kind"].text() if "kind" in entries else "normal",
        seed=entries["seed"].whole() if "seed" in entries else 0,
        scale=entries["scale"].number() if "scale" in entries else 1.0,
    )


def _op(node: Node) -> Op:
    entries = node.entries()
    for key in _OP_KEYS[:2]:
        if key not in entries:
            node.fail(f"the key {key!r} is missing")
    name, kind = entries["name"].text(), entries["op"].text()
    if kind not in OPS:
        entries["op"].fail(f"unknown operation {kind[:40]!r}")
    known = OPS[kind].attributes
    node.record(_OP_KEYS[:2], ("args", *known))
    args = tuple(a.text() for a in entries["args"].items(MAX_RANK)) if "args" in entries else ()
    attrs = {key: _attr(known[key], value) for key, value in entries.items() if key not in _OP_KEYS}
    return make_op(name, kind, args, attrs)


def _attr(attribute: Attribute, node: Node) -> Attr:
    """An attribute's value, of the type its kind wants."""
    kind = attribute.kind
    if node.value is None and attribute.default is None and not attribute.required:
        return None
    if kind is Kind.SIZE:
        return _size(node)
    if kind is Kind.SIZES:
        return _sizes(node)
    if kind is Kind.AXES:
        return tuple(axis.whole() for axis in node.items(_SPARE_RANK))
    if kind is Kind.FLAG:
        return node.flag()
    if kind in (Kind.AXIS, Kind.INT):
        return node.whole()
    if kind is Kind.NUMBER:
        return node.text() if isinstance(node.value, str) and node.value in attribute.words else node.number()
    text = node.text()
    if kind is Kind.WORD and text not in attribute.words:
        node.fail(f"{text[:40]!r} is not one of {', '.join(attribute.words)}")
    return text


def _size(node: Node) -> Size:
    if not isinstance(node.value, str):
        return (
            Size.of(node.whole())
            if isinstance(node.value, int)
            else node.fail(f"expected a size such as 3*H*D, got {node.shown()}")
        )
    try:
        return Size.parse(node.value)
    except CaseError as error:
        node.fail(str(error))


def _sizes(node: Node) -> tuple[Size, ...]:
    return tuple(_size(n) for n in node.items(_SPARE_RANK))


def _contract(node: Node) -> Contract:
    required = tuple(f.name for f in fields(Contract) if f.default is MISSING)
    optional = tuple(f.name for f in fields(Contract) if f.default is not MISSING)
    entries = node.record(required, optional)
    given: dict[str, object] = {}
    for key, value in entries.items():
        if key == "window":
            given[key] = _window(value)
        elif key in ("scale", "softcap", "fill", "dropout"):
            given[key] = value.number()
        else:
            given[key] = value.text()
    return Contract(**given)  # type: ignore[arg-type]  # each field has just been read as its type


def _window(node: Node) -> tuple[int, int]:
    sides = [side.whole() for side in node.items(2)]
    if len(sides) != 2:
        node.fail(f"expected two whole numbers, [left, right], got {len(sides)}")
    return sides[0], sides[1]


def encode(case: Case) -> dict[str, Data]:
    """The case as data for `corpus.strict_yaml.dump`."""
    data: dict[str, Data] = {"case_format": FORMAT, "dims": dict(case.dims), "mode": case.mode}
    if case.dynamic:
        data["dynamic"] = True
    if case.autocast:
        data["autocast"] = case.autocast
    data["inputs"] = {i.name: _input_data(i) for i in case.inputs}
    data["ops"] = [_op_data(o) for o in case.ops]
    data["returns"] = list(case.returns)
    if case.contracts:
        data["contracts"] = [
            {
                f.name: list(value) if isinstance(value, tuple) else value
                for f in fields(c)
                if not _is_default(value := getattr(c, f.name), f.default)
            }
            for c in case.contracts
        ]
    return data


def _input_data(item: Input) -> dict[str, Data]:
    data: dict[str, Data] = {"shape": [_size_data(s) for s in item.shape], "dtype": item.dtype}
    values: dict[str, Data] = {"kind": item.values.kind, "seed": item.values.seed}
    if not _is_default(item.values.scale, 1.0):
        values["scale"] = item.values.scale
    data["values"] = values
    if item.layout != "contiguous":
        data["layout"] = item.layout
    if item.parameter:
        data["parameter"] = True
    return data


def _op_data(op: Op) -> dict[str, Data]:
    data: dict[str, Data] = {"name": op.name, "op": op.kind}
    if op.args:
        data["args"] = list(op.args)
    return data | {key: _attr_data(value) for key, value in op.attrs}


def _attr_data(value: Attr) -> Data:
    if isinstance(value, Size):
        return _size_data(value)
    return [_size_data(v) if isinstance(v, Size) else v for v in value] if isinstance(value, tuple) else value


def _size_data(size: Size) -> Data:
    return size.constant if size.constant is not None else str(size)


def _is_default(value: object, default: object) -> bool:
    """Whether to leave a value out: 1 is not the default 1.0."""
    return type(value) is type(default) and value == default
