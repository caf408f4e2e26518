"""English is rendered for people: nothing takes it apart, and nothing stores it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from corpus.causes import Mechanism, MechanismKind, Part, Stage
from corpus.entry import load_directory
from corpus.ledger import LEDGER, load
from fuzz.attribution.root_cause import RootCause
from fuzz.experiments import EXPERIMENTS, Outcome, Tried
from fuzz.protocol import CoverageItem, CoverageKind, SubjectResult, Verdict, WrongElements
from fuzz.protocol.failures import Value
from fuzz.protocol.render import describe, describe_value
from generators.records import Word, encode
from tests.check.test_protocol import FAILURES

ROOT = Path(__file__).parents[2]
PACKAGES = ("generators", "kernels", "corpus", "fuzz", "triage")
RENDERS = re.compile(r"_?(describe|format|label|summarize|title|words|name_value|spell_out|spell_verdict)(_\w+)?")
"""Names of functions that give English."""
ENGLISH = {"detail", "label", "message", "reason", "rejected", "unfit"}
"""Attributes that hold English."""
TAKING_APART = {"count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "rpartition"}
TAKING_APART |= {"rsplit", "split", "splitlines", "startswith"}
MATCHING = {"findall", "finditer", "fullmatch", "match", "search"}
KEEPING = {"join", "lower", "lstrip", "replace", "rstrip", "strip"}
"""Methods whose result is English if their text or an argument is."""


def list_own_errors() -> set[str]:
    """The names of our exceptions, whose texts are English; torch's and Python's are not ours."""
    bases = dict[str, set[str]]()
    for path in PATHS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {
                    base.attr if isinstance(base, ast.Attribute) else ast.unparse(base) for base in node.bases
                }
    own = set[str]()
    while more := {name for name, of in bases.items() if of & ({"Exception", "BaseException"} | own)} - own:
        own |= more
    return own


PATHS = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
OWN_ERRORS = list_own_errors()


class _Scope(ast.NodeVisitor):
    """Collects the expressions of one function, or of the rest of a module, that take English apart."""

    def __init__(self, names: set[str], errors: set[str]) -> None:
        self.names, self.errors, self.found = names, errors, list[ast.expr]()

    def _is_english(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)) if RENDERS.fullmatch(name):
                return True
            case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
                return name in self.errors or name in self.names
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=args) if name in KEEPING:
                return self._is_english(of) or any(map(self._is_english, args))
            case ast.FormattedValue(value=ast.Name(id=name)) if name in self.errors:
                return True
            case ast.FormattedValue(value=value):
                return self._is_english(value)
            case ast.JoinedStr(values=values):
                return any(map(self._is_english, values))
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="args")):
                return name in self.errors
            case ast.NamedExpr(value=value):
                return self._is_english(value)
            case ast.Attribute(attr=name):
                return name in ENGLISH
            case ast.Name(id=name):
                return name in self.names or name in ENGLISH
            case ast.BinOp(left=left, right=right):
                return self._is_english(left) or self._is_english(right)
            case ast.BoolOp(values=values):
                return any(map(self._is_english, values))
            case ast.IfExp(body=body, orelse=other):
                return self._is_english(body) or self._is_english(other)
        return False

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._is_english(node.value):
            self.names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.names |= {node.target.id} if self._is_english(node.value) else set()
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {
            each.attr if isinstance(each, ast.Attribute) else each.id
            for each in types
            if isinstance(each, ast.Attribute | ast.Name)
        }
        self.errors |= {node.name} if node.name and names & OWN_ERRORS else set()
        self.generic_visit(node)
        self.errors -= {node.name}

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            name, of = node.func.attr, node.func.value
            # To put a text on a line of its own is not to take it apart.
            is_squeezed = name == "split" and not node.args
            takes = name in TAKING_APART and not is_squeezed and self._is_english(of)
            if takes or (name in MATCHING and any(map(self._is_english, node.args))):
                self.found.append(node)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            is_part = isinstance(operator, (ast.In, ast.NotIn)) and self._is_english(right)
            is_constant = isinstance(right, ast.Constant) and right.value not in ("", None)
            if is_part or (is_constant and self._is_english(left)):
                self.found.append(node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        is_shortened = isinstance(node.slice, ast.Slice) and node.slice.lower is None
        if self._is_english(node.value) and not is_shortened:
            self.found.append(node)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        inner = _Scope(set(self.names), set(self.errors))
        for statement in node.body:
            inner.visit(statement)
        self.found += inner.found


def find_taken_apart(code: str) -> Iterator[str]:
    """The expressions that take English apart, with their lines."""
    scope = _Scope(set(), set())
    scope.visit(ast.parse(code))
    return (f"{node.lineno}: {ast.unparse(node)}" for node in scope.found)


@pytest.mark.parametrize(
    "code",
    [
        "describe(result).split(': ')",
        "def f(r):\n    text = describe_failure(r) or 'x'\n    return text.startswith('output')",
        "'gradient' in name_value(case, value)",
        "re.search('call (.*)', refusal.reason)",
        "kind.label == 'a row without a key'",
        "verdict.label[3:]",
        "(head + describe(result)).partition(', ')",
        "try:\n    check(case)\nexcept CaseError as error:\n    why = str(error).partition(': ')[2]",
        "try:\n    check(case)\nexcept errors.UserError as error:\n    found = 'dims' in f'case: {error}'",
        "def f(reason):\n    return reason.startswith('timed out after')",
        "if (text := describe(result).strip()).startswith('output'): pass",
    ],
)
def test_text_that_is_taken_apart_is_found(code: str) -> None:
    assert list(find_taken_apart(code))


@pytest.mark.parametrize(
    "code",
    [
        "print(describe(r))",
        "describe(r) or 'none'",
        "verdict in FINDINGS",
        "text.split()",
        "try:\n    run()\nexcept RuntimeError as error:\n    is_refused = 'deterministic' in str(error)",
    ],
)
def test_other_code_is_not(code: str) -> None:
    assert not list(find_taken_apart(code))


def test_no_rendered_text_is_taken_apart() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in PATHS for line in find_taken_apart(path.read_text())]
    assert not found


VALUES = [Value(kind, 1, is_gradient=True, call=2) for kind in ("output", "input")]
RESULTS = [
    SubjectResult(
        "inductor",
        Verdict.WRONG_RESULT,
        failure=replace(failure, also=tuple(VALUES)),
        where=WrongElements(VALUES[0], (2,), 1, (((0, 0),),)),
        coverage=tuple(CoverageItem(kind, "aten.bmm") for kind in CoverageKind),
    )
    for failure in FAILURES
]
CAUSES = [
    RootCause("inductor", stage, part, Mechanism(kind), tuple(Tried(name, "", outcome) for name in EXPERIMENTS))
    for kind, stage, part, outcome in zip(MechanismKind, cycle(Stage), cycle(Part), cycle(Outcome), strict=False)
]


def list_texts(data: Any) -> Iterator[str]:
    """The texts in JSON or YAML, without those of torch, CUDA and functions."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, item in data.items():
            yield key
            yield from list_texts(item) if key not in ("detail", "error", "fault", "last_words", "text") else ()
    elif isinstance(data, (list, tuple)):
        for item in data:
            yield from list_texts(item)


def list_words() -> set[str]:
    """Text that people read in place of data: labels, failures and values."""
    words = {word.label for kind in Word.__subclasses__() for word in kind}
    words |= {one.label for one in EXPERIMENTS.values()}
    words |= {describe(result) for result in RESULTS} | {describe_value(value) for value in VALUES}
    return {text for one in words if " " in (text := one.partition("{")[0].strip())}


def test_stored_data_has_no_words_for_people() -> None:
    known = [entry.found for entry in load_directory(ROOT / "corpus" / "known").values() if entry.found]
    stored: dict[str, Any] = {
        "results": encode(RESULTS),
        "attributions": encode(CAUSES),
        "ledger": [encode(cause) for bug in load(LEDGER).bugs for cause in bug.causes],
        "found": [encode(replace(found, message="")) for found in known],
    }
    words = list_words()
    assert len(words) > 100
    for name, data in stored.items():
        assert not {text for text in list_texts(data) if any(word in text for word in words)}, name
