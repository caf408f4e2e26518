"""The ablation: one case under every backend from eager to Inductor, and Inductor with one setting changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from corpus.entry import Entry
from fuzz.campaign.pool import Setup, Worker, request
from fuzz.protocol import Hello, SubjectResult, Verdict
from generators.errors import UserError
from triage.reproducer import low_precision

EAGER, AOT_EAGER, PASSES, INDUCTOR, DYNAMIC = "eager", "aot_eager", "passes", "inductor", "inductor_dynamic"
MATH = "sdpa_math"
NO_PATTERNS, EMULATED_CASTS = "pattern matcher off", "casts emulated"

_LABELS = {
    EAGER: "eager, not compiled",
    AOT_EAGER: 'backend="aot_eager"',
    PASSES: "Inductor's graph passes, the graph interpreted",
    INDUCTOR: 'backend="inductor"',
    DYNAMIC: 'backend="inductor", dynamic=True',
    NO_PATTERNS: 'backend="inductor", options={"pattern_matcher": False}',
    MATH: "F.scaled_dot_product_attention, MATH backend",
    EMULATED_CASTS: 'backend="inductor", options={"emulate_precision_casts": True}',
}
_CONTROLS = {NO_PATTERNS: "triage.subjects:no_pattern_matcher", EMULATED_CASTS: "triage.subjects:emulated_casts"}


@dataclass(frozen=True, slots=True)
class Ladder:
    """The verdict of every rung by its name, in order, and who gave it.

    `accused` is the rung the report is about: `inductor`, or `inductor_dynamic` where only that fails; `eager` where eager
    itself is wrong and nothing else is.
    """

    hello: Hello
    rungs: dict[str, SubjectResult]
    accused: str

    @property
    def result(self) -> SubjectResult:
        """What the accused rung gave."""
        return self.rungs[self.accused]

    def fails(self, rung: str) -> bool | None:
        """Whether that rung shows a bug too; None where it was not run or could not take the case."""
        result = self.rungs.get(rung)
        return None if result is None or result.verdict is Verdict.SKIPPED else result.verdict.is_finding

    def label(self, rung: str) -> str:
        """The rung in words a user of torch.compile knows."""
        return _LABELS.get(rung, rung)


def climb(entry: Entry, setup: Setup) -> Ladder:
    """Judge the entry's case on every rung, each in a check of its own: a death on one leaves the others.

    Raises UserError when eager refuses the case, or Inductor can't run there.
    """
    case = entry.case
    dynamic = case.dynamic or entry.subject == DYNAMIC
    controls = {name: subject + "_dynamic" * dynamic for name, subject in _CONTROLS.items()}
    if not low_precision(case):
        del controls[EMULATED_CASTS]
    names = [EAGER, AOT_EAGER, PASSES, *([] if case.dynamic else [INDUCTOR]), DYNAMIC]
    subjects = {name: name for name in names} | controls
    with worker_of(replace(setup, named=tuple(controls.values()))) as worker:
        hello = worker.start()
        if not hello.cxx and setup.device == "cpu":
            raise UserError(f"{setup.python} has no C++ compiler, which torch.compile needs on the CPU; install g++")
        rungs = {}
        for name, subject in subjects.items():
            result = worker.check(request(case, (subject,), located=True))
            if result.rejected is not None or not result.results:
                raise UserError(f"case {case.id}: eager refuses it, so there is nothing to report: {result.rejected}")
            rungs[name] = result.results[0]
    public = [name for name in (INDUCTOR, DYNAMIC) if name in rungs]
    own = {name for name in public if rungs[name].verdict.is_finding and rungs[name].verdict is not Verdict.EAGER_SUSPECT}
    if rungs[EAGER].verdict is Verdict.EAGER_SUSPECT and (entry.subject == EAGER or not own):
        return Ladder(hello, rungs, EAGER)
    preferred = sorted(public, key=lambda name: (name not in own, name != entry.subject))
    return Ladder(hello, rungs, preferred[0])


@contextmanager
def worker_of(setup: Setup) -> Iterator[Worker]:
    """A worker with a compile cache of its own, ended on exit."""
    with TemporaryDirectory(prefix="attnfuzz-report-") as scratch:
        worker = Worker(setup, Path(scratch) / "cache", Path(scratch) / "worker.log")
        try:
            yield worker
        finally:
            worker.close()
