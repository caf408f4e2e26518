"""Whether what a worker says of a case is what the corpus expects of it, and how to ask again."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from corpus.entry import DEFAULT_SUBJECT, Expectation
from fuzz.protocol import Result, SubjectResult, Verdict
from fuzz.protocol.render import describe
from fuzz.subjects import is_user_function
from generators.errors import UserError


class State(Enum):
    """How a replay ended. `KNOWN`: a recorded bug still shows; `STILL`: what a campaign found still shows."""

    MET = "as expected"
    KNOWN = "known bug, still there"
    STILL = "still there, as found"
    GONE = "no longer there"
    FAILED = "not as expected"
    SKIPPED = "skipped"

    @property
    def is_unexpected(self) -> bool:
        """Whether something is to be looked into: what should show does not, or what should not does."""
        return self in (State.GONE, State.FAILED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A state and its reason in one line."""

    state: State
    reason: str


def compare(expectation: Expectation, result: Result, torch: str, *, as_found: bool = False) -> Outcome:
    """Compare the verdicts in `result`, given under torch version `torch`, with the expectation. `as_found`: the
    expectation is what a campaign saw, not a bug that somebody recorded.

    Raises UserError when the expectation names a verdict that does not exist or accuses nobody.
    """
    if result.rejected is not None:
        return Outcome(State.FAILED, f"eager refuses the case: {result.rejected}")
    judged = [r for r in result.results if r.verdict is not Verdict.SKIPPED]
    if not judged:
        reason = "; ".join(filter(None, map(describe, result.results)))
        return Outcome(State.SKIPPED, reason or "no subject takes this case")
    outcome = _of_verdicts(expectation, judged, torch, as_found=as_found)
    lost = _not_reached(expectation, judged, torch)
    return Outcome(State.FAILED, lost) if lost and not outcome.state.is_unexpected else outcome


def _of_verdicts(expectation: Expectation, judged: Sequence[SubjectResult], torch: str, *, as_found: bool) -> Outcome:
    findings = [r for r in judged if r.verdict.is_finding]
    if expectation.status == "known":
        return _known(expectation, judged, findings, torch, as_found=as_found)
    if findings:
        return Outcome(State.FAILED, f"expected no finding: {_summarize(findings)}")
    other = [r for r in judged if r.verdict not in (Verdict.OK, Verdict.ROUNDING)]
    if expectation.status == "rounding" and other:
        return Outcome(State.FAILED, f"expected rounding: {_summarize(other)}")
    return Outcome(State.MET, _summarize(judged))


def _not_reached(expectation: Expectation, judged: Sequence[SubjectResult], torch: str) -> str:
    """What the case must reach and did not, in one line; empty when there is nothing, or another subject was asked."""
    own = [r for r in judged if r.subject == (expectation.subject or DEFAULT_SUBJECT)]
    if not own or not expectation.holds_for(torch):
        return ""
    reached = {name for r in own for name in (*r.fired, *r.reached)}
    lost = [name for name in expectation.reaches if name not in reached]
    rewrites = ", ".join(sorted({name for r in own for name in r.fired})) or "none"
    return (
        f"no longer reaches {', '.join(lost)} under {own[0].subject} in torch {torch}; rewrites: {rewrites}"
        if lost
        else ""
    )


def _known(
    expectation: Expectation,
    judged: Sequence[SubjectResult],
    findings: Sequence[SubjectResult],
    torch: str,
    *,
    as_found: bool,
) -> Outcome:
    bug = expectation.url or ("what was found" if as_found else "the known bug")
    if not expectation.holds_for(torch):
        if findings:
            return Outcome(State.FAILED, f"{bug} is not expected in torch {torch}: {_summarize(findings)}")
        return Outcome(State.MET, f"{bug} does not show in torch {torch}: {_summarize(judged)}")
    wanted = _verdict(expectation)
    if any(wanted in (None, r.verdict) for r in findings):
        return Outcome(State.STILL if as_found else State.KNOWN, f"{bug}: {_summarize(findings)}")
    expected = wanted or "a finding"
    return Outcome(
        State.FAILED if findings else State.GONE, f"expected {expected} ({bug}) in torch {torch}: {_summarize(judged)}"
    )


def _verdict(expectation: Expectation) -> Verdict | None:
    if not expectation.verdict:
        return None
    known = {v.value: v for v in Verdict if v.is_finding}
    if expectation.verdict not in known:
        raise UserError(f"expected verdict {expectation.verdict!r} is not one of {', '.join(known)}")
    return known[expectation.verdict]


def _summarize(results: Sequence[SubjectResult]) -> str:
    return "; ".join(", ".join(filter(None, [f"{r.subject}: {r.verdict}", describe(r)])) for r in results)


def reproduce_lines(path: str, case_id: str, subject: str, indent: str = "  ") -> list[str]:
    """How to see a finding again, and how to report it."""
    file = shlex.quote(path)
    # Only the person at the keyboard may have a function of theirs imported.
    allowed = f" --subject {subject}" if is_user_function(subject) else ""
    report = shlex.quote(str(Path("reports") / case_id))
    python = shlex.quote(_interpreter())
    if is_user_function(subject) and os.environ.get("PYTHONPATH"):
        python = f"PYTHONPATH={shlex.quote(os.environ['PYTHONPATH'])} {python}"
    return [
        f"{indent}Reproduce with: {python} -m fuzz.replay {file}{allowed}",
        f'{indent}                (says "{State.STILL.value}" and exits with 0 while it shows, 1 when it is gone)',
        f"{indent}                {python} -m triage.report {file}{allowed} --out {report}",
    ]


def _interpreter() -> str:
    """The interpreter that has what attnfuzz needs, as a person here would type it."""
    here = Path.cwd()
    python = Path(sys.executable)
    return str(python.relative_to(here)) if python.is_relative_to(here) else str(python)
