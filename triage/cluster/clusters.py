"""Clusters: the findings of one root cause, with what the ledger says of it, as text and in the ledger."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.causes import CauseKey, Part, Stage, name_part
from corpus.entry import SUFFIX
from corpus.ledger import Bug, Ledger, check_writable, load, save
from fuzz.commands import reproduce_lines
from fuzz.durations import format_count
from fuzz.protocol.rewrites import WrongRewrite
from generators.program.simplicity import sort_key
from triage.cluster.attributions import Attributed, load_attributed
from triage.cluster.findings import Finding, gather

EXAMPLES = "known"
"""Where examples go, beside the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All findings of one root cause, simplest first, of which `example` is the first.

    bug: its entry in the ledger, None where that has none; title: one line by symptom, which no finding that joins
    changes; is_open: its cause is not known; count: how many findings, those that only the ledger lists included;
    met: how many failures of these campaigns they explain; first_seen, last_seen: days, "" where not known; versions:
    torch versions it was met in; back_in: the one in which it was met though it is fixed there; is_news: a person has
    to look, as the ledger lacks it, nobody has decided about it, or it is fixed and back.
    """

    keys: tuple[CauseKey, ...]
    members: tuple[Attributed, ...]
    findings: tuple[Finding, ...]
    example: Finding
    bug: Bug | None
    title: str
    is_open: bool
    count: int
    met: int
    first_seen: str
    last_seen: str
    versions: tuple[str, ...]
    back_in: str
    is_news: bool


def cluster(attributed: Iterable[Attributed], ledger: Ledger) -> list[Cluster]:
    """One for each root cause, in whatever order findings come: news first, then by how many findings."""
    members = _unify(attributed, ledger)
    bugs = _find_bugs(members, ledger)
    groups: dict[str, list[Attributed]] = {}
    for member in members:
        bug = bugs.get(member.key) or ledger.find_case(member.finding.id)
        groups.setdefault(f"bug {bug.id}" if bug else f"key {member.key}", []).append(member)
    by_group = {f"bug {bug.id}": bug for bug in ledger.bugs}
    clusters = [_cluster(group, by_group.get(name)) for name, group in groups.items()]
    return sorted(clusters, key=lambda c: (not c.is_news, c.is_open, -len(c.findings), c.title, c.keys))


def _unify(attributed: Iterable[Attributed], ledger: Ledger) -> list[Attributed]:
    """The findings, those whose rewrites are the same bug with one key: the ledger's where it has one, else that of the
    fullest measurement. Of several bugs it may be, the one that shares most changes."""
    members = list(attributed)
    fullest = sorted({member.key for member in members}, key=lambda key: (-len(str(key)), key))
    known: dict[CauseKey, WrongRewrite] = {}
    keys: dict[CauseKey, CauseKey] = {}
    for key in [*(key for bug in ledger.bugs for key in bug.causes), *fullest]:
        measured = WrongRewrite(key.part, dict(key.right), dict(key.wrong))
        if measured.right and key not in keys:
            alike = [one for one, other in known.items() if measured.is_same_bug(other)]
            keys[key] = max(alike, key=lambda one: measured.count_shared(known[one]), default=key)
            known.setdefault(keys[key], measured)
    return [replace(member, key=keys.get(member.key, member.key)) for member in members]


def load_clusters(paths: Sequence[Path], ledger: Ledger) -> list[Cluster]:
    """The clusters of these runs and files as far as they are known without running anything: what was not attributed
    yet is a cluster of its own."""
    listed, rest = split_listed(gather(paths), ledger)
    return cluster([*listed, *load_attributed(rest)], ledger)


def split_listed(findings: Sequence[Finding], ledger: Ledger) -> tuple[list[Attributed], list[Finding]]:
    """The findings that the ledger lists, which need no attribution, and the others."""
    listed = [Attributed(finding, bug.causes[0]) for finding in findings if (bug := ledger.find_case(finding.id))]
    return listed, [finding for finding in findings if ledger.find_case(finding.id) is None]


def update_ledger(ledger: Ledger, clusters: Sequence[Cluster]) -> Ledger:
    """The ledger with entries for the clusters it lacks, and with when and where the others were met. What could not be
    attributed stays out."""
    listed = [one for one in clusters if one.bug or not one.is_open]
    taken = {finding.id for one in listed for finding in one.findings}
    bugs = {bug.id: replace(bug, findings=tuple(f for f in bug.findings if f not in taken)) for bug in ledger.bugs}
    for one in listed:
        bug = bugs[one.bug.id] if one.bug else Bug(_new_id(one.keys[0], bugs), one.title, one.keys)
        # An entry that lists a finding under a key that no entry has gets that key: the next finding is known by it.
        keys = {member.key for member in one.members if not member.is_open and ledger.find_cause(member.key) is None}
        bugs[bug.id] = replace(
            bug,
            causes=(*bug.causes, *sorted(keys - set(bug.causes))),
            findings=tuple(sorted({*bug.findings, *(finding.id for finding in one.findings)})),
            first_seen=one.first_seen,
            last_seen=one.last_seen,
            versions=one.versions,
        )
    return Ledger(ledger.path, tuple(bugs.values()))


def _title(key: CauseKey) -> str:
    """The title of a bug that nobody has named."""
    who = {"inductor": "[Inductor]", "dynamo": "[Dynamo]", "aot": "[AOTAutograd]"}.get(key.who, key.who)
    part = f"decomposition of {key.part}" if key.stage is Stage.DECOMPOSITION else name_part(key.part)
    return f"{' '.join(filter(None, (who, part)))}: {key.words}"


def _find_bugs(members: Iterable[Attributed], ledger: Ledger) -> dict[CauseKey, Bug]:
    """The entry for each key: the one that has it, else one that lists a finding with it, since keys change when
    attribution learns more. Of several the first by id."""
    found: dict[CauseKey, Bug] = {}
    for member in members:
        bug = ledger.find_cause(member.key)
        if bug is None and not member.is_open:
            bug = ledger.find_case(member.finding.id)
        if bug is not None and (member.key not in found or bug.id < found[member.key].id):
            found[member.key] = bug
    return found


def _cluster(group: list[Attributed], bug: Bug | None) -> Cluster:
    members = sorted(group, key=lambda m: (m.is_open, sort_key(m.finding.entry.case), m.finding.id))
    findings = tuple(member.finding for member in members)
    keys = bug.causes if bug else tuple(sorted({m.key for m in members}))
    met_in = {version for finding in findings for version in finding.versions}
    back_in = next((version for version in sorted(met_in) if bug and bug.status.is_back_in(version)), "")
    return Cluster(
        keys=keys,
        members=tuple(members),
        findings=findings,
        example=findings[0],
        bug=bug,
        title=bug.title if bug else _title(keys[0]),
        is_open=bug is None and members[0].is_open,
        count=len({finding.id for finding in findings} | set(bug.findings if bug else ())),
        met=sum(finding.met for finding in findings),
        first_seen=min(filter(None, [*(f.first_seen for f in findings), bug.first_seen if bug else ""]), default=""),
        last_seen=max([*(f.last_seen for f in findings), bug.last_seen if bug else ""]),
        versions=tuple(corpus_entry.sort_by_version(dict.fromkeys([*met_in, *(bug.versions if bug else ())], ""))),
        back_in=back_in,
        is_news=bug is None or bug.status.is_open or bool(back_in),
    )


def _new_id(key: CauseKey, taken: Iterable[str]) -> str:
    words = [key.part if key.part not in ("", Part.ATTENTION_PATTERNS) else key.who, str(key.words)]
    slug = "-".join(re.findall(r"[a-z0-9]+", " ".join(words).lower()))[:48].strip("-") or "bug"
    names = [slug, *(f"{slug}-{number}" for number in range(2, 1000))]
    return next(name for name in names if name not in set(taken))


def table(clusters: Sequence[Cluster], ledger: Ledger) -> str:
    """A line for the whole, then each cluster in a few lines."""
    findings = sum(len(one.findings) for one in clusters)
    if not findings:
        return "no findings"
    missing = sum(one.bug is None for one in clusters)
    back = sum(bool(one.back_in) for one in clusters)
    head = f"{format_count(findings, 'finding')} of {format_count(len(clusters), 'root cause')}, "
    head += f"{missing} of them not in {ledger.path}" if missing else f"all of them in {ledger.path}"
    head += f"; {format_count(back, 'fixed bug')} {'is' if back == 1 else 'are'} back" if back else ""
    return "\n\n".join([head, *("\n".join(_lines(number, one)) for number, one in enumerate(clusters, 1))])


def status_text(one: Cluster) -> str:
    """What the ledger says of a cluster, and what that means now."""
    if one.back_in:
        return f"regression: fixed in {one.bug.status.about if one.bug else ''} and back in {one.back_in}"
    if one.bug is None:
        return "not in the ledger" + (" (add it with --update)" if not one.is_open else "")
    return one.bug.status.words


def _lines(number: int, one: Cluster) -> list[str]:
    indent = " " * (len(str(number)) + 2)
    why = next((m.why_open for m in one.members if m.why_open), "")
    cause = f"not known: {why}" if one.is_open else str(one.keys[0])
    days = " to ".join(dict.fromkeys(filter(None, (one.first_seen, one.last_seen))))
    versions = f"torch {', '.join(one.versions)}" if one.versions else ""
    seen = ", ".join(filter(None, [format_count(one.count, "finding"), f"met {one.met}x", days, versions]))
    example = one.example
    lines = [
        f"status   {status_text(one)}",
        f"cause    {cause}",
        f"seen     {seen}",
        f"example  {shlex.quote(str(example.path))}, {format_count(len(example.entry.case.ops), 'operation')}",
    ]
    return [
        f"{number}. {one.title}",
        *(indent + line for line in lines),
        *reproduce_lines(str(example.path), example.id, example.entry.subject, indent),
    ]


def record(ledger: Ledger, clusters: Sequence[Cluster]) -> Ledger:
    """Save the ledger and return it; a bug that its file lacks gets the simplest case of its cluster as example.

    Raises UserError.
    """
    check_writable(ledger.path)
    # Which examples the others have, if any, a person decided.
    had = {bug.id for bug in load(ledger.path).bugs} if ledger.path.exists() else set[str]()
    bugs = []
    for bug in ledger.bugs:
        example = next((one.example.entry for one in clusters if one.example.id in bug.findings), None)
        if example is not None and bug.id not in had:
            name = f"{EXAMPLES}/{bug.id}{SUFFIX}"
            # The file first: an entry never names one that is not there.
            corpus_entry.write(example, ledger.path.parent / name)
            bug = replace(bug, cases=(name,))  # noqa: PLW2901 - the entry with its example
        bugs.append(bug)
    ledger = Ledger(ledger.path, tuple(bugs))
    save(ledger)
    return ledger
