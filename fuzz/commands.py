"""The commands that reproduce a finding and report it, as a person would type them."""

import json
import os
import shlex
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from corpus.files import replace_file
from fuzz.ask.worker_config import ROOT
from fuzz.cli import wrap
from fuzz.subjects import is_user_function
from generators.errors import UserError

STDOUT = Path("-")
REPORTS = ROOT / "docs" / "reports"


def find_report(name: str, reports: Path = REPORTS) -> Path | None:
    """The report about a bug of the ledger or a finding, by its id."""
    report = reports / name / "report.md"
    return report if report.is_file() else None


def shorten(path: str | Path) -> str:
    """The path, relative to the working directory if it is below that."""
    return str(Path(path).relative_to(Path.cwd()) if Path(path).is_relative_to(Path.cwd()) else path)


def list_commands(
    path: str, case_id: str, subject: str, worker: str = sys.executable, *, is_shrinking_cut: bool = False
) -> list[str]:
    """The commands that replay the case file `path`, write its report, and if shrinking was cut off, shrink it further.

    worker: the interpreter of the worker
    """
    file = shlex.quote(path)
    # Functions of the user are imported only if the user names them.
    allowed = f" --subject {shlex.quote(subject)}" if is_user_function(subject) else ""
    allowed += f" --python {shlex.quote(shorten(worker))}" if worker != sys.executable else ""
    python = format_python(subject)
    report = shlex.quote(str(Path("reports") / case_id))
    replay = f"{python} -m fuzz.replay {file}{allowed}"
    write_report = f"{python} -m triage.report {file}{allowed} --out {report}"
    return [replay, write_report, *([f"{python} -m fuzz.shrink {file}{allowed}"] if is_shrinking_cut else [])]


def reproduce_lines(
    path: str,
    case_id: str,
    subject: str,
    indent: str = "  ",
    *,
    worker: str = sys.executable,
    has_report: bool = False,
    is_shrinking_cut: bool = False,
) -> list[str]:
    """The same commands for a terminal, each on its own line, to be copied. `has_report`: its report is written."""
    replay, write_report, *more = list_commands(path, case_id, subject, worker, is_shrinking_cut=is_shrinking_cut)
    about = ["run it again: exit code 0 while it shows"]
    about += [] if has_report else ["write its report"]
    about += ["shrink it further, since shrinking was cut off"] if more else []
    commands = [replay, *([] if has_report else [write_report]), *more]
    return [*(f"{indent}{line}" for line in commands), *wrap(f"{indent}  ({'; and '.join(about)})")]


def format_python(*subjects: str) -> str:
    """This interpreter, with the PYTHONPATH by which it imports functions of the user's."""
    path = os.environ.get("PYTHONPATH") if any(map(is_user_function, subjects)) else None
    return " ".join([*([f"PYTHONPATH={shlex.quote(path)}"] if path else []), shlex.quote(shorten(sys.executable))])


def write_json(data: Any, file: Path) -> bool:
    """Write data to a file as JSON, or print it if the file is `STDOUT`. Returns whether it is printed."""
    text = json.dumps(data, indent=1)
    if file == STDOUT:
        print(text)  # noqa: T201 - the answer of a command
    else:
        replace_file(file, f"{text}\n".encode())
    return file == STDOUT


def require_allowed(subject: str, allowed: Collection[str], origin: str, option: str = "--subject") -> None:
    """Raises UserError for a user's function that is not in `allowed`.

    A case file is data, so the functions that it names are not imported.
    """
    if is_user_function(subject) and subject not in allowed:
        raise UserError(f"{origin} is about {subject}, which runs code of yours: allow it with {option} {subject}")
