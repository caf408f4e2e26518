"""Compare torch versions: `python -m fuzz.compare --python A --python B CASE...`."""

import sys
from contextlib import ExitStack
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
    """Replay cases under several torch versions, and list regressions, fixes, and failures in all versions.

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
    from corpus.entry import load_all, record_seen
    from corpus.files import require_writable
    from fuzz.commands import require_allowed
    from fuzz.evaluator import open_evaluator, public_version
    from fuzz.protocol import Verdict
    from fuzz.versions import Row, VersionChange, compare_versions, render_table, spell_verdict, start_versions
    from generators.errors import UserError

    if len(python or ()) < 2 and not record:
        raise UserError("two versions are needed: --python A --python B")
    if record and (subject or worker.device):
        raise UserError("--record can't be combined with --subject or --device")
    entries = load_all(case)
    for path, entry in entries.items():
        if not subject:
            require_allowed(entry.subject, (), str(path))
        if record:
            require_writable(path, "--record", is_file=True)
    tasks = [(path, entry, name) for path, entry in entries.items() for name in subject or (entry.subject,)]
    config = worker.configure(None, subject)
    rows: list[Row] = []
    with ExitStack() as stack:
        configs = [replace(config, python=interpreter) for interpreter in python or [sys.executable]]
        evaluators = [stack.enter_context(open_evaluator(each)) for each in configs]
        versions = start_versions(evaluators, [name for *_, name in tasks])
        torches = {label: public_version(evaluator.hello.torch) for label, evaluator in versions.items()}
        try:
            for number, (path, entry, name) in enumerate(tasks, 1):
                if not quiet:
                    with ignore_lost_output():
                        print(f"{number} of {len(tasks)}: {path} under {name}", file=sys.stderr, flush=True)
                row = compare_versions(path, entry, name, worker.device or entry.device, versions)
                rows.append(row)
                if record and row.is_reproduced:
                    judged = {key: one for key, one in row.results.items() if one.verdict is not Verdict.SKIPPED}
                    record_seen(path, {torches[label]: spell_verdict(one) for label, one in judged.items()})
        finally:
            with ignore_lost_output():
                print(render_table(rows, versions, len(tasks)), flush=True)
    return int(any(row.change is VersionChange.REGRESSED for row in rows))


if __name__ == "__main__":
    enter(compare, "fuzz.compare")
