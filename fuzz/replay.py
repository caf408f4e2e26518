"""Run cases again and hold them against what the corpus expects: `python -m fuzz.replay CASE...`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fuzz.cli import enter

if TYPE_CHECKING:
    from corpus.entry import Entry
    from fuzz.evaluator import Evaluator, WorkerConfig
    from fuzz.expectation import Outcome
    from fuzz.protocol import Result
    from generators.program.case import Case


def replay(
    *cases: Path,
    subject: list[str] | None = None,
    python: str | None = None,
    device: str | None = None,
    timeout: str = "120s",
    memory: int = 8192,
) -> int:
    """Run each case in a worker and compare its verdict with what the case file expects.

    Exit code 0: all as expected, known bugs that still show included. 1: something was not as expected, including known
    bugs that no longer show. 2: wrong option or file.

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
    """
    from corpus.entry import load_all
    from fuzz.evaluator import WorkerConfig

    config = WorkerConfig.from_options(python, "cpu", subject or (), timeout, memory)
    entries = load_all(cases)
    unexpected = 0
    with Replayer(config) as replayer:
        for path, entry in entries.items():
            result, outcome = replayer.run(entry, tuple(subject or ()), device)
            print(
                "\n".join(
                    (f"{path}: {outcome.state.value}", *(f"  {line}" for line in describe_result(result, entry.case)))
                )
            )
            if outcome.state.is_unexpected or not result.results:
                print(f"  {outcome.reason}")
            unexpected += outcome.state.is_unexpected
    return 1 if unexpected else 0


def shown(text: str, subject: str, device: str, python: str = sys.executable) -> int:
    """Judge the case in a file's text under a subject and print the result. Gives the exit code: 1 for a finding, 0 for
    none, 125 (which `git bisect run` skips) if it can't be judged."""
    from corpus.entry import loads
    from fuzz.evaluator import WorkerConfig
    from fuzz.protocol import Verdict
    from generators.errors import UserError

    config = WorkerConfig.from_options(python, "cpu", (subject,), timeout="120s", memory=8192)
    entry = loads(text)
    try:
        with Replayer(config) as replayer:
            result, _ = replayer.run(entry, (subject,), device)
    except UserError as error:
        print(f"this can't run here: {error}", file=sys.stderr)
        return 125
    print("\n".join(describe_result(result, entry.case)) or f"eager refuses the case: {result.rejected}")
    verdicts = [judged.verdict for judged in result.results]
    if any(verdict.is_finding for verdict in verdicts):
        return 1
    return 0 if verdicts and Verdict.SKIPPED not in verdicts else 125


def describe_result(result: "Result", case: "Case") -> list[str]:
    """A result in lines: each subject's verdict, where a value is wrong, its numbers and the rewrites that fired."""
    from fuzz.error_location import describe_where
    from fuzz.protocol import Verdict
    from fuzz.protocol.failures import RelationBroken
    from fuzz.protocol.render import MEANINGS, describe

    lines = []
    for judged in result.results:
        failure = judged.failure
        lines.append(": ".join(filter(None, [f"{judged.subject} {judged.verdict}", describe(judged)])))
        if isinstance(failure, RelationBroken):
            lines.append(f"  called again with other arguments ({failure.relation}): {MEANINGS[failure.relation]}")
        where = describe_where(case, judged.where)
        if where:
            lines.append(f"  where: {where}")
        details = [", ".join(f"{key} {value:.3g}" for key, value in judged.numbers.items())]
        details += [] if judged.same is None else [f"torch._dynamo.utils.same {judged.same}"]
        details += [f"fired {', '.join(judged.fired)}"] if judged.fired else []
        if any(details):
            about = "of what is finite: " if judged.verdict is Verdict.NONFINITE else ""
            if failure is not None and failure.is_of_further_call:
                about = "of the case's own call, which is right: "
            lines.append(f"  {about}{'; '.join(filter(None, details))}")
        if judged.reached:
            lines.append(f"  reached {', '.join(judged.reached)}")
    return lines


class Replayer:
    """Replays entries: in one worker for each device, started when first needed."""

    def __init__(self, config: "WorkerConfig") -> None:
        from fuzz.evaluator import open_evaluator

        # With torch's own cache, since the same cases are replayed again and again.
        self.evaluator = open_evaluator(config, own_cache=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self.evaluator.close()

    def run(
        self, entry: "Entry", subjects: tuple[str, ...] = (), device: str | None = None
    ) -> "tuple[Result, Outcome]":
        """Judge the entry under `subjects` on `device`, by default its own, and compare with its expectation.

        Raises UserError when a worker can't run there, or does not know a subject.
        """
        from dataclasses import replace

        from fuzz.expectation import compare
        from fuzz.subjects import is_user_function
        from generators.errors import UserError

        evaluator = self.on(device or entry.device)
        subjects = subjects or (entry.subject,)
        for subject in subjects:
            if is_user_function(subject) and subject not in evaluator.config.named:
                # A case file is data: that it names a function is no reason to import it.
                raise UserError(
                    f"the case is about {subject}, which runs code of yours: allow it with --subject {subject}"
                )
            evaluator.require(subject)
        result = evaluator.evaluate(entry.case, subjects)
        expectation = entry.expectation
        if evaluator.config.device != entry.device:
            # What is reached is a matter of the device.
            expectation = replace(expectation, reaches=())
        as_found = entry.expect is None and entry.found is not None
        return result, compare(expectation, result, evaluator.hello.torch, as_found=as_found)

    def on(self, device: str) -> "Evaluator":
        """The evaluator for a device. Raises UserError for a device of another name."""
        from corpus.entry import DEVICES
        from generators.errors import UserError

        if device not in DEVICES:
            raise UserError(f"device {device!r} is not one of {', '.join(DEVICES)}")
        return self.evaluator.on(device)


if __name__ == "__main__":
    enter(replay, "fuzz.replay")
