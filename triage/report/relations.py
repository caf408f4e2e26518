"""The code by which workers check a relation between two calls of an attention function, for reports to show."""

import ast

from fuzz.evaluator import ROOT

_FILE = ROOT / "fuzz" / "check" / "oracle" / "attention" / "relation_table.py"
_TABLE = "RELATIONS"


def show_relation(relation: str) -> str:
    """The function that changes a call, and says what must hold then, without its docstring."""
    statements = ast.parse(_FILE.read_text(encoding="utf-8")).body
    table = next(node for node in statements if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == _TABLE)
    assert isinstance(table.value, ast.Dict)
    rows = zip(table.value.keys, table.value.values, strict=True)
    builder = next(ast.unparse(value) for key, value in rows if key and ast.literal_eval(key) == relation)
    function = next(node for node in statements if isinstance(node, ast.FunctionDef) and node.name == builder)
    if ast.get_docstring(function) is not None:
        del function.body[0]
    return ast.unparse(function)
