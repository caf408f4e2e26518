"""Replays: judge a case again, compare the verdicts with what the corpus expects, and say how to reproduce them."""

import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from corpus.entry import DEFAULT_SUBJECT, Entry, Expectation
from fuzz.error_location import describe_where, describe_with_names
from fuzz.evaluator import Evaluator
from fuzz.protocol import EAGER, CoverageItem, CoverageKind, Result, SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from fuzz.protocol.render import describe
from fuzz.subjects import is_user_function
from generators.errors import UserError
from generators.program.case import Case


class State(Enum):
    """How a replay ended. `STILL`: a recorded bug still shows, `GONE`: it should and does not."""

    MET = "as expected"
    STILL = "still there"
    GONE = "no longer there"
    FAILED = "not as expected"
    SKIPPED = "skipped"

    @property
    def is_unexpected(self) -> bool:
        """Whether a person should look: a bug does not show that should, or one shows that should not."""
        return self in (State.GONE, State.FAILED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A state and its reason in one line."""

    state: State
    reason: str


def compare(expectation: Expectation, result: Result, torch: str) -> Outcome:
    """Compare the verdicts in `result`, given under torch version `torch`, with the expectation.

    Raises UserError when the expectation names a verdict that does not exist or accuses nobody.
    """
    if result.rejected is not None:
        return Outcome(State.FAILED, f"eager refuses the case: {result.rejected}")
    judged = [r for r in result.results if r.verdict is not Verdict.SKIPPED]
    if not judged:
        reason = "; ".join(filter(None, map(describe, result.results)))
        return Outcome(State.SKIPPED, reason or "no subject takes this case")
    outcome = _compare_verdicts(expectation, judged, torch)
    lost = _describe_unreached(expectation, judged, torch)
    return Outcome(State.FAILED, lost) if lost and not outcome.state.is_unexpected else outcome


def _compare_verdicts(expectation: Expectation, judged: Sequence[SubjectResult], torch: str) -> Outcome:
    if expectation.status == "known":
        return _compare_known(expectation, judged, torch)
    findings = [r for r in judged if r.verdict.is_finding]
    if findings:
        return Outcome(State.FAILED, f"expected no finding: {_summarize(findings)}")
    other = [r for r in judged if r.verdict not in (Verdict.OK, Verdict.ROUNDING)]
    if expectation.status == "rounding" and other:
        return Outcome(State.FAILED, f"expected rounding: {_summarize(other)}")
    return Outcome(State.MET, _summarize(judged))


def _describe_unreached(expectation: Expectation, judged: Sequence[SubjectResult], torch: str) -> str:
    """What the case must reach and did not, in one line; "" for nothing, and under other subjects."""
    own = [r for r in judged if r.subject == (expectation.subject or DEFAULT_SUBJECT)]
    if not own or not expectation.holds_for(torch):
        return ""
    reached = {item for r in own for item in r.whole_coverage}
    lost = [name for name in expectation.reaches if read_coverage_item(name) not in reached]
    if not lost:
        return ""
    rewrites = ", ".join(sorted({name for r in own for name in r.applied_rewrites})) or "none"
    return f"no longer reaches {', '.join(lost)} under {own[0].subject} in torch {torch}; rewrites: {rewrites}"


def read_coverage_item(text: str) -> CoverageItem:
    """An item of `reaches` in a case file: "op aten.bmm", "lowering aten.add", or the name of a rewrite alone.

    Raises UserError for another kind.
    """
    kind, _, name = text.rpartition(" ")
    try:
        return CoverageItem(CoverageKind(kind or CoverageKind.REWRITE), name)
    except ValueError as error:
        raise UserError(f"reaches {text!r}: {kind!r} is not one of {', '.join(CoverageKind)}") from error


def _compare_known(expectation: Expectation, judged: Sequence[SubjectResult], torch: str) -> Outcome:
    findings = [r for r in judged if r.verdict.is_finding]
    bug = expectation.url or "the recorded bug"
    if not expectation.holds_for(torch):
        if findings:
            return Outcome(State.FAILED, f"{bug} is not expected in torch {torch}: {_summarize(findings)}")
        return Outcome(State.MET, f"{bug} does not show in torch {torch}: {_summarize(judged)}")
    wanted, known = expectation.verdict, [verdict.value for verdict in Verdict if verdict.is_finding]
    if wanted not in ("", *known):
        raise UserError(f"expected verdict {wanted!r} is not one of {', '.join(known)}")
    if any(wanted in ("", r.verdict.value) for r in findings):
        return Outcome(State.STILL, f"{bug}: {_summarize(findings)}")
    state, expected = State.FAILED if findings else State.GONE, wanted or "a finding"
    return Outcome(state, f"expected {expected} ({bug}) in torch {torch}: {_summarize(judged)}")


def _summarize(results: Sequence[SubjectResult]) -> str:
    return "; ".join(", ".join(filter(None, [f"{r.subject}: {r.verdict}", describe(r)])) for r in results)


def replay_entry(
    evaluator: Evaluator, entry: Entry, subjects: tuple[str, ...] = (), device: str | None = None
) -> tuple[Result, Outcome]:
    """Judge the entry under `subjects` on `device`, by default its own, and compare with its expectation.

    Raises UserError when a worker can't run there or does not know a subject.
    """
    device = device or entry.device
    evaluator, subjects = evaluator.on(device), subjects or (entry.subject,)
    for subject in subjects:
        require_allowed(subject, evaluator.config.named, "the case")
        evaluator.require(subject)
    result, expectation = evaluator.evaluate(entry.case, subjects), entry.expectation
    if device != entry.device:
        # What is reached is a matter of the device.
        expectation = replace(expectation, reaches=())
    return result, compare(expectation, result, evaluator.hello.torch)


def describe_result(result: Result, case: Case, *, verbose: bool = False) -> list[str]:
    """A result in lines: each subject's verdict, where a value is wrong, its numbers and the rewrites that fired.
    `verbose`: all that was reached by name."""
    lines = []
    for judged in result.results:
        lines.append(": ".join(filter(None, [f"{judged.subject} {judged.verdict}", describe_with_names(case, judged)])))
        lines += [f"  {line}" for line in describe_details(judged, describe_where(case, judged.where))]
        if judged.coverage:
            counts = "; ".join(f"{kind} {n}" for kind, n in Counter(i.kind for i in judged.coverage).most_common())
            named = ", ".join(f"{item.kind} {item.name}" for item in judged.coverage)
            lines.append(f"  reached {named if verbose else f'{counts} (-v names them)'}")
    return lines


def describe_details(result: SubjectResult, where: str) -> list[str]:
    """Details of a failure, in lines: where it is wrong, numbers, and rewrites."""
    lines = []
    if isinstance(result.failure, Raised) and result.failure.place:
        lines.append("to refuse a case, a function raises NotImplementedError or an exception that its `refuses` names")
    if where:
        lines.append(f"where: {where}")
    numbers = list_numbers(result)
    if numbers:
        lines.append(", ".join(f"{what}: {number}" for what, number in numbers))
    if result.applied_rewrites:
        lines.append(f"rewrites: {', '.join(result.applied_rewrites)}")
    return lines


def list_numbers(result: SubjectResult) -> list[tuple[str, str]]:
    """The errors against float64 and the numbers that decided, each with a label."""
    numbers, rows = result.numbers, []
    which = " where it is finite" if result.verdict is Verdict.NONFINITE else ""
    subject = "the subject" if result.verdict is Verdict.EAGER_SUSPECT or "peer_error" in numbers else "compiled"
    for key, who in (("eager_error", "eager"), ("peer_error", "a right kernel"), ("compiled_error", subject)):
        if key in numbers and not (key == "compiled_error" and result.subject == EAGER):
            rows.append((f"largest error of {who}{which}", f"{numbers[key]:.2g}"))
    if "scale" in numbers:
        rows.append(("largest value", f"{numbers['scale']:.2g}"))
    if {"ratio", "limit"} <= numbers.keys():
        rows.append(("worst row, relative to rounding", f"{numbers['ratio']:.3g} (limit {numbers['limit']:.3g})"))
    if numbers.get("rows_wrong"):
        rows.append(("wrong rows", f"{numbers['rows_wrong']:.0f} of {numbers.get('rows_total', math.nan):.0f}"))
    if result.dynamo_same is not None and "peer_error" not in numbers:
        rows.append(("torch._dynamo.utils.dynamo_same", str(result.dynamo_same)))
    return rows


def list_commands(path: str, case_id: str, subject: str) -> list[str]:
    """The commands that reproduce a finding and report it."""
    file = shlex.quote(path)
    # Only the person at the keyboard may have a function of theirs imported.
    allowed = f" --subject {shlex.quote(subject)}" if is_user_function(subject) else ""
    python = format_python(subject)
    report = shlex.quote(str(Path("reports") / case_id))
    return [f"{python} -m fuzz.replay {file}{allowed}", f"{python} -m triage.report {file}{allowed} --out {report}"]


def format_python(*subjects: str) -> str:
    """The interpreter as a person here would type it, with the path by which it imports functions of the user's."""
    interpreter = Path(sys.executable)
    if interpreter.is_relative_to(Path.cwd()):
        interpreter = interpreter.relative_to(Path.cwd())
    path = os.environ.get("PYTHONPATH") if any(map(is_user_function, subjects)) else None
    return " ".join([*([f"PYTHONPATH={shlex.quote(path)}"] if path else []), shlex.quote(str(interpreter))])


def reproduce_lines(path: str, case_id: str, subject: str, indent: str = "  ") -> list[str]:
    """The commands that show and report a finding, for a terminal: each a line of its own, to be copied."""
    commands = list_commands(path, case_id, subject)
    about = "  (run it again: exit code 0 while it shows; and write its report)"
    return [f"{indent}{line}" for line in (*commands, about)]


def require_allowed(subject: str, allowed: Collection[str], origin: str, option: str = "--subject") -> None:
    """Raises UserError for a user's function that is not in `allowed`: a case file is data, and naming a function there
    does not import it."""
    if is_user_function(subject) and subject not in allowed:
        raise UserError(f"{origin} is about {subject}, which runs code of yours: allow it with {option} {subject}")
