"""Run a campaign: `python -m fuzz.run --budget 1h`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.cli import FAULT, INTERRUPTED, enter

if TYPE_CHECKING:
    from corpus.ledger import Ledger
    from fuzz.campaign.campaign import Options


def run(
    *,
    budget: str,
    seed: int | None = None,
    workers: int = 2,
    device: str = "cpu",
    python: str | None = None,
    against: str | None = None,
    out: Path | None = None,
    corpus: Path = Path("corpus/found"),
    ledger: Path | None = None,
    subject: list[str] | None = None,
    engine: str = "guided",
    seeds: Path | None = None,
    fail_fast: bool = False,
    timeout: str = "120s",
    memory: int = 4096,
    shrink_time: str = "60s",
) -> int:
    """Generate cases, judge them, and shrink, confirm and save what fails.

    Exit code 0: budget spent, nothing new. 1: new findings saved, bugs that should be gone among them. 2: bad usage. 3: a fault of attnfuzz, which also counts
    where the run went on without the cases it kept from being judged.
    130: interrupted; Ctrl-C once finishes the cases in hand, twice stops at once.

    Parameters
    ----------
    budget
        How long: 90s, 10m, 1h30m, or 500x for 500 cases.
    seed
        Which cases: with --engine random the same seed gives the same; what the other engines come to goes by what the
        compiler did, and by the clock. Drawn at random when left out.
    workers
        How many worker processes.
    device
        cpu or cuda.
    python
        The interpreter, and so the torch version, the workers run under; the current one when left out.
    against
        Another interpreter, with an earlier torch: only what fails under --python and passes there is a finding, a
        regression. What fails under both is set aside.
    out
        Directory of this run, runs/<start> when left out. One that holds a run already is continued.
    corpus
        Where the case files of findings go; those that are there are no news.
    ledger
        The bugs people decided about (docs/triage.md): those it lists turn no run red, one that it calls fixed and that is
        back does. corpus/ledger.yaml of this checkout when left out; /dev/null for none.
    subject
        What to compare with eager, repeatable: passes, inductor, inductor_dynamic, inductor_tf32, aot_eager; passes_random,
        inductor_random and inductor_tf32_random, which draw dropout's numbers themselves; the attention functions triton,
        triton_compiled and sdpa_math, sdpa_flash, sdpa_efficient, sdpa_cudnn; or package.module:function, a function that
        takes a module and gives a callable, or one that computes attention (docs/kernels.md). All the built-in ones of the
        device when left out.
    engine
        How cases come about: guided follows what compilers reach and mutates what reached something new; random draws
        every case from the seed, the same on every machine; atheris lets libFuzzer follow the lines of Inductor's rewrites
        and lowerings that run, and needs the package atheris. Functions that compute attention, by themselves, are always
        given random cases, and atheris does without them.
    seeds
        Case files a guided search or libFuzzer begins with: a directory; corpus/seeds of this checkout when left out.
    fail_fast
        Stop at the first finding.
    timeout
        How long one stage of a case may take.
    memory
        MiB of memory a worker may use.
    shrink_time
        Wall time to shrink one failure.
    """
    from fuzz.campaign.budget import Budget, duration
    from fuzz.campaign.schedule import chosen_subjects
    from fuzz.campaign.search import ENGINES
    from generators.errors import UserError

    limits = Budget.parse(budget)
    stage_seconds, shrink_seconds = duration(timeout, "timeout"), duration(shrink_time, "shrink-time")
    if device not in ("cpu", "cuda"):
        raise UserError(f"unknown device {device!r}: there are cpu and cuda")
    subjects = chosen_subjects(subject or [], device)
    if engine not in ENGINES:
        raise UserError(f"unknown engine {engine!r}: there are {', '.join(ENGINES)}")
    if seeds is not None and engine == "random":
        raise UserError("--seeds is what a guided search or libFuzzer begins with, and the engine is random")
    if workers < 1:
        raise UserError(f"--workers {workers}: at least 1 is needed")
    if memory < 512:
        raise UserError(f"--memory {memory}: importing torch alone takes 400 MiB; give at least 512")
    if seed is not None and seed < 0:
        raise UserError(f"--seed {seed}: a whole number from 0 on is needed")

    from fuzz.campaign.campaign import Options
    from fuzz.campaign.directory import default_path
    from fuzz.campaign.search import seed_cases
    from fuzz.evaluator import ROOT, WorkerConfig

    setup = WorkerConfig(
        python=python or sys.executable,
        device=device,
        named=tuple(s for s in subjects if ":" in s),
        timeout=stage_seconds,
        memory_mib=memory,
    )
    options = Options(
        budget=limits,
        seed=-1 if seed is None else seed,
        workers=workers,
        subjects=subjects,
        out=out or default_path(),
        corpus=corpus,
        known=(ROOT / "corpus" / "known",),
        setup=setup,
        shrink_seconds=shrink_seconds,
        fail_fast=fail_fast,
        engine=engine,
        ledger=_ledger(ledger),
        seeds=seed_cases(seeds or ROOT / "corpus" / "seeds") if engine != "random" else (),
        against=replace(setup, python=against) if against is not None else None,
    )
    return _campaign(options)


def _ledger(path: Path | None) -> "Ledger | None":
    from corpus import ledger
    from fuzz.evaluator import ROOT

    default = ROOT / "corpus" / "ledger.yaml"
    return None if path is None and not default.exists() else ledger.load(path or default)


def _campaign(options: "Options") -> int:
    from fuzz.campaign.session import session

    ending = session(options)
    if ending.summary:
        print(ending.summary)
    if ending.faults and not ending.interrupted:
        return FAULT
    return INTERRUPTED if ending.interrupted else 1 if ending.new else 0


if __name__ == "__main__":
    enter(run, "fuzz.run")
