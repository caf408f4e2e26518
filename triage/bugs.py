"""Write docs/bugs.md, a table of the bugs in the ledger, and the heads of their reports: `python -m triage.bugs`."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from corpus import ledger as ledgers
from corpus.causes import Project
from corpus.entry import DEVICES
from corpus.files import replace_file
from corpus.ledger import Bug
from corpus.versions import sort_versions, spell_versions, split_version
from fuzz.ask.worker_config import ROOT
from fuzz.cli import enter
from fuzz.commands import find_report
from fuzz.versions import read_verdicts
from triage.listed import ListedBug, list_bugs
from triage.page import spell_in_one_line
from triage.report.filing import describe_models, describe_upstream, renew_head
from triage.report.wording import link_line

PAGE = ROOT / "docs" / "bugs.md"
_HEAD = """\
# Bugs that attnfuzz found

<!-- Made by `python -m triage.bugs` from corpus/ledger.yaml and the examples in corpus/known. Change those. -->

A row is a root cause. Silent bugs come first: wrong values, strides or state without an error; among equals, bugs that
nobody reported, then bugs that [released models](models.md) show, then bugs whose code most of them run. Each example
is a case file: `python -m fuzz.replay FILE` runs it. *Set apart* are bugs that maintainers call by design or
deprecated, or rate low.

| project | live | set apart | gone |
|---|---|---|---|
{counts}
"""
_COLUMNS = """\
| bug | shows | {package} | device | status | program |
|---|---|---|---|---|---|"""


def bugs() -> None:
    """Write docs/bugs.md: how each bug of the ledger shows, in which versions of torch, and where its report is. Renew
    the ledger's part of the reports in docs/reports. Nothing is run.

    `fuzz.compare --record` wrote the versions into the examples.
    """
    ledger = ledgers.load(ledgers.LEDGER)
    listed = list_bugs(ledger)
    replace_file(PAGE, make_page(listed, [bug for bug in ledger.bugs if not bug.cases]).encode())
    for path, text in renew_reports(listed):
        replace_file(path, text.encode())


def renew_reports(listed: Iterable[ListedBug]) -> Iterable[tuple[Path, str]]:
    """The file and the renewed text of each bug's report."""
    for one in listed:
        if path := find_report(one.bug.id):
            yield path, renew_head(path.read_text(encoding="utf-8"), one.entry, one.bug)


def make_page(listed: Iterable[ListedBug], without_example: Iterable[Bug] = ()) -> str:
    """The page, in Markdown. Left out are entries with status not_a_bug, and bugs whose examples nothing has run.

    without_example: bugs that show on few machines, or whose programs end a process or a device
    """
    shown = [one for one in listed if one.tried and one.bug.status.kind != "not_a_bug"]
    of_projects = {project: [one for one in shown if one.bug.project is project] for project in Project}
    sections = {project: _sort(found) for project, found in of_projects.items() if found}
    counts = (
        f"| {project.label} | {len(live)} | {len(apart)} | {len(gone)} |"
        for project, (live, apart, gone, _) in sections.items()
    )
    parts = [_HEAD.format(counts="\n".join(counts))]
    for project, rows in sections.items():
        parts += _write_project(project, rows)
    told = [f"- {bug.title} ({spell_versions(bug.versions)}). {bug.note}" for bug in without_example]
    parts += ["\n".join(["## Without an example", "", *told, ""])] if told else []
    return "\n".join(parts)


def _sort(shown: Sequence[ListedBug]) -> tuple[list[ListedBug], ...]:
    """The bugs of a project that are live, set apart, gone in its newest release, and not tried there."""
    live, apart, gone, untried = rows = tuple[list[ListedBug], ...](([], [], [], []))
    for one in sorted(shown, key=_rank):
        is_apart = one.bug.status.kind == "set_apart"
        kind = apart if is_apart else untried if one.newest not in one.tried else live if one.is_live else gone
        kind.append(one)
    return rows


def _write_project(project: Project, sections: Sequence[Sequence[ListedBug]]) -> Iterable[str]:
    """The section of a project."""
    entries = [entry for rows in sections for one in rows for entry in one.examples.values()]
    versions = {
        device: sort_versions(version for one in entries if one.device == device for version in read_verdicts(one))
        for device in DEVICES
    }
    tried = (
        f"on {'CPUs' if device == 'cpu' else 'a GPU'}: {spell_versions(found)}"
        for device, found in versions.items()
        if found
    )
    yield f"## {project.label}\n\nVersions tried {'; '.join(tried)}.\n"
    newest = spell_versions([next(one.newest for rows in sections for one in rows)])
    heads = (f"Live in {newest}", "Set apart", f"Gone in {newest}", f"Not tried in {newest}")
    for head, rows in zip(heads, sections, strict=True):
        if rows:
            columns = _COLUMNS.format(package=project.package)
            yield "\n".join([f"### {head}", "", columns, *(_row(one, versions) for one in rows), ""])


def _rank(one: ListedBug) -> tuple[bool, bool, bool, int]:
    """Silent bugs come first, then bugs that are not known upstream, then bugs that released models show, then bugs
    whose code many of these run."""
    return not one.is_silent, bool(one.bug.known_upstream), not one.bug.seen_in, -len(one.bug.reached_in)


def _row(one: ListedBug, versions: dict[str, list[str]]) -> str:
    bug, entry, report = one.bug, one.entry, find_report(one.bug.id)
    links = f"[report]({report.relative_to(PAGE.parent)}), " if report else ""
    met = f"<br>released models: {models}" if (models := describe_models(bug)) else ""
    fault = f"<br>{link_line(bug.fault)}" if bug.fault else ""
    cells = (
        f"{bug.title}<br>{links}[example]({os.path.relpath(one.example, PAGE.parent)}){fault}{met}",
        "silent" if one.is_silent else "loud",
        "all"
        if one.failing == versions[entry.device]
        else ", ".join(split_version(version)[1] for version in one.failing),
        entry.device.upper(),
        _spell_status(bug),
        f"`{spell_in_one_line(entry.case)}`",
    )
    row = " | ".join(cell.replace("|", r"\|") for cell in cells)
    return f"| {row} |"


def _spell_status(bug: Bug) -> str:
    """The status of a bug, here and upstream, with links."""
    upstream = describe_upstream(bug, notes=False)
    return upstream if bug.known_upstream and bug.status.kind == "new" else f"{bug.status.words}<br>{upstream}"


if __name__ == "__main__":
    enter(bugs, "triage.bugs")
