"""Write docs/bugs.md, a table of the bugs in the ledger: `python -m triage.bugs`. Nothing is run."""

import os

from corpus import ledger as ledgers
from corpus.entry import load, sort_by_version
from corpus.files import replace_file
from fuzz.cli import enter
from fuzz.commands import find_report
from fuzz.versions import fails_alike_in, read_verdicts
from fuzz.worker_config import ROOT
from triage.page import spell_in_one_line
from triage.report.repro import WITHOUT_NUMBERS

PAGE, LEDGER = ROOT / "docs" / "bugs.md", ROOT / "corpus" / "ledger.yaml"
_HEAD = """\
# Bugs of torch that attnfuzz found

<!-- Made by `python -m triage.bugs` from corpus/ledger.yaml and the examples in corpus/known. Change those. -->

A row is a root cause. Silent bugs come first: wrong values, strides or state without an error; among equals, bugs that
[released models](models.md) show. Versions tried: {versions}; a GPU only with 2.11.0. Each example is a case file:
`python -m fuzz.replay FILE` runs it.
"""
_COLUMNS = """\
| bug | shows | torch | device | status | program |
|---|---|---|---|---|---|"""


def bugs() -> None:
    """Write docs/bugs.md: how each bug of the ledger shows, in which versions of torch, and where its report is.

    `fuzz.compare --record` wrote the versions into the examples.
    """
    replace_file(PAGE, make_page().encode())


def make_page() -> str:
    """The page, in Markdown. Left out are entries with status not_a_bug, and bugs whose examples no torch has run."""
    ledger = ledgers.load(LEDGER)
    entries = {bug.id: {path: load(path) for path in ledger.examples(bug)} for bug in ledger.bugs}
    seen = {version: "" for found in entries.values() for entry in found.values() for version in read_verdicts(entry)}
    versions = list(sort_by_version(seen))
    sections: dict[str, list[tuple[bool, bool, str]]] = {"Live": [], "Gone": [], "Not tried": []}
    for bug in ledger.bugs:
        examples = entries[bug.id]
        tried = {version for entry in examples.values() for version in read_verdicts(entry)}
        if not tried or bug.status.kind == "not_a_bug":
            continue
        shown = {
            path: [version for version in versions if fails_alike_in(entry, version)]
            for path, entry in examples.items()
        }
        failing = [version for version in versions if any(version in some for some in shown.values())]
        newest = [path for path in examples if shown[path][-1:] == failing[-1:]]
        programs = {path: spell_in_one_line(examples[path].case) for path in newest}
        path = min(programs, key=lambda path: len(programs[path]))
        report = find_report(bug.id)
        links = f"[report]({report.relative_to(PAGE.parent)}), " if report else ""
        is_loud = examples[path].verdict in WITHOUT_NUMBERS
        met = f"<br>seen in {'; '.join(bug.seen_in)}" if bug.seen_in else ""
        cells = (
            f"{bug.title}<br>{links}[example]({os.path.relpath(path, PAGE.parent)}){met}",
            "loud" if is_loud else "silent",
            "all" if failing == versions else ", ".join(failing),
            examples[path].device.upper(),
            str(bug.status),
            f"`{programs[path]}`",
        )
        section = "Not tried" if versions[-1] not in tried else "Live" if versions[-1] in failing else "Gone"
        row = " | ".join(cell.replace("|", r"\|") for cell in cells)
        sections[section].append((is_loud, not bug.seen_in, f"| {row} |"))
    parts = [_HEAD.format(versions=", ".join(versions))]
    for section, rows in sections.items():
        ordered = [text for *_, text in sorted(rows, key=lambda row: row[:2])]
        parts.append("\n".join([f"## {section} in torch {versions[-1]}", "", _COLUMNS, *ordered, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    enter(bugs, "triage.bugs")
