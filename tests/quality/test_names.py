"""A public name of a type or a constant has one meaning in the product."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("generators", "kernels", "corpus", "fuzz", "triage")
SHARED = {"CORNERS", "OPS", "READERS"}
"""Tables that a package joins from those of its modules, and the words that cases share with kernels, which import
nothing of them."""


def list_definitions(tree: ast.Module) -> Iterator[str]:
    """The public types and constants that a module defines, without type variables."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name


def find_repeated(modules: dict[str, str]) -> dict[str, list[str]]:
    """The modules that define a name, by name, if there are several. Functions are called by their module's name."""
    found = defaultdict[str, list[str]](list)
    for path, code in modules.items():
        for name in dict.fromkeys(list_definitions(ast.parse(code))):
            if name[0].isupper() and len(name) > 1 and name not in SHARED:
                found[name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_a_name_in_two_modules_is_found() -> None:
    modules = {"a.py": "class Answer: ...\nLIMIT: int = 1\n_OWN = 1", "b.py": "Answer = str | None\n_OWN = 2"}
    modules |= {"c.py": "from a import LIMIT\nif LIMIT:\n    LIMIT = 2"}
    assert find_repeated(modules) == {"Answer": ["a.py", "b.py"]}


def test_public_types_and_constants_have_one_meaning() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert not find_repeated({str(path.relative_to(ROOT)): path.read_text() for path in paths})
