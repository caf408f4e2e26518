"""For whoever files a report: labels to propose, issues upstream, releases, and models that show the bug."""

import re
from collections.abc import Sequence

from corpus.causes import CauseKey, Project, Stage, find_project
from corpus.entry import Entry
from corpus.fault import FaultyLine
from corpus.ledger import Bug
from corpus.upstream import Issue
from corpus.versions import sort_versions, spell_versions
from fuzz.protocol import Verdict
from fuzz.subjects import get_spec
from fuzz.versions import list_failing, read_verdicts
from triage.listed import find_regression
from triage.rendering import render
from triage.report import runtimes
from triage.report.failing_run import WITHOUT_NUMBERS
from triage.report.owners import list_labels
from triage.report.wording import describe_fault, link_source

_REGRESSION = "module: regression"
_OF_OPERATION = (Stage.OPERATION, Stage.DECOMPOSITION)
_ADVICE = re.compile(r"(?<=^<!-- A draft; nothing was sent\. ).*$", re.MULTILINE)  # a line of report.md.j2
_NOTE = re.compile(r"(### Describe the bug\n\n.*\(torch (?P<torch>[\d.]+).*\n\n)(.+\n\n)?(?=```python\n|Eager alone)")
"""The summary of report.md.j2, and the note behind it."""
_NAMED = 3
"""Models that are named; more are counted."""


def render_facts(title: str, entry: Entry, cause: CauseKey | None, bug: Bug | None) -> str:
    """The table at the head of a report, in Markdown. `bug`: its entry in the ledger."""
    fault, project = bug.fault if bug else None, find_project(cause.who if cause else "")
    facts = [
        ("the fault", describe_fault(fault) if fault else ""),
        ("project", runtimes.find_form(project).repository),
        ("proposed title", title),
        ("status", bug.status.words if bug and bug.status.kind != "new" else ""),
        ("upstream", describe_upstream(bug)),
        ("proposed labels", ", ".join(f"`{label}`" for label in propose_labels(entry, cause, fault))),
        ("releases", describe_releases(entry)),
        ("who meets it", weigh(entry, bug) if bug and project is Project.PYTORCH else ""),
    ]
    return render("facts.md.j2", facts=[(name, text.replace("|", r"\|")) for name, text in facts if text])


def renew_head(report: str, entry: Entry, bug: Bug) -> str:
    """A report with the advice, the table of facts, and the note that the ledger gives by now."""
    renewed = replace_facts(report, render_facts(bug.title, entry, bug.cause, bug))
    renewed = _ADVICE.sub(lambda _: advise(bug), renewed, count=1)
    note = f"{bug.note}\n\n" if bug.note else ""
    return _NOTE.sub(lambda found: f"{found[1]}{link_source(note, found['torch'])}", renewed, count=1)


def replace_facts(report: str, facts: str) -> str:
    """A report with another table of facts; unchanged if it has none."""
    begin, end = (facts.splitlines()[at] for at in (0, -1))
    before, found, rest = report.partition(begin)
    _, closed, after = rest.partition(end)
    return f"{before}{facts.rstrip()}{after}" if found and closed else report


def propose_labels(entry: Entry, cause: CauseKey | None, fault: FaultyLine | None = None) -> list[str]:
    """Labels of the project's tracker. In PyTorch's, the file at fault decides, else the first stage that fails, which
    `cause` names.
    """
    project = find_project(cause.who if cause else "")
    if project is not Project.PYTORCH:
        return [*runtimes.find_form(project).labels]
    labels = list_labels(entry.case, cause, fault)
    if (entry.verdict or Verdict.OK) not in WITHOUT_NUMBERS:
        labels.append("module: correctness (silent)")
    return [*labels, *([_REGRESSION] if find_regression(entry) else [])]


def describe_releases(entry: Entry) -> str:
    """The releases that a case was run with: those that fail, those that are right, and a regression."""
    verdicts, change = read_verdicts(entry), find_regression(entry)
    sides = {
        "fails in": list_failing(entry),
        "right in": [version for version in sort_versions(verdicts) if verdicts[version].clears],
    }
    told = [f"{side} {spell_versions(found).removeprefix('torch ')}" for side, found in sides.items() if found]
    told += ["a regression: last good {}, first bad {}".format(*change)] if change else []
    return "; ".join(told)


def describe_upstream(bug: Bug | None, *, notes: bool = True) -> str:
    """The issues of others about a bug, with links, in Markdown; or that none was found or looked for."""
    if bug is None or bug.upstream is None:
        return "not searched for upstream"

    def spell(issue: Issue) -> str:
        told = f"[{issue.ref}]({issue.url}){'' if issue.state == 'unknown' else f' {issue.state}'}"
        return f"{told} ({issue.note})" if notes and issue.note else told

    day = [f"looked up {bug.upstream.searched}"] if bug.upstream.issues else []
    return "; ".join([*bug.upstream.spell(spell), *day])


def describe_models(bug: Bug) -> str:
    """The released models that show a bug, and those that are right although they run its code. "" if there are none.

    "shown by transformers/bert@eager, encoder with bfloat16; reached by timm/vit_tiny and 12 more". Where the code is a
    whole operation, to reach it says little.
    """
    reached = "its operation is called by" if bug.cause.stage in _OF_OPERATION else "reached by"
    shown = {name.partition("@")[0].partition(",")[0] for name in bug.seen_in}
    right = [name for name in bug.reached_in if name not in shown]
    told = {"shown by": ("; ", bug.seen_in), reached: (", ", right)}
    return "; ".join(f"{verb} {_shorten(names, mark)}" for verb, (mark, names) in told.items() if names)


def _shorten(names: Sequence[str], mark: str) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{mark.join(names[:_NAMED])}{more}"


def weigh(entry: Entry, bug: Bug) -> str:
    """Which released models show a bug or run its code, if tried in the mode and on the device of the case."""
    if bug.seen_in or (bug.reached_in and bug.cause.stage not in _OF_OPERATION):
        return f"released models: {describe_models(bug)}"
    is_sharded = get_spec(entry.subject).sharded
    if entry.device != "cpu" or entry.case.training or is_sharded:
        way = "with DTensors" if is_sharded else "in training" if entry.case.training else "on a GPU"
        return f"not known: no released model was tried {way}"
    told = "none of the released models that were tried, in inference on a CPU, shows it"
    return told + (f"; {len(bug.reached_in)} call the operation" if bug.reached_in else "")


def advise(bug: Bug | None) -> str:
    """The first step of whoever files the report: a search, or a comment where the bug is known."""
    if bug and (known := bug.known_upstream):
        return f"Add what is new here to {known[0].ref}, and open no other issue."
    return "Before opening it, search for the same symptom among the issues, and run the script on the latest nightly."
