"""What report.md says of a finding, be it of a compiler, of an operation of eager or of an attention function."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote_plus

from triage.rendering import render

REPOSITORY = "pytorch/pytorch"
_URL_LIMIT = 8000
"""gh refuses to open an address of 8192 characters or more; title and repository take some of them."""

MAX_PROGRAM_LINES = 45
MAX_LINES = 119
"""Of a report: longer ones are not read."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to run the case, and its verdict, error against float64 and `torch._dynamo.utils.same`, as shown."""

    name: str
    verdict: str
    error: str
    same: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a case is not reported."""

    verdict: str
    why: str
    failure: str
    table: Sequence[Row]
    eager_error: str
    environment: str
    case: str
    program: str

    @property
    def title(self) -> str:
        """One line."""
        return f"not a bug to report: {self.verdict}"

    def render(self) -> str:
        """The text of report.md."""
        return render("refusal.md.j2", report=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A finding.

    at_fault: `compiled`, `eager` or `kernel`; upstream: the report is for PyTorch, else it is for `home`;
    search: words that others would use; cause, evidence: sentences;
    calls: of the kernel, and the shapes of what it reads; relation, sides: the broken relation and its code;
    exit_code, output, log: of repro.py; place, why_a_worker: where it runs, why it asks a worker, or "";
    conditions: what it takes to fail; diff: the nearest program that is right; picture: what where.png shows;
    seen: verdicts of other versions of torch; interpreted: Triton's interpreter ran the kernel.
    """

    at_fault: str
    upstream: bool
    title: str
    search: str
    summary: str
    cause: str
    evidence: Sequence[str]
    program: str
    table: Sequence[Row]
    exit_code: str
    output: str
    log: str
    versions: str
    environment: str
    calls: Sequence[str] = ()
    relation: str = ""
    sides: str = ""
    why_a_worker: str = ""
    place: str = ""
    home: str = ""
    fired: Sequence[str] = ()
    bisector: str = ""
    conditions: Sequence[str] = ()
    diff: Sequence[str] = ()
    where: str = ""
    picture: str = ""
    seen: str = ""
    interpreted: bool = False

    def render(self) -> str:
        """The text of report.md, which leaves a long program to repro.py."""
        lines = self.program.count("\n") + 1
        elsewhere = replace(self, program=f"# {lines} lines, in repro.py")
        if lines > MAX_PROGRAM_LINES:
            return render("report.md.j2", report=elsewhere)
        text = render("report.md.j2", report=self)
        return text if text.count("\n") < MAX_LINES else render("report.md.j2", report=elsewhere)

    def commands(self, file: str) -> list[str]:
        """What a person types to look for duplicates and to open the issue in a browser; nothing here runs them."""
        search = shlex.join(["gh", "search", "issues", "--repo", REPOSITORY, *self.search.split()])
        create = ["gh", "issue", "create", "--repo", REPOSITORY, "--title", self.title]
        if len(quote_plus(self.render())) < _URL_LIMIT:
            create += ["--body-file", file]
        return [search, shlex.join([*create, "--web"])]
