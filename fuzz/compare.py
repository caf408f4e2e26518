"""Hold torch versions against each other: `python -m fuzz.compare --python A --python B CASE...`."""

import sys
from dataclasses import replace
from pathlib import Path

from fuzz.cli import DEFAULT_WORKER, WorkerOptions, enter, ignore_lost_output


def compare(
    *case: Path,
    python: list[str] | None = None,
    subject: list[str] | None = None,
    worker: WorkerOptions = DEFAULT_WORKER,
    record: bool = False,
    quiet: bool = False,
) -> int:
    """Judge the same cases under several torch versions: what regressed, was fixed or fails in all.

    Regressions and fixes are confirmed in fresh workers.

    Parameters
    ----------
    case
        Case files, or directories of them.
    python
        An interpreter with torch 2.11 or later; repeat it, the oldest torch first. It needs no other package.
    subject
        Run under this subject instead of the case's own; may be repeated. Also package.module:function.
    record
        Write the verdicts into the case files, by torch version, under `seen`.
    quiet
        Print no progress.

    Examples
    --------
    python -m fuzz.compare --python old/bin/python --python new/bin/python corpus
    python -m fuzz.compare --record corpus/known
    0: no regression
    1: regressions
    130: interrupted; the cases judged so far are reported
    """
    from corpus.entry import load_all
    from fuzz.versions import make_file_tasks, run_comparison
    from generators.errors import UserError

    if len(python or ()) < 2 and not record:
        raise UserError("two versions are needed: --python A --python B")
    if record and (subject or worker.device):
        raise UserError("--record can't be combined with --subject or --device")
    tasks = make_file_tasks(load_all(case), subject or [], worker.device)
    config = worker.configure(None, subject)
    configs = [replace(config, python=interpreter) for interpreter in python or [sys.executable]]
    text, code, error = run_comparison(tasks, configs, record=record, quiet=quiet)
    with ignore_lost_output():
        print(text, flush=True)
    if error is not None:
        raise error
    return code


if __name__ == "__main__":
    enter(compare, "fuzz.compare")
