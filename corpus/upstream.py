"""The issues and pull requests about a bug that a person found in the trackers of other projects."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from generators.records import matches

_TRACKED = re.compile(r"((?:[\w.-]+/)?[\w.-]+)#([0-9]+)")
_Ref = Annotated[
    str, matches(rf"{_TRACKED.pattern}|https?://\S+", 'is neither a number such as "pytorch#186799" nor a URL')
]
_Relation = Literal["same", "family", "related"]
_HEADS: Mapping[_Relation, str] = {"same": "known upstream", "family": "same family", "related": "see also"}
_Date = Annotated[str, matches("[0-9]{4}-[0-9]{2}(-[0-9]{2})?", 'is not a date such as "2026-09" or "2026-09-30"')]


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue or pull request about a bug, or about a relative of it."""

    ref: _Ref
    relation: _Relation
    """`family`: perhaps the same root cause, which nobody has proven."""
    state: Literal["open", "closed", "merged", "unknown"]
    note: str = ""

    def __str__(self) -> str:
        return self.ref if self.state == "unknown" else f"{self.ref} ({self.state})"

    @property
    def url(self) -> str:
        """Its page. GitHub leads from the number of a pull request there too."""
        found = _TRACKED.fullmatch(self.ref)
        if not found:
            return self.ref
        project = found[1] if "/" in found[1] else f"{found[1]}/{found[1]}"
        return f"https://github.com/{project}/issues/{found[2]}"


@dataclass(frozen=True, slots=True)
class Upstream:
    """The result of a search. A bug without one was not searched for."""

    searched: _Date
    """The day, or month, of the search. States of issues are of that day."""
    issues: tuple[Issue, ...] = ()

    @property
    def same(self) -> tuple[Issue, ...]:
        """The issues about the same bug."""
        return tuple(issue for issue in self.issues if issue.relation == "same")

    def __str__(self) -> str:
        return self.spell(str)[0]

    def spell(self, spell_issue: Callable[[Issue], str]) -> list[str]:
        """In words, the nearest issues first: ["known upstream: pytorch#1 (open)", "see also: pytorch#2"]."""
        if not self.issues:
            return [f"not found upstream, searched {self.searched}"]
        found = {head: [one for one in self.issues if one.relation == kind] for kind, head in _HEADS.items()}
        return [f"{head}: {', '.join(map(spell_issue, issues))}" for head, issues in found.items() if issues]
