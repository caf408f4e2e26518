"""Run a campaign: `python -m fuzz.run --budget 1h`."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fuzz.cli import FAULT, INTERRUPTED, enter, refuse
from fuzz.subjects import INDUCTOR, describe_subjects, find_abilities, get_spec, is_user_function
from generators.errors import UserError

if TYPE_CHECKING:
    from fuzz.ask.worker_config import WorkerConfig
    from fuzz.campaign.ray_workers import RayCluster
    from fuzz.campaign.session import RunResult, Sampler
    from generators.sampling.neighbours import Neighbourhood

WORKERS_PER_CPU = 2
Engine = Literal["guided", "random", "atheris"]


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
    engine: Engine = "guided",
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
        Draw only programs with this operation, region or change of docs/cases.md, such as scan or index_put_, or with
        a member of a group: operations, regions, changes, or integers (beyond 2^31). May be repeated: programs have at
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
    from fuzz.campaign.options import Budget
    from fuzz.campaign.schedule import choose_subjects
    from fuzz.durations import parse_duration

    parsed_budget = Budget.parse(budget)
    shrink_seconds = parse_duration(shrink_time, "shrink-time")
    named = tuple(subject or ())
    subjects = choose_subjects([*named], device)
    starts_elsewhere = seeds is not None or engine == "atheris"
    refuse(
        (seeds is not None and engine == "random", "--seeds needs --engine guided or atheris"),
        (seed is not None and seed < 0, f"--seed must be >= 0, got {seed}"),
        (module and starts_elsewhere, "--module can't be combined with --seeds or --engine atheris"),
        (draw and (module or starts_elsewhere), "--draw can't be combined with --module, --seeds or --engine atheris"),
        (
            draw and all(get_spec(name).is_attention for name in subjects),
            "--draw needs a --subject that compiles modules, such as inductor",
        ),
        (ray is not None and engine == "atheris", "--ray does not support --engine atheris"),
        (
            _is_same(against, python),
            f"--against {against} is the interpreter of --python; give one with an earlier torch",
        ),
    )

    from corpus.ledger import LEDGER, NONE
    from fuzz.ask.worker_config import ROOT, WorkerConfig
    from fuzz.attribution.decide import load_ledger
    from fuzz.campaign.options import Options, list_gpus
    from fuzz.campaign.search import load_seeds
    from fuzz.campaign.session import run_campaign

    sampler, engine = _choose_sampler(draw or [], engine, subjects, has_seeds=seeds is not None)
    is_own = seeds is None and all(map(is_user_function, subjects))  # seeds are for torch.compile
    n_workers = _count_workers(workers, on_cluster=bool(ray))
    config = WorkerConfig.from_options(python, device, subjects, timeout, memory)
    directory = out or Path("runs") / time.strftime("%Y-%m-%dT%H-%M-%S")
    n_wrong = _judge_modules(config, module, named, directory, quiet=quiet) if module else 0
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
        seeds=() if engine == "random" or module or is_own else load_seeds(seeds or ROOT / "corpus" / "seeds"),
        models=_import_modules(config, module) if module else None,
        against=replace(config, python=against) if against is not None else None,
        quiet=quiet,
        draws=bool(draw),
        named=named,
        gpus=list_gpus() if device == "cuda" else (),
        resume=(*sys.argv[1:], *(() if out else ("--out", str(directory)))),
    )
    with ExitStack() as stack:
        if ray is not None:
            cluster = stack.enter_context(_open_cluster(ray, config, workers, each=2 if against else 1))
            options = replace(options, workers=cluster.workers, open_remote=cluster.open_worker)
        return _exit_code(run_campaign(options, sampler), n_wrong)


def _choose_sampler(
    draw: list[str], engine: Engine, subjects: tuple[str, ...], *, has_seeds: bool
) -> "tuple[Sampler, Engine]":
    """The function that draws cases for these subjects, and the engine that calls it."""
    from generators.sampling.parts import WithParts
    from generators.sampling.sample import sample

    abilities = find_abilities(subjects)
    # Half of the cases of a guided search are variants of attention; it needs coverage of Inductor.
    if engine == "guided" and (draw or (abilities is not None and not has_seeds)):
        engine = "random"
    return WithParts(draw, abilities).sample if draw else partial(sample, abilities=abilities), engine


def _is_same(against: str | None, python: str | None) -> bool:
    return against is not None and Path(against).absolute() == Path(python or sys.executable).absolute()


def _count_workers(wanted: int | None, *, on_cluster: bool) -> int:
    n_workers, limit = 2 if wanted is None else wanted, WORKERS_PER_CPU * len(os.sched_getaffinity(0))
    fits = n_workers in range(1, 1 + limit) or (on_cluster and n_workers > 0)
    refuse((not fits, f"--workers must be from 1 to {limit} on this machine, got {n_workers}"))
    return n_workers


def _judge_modules(
    config: "WorkerConfig", modules: list[str], subjects: tuple[str, ...], directory: Path, *, quiet: bool
) -> int:
    """The number of blocks that are wrong, or refused, as they are. A run that goes on has begun with this."""
    from fuzz.module_comparison import judge_modules
    from fuzz.run_database import RESULTS_FILE

    compilers = [name for name in subjects or (INDUCTOR,) if not get_spec(name).is_attention]
    if not compilers or (directory / RESULTS_FILE).exists():
        return 0
    return judge_modules(config, modules, compilers, directory.with_name(f"{directory.name}-module"), quiet=quiet)


def _import_modules(config: "WorkerConfig", modules: list[str]) -> "Neighbourhood":
    from fuzz.importing.importer import import_models
    from generators.sampling.neighbours import Neighbourhood

    return Neighbourhood(import_models(config, modules))


@contextmanager
def _open_cluster(address: str, config: "WorkerConfig", workers: int | None, *, each: int) -> "Iterator[RayCluster]":
    try:
        from fuzz.campaign.ray_workers import RayCluster
    except ModuleNotFoundError as error:
        raise UserError(f"--ray needs {error.name}: {sys.executable} -m pip install '.[cluster]'") from None
    with closing(RayCluster(address, config, workers, each=each)) as cluster:
        yield cluster


def _exit_code(result: "RunResult", n_wrong: int) -> int:
    """Raises the error that ended the campaign."""
    if result.error is not None:
        raise result.error
    if result.interrupted:
        return INTERRUPTED
    return FAULT if result.faults else int(bool(result.new or result.unconfirmed or n_wrong))


run.__doc__ = (run.__doc__ or "").format(subjects=describe_subjects())


if __name__ == "__main__":
    enter(run, "fuzz.run")
