"""Sentences are rendered last: no code reads one to decide anything."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("generators", "kernels", "corpus", "fuzz", "triage")
SHOWING = {
    "fuzz/campaign/screen.py",  # prints what a saved finding says
    "fuzz/versions/verdicts.py",  # prints what a version says
    "fuzz/versions/comparison.py",  # keeps what was said as the reason why a version is not compared
    "fuzz/campaign/investigations.py",  # stores what became of a suspicion
}


def test_only_modules_that_show_them_read_messages() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "message" and isinstance(node.ctx, ast.Load)
    }
    assert readers <= SHOWING


def test_nobody_takes_sentences_apart() -> None:
    """`describe` gives text for people: its result is never searched, split or compared."""
    parsing = {"partition", "split", "startswith", "endswith", "removeprefix", "match", "search", "fullmatch"}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Attribute, ast.Compare, ast.Call)) and _parses_description(node, parsing)
    ]
    assert not found


def _parses_description(node: ast.Attribute | ast.Compare | ast.Call, parsing: set[str]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in parsing and _is_description(node.value)
    if isinstance(node, ast.Compare):
        return any(_is_description(side) for side in (node.left, *node.comparators))
    return isinstance(node.func, ast.Attribute) and node.func.attr in parsing and any(map(_is_description, node.args))


def _is_description(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("describe", "describe_failure", "describe_writes")
    )
