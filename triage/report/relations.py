"""Relations between two calls of an attention function: the code by which workers check them, to be read and run."""

import ast
import re
from collections.abc import Iterable
from functools import cache

from fuzz.evaluator import ROOT

_FILES = [ROOT / "fuzz" / "check" / "oracle" / "attention" / name for name in ("call.py", "relation_table.py")]
_TABLE = "RELATIONS"


def list_relations() -> dict[str, str]:
    """By name, the function of these files that builds the equation of a relation."""
    table = next(node for node in _parse() if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == _TABLE)
    assert isinstance(table.value, ast.Dict)
    return {
        ast.literal_eval(name): ast.unparse(builder)
        for name, builder in zip(table.value.keys, table.value.values, strict=True)
        if name is not None
    }


def show_relation(relation: str) -> str:
    """The code that changes a call, and says what must hold then."""
    return _definitions()[list_relations()[relation]]


def collect_code(relation: str, uses: Iterable[str]) -> str:
    """What a script needs to build the relation's equation as `build(call, Random(0))`; `uses`: what else it needs."""
    definitions, build = _definitions(), f"build = {list_relations()[relation]}"
    found = {*uses}
    text = "\n".join([build, "Random", *(definitions[name] for name in found)])
    while more := {name for name in definitions if name not in found and _is_used(name, text)}:
        found |= more
        text += "\n".join(["", *(definitions[name] for name in more)])
    imports: dict[str, list[str]] = {}
    for node in _parse():
        if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("fuzz"):
            imports.setdefault(node.module, []).extend(a.name for a in node.names if _is_used(a.name, text))
    lines = [f"from {module} import {', '.join(dict.fromkeys(names))}" for module, names in imports.items() if names]
    parts = [definitions[name] for name in definitions if name in found]
    blocks = (f"\n{part}" if part.startswith("    ") else f"\n\n{part}" for part in parts)
    return "\n".join([*lines, *blocks, "", "", build])


def _is_used(name: str, text: str) -> bool:
    """Whether a text has a name; a method, "Call.combine_masks", after a dot."""
    _, dot, own = name.rpartition(".")
    return bool(re.search(rf"{re.escape(dot)}\b{own}\b", text))


@cache
def _definitions() -> dict[str, str]:
    """By name the code of functions, of classes without methods, and of methods, all without docstrings."""
    found: dict[str, str] = {}
    for node in _parse():
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            node.body = [part for part in node.body if part not in methods]
            found[node.name] = ast.unparse(node)
            found |= {f"{node.name}.{m.name}": "    " + ast.unparse(m).replace("\n", "\n    ") for m in methods}
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = ast.unparse(node)
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = ast.unparse(node)
    return found


@cache
def _parse() -> list[ast.stmt]:
    """The statements of the files, without docstrings."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in _FILES]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return [node for tree in trees for node in tree.body]
