"""Run cases again and hold them against what the corpus expects: `python -m fuzz.replay CASE...`."""

from pathlib import Path

from fuzz.cli import DEFAULT_WORKER, WorkerOptions, enter


def replay(
    *cases: Path,
    subject: list[str] | None = None,
    python: str | None = None,
    worker: WorkerOptions = DEFAULT_WORKER,
    quiet: bool = False,
    verbose: bool = False,
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
    quiet
        Print only cases that are not as expected.
    verbose
        Name all that the case reached in the compiler.

    Examples
    --------
    python -m fuzz.replay corpus/known
    python -m fuzz.replay CASE --python ~/nightly/bin/python --subject inductor
    0: all as expected: a bug shows in the torch versions that its case names, and in no other; also if skipped
    1: a bug no longer shows in such a version, or something fails that should not
    """
    from corpus.entry import load_all
    from fuzz.evaluator import open_evaluator, public_version
    from fuzz.expectation import State, describe_result, replay_entry

    config = worker.configure(python, subject)
    entries = load_all(cases)
    unexpected = 0
    with open_evaluator(config, own_cache=False) as evaluator:
        for path, entry in entries.items():
            result, outcome = replay_entry(evaluator, entry, tuple(subject or ()), worker.device)
            unexpected += outcome.state.is_unexpected
            if quiet and not outcome.state.is_unexpected:
                continue
            torch = public_version(evaluator.on(worker.device or entry.device).hello.torch)
            is_gone = outcome.state is State.MET and entry.expectation.status == "known"
            head = f"{path}: {'gone, ' if is_gone else ''}{outcome.state.value} under torch {torch}"
            print("\n  ".join([head, *describe_result(result, entry.case, verbose=verbose)]))
            if outcome.state.is_unexpected or not result.results:
                print(f"  {outcome.reason}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    enter(replay, "fuzz.replay")
