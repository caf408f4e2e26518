"""Which properties of a finding matter: each is varied on its own around the minimum, and the nearest case that passes is
the control experiment."""

import difflib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzz.bug_identity import attention_patterns, kind_of
from fuzz.protocol import FINDINGS, SubjectResult, Verdict
from fuzz.protocol.failures import normalize
from fuzz.tiles import tile_rule
from generators.program.case import Case
from generators.program.emit import source
from triage.attribution.perturbations import Variation, variations

SECONDS = 60.0
MOST = 8
"""Variations of one property that are tried."""

_PASSING = frozenset({Verdict.OK, Verdict.ROUNDING, Verdict.RANDOM_STREAM, Verdict.PRECISION_POLICY})
_DIFF_LINES = 10
_SHOWN = 5

_BARE = ("mode", "sizes", "dtype")
_OF_INPUTS = ("memory layout", "values", "rank")

Judge = Callable[[Case], SubjectResult]


@dataclass(frozen=True, slots=True)
class Tried:
    """A variation and what became of it: it fails as the case does, passes, or neither (None). `rewritten`: a pattern of
    attention took it."""

    variation: Variation
    fails: bool | None
    rewritten: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was tried around a case. `whole`: time sufficed for all of it. `rewrite`: the fault is in one of the graph, which
    some variations get around."""

    case: Case
    tried: tuple[Tried, ...]
    seconds: float
    whole: bool = True
    rewrite: bool = False

    @property
    def control(self) -> Variation | None:
        """The nearest variation that passes, one that is rewritten too if there is any."""
        passing = [one for one in self.tried if one.fails is False]
        nearest = min(
            passing,
            key=lambda one: (self._escapes(one), one.variation.near, len(self._changed(one.variation))),
            default=None,
        )
        return None if nearest is None else nearest.variation

    @property
    def needs(self) -> list[str]:
        """What it takes to fail: "softmax dim = 0 (right with -1)"."""
        return self._conditions(lambda group: any(t.fails is False and not self._escapes(t) for t in group))

    @property
    def matched(self) -> list[str]:
        """What it takes to be rewritten at all."""
        groups = self._groups().items()
        return [
            name
            for name, group in groups
            if not any(t.fails for t in group)
            and any(t.fails is False for t in group)
            and all(self._escapes(t) for t in group if t.fails is False)
        ]

    @property
    def free(self) -> list[str]:
        """What does not matter: "dtype (float32, bfloat16, float16)"."""
        same = [
            (name, group)
            for name, group in self._groups().items()
            if "==" not in name and any(t.fails for t in group) and not any(t.fails is False for t in group)
        ]
        kinds: dict[str, list[str]] = defaultdict(list)
        told = []
        for name, group in same:
            kind, of, which = name.partition(" of ")
            if of and kind in _OF_INPUTS:
                kinds[kind].append(which)
            else:
                told.append(_listed(name, group))
        return told + [f"{kind} of {', '.join(which)}" for kind, which in kinds.items()]

    @property
    def sentences(self) -> list[str]:
        """The explanation for a reader: what it takes, what does not matter, what it rests on."""
        told = [f"Needs {'; '.join(self.needs)}."] if self.needs else []
        told += [f"Does not depend on {'; '.join(self.free)}."] if self.free else []
        matched = [name for name in self.matched if "==" not in name]
        told += [f"No rewrite took the program with another {', '.join(matched)}, of those tried."] if matched else []
        counted = sum(one.fails is not None for one in self.tried)
        cut = "" if self.whole else ", until time ran out"
        return [*told, f"{counted} cases judged, each with one property changed{cut}."]

    def diff(self) -> list[str]:
        """The lines of the program that differ in the control."""
        return self._changed(self.control)[:_DIFF_LINES] if self.control is not None else []

    def _escapes(self, one: Tried) -> bool:
        return self.rewrite and not one.rewritten

    def _conditions(self, counts: Callable[[list[Tried]], bool]) -> list[str]:
        groups = self._groups()
        told = [self._needed(name, group) for name, group in groups.items() if "==" not in name and counts(group)]
        return [*told, *_coincidences([name for name, group in groups.items() if "==" in name and counts(group)])]

    def _changed(self, variation: Variation) -> list[str]:
        before, after = (source(case).splitlines() for case in (self.case, variation.case))
        lines = difflib.unified_diff(before, after, n=0, lineterm="")
        changed = [
            line[0] + " " + line[1:].strip() for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        how = {"mode": f"# mode: {variation.becomes}", "sizes": f"# sizes: {variation.becomes}"}
        return changed or [how.get(variation.property, f"# {variation.property}: {variation.becomes}")]

    def _groups(self) -> dict[str, list[Tried]]:
        groups: dict[str, list[Tried]] = defaultdict(list)
        for one in self.tried:
            groups[one.variation.property].append(one)
        return groups

    def _needed(self, name: str, group: Sequence[Tried]) -> str:
        now = group[0].variation.is_now
        passing = [one.variation.becomes for one in group if one.fails is False and not self._escapes(one)]
        failing = [one.variation.becomes for one in group if one.fails]
        if _is_size(name):
            rule = tile_rule({int(size) for size in (now, *failing)}, {int(size) for size in passing}, name)
            return rule.removeprefix("only where ").removeprefix("only at ")
        others = f" or {', '.join(failing[:_SHOWN])}" if failing else ""
        return f"{name} {'' if name in _BARE else '= '}{now}{others} (right with {', '.join(passing[:_SHOWN])})"


def explain(
    case: Case, result: SubjectResult, judge: Judge, seconds: float = SECONDS, *, rewrite: bool = False
) -> Explanation:
    """Vary the case for about so many seconds. `result` is what `judge` gives for the case itself; `rewrite` says that a
    rewrite of attention is at fault."""
    began = time.monotonic()
    counts: dict[str, int] = defaultdict(int)
    tried: list[Tried] = []
    whole = True
    for variation in variations(case):
        if counts[variation.property] >= MOST:
            continue
        if time.monotonic() - began > seconds:
            whole = False
            break
        found = judge(variation.case)
        if found.verdict in FINDINGS or found.verdict in _PASSING:
            counts[variation.property] += 1
            tried.append(Tried(variation, _alike(result, found), bool(attention_patterns(found.fired))))
    return Explanation(case, tuple(tried), time.monotonic() - began, whole, rewrite)


def _alike(result: SubjectResult, other: SubjectResult) -> bool | None:
    if other.verdict in _PASSING:
        return False
    same = kind_of(result.verdict) == kind_of(other.verdict)
    if same and result.verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR):
        same = normalize(result.message) == normalize(other.message)
    return True if same else None


def _coincidences(names: list[str]) -> list[str]:
    """As one equation a dimension, "x.shape[0] == B" of every place that matters."""
    places: dict[str, list[str]] = defaultdict(list)
    for name in names:
        place, _, dim = name.partition(" == ")
        places[dim].append(place)
    return [" == ".join(found) if len(found) > 1 else f"{found[0]} == {dim}" for dim, found in places.items()]


def _is_size(name: str) -> bool:
    return name.isidentifier() and name[:1].isupper()


def _listed(name: str, group: Sequence[Tried]) -> str:
    now = group[0].variation.is_now
    others = list(dict.fromkeys(one.variation.becomes for one in group if one.fails))
    if name in ("random values", "sizes"):
        return {"sizes": "sizes being symbolic or not"}.get(name, name)
    if _is_size(name):
        return f"{name} ({', '.join(sorted({now, *others}, key=int))} tried)"
    return f"{name} ({', '.join([now, *others][: _SHOWN + 1])} tried)"
