"""Which properties of a finding matter: each is changed by itself, and the nearest case that passes is the control."""

import difflib
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from fuzz.bug_identity import attention_patterns, kind_of
from fuzz.protocol import FINDINGS, SubjectResult, Verdict
from generators.program.case import Case
from generators.program.emit import source
from triage.attribution.perturbations import EQUAL, Perturbation, perturb

SECONDS = 60.0
MOST = 12
"""Values of one property that are tried."""

_PASSING = frozenset({Verdict.OK, Verdict.ROUNDING, Verdict.RANDOM_STREAM, Verdict.PRECISION_POLICY})
_DIFF_LINES = 10
_SHOWN, _NEAREST = 5, 2

Judge = Callable[[Case], SubjectResult]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was tried around a case. `whole`: there was time for all of it."""

    case: Case
    tried: tuple[Perturbation, ...]
    whole: bool = True

    @property
    def control(self) -> Perturbation | None:
        """The nearest case that passes."""

        def distance(one: Perturbation) -> tuple[bool, int]:
            return _is_size(one.property), len(self._diff(one))

        return min((one for one in self.tried if one.fails is False), key=distance, default=None)

    @property
    def needs(self) -> list[str]:
        """What it takes to fail: "softmax dim = 0 (passes with -1)"."""
        groups = self._groups()
        varied = {name for name, group in groups.items() if any(one.fails is False for one in group)}
        fixed = {name for name in varied if not any(one.fails for one in groups[name])}
        equal = [name for name, (one, *_) in groups.items() if one.fails and {*name.split(EQUAL)} <= fixed]
        of_equal = {name for names in equal for name in names.split(EQUAL)}
        alone = [name for name in groups if name in varied - of_equal and EQUAL not in name]
        return [f"{name} (passes where they differ)" for name in equal] + [_describe_need(n, groups[n]) for n in alone]

    def diff(self) -> list[str]:
        """The lines of the program that differ in the control."""
        return self._diff(self.control)[:_DIFF_LINES] if self.control is not None else []

    def _diff(self, one: Perturbation) -> list[str]:
        before, after = (source(case).splitlines() for case in (self.case, one.case))
        lines = difflib.unified_diff(before, after, n=0, lineterm="")
        changed = [
            f"{line[0]} {line[1:].strip()}" for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        return changed or [f"# {one.property}: {one.becomes}"]

    def _groups(self) -> dict[str, list[Perturbation]]:
        names = dict.fromkeys(one.property for one in self.tried)
        return {name: [one for one in self.tried if one.property == name] for name in names}


def explain(
    case: Case,
    result: SubjectResult,
    judge: Judge,
    seconds: float = SECONDS,
    *,
    rewrite: bool = False,
    sizes_only: bool = False,
) -> Explanation:
    """Perturb the case for about so many seconds. `result` is what `judge` gives for the case itself; `rewrite`: a
    rewrite of attention is at fault, and a case that it leaves alone says nothing; `sizes_only`: nothing but sizes is
    varied."""
    began = time.monotonic()
    counts: dict[str, int] = defaultdict(int)
    tried: list[Perturbation] = []
    whole = True
    for one in perturb(case, sizes_only=sizes_only):
        if counts[one.property] >= MOST:
            continue
        if time.monotonic() - began > seconds:
            whole = False
            break
        found = judge(one.case)
        if found.verdict in FINDINGS or found.verdict in _PASSING:
            counts[one.property] += 1
            fails = _fails_alike(result, found)
            is_left_alone = rewrite and not attention_patterns(found.fired)
            tried.append(replace(one, fails=None if fails is False and is_left_alone else fails))
    return Explanation(case, tuple(tried), whole)


def _fails_alike(result: SubjectResult, other: SubjectResult) -> bool | None:
    if other.verdict in _PASSING:
        return False
    is_alike = kind_of(result.verdict) == kind_of(other.verdict)
    if is_alike and result.verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR):
        left, right = (one.failure and one.failure.identity() for one in (result, other))
        is_alike = left == right
    return True if is_alike else None


def _is_size(name: str) -> bool:
    return name[:1].isupper()


def _describe_need(name: str, group: list[Perturbation]) -> str:
    now = group[0].is_now
    passing = [one.becomes for one in group if one.fails is False]
    failing = [one.becomes for one in group if one.fails]
    if _is_size(name):
        near = sorted(map(int, passing), key=lambda size: abs(size - int(now)))[:_NEAREST]
        passing, failing = list(map(str, sorted(near))), list(map(str, sorted(map(int, failing))))
    others = f" or {', '.join(failing[:_SHOWN])}" if failing else ""
    return f"{name} = {now}{others} (passes with {', '.join(passing[:_SHOWN])})"
