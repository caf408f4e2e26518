"""Findings and the end of a campaign in words, for stdout."""

import os
import shlex
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.ledger import Bug
from fuzz.campaign.events import FindingSaved
from fuzz.campaign.stats import Statistics
from fuzz.campaign.store import FindingRow, Results
from fuzz.campaign.symptom import operation_of
from fuzz.durations import format_count, format_duration
from fuzz.expectation import State
from fuzz.protocol import EAGER, Verdict
from fuzz.protocol.failures import RelationBroken
from fuzz.protocol.relations import MEANINGS
from fuzz.protocol.render import describe
from fuzz.subjects import is_named


def finding_text(event: FindingSaved) -> str:
    """A finding when it is saved: what fails, the program, the numbers, where it is, and how to see it again."""
    kind = "internal finding" if event.internal else "finding"
    lines = [
        f"{kind}: {event.verdict} under {event.subject}, {format_count(event.ops, 'operation')}: {event.verdict.explanation}",
        f"  {event.message}",
    ]
    lines += [f"  {event.ledger}"] if event.ledger else []
    failure = event.failure
    if isinstance(failure, RelationBroken) and failure.relation in MEANINGS:
        lines.append(f"  the function was called again with other arguments: {MEANINGS[failure.relation]}")
    if event.where:
        lines.append(f"  where: {event.where}")
    other = failure is not None and failure.is_of_further_call
    numbers = numbers_text(event.numbers, Verdict.OK if other else event.verdict, event.subject)
    if numbers:
        lines.append(f"  the case's own call is right: {numbers}" if other else f"  {numbers}")
    if event.same is not None and not other:
        lines.append(f"  torch._dynamo.utils.same(eager, compiled, fp64_ref): {event.same}")
    lines += [f"  a regression: torch {version} says {verdict}" for version, verdict in event.seen.items()]
    if event.fired:
        lines.append(f"  rewrites: {', '.join(event.fired)}")
    lines += ["", textwrap.indent(event.source.rstrip(), "    "), "", f"  saved: {event.path}"]
    return "\n".join([*lines, *reproduce_lines(event.path, event.case, event.subject), ""])


def numbers_text(numbers: Mapping[str, float], verdict: Verdict, subject: str) -> str:
    """The errors against float64, in one line: of eager and the compiled program, or of an attention function and of
    right kernels of its class. Where eager is wrong nothing need have been compiled."""
    if "compiled_error" not in numbers:
        return ""
    mine = numbers["compiled_error"]
    if "peer_error" in numbers:
        text = f"largest error against float64: {mine:.2g}, a right kernel's {numbers['peer_error']:.2g}"
    elif "eager_error" in numbers:
        text = f"largest error against float64: eager {numbers['eager_error']:.2g}"
        if subject != EAGER:
            text += f", {subject if verdict is Verdict.EAGER_SUSPECT else 'compiled'} {mine:.2g}"
    else:
        return ""
    if verdict is Verdict.NONFINITE:
        text = text.replace("largest error", "where it is finite, largest error")
    if "scale" in numbers:
        text += f", of values up to {numbers['scale']:.2g}"
    return text


