"""Replays: judge a case again, and compare its verdicts with its expectation."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from corpus.entry import DEFAULT_SUBJECT, Entry, Expectation
from fuzz.ask.evaluator import Evaluator
from fuzz.ask.question import Question
from fuzz.commands import require_allowed
from fuzz.error_location import describe_where, describe_with_names
from fuzz.protocol import EAGER, CoverageItem, CoverageKind, Result, SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from fuzz.protocol.render import describe
from generators.errors import UserError
from generators.program.case import Case
from generators.records import decode

_RACING_RUNS = 16
"""The compiled runs that are compared for a recorded race: on a busy machine, two runs often agree."""


class State(Enum):
    """How a replay ended."""

    MET = "as expected"
    STILL = "still there"  # a recorded bug
    GONE = "no longer there"  # a recorded bug, in a version that should have it
    FAILED = "not as expected"
    SKIPPED = "skipped"

    @property
    def is_unexpected(self) -> bool:
        """Whether a person should look."""
        return self in (State.GONE, State.FAILED)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A case judged again. `reason`: why the replay ended in `state`, in one line."""

    result: Result
    state: State
    reason: str


def replay_entry(
    evaluator: Evaluator, entry: Entry, subjects: tuple[str, ...] = (), device: str | None = None
) -> ReplayResult:
    """Judge the entry under `subjects` on `device`, by default its own, and compare with its expectation.

    Raises UserError when a worker can't run there or does not know a subject.
    """
    device = device or entry.device
    evaluator, subjects = evaluator.on(device), subjects or (entry.subject,)
    for subject in subjects:
        require_allowed(subject, evaluator.config.named, "the case")
        evaluator.require(subject)
    expectation = entry.expectation
    repeat = _RACING_RUNS if expectation.verdict == Verdict.NONDETERMINISTIC else None
    result = evaluator.ask(Question(entry.case, subjects, repeat=repeat))
    if device != entry.device:
        # Coverage depends on the device.
        expectation = replace(expectation, reaches=())
    return ReplayResult(result, *compare(expectation, result, evaluator.hello.packages))


def compare(expectation: Expectation, result: Result, versions: Mapping[str, str]) -> tuple[State, str]:
    """The state of a replay under these versions, by package, and its reason.

        expected                   judged                    state
        pass                       no finding                MET
        rounding                   ok or rounding            MET
        known, in other versions   no finding                MET
        known, in this version     a finding, this verdict   STILL
                                   no finding                GONE
        known, in later versions   eager refuses it          SKIPPED
        any                        anything else             FAILED
        coverage that is missing   MET or STILL otherwise    FAILED
        any                        no subject takes it       SKIPPED

    Raises UserError when the expectation names a verdict that is no finding.
    """
    if result.rejected is not None:
        is_later = expectation.status == "known" and expectation.begins_after(versions)
        return State.SKIPPED if is_later else State.FAILED, f"eager refuses the case: {result.rejected}"
    judged = [r for r in result.results if r.verdict is not Verdict.SKIPPED]
    if not judged:
        return State.SKIPPED, "; ".join(filter(None, map(describe, result.results))) or "no subject takes this case"
    state, reason = _compare_verdicts(expectation, judged, versions)
    lost = _describe_unreached(expectation, judged, versions)
    return (State.FAILED, lost) if lost and not state.is_unexpected else (state, reason)


def _compare_verdicts(
    expectation: Expectation, judged: Sequence[SubjectResult], versions: Mapping[str, str]
) -> tuple[State, str]:
    findings = [r for r in judged if r.verdict.is_finding]
    bug, wanted = expectation.url or "the recorded bug", expectation.verdict
    if expectation.status == "known" and expectation.holds_for(versions):
        known = [verdict.value for verdict in Verdict if verdict.is_finding]
        if wanted not in ("", *known):
            raise UserError(f"expected verdict {wanted!r} is not one of {', '.join(known)}")
        if any(wanted in ("", r.verdict.value) for r in findings):
            return State.STILL, f"{bug}: {_summarize(findings)}"
        state = State.FAILED if findings else State.GONE
        return (
            state,
            f"expected {wanted or 'a finding'} ({bug}) in {_spell(expectation, versions)}: {_summarize(judged)}",
        )
    if findings:
        why = (
            f"{bug} is not expected in {_spell(expectation, versions)}"
            if expectation.status == "known"
            else "expected no finding"
        )
        return State.FAILED, f"{why}: {_summarize(findings)}"
    other = [r for r in judged if r.verdict not in (Verdict.OK, Verdict.ROUNDING)]
    if expectation.status == "rounding" and other:
        return State.FAILED, f"expected rounding: {_summarize(other)}"
    return State.MET, _summarize(judged)


def _describe_unreached(expectation: Expectation, judged: Sequence[SubjectResult], versions: Mapping[str, str]) -> str:
    """The items of `reaches` that the case misses under its own subject, in one line; "" if it misses none."""
    own = [r for r in judged if r.subject == (expectation.subject or DEFAULT_SUBJECT)]
    wanted = expectation.reaches if own and expectation.holds_for(versions) else ()
    reached = {item for r in own for item in r.whole_coverage}
    lost = [name for name in wanted if read_coverage_item(name) not in reached]
    if not lost:
        return ""
    rewrites = ", ".join(sorted({name for r in own for name in r.applied_rewrites})) or "none"
    where = f"under {own[0].subject} in {_spell(expectation, versions)}"
    return f"no longer reaches {', '.join(lost)} {where}; rewrites: {rewrites}"


def read_coverage_item(text: str) -> CoverageItem:
    """An item of `reaches` in a case file: "op aten.bmm", "lowering aten.add", or just the name of a rewrite.

    Raises UserError for another kind.
    """
    kind, _, name = text.rpartition(" ")
    try:
        return CoverageItem(CoverageKind(kind or CoverageKind.REWRITE), name)
    except ValueError as error:
        raise UserError(f"reaches {text!r}: {kind!r} is not one of {', '.join(CoverageKind)}") from error


def _spell(expectation: Expectation, versions: Mapping[str, str]) -> str:
    return f"{expectation.package} {versions.get(expectation.package, '')}".rstrip()


def _summarize(results: Sequence[SubjectResult]) -> str:
    return "; ".join(", ".join(filter(None, [f"{r.subject}: {r.verdict}", describe(r)])) for r in results)


def describe_result(result: Result, case: Case, *, verbose: bool = False) -> list[str]:
    """A result in lines: for each subject its verdict, the wrong value, numbers, rewrites and coverage.

    `verbose`: the names of coverage items, instead of their number.
    """
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
    """Details of a failure, in lines: the wrong elements, numbers, and rewrites."""
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
        rows.append(("torch._dynamo.utils.same", str(result.dynamo_same)))
    return rows


def read_recorded_result(entry: Entry) -> SubjectResult:
    """The result an entry records. Raises `UserError` for an unknown verdict or failure."""
    found, expected = entry.found, entry.expectation
    data: dict[str, Any] = {"subject": entry.subject, "verdict": expected.verdict or Verdict.OK.value}
    if found is not None:
        data = {"subject": found.subject, "verdict": found.verdict, "applied_rewrites": found.fired}
        data |= {"numbers": found.numbers, "wrong_rewrites": found.rewrites}
        data |= {"failure": found.failure} if found.failure else {}
    try:
        return decode(SubjectResult, data)
    except ValueError as error:
        raise UserError(f"{entry.file_name}: `found` is not readable: {error}") from error
