"""Run a campaign: `python -m fuzz.run --budget 1h`."""

import os
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from fuzz.cli import FAULT, INTERRUPTED, enter
from fuzz.subjects import INDUCTOR, describe_subjects, is_attention

WORKERS_PER_CPU = 2


def run(
    *,
    budget: str,
    seed: int | None = None,
    workers: int | None = None,
    ray: str | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    python: str | None = None,
    against: str | None = None,
    out: Path | None = None,
    corpus: Path = Path("corpus/found"),
    ledger: Path | None = None,
    subject: list[str] | None = None,
    draw: list[str] | None = None,
    module: list[str] | None = None,
    engine: Literal["guided", "random", "atheris"] = "guided",
    seeds: Path | None = None,
    fail_fast: bool = False,
    timeout: str = "120s",
    memory: int = 4096,
    shrink_time: str = "60s",
    quiet: bool = False,
) -> int:
    """Generate cases, judge them, and shrink, confirm and save failures.

    Parameters
    ----------
    budget
        Time or cases: 90s, 10m, 1h30m, or 500x for 500 cases. Time counts once the first worker is ready. A case that
        takes over 5 s beyond the end is left to the next run.
    seed
        Seed of the random cases, by default a random number. With --engine random the same seed gives the same cases.
        A guided search also depends on timing and on the compiler's coverage. libFuzzer has seeds of its own.
    workers
        Number of workers, by default 2, at most 2 for each CPU; with --ray by default as many as the cluster can run.
    ray
        Address of the Ray cluster whose nodes run the workers, or auto (docs/scale.md). Needs the extra cluster.
    device
        cpu, or cuda for all GPUs of this machine or of CUDA_VISIBLE_DEVICES. A worker uses a single GPU.
    python
        Interpreter, and so torch version, of the workers; by default the current interpreter.
    against
        Interpreter with an earlier torch. Only regressions become findings: cases that fail under --python, and pass or
        fail in another way under this interpreter.
    out
        Directory of this run, by default runs/START_TIME. A directory that holds a run is continued.
    corpus
        Directory for the case files of findings. Findings already there are known, and so are those that other
        campaigns save there meanwhile.
    ledger
        The ledger of known bugs (docs/triage.md), by default corpus/ledger.yaml of this checkout. Listed bugs do not
        make a run fail, unless they are fixed in this torch or earlier. /dev/null: no bug is known but the findings in
        --corpus, so corpus/known of this checkout does not count either.
    subject
        A subject to compare with eager; may be repeated. {subjects}
    draw
        Draw only programs with this operation, region or change of docs/cases.md, such as scan or index_put_; or with
        any of the regions, changes or operations, or with integers beyond 2^31. May be repeated: programs have at
        least one of them. The engine is random.
    module
        package.module:factory, as for fuzz.compare; may be repeated. First each block of these modules is judged as it
        is, compiled. The cases are the blocks with their own values, first under torch.compile and its modes, then
        their neighbours: other dtypes, sizes, masks, modes, memory layouts, later calls.
    engine
        guided: random cases, and variants of cases that increased coverage of the compiler. random: every case is drawn
        from the seed, the same on every machine. atheris: libFuzzer with line coverage of Inductor's rewrites and
        lowerings; needs the package atheris. Attention functions always get random cases and do not support atheris.
    seeds
        Directory of case files to start from, for guided and atheris; by default corpus/seeds of this checkout.
    fail_fast
        Stop at the first finding.
    timeout
        Time limit for one stage of a case, and for each step of a worker's start, which gets at least 120 s.
    memory
        Memory limit of a worker, in MiB.
    shrink_time
        Time limit for shrinking one failure.
    quiet
        Print only findings and errors.

    Examples
    --------
    python -m fuzz.run --budget 1h --workers 4
    python -m fuzz.run --budget 10m --subject my_package.my_kernel:attention
    0: no new finding
    1: new findings, fixed bugs that are back, failures that fresh workers did not confirm, or a block of --module that
       is wrong or refused as it is
    2: wrong option or file, a --subject that took no case, or a full disk, with an error of a single line
    3: a bug in attnfuzz, with its traceback; also if the campaign went on without the cases that it hit
    130: interrupted by Ctrl-C, SIGTERM or SIGHUP; cases have 5 s to finish, and a second signal stops at once
    """
    from fuzz.campaign.options import Budget, list_gpus
    from fuzz.campaign.schedule import choose_subjects
    from fuzz.durations import parse_duration
    from generators.errors import UserError

    parsed_budget = Budget.parse(budget)
    shrink_seconds = parse_duration(shrink_time, "shrink-time")
    subjects = choose_subjects(subject or [], device)
    if seeds is not None and engine == "random":
        raise UserError("--seeds needs --engine guided or atheris")
    if seed is not None and seed < 0:
        raise UserError(f"--seed must be >= 0, got {seed}")
    if module and (seeds is not None or engine == "atheris"):
        raise UserError("--module can't be combined with --seeds or --engine atheris")
    if draw and (module or seeds is not None or engine == "atheris"):
        raise UserError("--draw can't be combined with --module, --seeds or --engine atheris")
    if draw and all(map(is_attention, subjects)):
        raise UserError("--draw needs a --subject that compiles modules, such as inductor")
    if ray is not None and engine == "atheris":
        raise UserError("--ray does not support --engine atheris")
    if against is not None and Path(against).absolute() == Path(python or sys.executable).absolute():
        raise UserError(f"--against {against} is the interpreter of --python; give one with an earlier torch")

    from corpus.ledger import LEDGER, NONE
    from fuzz.ask.worker_config import ROOT, WorkerConfig
    from fuzz.attribution.decide import load_ledger
    from fuzz.campaign.options import Options
    from fuzz.campaign.search import load_seeds
    from fuzz.campaign.session import run_campaign
    from fuzz.run_store import RESULTS_FILE
    from generators.sampling.parts import WithParts
    from generators.sampling.sample import sample

    # Half of the cases of a guided search are variants of attention.
    sampler, engine = (WithParts(draw).sample, "random") if draw else (sample, engine)
    n_workers, limit = 2 if workers is None else workers, WORKERS_PER_CPU * len(os.sched_getaffinity(0))
    if n_workers not in range(1, 1 + limit) and not (ray and n_workers > 0):
        raise UserError(f"--workers must be from 1 to {limit} on this machine, got {n_workers}")
    config = WorkerConfig.from_options(python, device, subjects, timeout, memory)
    directory, n_wrong = out or Path("runs") / time.strftime("%Y-%m-%dT%H-%M-%S"), 0
    models = None
    if module:
        from fuzz.importing.importer import import_models
        from fuzz.module_comparison import judge_modules
        from generators.sampling.neighbours import Neighbourhood

        if not (directory / RESULTS_FILE).exists():  # a run that goes on has begun with this
            compilers = [name for name in subject or (INDUCTOR,) if not is_attention(name)]
            answers = directory.with_name(f"{directory.name}-module")
            n_wrong = judge_modules(config, module, compilers, answers, quiet=quiet) if compilers else 0
        models = Neighbourhood(import_models(config, module))
    options = Options(
        budget=parsed_budget,
        seed=-1 if seed is None else seed,
        workers=n_workers,
        subjects=subjects,
        out=directory,
        corpus=corpus,
        ignore_dirs=() if ledger == NONE else (ROOT / "corpus" / "known",),
        worker_config=config,
        shrink_seconds=shrink_seconds,
        fail_fast=fail_fast,
        engine=engine,
        ledger=load_ledger(ledger or LEDGER),
        seeds=load_seeds(seeds or ROOT / "corpus" / "seeds") if engine != "random" and not module else (),
        models=models,
        against=replace(config, python=against) if against is not None else None,
        quiet=quiet,
        named=tuple(subject or ()),
        gpus=list_gpus() if device == "cuda" else (),
        resume=(*sys.argv[1:], *(() if out else ("--out", str(directory)))),
    )
    with ExitStack() as stack:
        if ray is not None:
            try:
                from fuzz.campaign.ray_workers import RayCluster
            except ModuleNotFoundError as error:
                raise UserError(f"--ray needs {error.name}: {sys.executable} -m pip install '.[cluster]'") from None
            cluster = stack.enter_context(closing(RayCluster(ray, config, workers, each=2 if against else 1)))
            options = replace(options, workers=cluster.workers, open_remote=cluster.open_worker)
        result = run_campaign(options, sampler)
    if result.error is not None:
        raise result.error
    if result.faults and not result.interrupted:
        return FAULT
    return INTERRUPTED if result.interrupted else int(bool(result.new or result.unconfirmed or n_wrong))


run.__doc__ = (run.__doc__ or "").format(subjects=describe_subjects())


if __name__ == "__main__":
    enter(run, "fuzz.run")
