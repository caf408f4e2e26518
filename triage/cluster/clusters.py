"""Clusters: the findings of one root cause, with what the ledger says of it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corpus.ledger import Bug, CauseKey, Ledger
from generators.program.simplicity import sort_key
from triage.cluster.attributions import OPEN, Attributed, kept
from triage.cluster.findings import Finding, gather
from triage.cluster.roots import PATTERNS

_ATTENTION = "attention"
_COMPILERS = {"inductor": "[Inductor]", "aot": "[AOTAutograd]", "eager": ""}


@dataclass(frozen=True, slots=True)
class Cluster:
    """All findings of one root cause, simplest first. `bug`: its entry in the ledger, None where that has none."""

    roots: tuple[CauseKey, ...]
    members: tuple[Attributed, ...]
    bug: Bug | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, simplest first."""
        return tuple(member.finding for member in self.members)

    @property
    def example(self) -> Finding:
        """The simplest finding."""
        return self.findings[0]

    @property
    def title(self) -> str:
        """One line by symptom; no finding that joins changes it."""
        return self.bug.title if self.bug else title_of(self.roots[0])

    @property
    def open(self) -> bool:
        """Whether its cause could not be told."""
        return self.roots[0].stage == OPEN

    @property
    def count(self) -> int:
        """How many findings, those that only the ledger tells of included."""
        return len({finding.id for finding in self.findings} | set(self.bug.findings if self.bug else ()))

    @property
    def met(self) -> int:
        """How many failures of the campaigns looked at these findings explain."""
        return sum(finding.met for finding in self.findings)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the program at fault that findings named, such as the numbers of patterns."""
        return tuple(sorted({m.cause.part for m in self.members if m.cause and m.cause.part}, key=_natural))

    @property
    def first_seen(self) -> str:
        """The day it was first met, "" where nobody told."""
        return min(
            filter(None, [*(f.first_seen for f in self.findings), self.bug.first_seen if self.bug else ""]), default=""
        )

    @property
    def last_seen(self) -> str:
        """The day it was last met."""
        return max(
            filter(None, [*(f.last_seen for f in self.findings), self.bug.last_seen if self.bug else ""]), default=""
        )

    @property
    def versions(self) -> tuple[str, ...]:
        """The torch versions it was met in."""
        met = frozenset[str]().union(*(finding.versions for finding in self.findings))
        return tuple(sorted(met | set(self.bug.versions if self.bug else ()), key=_natural))

    @property
    def back_in(self) -> str:
        """The torch version in which it was met though it should be gone from it; "" where there is none."""
        met = frozenset[str]().union(*(finding.versions for finding in self.findings))
        return next((v for v in sorted(met, key=_natural) if self.bug and self.bug.status.is_back_in(v)), "")

    @property
    def is_news(self) -> bool:
        """Whether somebody has to look: the ledger has no entry, or one that nobody decided about, or that says it is fixed."""
        return self.bug is None or self.bug.status.is_open or bool(self.back_in)


def cluster(attributed: Iterable[Attributed], ledger: Ledger) -> list[Cluster]:
    """One for each root cause, in whatever order findings come: news first, then by how many findings."""
    members = list(attributed)
    adopted = _adopted(members, ledger)
    groups: dict[str, list[Attributed]] = {}
    bugs: dict[str, Bug] = {}
    for member in members:
        bug = adopted.get(member.root) or ledger.of_case(member.finding.id)
        key = f"bug {bug.id}" if bug else f"root {member.root}"
        groups.setdefault(key, []).append(member)
        if bug:
            bugs[key] = bug
    clusters = [_cluster(group, bugs.get(key)) for key, group in groups.items()]
    return sorted(clusters, key=lambda c: (not c.is_news, c.open, -len(c.findings), c.title, c.roots))


def kept_clusters(paths: Sequence[Path], ledger: Ledger) -> list[Cluster]:
    """The clusters of these runs and files as far as they are known without running anything: what nobody has attributed yet
    is a cluster of its own."""
    told, rest = split(gather(paths), ledger)
    return cluster([*told, *kept(rest)], ledger)


def split(findings: Sequence[Finding], ledger: Ledger) -> tuple[list[Attributed], list[Finding]]:
    """The findings that the ledger lists, which need no attribution, and the others."""
    told = [Attributed(finding, bug.roots[0]) for finding in findings if (bug := ledger.of_case(finding.id))]
    return told, [finding for finding in findings if ledger.of_case(finding.id) is None]


def updated(ledger: Ledger, clusters: Sequence[Cluster]) -> Ledger:
    """The ledger with what these clusters tell: entries for those it lacks, and of the others when and where they were met.
    What nobody could attribute stays out."""
    taken = {finding.id for one in clusters for finding in one.findings if one.bug or not one.open}
    bugs = {bug.id: replace(bug, findings=tuple(f for f in bug.findings if f not in taken)) for bug in ledger.bugs}
    for one in clusters:
        if one.open and one.bug is None:
            continue
        bug = bugs[one.bug.id] if one.bug else Bug(_new_id(one.roots[0], bugs), one.title, one.roots)
        # An entry taken by a finding of it, under words that no entry has: by these the next finding is recognised.
        words = {
            member.root for member in one.members if member.root.stage != OPEN and ledger.of_root(member.root) is None
        }
        bugs[bug.id] = replace(
            bug,
            roots=(*bug.roots, *sorted(words - set(bug.roots))),
            findings=tuple(sorted({*bug.findings, *(finding.id for finding in one.findings)})),
            first_seen=one.first_seen,
            last_seen=one.last_seen,
            versions=one.versions,
        )
    return Ledger(ledger.path, tuple(bugs.values()))


def title_of(root: CauseKey) -> str:
    """How a bug that nobody has given a title shows, from its root alone."""
    what = _ATTENTION if root.part == PATTERNS or "sfdp" in root.part else root.part or _ATTENTION
    who = _COMPILERS.get(root.who, f"{root.who}:")
    if "raises" in root.mechanism:
        text = f"{what}: {root.mechanism}"
    elif root.who == "eager":
        text = f"{what} is wrong in eager: {root.mechanism}"
    else:
        verb = (
            "rewritten" if root.stage == "joint_graph_passes" else "compiled" if root.who in _COMPILERS else "computed"
        )
        where = f" ({root.part})" if "sfdp" in root.part else ""
        text = f"{what} is {verb} wrongly{where}: {root.mechanism}"
    return f"{who} {text}".strip()


def _adopted(members: Sequence[Attributed], ledger: Ledger) -> dict[CauseKey, Bug]:
    """The entry for each root: the one that names it, else one that holds a finding of it, since words for causes change
    when attribution learns more. Of several the first by id."""
    found: dict[CauseKey, Bug] = {}
    for member in sorted(members, key=lambda m: m.finding.id):
        bug = ledger.of_root(member.root)
        if bug is None and member.root.stage != OPEN:
            bug = ledger.of_case(member.finding.id)
        if bug is not None and (member.root not in found or bug.id < found[member.root].id):
            found[member.root] = bug
    return found


def _cluster(group: list[Attributed], bug: Bug | None) -> Cluster:
    members = sorted(group, key=lambda m: (m.root.stage == OPEN, sort_key(m.finding.entry.case), m.finding.id))
    roots = sorted({m.root for m in members})
    return Cluster(bug.roots if bug else tuple(roots), tuple(members), bug)


def _new_id(root: CauseKey, taken: Iterable[str]) -> str:
    words = [root.part if root.part not in ("", PATTERNS) else root.who, root.mechanism]
    slug = "-".join(re.findall(r"[a-z0-9]+", " ".join(words).lower()))[:48].strip("-") or "bug"
    names = [slug, *(f"{slug}-{number}" for number in range(2, 1000))]
    return next(name for name in names if name not in set(taken))


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """Numbers by size: pattern 5 before pattern 14."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text))
