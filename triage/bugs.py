"""List all bugs of the ledger in one page of Markdown: `python -m triage.bugs`. docs/bugs.md is made by it."""

import itertools
import os
from pathlib import Path
from typing import Any

from corpus import ledger as ledgers
from corpus.entry import Entry, load, sort_by_version
from corpus.files import replace_file, require_writable
from fuzz.bug_identity import kind_of
from fuzz.cli import enter
from fuzz.evaluator import public_version
from fuzz.protocol import Verdict
from fuzz.worker_config import ROOT
from triage.page.content import spell_in_one_line
from triage.rendering import render
from triage.report.repro import WITHOUT_NUMBERS


def bugs(*, out: Path | None = None, ledger: Path | None = None) -> None:
    """Write a table of all known bugs: how each shows, in which versions of torch, and where its report is.

    Versions are those that `fuzz.compare --record` wrote into the examples. Nothing is run.

    Parameters
    ----------
    out
        The Markdown file; by default docs/bugs.md of this checkout.
    ledger
        The ledger of bugs; by default corpus/ledger.yaml of this checkout.
    """
    file = out or ROOT / "docs" / "bugs.md"
    require_writable(file, "--out", is_file=True)
    text = make_page(ledgers.load(ledger or ROOT / "corpus" / "ledger.yaml"), file.parent)
    replace_file(file, text.encode())
    print(file)  # noqa: T201 - a command line prints its result


def make_page(ledger: ledgers.Ledger, beside: Path) -> str:
    """The page; its links start in the directory `beside`, and its reports are those under `beside`/reports."""
    examples = {bug.id: {path: load(path) for path in ledger.examples(bug)} for bug in ledger.bugs}
    entries = [entry for found in examples.values() for entry in found.values()]
    versions = list(sort_by_version({public_version(one): "" for entry in entries for one in entry.seen}))
    rows = [
        {"bug": bug, **_describe(examples[bug.id], versions, beside / "reports" / bug.id)}
        for bug in ledger.bugs
        if bug.status.kind != "not_a_bug" and any(entry.seen for entry in examples[bug.id].values())
    ]
    rows.sort(key=lambda row: (not row["is_live"], not row["silent"]))
    live, gone = ([row for row in rows if row["is_tried"] and row["is_live"] is wanted] for wanted in (True, False))
    untried = [row for row in rows if not row["is_tried"]]
    return render("bugs.md.j2", live=live, gone=gone, untried=untried, versions=versions)


def _describe(found: dict[Path, Entry], versions: list[str], report: Path) -> dict[str, Any]:
    """How a bug shows, by the shortest example that shows in the newest version."""
    shown = {path: [one for one in versions if _shows(entry, one)] for path, entry in found.items()}
    programs = {path: spell_in_one_line(entry.case) for path, entry in found.items()}
    path = max(found, key=lambda path: ([versions.index(one) for one in shown[path][-1:]], -len(programs[path])))
    entry = found[path]
    failing = {one for listed in shown.values() for one in listed}
    is_tried = any(public_version(one) == versions[-1] for entry in found.values() for one in entry.seen)
    is_reported = (report / "report.md").is_file()
    return {
        "silent": entry.verdict not in WITHOUT_NUMBERS,
        "device": entry.device.upper(),
        "torch": name_versions([one in failing for one in versions], versions)
        if is_tried
        else ", ".join(sorted(failing)),
        "is_live": versions[-1] in failing,
        "is_tried": is_tried,
        "program": programs[path],
        "example": Path(os.path.relpath(path, report.parents[1])).as_posix(),
        "report": f"reports/{report.name}/report.md" if is_reported else "",
    }


def _shows(entry: Entry, version: str) -> bool:
    """Whether a version fails as the example was found to: it may fail in another way by another bug."""
    seen = {public_version(name): verdict for name, verdict in entry.seen.items()}
    if version not in seen:
        return False
    verdict = Verdict(seen[version].partition(" ")[0])
    return kind_of(verdict) == kind_of(Verdict(entry.verdict)) if entry.verdict else verdict.is_finding


def name_versions(failing: list[bool], versions: list[str]) -> str:
    """The versions that fail, in runs: "up to 2.12.1, 2.14.0 on" of 2.11.0 to 2.15.0."""
    runs = []
    for fails, run in itertools.groupby(zip(failing, versions, strict=True), key=lambda one: one[0]):
        names = [name for _, name in run]
        is_first, is_last = names[0] == versions[0], names[-1] == versions[-1]
        if fails and is_first and is_last:
            runs.append("all")
        elif fails and is_first:
            runs.append(f"up to {names[-1]}")
        elif fails and is_last:
            runs.append(f"{names[0]} on")
        elif fails:
            runs.append(" to ".join(dict.fromkeys((names[0], names[-1]))))
    return ", ".join(runs) or "none of these"


if __name__ == "__main__":
    enter(bugs, "triage.bugs")
