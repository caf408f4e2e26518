"""Hold torch versions against each other: `python -m fuzz.compare --python A --python B CASE...`."""

import sys
from dataclasses import replace
from pathlib import Path

from fuzz.cli import FAULT, INTERRUPTED, enter


def compare(
    *case: Path,
    python: list[str] | None = None,
    baseline: Path | None = None,
    save_baseline: Path | None = None,
    seed: int | None = None,
    cases: int | None = None,
    out: Path = Path("runs/compare"),
    subject: list[str] | None = None,
    device: str | None = None,
    growth: float | None = None,
    record: bool = False,
    json: Path | None = None,
    markdown: Path | None = None,
    timeout: str = "120s",
    memory: int = 8192,
) -> int:
    """Judge the same cases under several interpreters, and so torch versions; print what regressed, what was fixed, what
    fails in all, and where the error against float64 merely grew.

    What regressed or was fixed is asked twice, the second time of fresh workers.

    Exit code 0: nothing regressed. 1: something did. 2: bad usage, or an interpreter that can't be used. 3: attnfuzz failed
    itself on a case. 130: interrupted; what was done by then is told.

    Parameters
    ----------
    case
        Case files, or directories of them.
    python
        An interpreter; repeat it, the oldest torch first. Each needs torch 2.11 or later and nothing of attnfuzz's.
    baseline
        A file of --save-baseline, which stands for the oldest version: with it one --python is enough.
    save_baseline
        Write what the last interpreter gives to this file.
    seed
        Instead of case files: random cases of this seed, under Inductor's graph passes and, where they fail, in full.
    cases
        How many random cases; 100 when left out.
    out
        Where random cases that changed are saved.
    subject
        Run under this subject instead of the case's own; may be repeated. `package.module:function` is one too.
    device
        cpu or cuda; by default the device a case is about.
    growth
        An error so many times the earlier one has grown, unless it is no more than rounding explains; 4 when left out.
    record
        Write the verdicts into the case files, by torch version, under `seen`.
    json
        Write the comparison to this file as JSON.
    markdown
        Write it to this file as Markdown.
    timeout
        How long one stage of a case may take, such as 60s.
    memory
        MiB of memory a worker may use.
    """
    from fuzz.campaign.budget import duration
    from fuzz.evaluator import WorkerConfig
    from fuzz.versions import baseline as baselines
    from fuzz.versions.comparison import of_files, of_seed
    from fuzz.versions.session import Wishes, session
    from fuzz.versions.verdicts import GROWTH
    from generators.errors import UserError

    if len(python or [sys.executable]) + (baseline is not None) < 2 and not (save_baseline or record):
        raise UserError("a comparison takes two versions: --python A --python B, or --baseline FILE and --python B")
    if case and seed is not None:
        raise UserError("give case files, or --seed for random cases, not both")
    if seed is None and cases is not None:
        raise UserError(f"--cases {cases} is how many random cases: it needs --seed")
    if record and (seed is not None or subject or device):
        raise UserError("--record notes what the files' own subjects give: leave --seed, --subject and --device out")
    for option, number, least in (("seed", seed, 0), ("cases", cases, 1), ("growth", growth, 1)):
        if number is not None and not number >= least:
            raise UserError(f"--{option} {number}: at least {least} is needed")
    before = None if baseline is None else baselines.load(baseline)
    if seed is None:
        from corpus.entry import load_all

        questions = of_files(load_all(case), subject or [], device)
    else:
        questions = of_seed(seed, cases or 100, subject or [], device)
    setup = WorkerConfig(
        named=tuple(s for s in subject or () if ":" in s), timeout=duration(timeout, "timeout"), memory_mib=memory
    )
    setups = [replace(setup, python=interpreter) for interpreter in python or [sys.executable]]
    wishes = Wishes(json, markdown, save_baseline, record, out if seed is not None else None, growth or GROWTH)
    ending = session(questions, setups, before, wishes)
    print(ending.text)
    if ending.interrupted:
        return INTERRUPTED
    return FAULT if ending.faults else 1 if ending.regressed else 0


if __name__ == "__main__":
    enter(compare, "fuzz.compare")
