"""A torch with a proposed change: a directory for PYTHONPATH that links to another torch, but for the changed files."""

import ast
import difflib
import os
import shutil
import subprocess
from pathlib import Path

from generators.errors import UserError

_MARKER = "torch/_changed_lines.py"
_MARK = '__import__("torch._changed_lines", fromlist=["reach"]).reach()'
_FIND_TORCH = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"


def make_patched_torch(patch: Path, python: str, out: Path) -> tuple[list[str], bool]:
    """Write `out`/torch, which is the torch of an interpreter with the patch applied. Nothing of that torch changes.

    `patch`: a unified diff with names such as a/torch/_inductor/config.py. Statements that it changes also report to
    `Coverage` that they run (`CoverageKind.CHANGED`).

    Returns the names of the changed files, and whether they have such statements: a change outside of all functions
    has none. Raises `UserError` if there is no torch, or if the patch does not apply.
    """
    out.mkdir(parents=True, exist_ok=True)
    original = _find_torch(python, out)
    names = [line.split("\t")[2] for line in _git(patch, out, "--numstat", "-z").split("\0") if line]
    if outside := [name for name in names if not (name.startswith("torch/") and name.endswith(".py"))]:
        raise UserError(f"{patch}: {outside[0]} is not a Python file of torch/")
    folders = {folder for name in (*names, _MARKER) for folder in Path(name).parents if folder != Path()}
    for folder in sorted(folders):
        (out / folder).mkdir()
        with_changes = any(Path(name).parent == folder for name in names)
        for entry in (original.parent / folder).iterdir():
            link = folder / entry.name
            # The cached code of a file that changes could be taken for that of the changed file.
            if link in folders or str(link) in names or (with_changes and entry.name == "__pycache__"):
                continue
            (out / link).symlink_to(entry)
    before = {name: file.read_text() for name in names if (file := original.parent / name).is_file()}
    for name in before:
        shutil.copy(original.parent / name, out / name)
    _git(patch, out)
    (out / _MARKER).write_text('def reach():\n    """The workers of attnfuzz replace this function."""\n')
    is_marked = False
    for name in (name for name in names if (out / name).is_file()):
        text = (out / name).read_text()
        marked = mark(before.get(name, ""), text)
        is_marked |= marked != text
        (out / name).write_text(marked)
    return names, is_marked


def _find_torch(python: str, cwd: Path) -> Path:
    try:
        found = subprocess.run([python, "-c", _FIND_TORCH], cwd=cwd, capture_output=True, text=True, check=True)
    except OSError as error:
        raise UserError(f"interpreter {python!r} does not start: {error.strerror or error}") from error
    except subprocess.CalledProcessError as error:
        raise UserError(f"interpreter {python!r} has no torch") from error
    return Path(found.stdout.strip())


def _git(patch: Path, cwd: Path, *options: str) -> str:
    """The output of `git apply`, outside of any repository. Raises `UserError`."""
    alone = {"GIT_CEILING_DIRECTORIES": str(cwd.absolute().parent)}
    try:
        done = subprocess.run(
            ["git", "apply", *options, str(patch.absolute())],  # noqa: S607 - the user's git
            cwd=cwd,
            env=os.environ | alone,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise UserError(f"git does not start: {error.strerror or error}") from error
    if done.returncode:
        raise UserError(f"{patch} does not apply: {done.stderr.strip().removeprefix('error: ')}")
    return done.stdout


def mark(before: str, after: str) -> str:
    """`after`, with a call of `reach` before each changed statement of a function."""
    lines = after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, before.splitlines(keepends=True), lines, autojunk=False)
    changed = [
        number
        for tag, _, _, first, last in matcher.get_opcodes()
        if tag != "equal"
        for number in range(first + 1, max(first + 1, last) + 1)
    ]
    functions = [node for node in ast.walk(ast.parse(after)) if isinstance(node, ast.FunctionDef)]
    places = {place for number in changed if (place := _find_statement(functions, lines, number))}
    for place in sorted(places, reverse=True):
        line = lines[place - 1]
        lines.insert(place - 1, f"{line[: len(line) - len(line.lstrip())]}{_MARK}\n")
    return "".join(lines)


def _find_statement(functions: list[ast.FunctionDef], lines: list[str], number: int) -> int:
    """The first line of the innermost statement of a function with line `number`; 0 if there is none."""
    place = 0
    for function in functions:
        for node in ast.walk(function):
            if (
                not isinstance(node, ast.stmt)
                or node is function
                or not node.lineno <= number <= (node.end_lineno or 0)
            ):
                continue
            first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
            line = lines[first - 1]
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not is_text and not line[: node.col_offset].strip() and not line.lstrip().startswith("elif"):
                place = max(place, first)
    return place
