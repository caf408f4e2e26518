"""Compare torch versions: `python -m fuzz.compare --python A --python B CASE...`."""

import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fuzz.ask.worker_config import WorkerConfig
from fuzz.cli import DEFAULT_WORKER, WorkerOptions, enter, ignore_lost_output, refuse


def compare(
    *case: Path,
    python: list[str] | None = None,
    subject: list[str] | None = None,
    worker: WorkerOptions = DEFAULT_WORKER,
    module: str | None = None,
    out: Path | None = None,
    json: Path | None = None,
    record: bool = False,
    patch: Path | None = None,
    run: list[str] | None = None,
    budget: str | None = None,
    accept_partial: bool = False,
    quiet: bool = False,
) -> int:
    """Replay cases under several torch versions, and list regressions, fixes, and failures in all versions.

    Regressions and fixes are confirmed in fresh workers. With --module, compare the blocks of a module instead: which
    change, and which side is right by float64.

    Parameters
    ----------
    case
        Case files, or directories of them.
    python
        An interpreter with torch 2.11 or later; repeat it, the oldest torch first. It needs no other package.
    subject
        Run under this subject instead of the case's own; may be repeated. Also package.module:function.
    module
        package.module:factory: a function without arguments that gives a module and its arguments, (module, args) or
        (module, args, kwargs). The whole module and each attention block is compared as it is, with its own parameters
        and arguments, in its own mode: in eager and compiled, under two --python; with a single --python, eager with
        compiled. An interpreter that can't import it judges cases that repeat it.
    out
        With --module: directory for the case files of blocks that change, by default runs/START_TIME.
    json
        With --module: file for the answers as JSON; without a name, standard output.
    record
        Write the verdicts into the case files under `seen`, by version of torch or of the runtime that has the bug.
    patch
        A unified diff with names such as a/torch/_inductor/config.py. Compares torch as it is with a copy that has this
        change, in place of two --python.
    run
        With --module of a released model: a way to run it, such as "training, left padding"; may be repeated. By
        default all that apply.
    budget
        With --module: time after which no block is begun, such as 10m. The answer names what is left.
    accept_partial
        With --module: exit with 0 although blocks are judged in part, or not at all.
    quiet
        Print no progress.

    Examples
    --------
    python -m fuzz.compare --python old/bin/python --python new/bin/python corpus
    python -m fuzz.compare --python old/bin/python --python new/bin/python --module my:block
    python -m fuzz.compare --patch fix.patch corpus
    0: no regression
    1: regressions; with --module, a block is wrong or refused on the new side, or wrong on both, or is judged in part
       or not at all
    130: interrupted; the cases judged so far are reported
    """
    from corpus.files import require_writable
    from fuzz.ask.patched_torch import patched_torch
    from fuzz.commands import STDOUT

    if json is not None and json != STDOUT:
        require_writable(json, "--json", is_file=True)
    if out is not None:
        require_writable(out, "--out")
    needs_module = any((out, json, run, budget, accept_partial))
    refuse(
        (module is None and needs_module, "--out, --json, --run, --budget and --accept-partial need --module"),
        (module is not None and (case or record), "--module can't be combined with case files or --record"),
        (
            record and any((subject, worker.device, patch)),
            "--record can't be combined with --subject, --device or --patch",
        ),
        (patch and len(python or ()) > 1, "--patch compares one torch with its patched copy: name one --python"),
    )
    config = worker.configure(None, subject)
    configs = [replace(config, python=interpreter) for interpreter in python or [sys.executable]]
    with ExitStack() as stack:
        configs += [stack.enter_context(patched_torch(configs[0], patch))] if patch else []
        if module is None:
            return _compare_cases(case, configs, subject or [], worker.device, record=record, quiet=quiet)
        return _compare_module(
            module,
            configs,
            subject or ["inductor"],
            out,
            json,
            runs=run,
            budget=budget,
            quiet=quiet,
            accept_partial=accept_partial,
        )


