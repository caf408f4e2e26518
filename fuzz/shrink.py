"""Shrink a case by hand: `python -m fuzz.shrink CASE`."""

import os
import time
from pathlib import Path

from fuzz.cli import enter


def shrink(
    case: Path,
    *,
    out: Path | None = None,
    subject: str | None = None,
    python: str | None = None,
    device: str | None = None,
    timeout: str = "60s",
    shrink_time: str = "5m",
    memory: int = 8192,
) -> int:
    """Find the simplest case that fails as this one does under the same subject; save it and print its source.

    Exit code 0: saved, or already the simplest. 1: the case does not fail, so there is nothing to shrink.

    Parameters
    ----------
    case
        A case file.
    out
        The directory to save to; the file's own by default.
    subject
        Shrink under this subject instead of the case's own; `passes` is much quicker where it shows the failure.
    python
        The interpreter, and so the torch version, to run under; the current one by default.
    device
        cpu or cuda; by default the device the case is about.
    timeout
        How long one check may take.
    shrink_time
        How long to shrink; the smallest case by then is kept.
    memory
        MiB of memory the worker may use.
    """
    import sys
    from dataclasses import replace

    from corpus.entry import Entry, load, save
    from corpus.shrink import shrink as shrink_case
    from fuzz.campaign.budget import duration
    from fuzz.campaign.finding_store import found_as
    from fuzz.campaign.investigate import alike
    from fuzz.evaluator import WorkerConfig, open_evaluator
    from fuzz.protocol import SubjectResult
    from generators.errors import UserError
    from generators.program.case import Case
    from generators.program.emit import source

    entry = load(case)
    directory = out or case.parent
    if not os.access(next(p for p in (directory, *directory.absolute().parents) if p.exists()), os.W_OK):
        raise UserError(f"{directory}: can't be written; give another directory with --out")
    subject = subject or entry.subject
    config = WorkerConfig(
        python=python or sys.executable,
        device=device or entry.device,
        named=(subject,) if ":" in subject else (),
        timeout=duration(timeout, "timeout"),
        memory_mib=memory,
    )
    deadline = time.monotonic() + duration(shrink_time, "shrink_time")
    probes = 0

    with open_evaluator(config) as evaluator:

        def judge(candidate: Case) -> SubjectResult | None:
            nonlocal probes
            probes += 1
            result = evaluator.evaluate(candidate, (subject,))
            return result.results[0] if result.results else None

        evaluator.require(subject)
        wanted = judge(entry.case)
        if wanted is None or not wanted.verdict.is_finding:
            said = "eager rejects it" if wanted is None else f"{subject} says {wanted.verdict}"
            print(f"{case}: {said}; nothing to shrink")
            return 1
        hello = evaluator.hello
        contracted = subject in hello.attention
        smallest = shrink_case(
            entry.case,
            lambda c: alike(judge(c), wanted, exact=True, contracted=contracted),
            lambda: time.monotonic() > deadline,
            contracted=contracted,
        )[-1]
        shown = judge(smallest) or wanted
    print(source(smallest))
    print(
        f"{len(entry.case.ops)} operations became {len(smallest.ops)} in {probes} checks; {shown.verdict} under {subject}"
    )
    print(f"saved: {save(replace(Entry(smallest, note=entry.note), found=found_as(shown, hello)), directory)}")
    return 0


if __name__ == "__main__":
    enter(shrink, "fuzz.shrink")
