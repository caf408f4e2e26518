"""A case as YAML that a person can read and write, and back, unchanged.

    case_format: 1
    dims: {B: 2, S: 4, D: 8}
    mode: inference                 # or training; left out: inference
    dynamic: false                  # left out: false
    autocast: bfloat16              # or float16; left out: none
    settings: {cpp.threads: 4}      # of generators.program.settings; left out: none
    inputs:
      q: {shape: [B, S, D], dtype: float32, values: {kind: normal, seed: 0, scale: 1.0}, layout: contiguous}
      w: {shape: [D, D], dtype: float32, values: {seed: 1}, parameter: true}
    ops:
      - {name: scores, op: matmul, args: [q, w]}
      - {name: out, op: softmax, args: [scores], dim: -1}
    returns: [out]

An input is an argument of `forward`, or with `parameter: true` a parameter of the module, and with `buffer: true` too a
buffer; order counts. What is left out has the defaults of `generators.case`, as have an operation's attributes, which
stand beside `name`, `op` and `args`. Sizes are integers or text such as `3*H*D + 1`. `contracts` lists mappings with
the fields of `generators.case.Contract`, `calls` with those of `FurtherCall`, beside `checkpoint`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from corpus.records import Reader, build, each, fields_of, one_of, read_plain, read_size, to_data
from corpus.strict_yaml import Data, Node, dump, parse
from generators.errors import CaseError
from generators.program.case import Case, Contract, Input, Op
from generators.program.ops import OPS
from generators.program.ops.spec import Attribute, Kind
from generators.program.type_check import check, make_op

FORMAT = 1
KEYS = (
    *("case_format", "dims", "mode", "dynamic", "autocast", "inputs", "ops", "returns", "contracts"),
    *("calls", "checkpoint", "settings"),
)
_REQUIRED = ("case_format", "dims", "inputs", "ops", "returns")
_OP_KEYS = ("name", "op", "args")
_ALWAYS = frozenset({"values", "kind", "seed"})
"""Fields of inputs that are written even if they have their default."""
_ATTRIBUTES: Mapping[Kind, Reader] = {
    Kind.SIZE: read_size,
    Kind.SIZES: each(read_size),
    Kind.AXES: each(Node.integer),
    Kind.FLAG: Node.boolean,
    Kind.AXIS: Node.integer,
    Kind.INT: Node.integer,
    Kind.NUMBER: Node.number,
}


def loads(content: bytes | str, origin: str = "case") -> Case:
    """The case in a text that holds nothing else. Raises CaseError: one line with `origin` and line."""
    return decode(parse(content, origin))


def dumps(case: Case) -> str:
    """The case as YAML text; `loads` gives back an equal case."""
    return dump(encode(case))


def check_format(root: Node) -> None:
    """Raises CaseError unless this version reads the file's `case_format`."""
    node = root.entries().get("case_format")
    if node is None:
        root.fail(f"not a case file: missing key 'case_format' (this version reads format {FORMAT})")
    if node.integer() != FORMAT:
        node.fail(f"format {node.value} is unknown; this version reads format {FORMAT}")


def decode(root: Node) -> Case:
    """The case in a parsed file that holds nothing else. Raises CaseError."""
    check_format(root)
    entries = root.record(_REQUIRED, [key for key in KEYS if key not in _REQUIRED])
    case = build(Case, root.select(KEYS[1:]), _FIELDS)
    try:
        check(case)
    except CaseError as error:
        _place(entries, case, error).fail(str(error))
    return case


def _place(entries: Mapping[str, Node], case: Case, error: CaseError) -> Node:
    field, name = error.place
    node = entries.get(field, entries["case_format"])
    if name and field in ("inputs", "settings"):
        node = node.entries()[name]
    elif name and field == "ops":
        node = dict(zip((op.name for op in case.ops), node.items(), strict=True))[name]
    return Node(None, node.origin, node.line)


def _dims(node: Node) -> tuple[tuple[str, int], ...]:
    return tuple((name, size.integer()) for name, size in node.entries().items())


def _settings(node: Node) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, read_plain(item)) for name, item in node.entries().items()))


def _inputs(node: Node) -> tuple[Input, ...]:
    return tuple(build(Input, item, name=name) for name, item in node.entries().items())


def _op(node: Node) -> Op:
    entries = node.record(_OP_KEYS[:2], tuple(node.entries()))
    name, kind = entries["name"].text(), entries["op"].text()
    if kind not in OPS:
        entries["op"].fail(f"unknown operation {kind[:40]!r}")
    known = OPS[kind].attributes
    node.record(_OP_KEYS[:2], ("args", *known))
    args = each(Node.text)(entries["args"]) if "args" in entries else ()
    attrs = {key: _attr(known[key], value) for key, value in entries.items() if key not in _OP_KEYS}
    return make_op(name, kind, args, attrs)


def _attr(attribute: Attribute, node: Node) -> Any:
    if node.value is None and attribute.default is None and not attribute.required:
        return None
    if attribute.kind is Kind.WORD:
        return one_of(attribute.words)(node)
    is_word = isinstance(node.value, str) and node.value in attribute.words
    return Node.text(node) if is_word else _ATTRIBUTES.get(attribute.kind, Node.text)(node)


_FIELDS: Mapping[str, Reader] = {
    "dims": _dims,
    "inputs": _inputs,
    "settings": _settings,
    "ops": each(_op),
    "returns": each(Node.text),
    "contracts": each(partial(build, Contract)),
}


def encode(case: Case) -> dict[str, Data]:
    """The case as data for `corpus.strict_yaml.dump`."""
    data = fields_of(case, ("returns", "mode"), without=("dims", "inputs", "ops", "settings"))
    data |= {"case_format": FORMAT, "dims": dict(case.dims), "ops": [_op_data(op) for op in case.ops]}
    data["inputs"] = {item.name: fields_of(item, _ALWAYS, without=("name",)) for item in case.inputs}
    data |= {"settings": dict(case.settings)} if case.settings else {}
    return {key: data[key] for key in KEYS if key in data}


def _op_data(op: Op) -> dict[str, Data]:
    args: dict[str, Data] = {"args": list(op.args)} if op.args else {}
    return {"name": op.name, "op": op.kind, **args, **{key: to_data(value) for key, value in op.attrs}}