def summary(
    results: Results, stats: Statistics, waiting: int, this_run: int, bugs: Mapping[str, Bug] | None = None
) -> str:
    """The end of a run: what was done, what was found, what is left. `bugs`: entries of the ledger by the ids of their
    examples."""
    outcomes = results.counts("outcomes")
    rows = results.findings()
    new, known = [r for r in rows if r.kind == "new"], [r for r in rows if r.kind == "known" and r.count]
    internal = [r for r in rows if r.kind == "internal"]
    rejected = f"{stats.rejected / stats.cases:.1%}" if stats.cases else "none"
    lines = [
        (
            f"{stats.ended}: {stats.cases} cases in {format_duration(stats.elapsed)}, {stats.rate:.1f} checks/s,"
            f" {stats.torch_share:.0%} of worker time in torch ({stats.oracle_share:.0%} for the oracle), rejected {rejected}"
        )
    ]
    lines += [f"  rejected {count}x: {reason}" for reason, count in stats.reasons.most_common(5)]
    lines += [_coverage(subject, stats) for subject in sorted(stats.skipped) if is_named(subject)]
    lines += [f"  {subject} took no case it met: {reason}" for subject, reason in sorted(stats.idle().items())]
    for label in ("internal_only", "within_same", "unconfirmed", "in_both", "not_compared"):
        if outcomes.get(label):
            lines.append(f"  set aside: {outcomes[label]} {_SET_ASIDE[label]}")
    if waiting:
        again = f"--out {shlex.quote(stats.started.out)}" if stats.started else "the same --out"
        verb = "waits" if waiting == 1 else "wait"
        lines.append(
            f"  {format_count(waiting, 'suspicion')} {verb}; run again with --budget 10m {again} to work on {'it' if waiting == 1 else 'them'}"
        )
    if stats.faults:
        lines.append(
            f"{format_count(len(stats.faults), 'case')} could not be judged because of a fault of attnfuzz itself; please report it:"
        )
        lines += [
            f"  {fault.text.splitlines()[-1]}: {fault.path}, and what the worker said beside it"
            for fault in stats.faults[:5]
        ]
    if internal:
        lines.append(
            f"{format_count(len(internal), 'internal finding')}, shown by no public subject since none was chosen (--subject inductor)"
        )
        lines += [line for row in internal for line in _row_lines(row)]
    listed = {row.case_id: (bugs or {})[row.case_id] for row in known if row.case_id in (bugs or {})}
    lines += _bug_lines(listed, known, stats)
    known = [row for row in known if row.case_id not in listed]
    if known:
        lines.append(f"{format_count(len(known), 'known finding')} {'was' if len(known) == 1 else 'were'} met again:")
        lines += [f"  {row.result.verdict} {row.case_id}, met {row.count}x: {row.file}" for row in known]
    aside = []
    if stats.started and all(map(is_named, stats.started.subjects)):
        aside = [row for row in new if row.result.verdict is Verdict.EAGER_SUSPECT]
        new = [row for row in new if row not in aside]
    if aside:
        lines.append(
            f"{format_count(len(aside), 'mistake')} of torch's own eager mode, met on the way and saved; yours has no part in them:"
        )
        lines += [f"  {operation_of(row.result)}: {row.file}" for row in aside]
    where = f"in {stats.started.out}" if stats.started else "in all"
    news = f", {this_run} of them by this run" if this_run != len(new) else ""
    lines.append(f"{format_count(len(new), 'finding')} {where}{news}" + (":" if new else ""))
    lines += [line for row in new for line in _row_lines(row)]
    return "\n".join(lines)


_STATUSES = {"new": "not reported yet", "not_a_bug": "not a bug"}


def _bug_lines(listed: Mapping[str, Bug], rows: list[FindingRow], stats: Statistics) -> list[str]:
    """The bugs of the ledger that were met again, most often first."""
    met = Counter[str]()
    for row in rows:
        if row.case_id in listed:
            met[listed[row.case_id].id] += row.count
    by_id = {bug.id: bug for bug in listed.values()}
    lines = (
        [f"{format_count(len(met), 'bug')} of the ledger {'was' if len(met) == 1 else 'were'} met again:"]
        if met
        else []
    )
    for bug_id, count in met.most_common():
        bug = by_id[bug_id]
        status = _STATUSES.get(bug.status.kind, bug.status.kind)
        about = f" ({bug.status.about})" if bug.status.about else ""
        if bug.status.kind == "fixed":
            about = f" ({bug.status.about}; this is {stats.started.torch})" if stats.started else about
        lines.append(f"  {status}: {bug.title}{about}, met {count}x")
    return lines


def _coverage(subject: str, stats: Statistics) -> str:
    """How many cases a function of the user's took, and what kept it from the others."""
    met = sum(count for key, count in stats.verdicts.items() if key.rpartition(" ")[0] == subject)
    reasons = stats.skipped[subject]
    told = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(5))
    return f"  {subject} took {met - reasons.total()} of {met} cases; of the others: {told}"


_SET_ASIDE = {
    "internal_only": "that only an internal subject shows",
    "within_same": "that torch._dynamo.utils.same accepts",
    "unconfirmed": "that did not repeat three times in fresh workers",
    "in_both": "that the torch of --against fails too, and so no regressions",
    "not_compared": "that the torch of --against can't judge",
}


def _row_lines(row: FindingRow) -> list[str]:
    case = corpus_entry.loads(row.entry, row.file).case
    result = row.result
    head = f"  {result.verdict} under {result.subject}, {format_count(len(case.ops), 'operation')}, met {row.count}x"
    message = describe(result) or Verdict(result.verdict).explanation
    return [head, f"    {message}", *reproduce_lines(row.file, row.case_id, row.result.subject, "    ")]


def reproduce_lines(path: str, case_id: str, subject: str, indent: str = "  ") -> list[str]:
    """How to see a finding again, and how to report it."""
    file = shlex.quote(path)
    # Only the person at the keyboard may have a function of theirs imported.
    allowed = f" --subject {subject}" if is_named(subject) else ""
    report = shlex.quote(str(Path("reports") / case_id))
    python = shlex.quote(_interpreter())
    if is_named(subject) and os.environ.get("PYTHONPATH"):
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
