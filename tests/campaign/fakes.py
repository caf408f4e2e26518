"""Campaigns over small programs, judged by a worker that answers by rules.

`python -m tests.campaign.fakes DIRECTORY BUDGET RULES` runs one in a process of its own, to be interrupted. `corpus`
among the rules: the directory for `--corpus`.
"""

import json
import random
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzz import cli
from fuzz.ask.worker_config import WorkerConfig
from fuzz.campaign.options import Budget, Options
from fuzz.events import CaseJudged
from fuzz.protocol import CoverageItem, Verdict
from generators.errors import UserError
from generators.program.case import Case, Input, Op
from generators.program.sizes import Size

FAKE = Path(__file__).with_name("fake_worker.py")
QUIET = ("exp", "tanh", "sin", "cos", "sigmoid", "square")


def setup(timeout: float = 10.0, memory_mib: int = 4096, **rules: Any) -> WorkerConfig:
    """Workers that answer by `rules`."""
    return WorkerConfig(timeout=timeout, memory_mib=memory_mib, command=(sys.executable, str(FAKE), json.dumps(rules)))


def write_python(path: Path, torch: str = "2.13.0", **rules: Any) -> Path:
    """An interpreter, for `--python`, whose workers answer by `rules`; gives its path."""
    command = [sys.executable, str(FAKE), json.dumps({"torch": torch, **rules})]
    path.write_text(f"#!{sys.executable}\nimport os, sys\nos.execv(sys.executable, {command!r} + sys.argv[1:])\n")
    path.chmod(0o755)
    return path


def options(tmp_path: Path, budget: str = "40x", seed: int = 1, **given: Any) -> Options:
    """A campaign's options with one worker and a small budget."""
    rules = given.pop("rules", [])
    made: dict[str, Any] = {
        "budget": Budget.parse(budget),
        "seed": seed,
        "workers": 1,
        "subjects": ("passes", "inductor"),
        "out": tmp_path / "run",
        "corpus": tmp_path / "found",
        "ignore_dirs": (tmp_path / "known",),
        "worker_config": setup(rules=rules),
    }
    return Options(**{**made, **given})


def case(*kinds: str, rows: int = 3) -> Case:
    """A chain of elementwise operations over one input."""
    names = ["x", *(f"v{i}" for i in range(len(kinds)))]
    ops = tuple(Op(names[i + 1], kind, (names[i],), attributes(kind)) for i, kind in enumerate(kinds))
    dims = (("R", rows), ("S", 5))
    return Case(dims, (Input("x", (Size.of("R"), Size.of("S")), "float32"),), ops, (names[-1],))


def raised(error: str, text: str) -> dict[str, str]:
    """The failure of a rule for a subject that raises."""
    return {"kind": "raised", "error": error, "text": text}


def attributes(kind: str) -> tuple[tuple[str, int], ...]:
    """Attributes an operation must have."""
    return (("dim", -1),) if kind == "softmax" else ()


def sampler(*special: str, every: int = 2) -> Callable[..., Case]:
    """Cases of harmless operations; each `every`-th has one of `special` among them."""

    def sample(seed: int, index: int, **_form: object) -> Case:
        choice = random.Random(f"{seed}:{index}")
        kinds = [choice.choice(QUIET) for _ in range(choice.randint(2, 4))]
        if special and index % every == 0:
            kinds.insert(choice.randint(0, len(kinds)), special[index // every % len(special)])
        return case(*kinds, rows=choice.randint(2, 9))

    return sample


def judged(index: int = 0, coverage: Iterable[CoverageItem] = (), **verdicts: Verdict) -> CaseJudged:
    """The verdicts on a case, as an event."""
    return CaseJudged(index, case("exp").id, 0, verdicts, None, coverage=tuple(coverage))


def events(out: Path, *names: str) -> list[dict[str, Any]]:
    """The events of a run; none before it begins."""
    from fuzz.run_store import read_events  # a fake host needs no store, and starts faster without

    with suppress(UserError):
        return read_events(out, *names)
    return []


def run(directory: Path, budget: str, rules: str) -> int:
    """Run a campaign; 130 when interrupted."""
    from fuzz.campaign.session import run_campaign  # a fake host needs no campaign, and starts faster without

    read = json.loads(rules)
    corpus = Path(read.pop("corpus", directory / "found"))
    resume = ("--out", str(directory / "run"))
    given = options(directory, budget, seed=-1, workers=2, worker_config=setup(**read), corpus=corpus, resume=resume)
    ending = run_campaign(given, sampler("softmax", "relu", "log", "amax", every=3))
    if ending.error is not None:
        raise ending.error
    return cli.INTERRUPTED if ending.interrupted else 1 if ending.new else 0


if __name__ == "__main__":
    cli.enter(run, "fakes")