def _compare_cases(
    paths: Sequence[Path],
    configs: list[WorkerConfig],
    subjects: list[str],
    device: str | None,
    *,
    record: bool,
    quiet: bool,
) -> int:
    """Compare the verdicts on case files, and record them."""
    from corpus.entry import load_all, record_seen
    from corpus.files import require_writable
    from fuzz.ask.evaluator import open_evaluator
    from fuzz.commands import require_allowed
    from fuzz.protocol import Verdict
    from fuzz.versions import VersionChange, VersionRow, compare_all, render_table, spell_verdict, start_versions
    from generators.errors import UserError

    if len(configs) < 2 and not record:
        raise UserError("two versions are needed: --python A --python B, or --patch FILE")
    entries = load_all(paths)
    for path, entry in entries.items():
        if not subjects:
            require_allowed(entry.subject, (), str(path))
        if record:
            require_writable(path, "--record", is_file=True)
    tasks = [(path, entry, name) for path, entry in entries.items() for name in subjects or (entry.subject,)]
    rows: list[VersionRow] = []
    with ExitStack() as stack:
        evaluators = [stack.enter_context(open_evaluator(each)) for each in configs]
        versions = start_versions(evaluators, [name for *_, name in tasks])
        try:
            for row in compare_all(tasks, versions, device, quiet=quiet):
                rows.append(row)
                if record and row.is_reproduced:
                    judged = {key: one for key, one in row.results.items() if one.verdict is not Verdict.SKIPPED}
                    entry = entries[row.path]
                    seen = {entry.spell_version(versions[key].hello.packages): one for key, one in judged.items()}
                    record_seen(row.path, {version: spell_verdict(one) for version, one in seen.items()})
        finally:
            with ignore_lost_output():
                print(render_table(rows, versions, len(tasks)), flush=True)
    return int(any(row.change is VersionChange.REGRESSED for row in rows))


def _compare_module(
    factory: str,
    configs: list[WorkerConfig],
    subjects: list[str],
    out: Path | None,
    json: Path | None,
    *,
    runs: list[str] | None,
    budget: str | None,
    quiet: bool,
    accept_partial: bool,
) -> int:
    """Compare the blocks of a module, the whole first."""
    from fuzz.commands import write_json
    from fuzz.durations import parse_duration
    from fuzz.module_answer import Answer, as_data, describe_unjudged, render
    from fuzz.module_comparison import open_comparison
    from generators.errors import UserError

    if len(configs) > 2:
        raise UserError(f"a module is compared in one or two versions, got {len(configs)} times --python")
    seconds = parse_duration(budget, "budget") if budget else math.inf
    directory = out or Path("runs") / time.strftime("%Y-%m-%dT%H-%M-%S")
    with open_comparison(configs, factory, subjects, directory) as comparison:
        rows = comparison.rows
        try:
            for row in comparison.compare_all(runs or (), seconds):
                if not quiet:
                    with ignore_lost_output():
                        told = f"{row.block.name}, {row.mode}, {row.way}: {row.told} ({len(comparison.left) - 1} left)"
                        print(told, file=sys.stderr, flush=True)
        finally:
            if json is None or not write_json([as_data(row) for row in rows], json):
                with ignore_lost_output():
                    print(render(rows, factory, list(comparison.versions), comparison.left), flush=True)
    if comparison.left and not rows:
        raise UserError(f"--budget {budget}: over before the first block")
    if all(row.answer is Answer.UNJUDGED for row in rows):
        raise UserError(f"{factory}: no block is judged: {describe_unjudged(rows)}")
    is_partial = bool(comparison.left) or any(row.answer.is_partial for row in rows)
    return int((is_partial and not accept_partial) or any(row.answer.is_failure for row in rows))


if __name__ == "__main__":
    enter(compare, "fuzz.compare")
