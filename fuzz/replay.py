"""Run cases again and hold them against what the corpus expects: `python -m fuzz.replay CASE...`."""

import sys
from pathlib import Path
from typing import Literal

from fuzz.cli import enter


def replay(
    *cases: Path,
    subject: list[str] | None = None,
    python: str | None = None,
    device: Literal["cpu", "cuda"] | None = None,
    timeout: str = "120s",
    memory: int = 8192,
    quiet: bool = False,
) -> int:
    """Run each case in a worker and compare its verdict with what the case file expects.

    Parameters
    ----------
    cases
        Case files, or directories of them.
    subject
        Run under this subject instead of the case's own; may be repeated. Also package.module:function.
    python
        Interpreter, and so torch version, of the worker; by default the current one.
    device
        cpu or cuda; by default the device in the case file.
    timeout
        Time limit for one stage of a case, such as 60s.
    memory
        Memory limit of the worker, in MiB.
    quiet
        Print only cases that are not as expected.

    Examples
    --------
    python -m fuzz.replay corpus/known
    python -m fuzz.replay CASE --python ~/nightly/bin/python --subject inductor
    0: all as expected; a known bug still shows
    1: something is not as expected; a known bug no longer shows
    """
    from corpus.entry import load_all
    from fuzz.evaluator import WorkerConfig, open_evaluator
    from fuzz.expectation import describe_result, replay_entry

    config = WorkerConfig.from_options(python, "cpu", subject or (), timeout, memory)
    entries = load_all(cases)
    unexpected = 0
    with open_evaluator(config, own_cache=False) as evaluator:
        for path, entry in entries.items():
            result, outcome = replay_entry(evaluator, entry, tuple(subject or ()), device)
            unexpected += outcome.state.is_unexpected
            if quiet and not outcome.state.is_unexpected:
                continue
            print("\n  ".join([f"{path}: {outcome.state.value}", *describe_result(result, entry.case)]))
            if outcome.state.is_unexpected or not result.results:
                print(f"  {outcome.reason}")
    return 1 if unexpected else 0


def judge_and_print(text: str, subject: str, device: str, python: str = sys.executable) -> int:
    """Judge the case in a file's text under a subject and print the result. Gives the exit code: 1 for a finding, 0 for
    none, 125 (which `git bisect run` skips) if it can't be judged."""
    from corpus.entry import loads
    from fuzz.evaluator import WorkerConfig, open_evaluator
    from fuzz.expectation import describe_result, replay_entry
    from fuzz.protocol import Verdict
    from generators.errors import UserError

    config = WorkerConfig.from_options(python, "cpu", (subject,), timeout="120s", memory=8192)
    entry = loads(text)
    try:
        with open_evaluator(config, own_cache=False) as evaluator:
            result, _ = replay_entry(evaluator, entry, (subject,), device)
    except UserError as error:
        print(f"this can't run here: {error}", file=sys.stderr)
        return 125
    print("\n".join(describe_result(result, entry.case)) or f"eager refuses the case: {result.rejected}")
    verdicts = [judged.verdict for judged in result.results]
    if any(verdict.is_finding for verdict in verdicts):
        return 1
    return 0 if verdicts and Verdict.SKIPPED not in verdicts else 125


if __name__ == "__main__":
    enter(replay, "fuzz.replay")
