"""The ablation: one case under every backend from eager to Inductor, and under Inductor without its pattern matcher."""

from collections.abc import Mapping
from dataclasses import dataclass

from corpus.entry import Entry
from fuzz.evaluator import Evaluator, compare_outcome
from fuzz.experiments import EXPERIMENTS, OtherSubject, Outcome, Trial
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.subjects import MEMORY_BUDGET, find_variant, get_spec
from generators.errors import UserError
from generators.program.case import Case, Value
from generators.program.settings import describe_settings

EAGER, DYNAMO, AOT_EAGER, PASSES, INDUCTOR = "eager", "dynamo", "aot_eager", "passes", "inductor"
DYNAMIC = "inductor_dynamic"
DECOMPOSED = "aot_eager_decomp_partition"
EXPORTED = ("export", "aot_inductor")
MATH = "sdpa_math"
NO_PATTERNS = "pattern matcher off"

_LABELS = {row.id: row.label for row in EXPERIMENTS.values() if isinstance(row.change, OtherSubject)}
_LABELS[NO_PATTERNS] = _LABELS[INDUCTOR]


@dataclass(frozen=True, slots=True)
class Ablation:
    """The result of every stage by its name, in order, and who gave it.

    `accused` is the stage that the report is about, a public one; or `eager` where eager itself is wrong and nothing
    else is; `passes` where the public stages were left out.
    """

    hello: Hello
    stages: dict[str, SubjectResult]
    accused: str

    @property
    def result(self) -> SubjectResult:
        """What the accused stage gave."""
        return self.stages[self.accused]

    def fails(self, stage: str) -> bool | None:
        """Whether that stage shows the bug too; None where it was not run or does not take the case."""
        outcome = compare_outcome(self.stages.get(stage), self.result)
        return None if outcome is Outcome.DOES_NOT_APPLY else outcome.fails


def label(stage: str, subject: str = "", case: Case | None = None, *, as_config: bool = False) -> str:
    """The stage in words that a user of torch.compile knows; `subject`: what ran there, with this case.

    `as_config`: its settings are values of torch._inductor.config, as where options of torch.compile don't fail.
    """
    spec = get_spec(subject)
    settings: dict[str, Value] = {"pattern_matcher": False} if stage == NO_PATTERNS else {}
    settings |= dict(case.settings) if case and spec.options else {}
    backend = get_spec(stage).sdpa
    name = f"F.scaled_dot_product_attention under sdpa_kernel({backend})" if backend else stage
    words = [_LABELS.get(stage, name), f'mode="{spec.mode}"' if spec.mode else ""]
    words += [f"torch._functorch.config.activation_memory_budget={MEMORY_BUDGET}" if spec.recomputes else ""]
    return ", ".join(filter(None, [*words, describe_settings(settings, as_config=as_config)]))


def run_ablation(entry: Entry, evaluator: Evaluator, *, full: bool = True) -> Ablation:
    """Evaluate a case at every stage.

    Not `full`: where the graph passes alone show the failure, code generation, twenty times as slow, is left out.
    Raises UserError.
    """
    case, hello = entry.case, evaluator.hello

    def evaluate(*subjects: str) -> dict[str, SubjectResult]:
        return {name: evaluator.evaluate_or_raise(case, subject_of(name, entry)) for name in subjects}

    stages = evaluate(EAGER, DYNAMO, AOT_EAGER, DECOMPOSED, PASSES)
    if full or not _is_decided(entry, stages):
        if not hello.cxx and hello.device == "cpu":
            raise UserError(
                f"worker {hello.pid} has no C++ compiler, which torch.compile needs on the CPU; install g++"
            )
        stages |= evaluate(
            *([] if case.dynamic else [INDUCTOR]),
            *([] if get_spec(entry.subject).random else [DYNAMIC]),
            *(EXPORTED if entry.subject == EXPORTED[-1] else {entry.subject} & {*EXPORTED}),
        )
        is_dynamic = case.dynamic or _find_accused(entry, stages) == DYNAMIC
        base = subject_of(DYNAMIC if is_dynamic else INDUCTOR, entry)
        stages[NO_PATTERNS] = evaluator.evaluate_or_raise(case, base, Trial("pattern_matcher_off"))
    return Ablation(hello, stages, _find_accused(entry, stages))


def find_cheapest(ablation: Ablation, entry: Entry) -> str:
    """The subject that shows the failure in the least time: controls are applied to it."""
    if ablation.accused == EAGER:
        return EAGER
    stage = next((stage for stage in (PASSES, INDUCTOR) if ablation.fails(stage)), ablation.accused)
    return subject_of(stage, entry)


def subject_of(stage: str, entry: Entry) -> str:
    """The subject that a stage is for this case, with its random numbers, little memory, settings or mode."""
    kept = {name: getattr(get_spec(entry.subject), name) for name in ("random", "recomputes", "options", "mode")}
    return find_variant(stage, **kept) or stage


def _is_decided(entry: Entry, stages: Mapping[str, SubjectResult]) -> bool:
    is_eager = stages[EAGER].verdict is Verdict.EAGER_SUSPECT and entry.subject == EAGER
    wanted = SubjectResult("", Verdict(entry.verdict) if entry.verdict in {*Verdict} else Verdict.OK)
    faulty = (stages[name] for name in (AOT_EAGER, DECOMPOSED, PASSES) if _is_faulty(stages[name]))
    return is_eager or any(compare_outcome(one, wanted).fails for one in faulty)


def _is_faulty(result: SubjectResult) -> bool:
    return result.verdict.is_finding and result.verdict is not Verdict.EAGER_SUSPECT


def _find_accused(entry: Entry, stages: Mapping[str, SubjectResult]) -> str:
    public = [name for name in (INDUCTOR, DYNAMIC, *EXPORTED) if name in stages]
    faulty = [name for name in (*public, PASSES, DECOMPOSED, AOT_EAGER) if _is_faulty(stages[name])]
    is_relevant = set(faulty) & set(public or faulty)
    if stages[EAGER].verdict is Verdict.EAGER_SUSPECT and (entry.subject == EAGER or not is_relevant):
        return EAGER
    if not public:
        return next(iter(faulty), PASSES)
    return min(public, key=lambda name: (name not in faulty, name != entry.subject))
