"""Clusters: the findings of one root cause and its entry in the ledger."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.causes import COMPILER_LABELS, CauseKey, Part, name_part
from corpus.entry import CASE_SUFFIX
from corpus.ledger import Bug, Ledger, check_writable, save
from corpus.versions import sort_versions, spell_versions, split_version
from fuzz.bug_identity import measured_rewrite
from fuzz.commands import reproduce_lines
from fuzz.durations import format_count
from fuzz.protocol.rewrites import WrongRewrite
from generators.program.simplicity import sort_key
from triage.cluster.findings import Attributed, Finding, gather, load_attributed

EXAMPLES = "known"
"""The directory of examples, beside the ledger."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """All findings of one root cause."""

    members: tuple[Attributed, ...]
    """Members with a known cause come first, then simpler ones."""
    bug: Bug | None
    """Its entry in the ledger."""
    updated: Bug
    """Its entry with these findings, their causes, days and versions. A new entry has no id yet."""

    @property
    def findings(self) -> list[Finding]:
        """The findings of the members."""
        return [member.finding for member in self.members]

    @property
    def example(self) -> Finding:
        """The simplest finding."""
        return self.members[0].finding

    @property
    def is_open(self) -> bool:
        """Whether its cause is not known."""
        return self.bug is None and self.members[0].is_open

    @property
    def back_in(self) -> str:
        """The first version in which the bug was met although it is fixed there; "" if none."""
        met_in = sort_versions(version for finding in self.findings for version in finding.versions)
        back = (one for one in met_in if self.bug and self.bug.status.is_back_in(dict([split_version(one)])))
        return next(back, "")

    @property
    def is_news(self) -> bool:
        """Whether a person must look: it has no ledger entry or an open one, or it is fixed and was met again."""
        return self.bug is None or self.bug.is_open or bool(self.back_in)


def cluster(attributed: Iterable[Attributed], ledger: Ledger) -> list[Cluster]:
    """The clusters: first those with `is_news`, then by number of findings. The order of findings does not matter.

    A finding never changes the cluster of another.
    """
    members = _unify(attributed, ledger)
    # First choice: the entry with this key. Second: the first entry by id that lists a finding with this key. Keys
    # change when attribution improves.
    found = ((one.key, ledger.find_cause(one.key) or ledger.find_case(one.finding.id)) for one in members)
    listed = sorted(((key, bug) for key, bug in found if bug), key=lambda pair: pair[1].id, reverse=True)
    bugs: dict[CauseKey, Bug] = dict(listed)
    groups: defaultdict[Bug | CauseKey, list[Attributed]] = defaultdict(list)
    for member in members:
        groups[bugs.get(member.key, member.key)].append(member)
    clusters = [_cluster(group, name if isinstance(name, Bug) else None, ledger) for name, group in groups.items()]
    return sorted(
        clusters, key=lambda c: (not c.is_news, c.is_open, -len(c.members), c.updated.title, c.updated.causes)
    )


def _unify(attributed: Iterable[Attributed], ledger: Ledger) -> list[Attributed]:
    """The findings, with the same key for all causes whose measurements are the same bug.

    A ledger's key comes first, then the key of the fullest measurement. If several match, the key with most experiments
    in common wins.
    """
    members = list(attributed)
    fullest = sorted({member.key for member in members}, key=lambda key: (-len(str(key)), key))
    known: dict[CauseKey, WrongRewrite] = {}
    keys: dict[CauseKey, CauseKey] = {}
    for key in [*(key for bug in ledger.bugs for key in bug.causes), *fullest]:
        measured = measured_rewrite(key)
        if measured is not None and key not in keys:
            alike = [one for one, other in known.items() if measured.is_same_bug(other)]
            keys[key] = max(alike, key=lambda one: measured.count_shared(known[one]), default=key)
            known.setdefault(keys[key], measured)
    return [replace(member, key=keys.get(member.key, member.key)) for member in members]


def load_clusters(paths: Sequence[Path], ledger: Ledger) -> list[Cluster]:
    """The clusters of these runs and files by stored causes. Runs nothing.

    A finding without a stored cause is a cluster of its own, unless the ledger lists it.
    """
    listed, rest = split_listed(gather(paths), ledger)
    return cluster([*listed, *load_attributed(rest)], ledger)


def split_listed(findings: Sequence[Finding], ledger: Ledger) -> tuple[list[Attributed], list[Finding]]:
    """Findings that the ledger lists, with the first cause of their entry, and findings that it does not list."""
    listed = [Attributed(finding, bug.cause) for finding in findings if (bug := ledger.find_case(finding.id))]
    return listed, [finding for finding in findings if ledger.find_case(finding.id) is None]


def update_ledger(ledger: Ledger, clusters: Sequence[Cluster]) -> Ledger:
    """The ledger with an entry for each cluster whose cause is known, and with the days and versions of each."""
    listed = [one for one in clusters if one.bug or not one.is_open]
    taken = {finding.id for one in listed for finding in one.findings}
    bugs = {bug.id: replace(bug, findings=tuple(f for f in bug.findings if f not in taken)) for bug in ledger.bugs}
    for one in listed:
        own = {finding.id for finding in one.findings}
        updated = replace(one.updated, findings=tuple(f for f in one.updated.findings if f in own or f not in taken))
        updated = updated if one.bug else _name_bug(updated, bugs)
        bugs[updated.id] = updated
    return Ledger(ledger.path, tuple(bugs.values()))


def record(ledger: Ledger, clusters: Sequence[Cluster]) -> Ledger:
    """Save the updated ledger and return it; each new bug gets the simplest case of its cluster as example.

    Raises UserError.
    """
    check_writable(ledger.path)
    updated = update_ledger(ledger, clusters)
    for bug in updated.bugs[len(ledger.bugs) :]:
        example = next(one.example.entry for one in clusters if one.example.id in bug.findings)
        # The file first: an entry never names a missing file.
        corpus_entry.write(example, updated.path.parent / bug.cases[0])
    save(updated)
    return updated


def _title(key: CauseKey) -> str:
    names = (f"[{COMPILER_LABELS[key.who]}]" if key.who in COMPILER_LABELS else key.who, name_part(key.part, key.stage))
    return f"{' '.join(filter(None, names))}: {key.words}"


def _cluster(group: list[Attributed], bug: Bug | None, ledger: Ledger) -> Cluster:
    members = sorted(group, key=lambda m: (m.is_open, sort_key(m.finding.entry.case), m.finding.id))
    findings = [member.finding for member in members]
    # A listed finding that is attributed again may have a new key. The entry gets it, so that later findings match.
    keys = sorted({m.key for m in members if bug is None or not (m.is_open or ledger.find_cause(m.key))})
    decided_by = next((member.cause.decided_by for member in members if member.cause), ())
    entry = bug or Bug("", _title(keys[0]), cause=keys[0], decided_by=decided_by)
    seen: list[Finding | Bug] = [entry, *findings]
    days = sorted(filter(None, (day for one in seen for day in (one.first_seen, one.last_seen))))
    met = {version for finding in findings for version in finding.versions}
    versions = entry.versions + tuple(one for one in met if split_version(one)[0] == entry.project.package)
    updated = replace(
        entry,
        also=(*entry.also, *(key for key in keys if key != entry.cause)),
        findings=tuple(sorted({*entry.findings, *(finding.id for finding in findings)})),
        first_seen=days[0] if days else "",
        last_seen=days[-1] if days else "",
        versions=tuple(sort_versions(versions)),
    )
    return Cluster(tuple(members), bug, updated)


def _name_bug(bug: Bug, taken: Iterable[str]) -> Bug:
    key = bug.cause
    words = [key.part if key.part not in ("", Part.ATTENTION_PATTERNS) else key.who, str(key.words)]
    slug = "-".join(re.findall(r"[a-z0-9]+", " ".join(words).lower()))[:48].strip("-") or "bug"
    names = [slug, *(f"{slug}-{number}" for number in range(2, 1000))]
    name = next(name for name in names if name not in set(taken))
    return replace(bug, id=name, cases=(f"{EXAMPLES}/{name}{CASE_SUFFIX}",))


def format_table(clusters: Sequence[Cluster], ledger: Ledger, worker: str) -> str:
    """A line for the whole, then each cluster in a few lines. `worker`: the interpreter for its commands."""
    findings = sum(len(one.findings) for one in clusters)
    if not findings:
        return "no findings"
    missing = sum(one.bug is None for one in clusters)
    back = sum(bool(one.back_in) for one in clusters)
    head = f"{format_count(findings, 'finding')} of {format_count(len(clusters), 'root cause')}, "
    head += f"{missing} of them not in {ledger.path}" if missing else f"all of them in {ledger.path}"
    head += f"; {format_count(back, 'fixed bug')} {'is' if back == 1 else 'are'} back" if back else ""
    return "\n\n".join([head, *("\n".join(_lines(number, one, worker)) for number, one in enumerate(clusters, 1))])


def describe_status(one: Cluster) -> str:
    """The status of a cluster, in words."""
    if one.back_in:
        return f"regression: fixed in {one.bug.status.about if one.bug else ''} and back in {one.back_in}"
    if one.bug is None:
        return "not in the ledger" + (" (add it with --update)" if not one.is_open else "")
    return one.bug.standing


def _lines(number: int, one: Cluster, worker: str) -> list[str]:
    indent = " " * (len(str(number)) + 2)
    why = next((m.why_open for m in one.members if m.why_open), "")
    bug = one.updated
    cause = f"not known: {why}" if one.is_open else str(bug.cause)
    days = " to ".join(dict.fromkeys(filter(None, (bug.first_seen, bug.last_seen))))
    versions = spell_versions(bug.versions)
    met = f"met {sum(finding.met for finding in one.findings)}x"
    seen = ", ".join(filter(None, [format_count(len(bug.findings), "finding"), met, days, versions]))
    example = one.example
    lines = [
        f"status   {describe_status(one)}",
        f"cause    {cause}",
        f"seen     {seen}",
        f"example  {shlex.quote(str(example.path))}, {format_count(len(example.entry.case.ops), 'operation')}",
    ]
    return [
        f"{number}. {bug.title}",
        *(indent + line for line in lines),
        *reproduce_lines(
            str(example.path),
            example.id,
            example.entry.subject,
            indent,
            worker=worker,
            is_shrinking_cut=example.entry.is_shrinking_cut,
        ),
    ]
