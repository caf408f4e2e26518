"""The places in `generators/` that turn a case away, found in the syntax trees of its files."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from generators.reasons import DEFAULTS, Reason

HOME = Path(__file__).resolve().parents[2] / "generators"
_RAISING = ("require", "require_of", "require_word", "CaseError")


@dataclass(frozen=True)
class Place:
    """A call that raises CaseError."""

    path: str  # below generators/
    function: str
    first: int  # line
    last: int
    text: str  # the message, as source
    reasons: tuple[Reason, ...]  # several where a table of the function tells it; empty where no reason is named

    @property
    def key(self) -> str:
        """The same after changes of other lines."""
        return f"{self.path} {self.function}: {self.text}"


def list_places(source: str, path: str) -> Iterator[Place]:
    """The places of a file. Leaves out those that add words to a caught CaseError, and errors.py's own."""
    default = next((reason for start, reason in DEFAULTS.items() if path.startswith(start)), None)

    def walk(node: ast.AST, function: ast.AST, name: str, *, caught: bool) -> Iterator[Place]:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef)
            around, its_name = (child, child.name) if isinstance(child, ast.FunctionDef) else (function, name)
            is_raising = isinstance(child, ast.Call) and getattr(child.func, "id", "") in _RAISING
            if isinstance(child, ast.Call) and is_raising and not caught:
                own = _list_named(child) or (_list_named(around) if _names_variable(child) else ())
                text = next(map(ast.unparse, child.args[-1 if getattr(child.func, "id", "") == "CaseError" else 1 :]))
                reasons = own or ((default,) if default else ())
                yield Place(path, its_name, child.lineno, child.end_lineno or child.lineno, text, reasons)
            else:
                is_caught = isinstance(child, ast.ExceptHandler) or (caught and not is_function)
                yield from walk(child, around, its_name, caught=is_caught)

    tree = ast.parse(source)
    yield from walk(tree, tree, "", caught=False)


def _list_named(node: ast.AST) -> tuple[Reason, ...]:
    """The reasons `Reason.NAME` in a node."""
    named = (one for one in ast.walk(node) if isinstance(one, ast.Attribute))
    names = [one.attr for one in named if isinstance(one.value, ast.Name) and one.value.id == "Reason"]
    return tuple(Reason[name] for name in dict.fromkeys(names))


def _names_variable(call: ast.Call) -> bool:
    return any(isinstance(arg, ast.Name) and arg.id == "reason" for arg in call.args)


@cache
def all_places() -> tuple[Place, ...]:
    """The places of `generators/`."""
    files = sorted(HOME.rglob("*.py"))
    named = [(path, path.relative_to(HOME).as_posix()) for path in files if path.name != "errors.py"]
    return tuple(place for path, name in named for place in list_places(path.read_text(encoding="utf-8"), name))
