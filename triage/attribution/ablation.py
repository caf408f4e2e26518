"""The ablation: one case under every backend from eager to Inductor, and Inductor with one thing changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from corpus.entry import Entry
from fuzz.evaluator import Evaluator, shows_bug
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.protocol.controls import Control
from fuzz.subjects import SUBJECTS, find_variant, get_spec
from generators.errors import UserError
from generators.program.type_check import low_precision

EAGER, AOT_EAGER, PASSES, INDUCTOR, DYNAMIC = "eager", "aot_eager", "passes", "inductor", "inductor_dynamic"
DECOMPOSED = "aot_eager_decomp_partition"
MATH = "sdpa_math"
NO_PATTERNS, EMULATED_CASTS, TF32 = "pattern matcher off", "casts emulated", "TF32 allowed"
CONSTANTS, MATH_FORCED, ATTENTION_OFF = "constants compared", "SDPA on MATH", "rewrites of attention off"
UNFUSED, UNVECTORISED = "fusion off", "vectorisation off"
MODES = {name: spec.mode for name, spec in SUBJECTS.items() if spec.mode}

_LABELS = {
    EAGER: "eager, not compiled",
    AOT_EAGER: 'backend="aot_eager"',
    DECOMPOSED: 'backend="aot_eager_decomp_partition"',
    PASSES: "Inductor's graph passes, the graph interpreted",
    INDUCTOR: 'backend="inductor"',
    DYNAMIC: 'backend="inductor", dynamic=True',
    NO_PATTERNS: 'backend="inductor", options={"pattern_matcher": False}',
    MATH: "F.scaled_dot_product_attention, MATH backend",
    EMULATED_CASTS: 'backend="inductor", options={"emulate_precision_casts": True}',
    TF32: 'backend="inductor", TF32 allowed',
    **{name: f'torch.compile(mode="{mode}")' for name, mode in MODES.items()},
}


@dataclass(frozen=True, slots=True)
class Ablation:
    """The verdict of every stage by its name, in order, and who gave it.

    `accused` is the stage the report is about: `inductor`, or `inductor_dynamic` where only that fails; `eager` where eager
    itself is wrong and nothing else is; `passes` where the public stages were left out.
    """

    hello: Hello
    stages: dict[str, SubjectResult]
    accused: str
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def result(self) -> SubjectResult:
        """What the accused stage gave."""
        return self.stages[self.accused]

    def fails(self, stage: str) -> bool | None:
        """Whether that stage shows a bug too; None where it was not run or could not take the case."""
        return shows_bug(self.stages.get(stage))

    def label(self, stage: str) -> str:
        """The stage in words a user of torch.compile knows."""
        return self.labels.get(stage) or _LABELS.get(stage, stage)


def run_ablation(entry: Entry, trials: Evaluator, *, full: bool = True, modes: tuple[str, ...] = ()) -> Ablation:
    """The ablation as these trials find it. Not `full`: where the graph passes alone show the failure, code generation is left
    out, which costs twenty times as much."""
    case, hello = entry.case, trials.hello
    stages = {name: trials.evaluate_or_raise(case, name) for name in (EAGER, AOT_EAGER)}
    stages[DECOMPOSED] = trials.evaluate_or_raise(case, DECOMPOSED)
    stages[PASSES] = trials.evaluate_or_raise(case, subject_of(PASSES, entry))
    if full or not _settled(entry, stages):
        if not hello.cxx and hello.device == "cpu":
            raise UserError(
                f"worker {hello.pid} has no C++ compiler, which torch.compile needs on the CPU; install g++"
            )
        names = [*([] if case.dynamic else [INDUCTOR]), *([] if _own_random(entry) else [DYNAMIC])]
        stages |= {name: trials.evaluate_or_raise(case, subject_of(name, entry)) for name in names}
        accused = _accused(entry, stages)
        base = _base(accused, entry)
        stages[NO_PATTERNS] = trials.evaluate_or_raise(case, base, Control("pattern_matcher_off"))
        if low_precision(case):
            stages[EMULATED_CASTS] = trials.evaluate_or_raise(case, base, Control("casts_emulated"))
        if hello.device == "cuda":
            stages[TF32] = trials.evaluate_or_raise(case, base, Control("tf32"))
        asked = {name: words for name, words in MODES.items() if words in modes}
        stages |= {name: trials.evaluate_or_raise(case, name) for name in asked}
    return Ablation(hello, stages, _accused(entry, stages))


def cheapest(ablation: Ablation, entry: Entry) -> str:
    """The subject that shows the failure for the least time: the base of controls."""
    if ablation.accused == EAGER:
        return EAGER
    if ablation.fails(PASSES):
        return subject_of(PASSES, entry)
    if ablation.fails(INDUCTOR):
        return subject_of(INDUCTOR, entry)
    return DYNAMIC


def subject_of(stage: str, entry: Entry) -> str:
    """The subject that a stage is for this case: one that draws random numbers of its own has other subjects."""
    return (find_variant(stage, random=True) or stage) if _own_random(entry) else stage


def _own_random(entry: Entry) -> bool:
    return get_spec(entry.subject).random


def _settled(entry: Entry, stages: Mapping[str, SubjectResult]) -> bool:
    """Whether the stages so far show who is at fault."""
    eager = stages[EAGER].verdict is Verdict.EAGER_SUSPECT and entry.subject == EAGER
    return eager or any(_own(stages[name]) for name in (AOT_EAGER, DECOMPOSED, PASSES))


def _own(result: SubjectResult) -> bool:
    """Whether a subject is at fault itself, not eager."""
    return result.verdict.is_finding and result.verdict is not Verdict.EAGER_SUSPECT


def _accused(entry: Entry, stages: Mapping[str, SubjectResult]) -> str:
    public = [name for name in (INDUCTOR, DYNAMIC) if name in stages]
    own = {name for name in (*public, PASSES, DECOMPOSED, AOT_EAGER) if _own(stages[name])}
    if stages[EAGER].verdict is Verdict.EAGER_SUSPECT and (entry.subject == EAGER or not own & set(public or own)):
        return EAGER
    if not public:
        return next((name for name in (PASSES, DECOMPOSED, AOT_EAGER) if name in own), PASSES)
    return min(public, key=lambda name: (name not in own, name != entry.subject))


def _base(accused: str, entry: Entry) -> str:
    """What the controls of the public stages are controls of."""
    if accused == DYNAMIC or entry.case.dynamic:
        return DYNAMIC
    return subject_of(INDUCTOR, entry)
