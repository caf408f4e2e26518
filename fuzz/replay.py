"""Run cases again, and compare their verdicts with their expectations: `python -m fuzz.replay CASE...`."""

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
    """Run each case in a worker and compare its verdict with the expectation in its file.

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
        Name the coverage of the case, instead of counting it.

    Examples
    --------
    python -m fuzz.replay corpus/known
    python -m fuzz.replay CASE --python ~/nightly/bin/python --subject inductor
    0: all as expected: a bug shows in the torch versions that its case names, and in no other; also if skipped
    1: a bug no longer shows in such a version, or a case fails that should pass
    """
    from corpus.entry import load_all
    from fuzz.ask.evaluator import open_evaluator
    from fuzz.replay_result import State, describe_result, replay_entry
    from fuzz.versions import public_version

    config = worker.configure(python, subject)
    entries = load_all(cases)
    unexpected = 0
    with open_evaluator(config, own_cache=False) as evaluator:
        for path, entry in entries.items():
            replayed = replay_entry(evaluator, entry, tuple(subject or ()), worker.device)
            state = replayed.state
            unexpected += state.is_unexpected
            if quiet and not state.is_unexpected:
                continue
            torch = public_version(evaluator.on(worker.device or entry.device).hello.torch)
            is_gone = state is State.MET and entry.expectation.status == "known"
            head = f"{path}: {'gone, ' if is_gone else ''}{state.value} under torch {torch}"
            print("\n  ".join([head, *describe_result(replayed.result, entry.case, verbose=verbose)]))
            if state.is_unexpected or not replayed.result.results:
                print(f"  {replayed.reason}")
    return int(unexpected > 0)


if __name__ == "__main__":
    enter(replay, "fuzz.replay")
