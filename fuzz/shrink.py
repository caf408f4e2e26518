"""Shrink a case by hand: `python -m fuzz.shrink CASE`."""

import math
import time
from pathlib import Path

from fuzz.cli import DEFAULT_WORKER, WorkerOptions, enter


def shrink(
    case: Path,
    *,
    out: Path | None = None,
    subject: str | None = None,
    python: str | None = None,
    worker: WorkerOptions = DEFAULT_WORKER,
    shrink_time: str = "5m",
) -> int:
    """Find the simplest case that fails in the same way under the same subject; save it and print its source.

    Parameters
    ----------
    case
        A case file.
    out
        Directory to save to; by default the directory of the case file.
    subject
        Shrink under this subject instead of the case's own; `passes` is much faster if it shows the failure.
    python
        Interpreter, and so torch version, of the worker; by default the current one.
    shrink_time
        Time limit for shrinking. The smallest case found by then, or until Ctrl-C, is saved.

    Examples
    --------
    python -m fuzz.shrink CASE --out smaller
    python -m fuzz.shrink CASE --subject passes --shrink-time 20m
    0: the smallest case is saved
    1: the case does not fail
    """
    from corpus.entry import Entry, load, save
    from corpus.files import require_writable
    from fuzz.ask.evaluator import open_evaluator
    from fuzz.ask.question import Question
    from fuzz.campaign.investigation import Investigation
    from fuzz.campaign.saved_findings import record_origin
    from fuzz.durations import format_count, parse_duration
    from fuzz.subjects import without_options
    from generators.program.emit import source

    entry = load(case)
    directory = out or case.parent
    require_writable(directory, "--out")
    subject = subject or entry.subject
    config = worker.configure(python, (subject,), entry.device)
    deadline = time.monotonic() + parse_duration(shrink_time, "shrink-time")

    with open_evaluator(config) as evaluator:
        evaluator.require(subject)
        fitting = subject if entry.case.settings else without_options(subject)
        answer = evaluator.ask(Question(entry.case, (fitting,)))
        wanted = answer.only
        if not wanted.verdict.is_finding:
            why = "eager rejects it" if answer.rejected is not None else f"{subject} says {wanted.verdict}"
            print(f"{case}: {why}; nothing to shrink")
            return 1
        hello, found = evaluator.hello, [(entry.case, wanted)]
        investigation = Investigation(
            entry.case,
            wanted,
            (),
            evaluator,
            lambda: time.monotonic() > deadline,
            attention_only=subject in hello.attention,
            process_probes=math.inf,
        )
        is_cut = True  # by Ctrl-C
        try:
            investigation.shrink(wanted, lambda candidate, result: found.append((candidate, result)))
            is_cut = investigation.is_shrinking_cut
        finally:
            smallest, shown = found[-1]
            steps = format_count(len(found) - 1, "simpler case") if len(found) > 1 else "no simpler case found"
            size = f"{len(entry.case.ops)} to {format_count(len(smallest.ops), 'operation')}, {steps}"
            print(source(smallest))
            print(f"{size} in {format_count(investigation.probes + 1, 'check')}; {shown.verdict} under {shown.subject}")
            saved = save(
                Entry(smallest, note=entry.note, found=record_origin(shown, hello, is_shrinking_cut=is_cut)), directory
            )
            print(f"saved: {saved}" + "; shrinking was cut off: it may have simpler forms" * is_cut)
    return 0


if __name__ == "__main__":
    enter(shrink, "fuzz.shrink")
