"""A report, or why there is none, as its template renders it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from triage.rendering import render

REPOSITORY = "pytorch/pytorch"
_URL_LIMIT = 8000
"""gh refuses to open an address of 8192 characters or more; title and repository take some of them."""

MAX_PROGRAM_LINES = 60
"""A longer program is left to repro.py."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is said of a case. `values`: what the template shows; `search`: words that others would use for the bug, ""
    where it is none."""

    template: str
    title: str
    values: Mapping[str, Any]
    search: str = ""

    def render(self) -> str:
        """The text of report.md. A very long program is in repro.py alone."""
        values, lines = dict(self.values), self.values["program"].count("\n") + 1
        if self.search and lines > MAX_PROGRAM_LINES:
            values["program"] = f"# {lines} lines, in repro.py"
        return render(self.template, title=self.title, report=values)

    def commands(self, file: str) -> list[str]:
        """What a person types to look for duplicates and to open the issue in a browser; nothing here runs them."""
        search = shlex.join(["gh", "search", "issues", "--repo", REPOSITORY, *self.search.split()])
        create = ["gh", "issue", "create", "--repo", REPOSITORY, "--title", self.title]
        if len(quote_plus(self.render())) < _URL_LIMIT:
            create += ["--body-file", file]
        return [search, shlex.join([*create, "--web"])]
