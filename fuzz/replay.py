"""Run cases again and hold them against what the corpus expects: `python -m fuzz.replay CASE...`."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fuzz.cli import enter

if TYPE_CHECKING:
    from corpus.entry import Entry
    from fuzz.evaluator import Setup, Worker
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
    """Run each case in a worker; print its verdict, the numbers behind it, and whether that was expected.

    Exit code 0: all as expected, which for a bug is "known bug, still there" or "still there, as found". 1: something was
    not, "no longer there" included. 2: bad usage or a bad file.

    Parameters
    ----------
    cases
        Case files, or directories of them.
    subject
        Run under this subject instead of the case's own; may be repeated. `package.module:function` is one too.
    python
        The interpreter, and so the torch version, to run under; the current one by default.
    device
        cpu or cuda; by default the device the case is about.
    timeout
        How long one stage of a case may take, such as 60s.
    memory
        MiB of memory a worker may use.
    """
    from corpus.entry import load_all
    from fuzz.campaign.budget import duration
    from fuzz.evaluator import Setup

    setup = Setup(
        python=python or sys.executable,
        named=tuple(s for s in subject or () if ":" in s),
        timeout=duration(timeout, "timeout"),
        memory_mib=memory,
    )
    entries = load_all(cases)
    unexpected = 0
    with Replayer(setup) as replayer:
        for path, entry in entries.items():
            result, outcome = replayer.run(entry, tuple(subject or ()), device)
            print("\n".join((f"{path}: {outcome.state.value}", *(f"  {line}" for line in told(result, entry.case)))))
            if outcome.state.is_unexpected or not result.results:
                print(f"  {outcome.reason}")
            unexpected += outcome.state.is_unexpected
    return 1 if unexpected else 0


def shown(text: str, subject: str, device: str, python: str = sys.executable) -> int:
    """Judge the case of a file's text under a subject and print what a worker of the interpreter `python` says. The exit
    code: 1 with a finding, 0 without, 125 (which `git bisect run` skips) where it can't be judged."""
    from corpus.entry import loads
    from fuzz.evaluator import Setup
    from fuzz.protocol import Verdict
    from generators.errors import UserError

    setup = Setup(python=python, named=(subject,) if ":" in subject else (), timeout=120.0, memory_mib=8192)
    entry = loads(text)
    try:
        with Replayer(setup) as replayer:
            result, _ = replayer.run(entry, (subject,), device)
    except UserError as error:
        print(f"this can't run here: {error}", file=sys.stderr)
        return 125
    print("\n".join(told(result, entry.case)) or f"eager refuses the case: {result.rejected}")
    verdicts = [judged.verdict for judged in result.results]
    if any(verdict.is_finding for verdict in verdicts):
        return 1
    return 0 if verdicts and Verdict.SKIPPED not in verdicts else 125


def told(result: "Result", case: "Case") -> list[str]:
    """What a result says of a case, in lines: one for each subject, one for where it is wrong, and one for its numbers and
    rewrites."""
    from fuzz.localisation import where_text
    from fuzz.protocol import Verdict
    from fuzz.relations import explained, is_of_another_call

    lines = []
    for judged in result.results:
        message = f": {judged.message}" if judged.message else ""
        lines.append(f"{judged.subject} {judged.verdict}{message}")
        meaning = explained(judged.message)
        if meaning:
            lines.append(f"  {meaning}")
        where = where_text(case, judged.where)
        if where:
            lines.append(f"  where: {where}")
        numbers = ", ".join(f"{key} {value:.3g}" for key, value in judged.numbers.items())
        same = [] if judged.same is None else [f"torch._dynamo.utils.same {judged.same}"]
        fired = [f"fired {', '.join(judged.fired)}"] if judged.fired else []
        details = "; ".join([*([numbers] if numbers else []), *same, *fired])
        if details:
            about = "of what is finite: " if judged.verdict is Verdict.NONFINITE else ""
            about = "of the case's own call, which is right: " if is_of_another_call(judged.message) else about
            lines.append(f"  {about}{details}")
        if judged.reached:
            lines.append(f"  reached {', '.join(judged.reached)}")
    return lines


class Replayer:
    """Workers to replay with, one for each device, started when first needed and ended on exit."""

    def __init__(self, setup: "Setup") -> None:
        self.setup = setup
        self._workers: dict[str, Worker] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="attnfuzz-replay-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers.values():
            worker.close()
        self._scratch.cleanup()

    def run(
        self, entry: "Entry", subjects: tuple[str, ...] = (), device: str | None = None
    ) -> "tuple[Result, Outcome]":
        """Judge the entry under `subjects` on `device`, by default its own, and compare with its expectation.

        Raises UserError when a worker can't run there, or does not know a subject.
        """
        from dataclasses import replace

        from fuzz.evaluator import request
        from fuzz.expectation import compare
        from generators.errors import UserError

        worker = self.worker(device or entry.device)
        hello = worker.start()
        subjects = subjects or (entry.subject,)
        for subject in subjects:
            if ":" in subject and subject not in self.setup.named:
                # A case file is data: that it names a function is no reason to import it.
                raise UserError(
                    f"the case is about {subject}, which runs code of yours: allow it with --subject {subject}"
                )
            if hello.subjects and subject not in hello.subjects:
                raise UserError(f"unknown subject {subject!r}; there are {', '.join(hello.subjects)}")
        result = worker.check(request(entry.case, subjects))
        expectation = entry.expectation
        if worker.setup.device != entry.device:
            # What is reached is a matter of the device.
            expectation = replace(expectation, reaches=())
        as_found = entry.expect is None and entry.found is not None
        return result, compare(expectation, result, hello.torch, as_found=as_found)

    def worker(self, device: str) -> "Worker":
        """The worker for a device. Raises UserError for a device of another name."""
        from dataclasses import replace

        from corpus.entry import DEVICES
        from fuzz.evaluator import Worker
        from generators.errors import UserError

        if device not in DEVICES:
            raise UserError(f"device {device!r} is not one of {', '.join(DEVICES)}")
        if device not in self._workers:
            log = Path(self._scratch.name) / f"{device}.log"
            self._workers[device] = Worker(replace(self.setup, device=device), log=log)
        return self._workers[device]


if __name__ == "__main__":
    enter(replay, "fuzz.replay")
