"""The ablation: a case under every stage from eager to Inductor, and under Inductor without its pattern matcher."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from corpus.entry import Entry
from fuzz.ask.question import Asker, Question, ask_or_raise
from fuzz.attribution.study import subject_of
from fuzz.bug_identity import compare_outcome, kind_of
from fuzz.experiments import DECOMPOSED, EXPERIMENTS, NO_PATTERNS, Outcome, Trial, Tried
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.replay_result import read_recorded_result
from fuzz.subjects import MEMORY_BUDGET, SHARDED, get_spec, is_attention, is_user_function
from generators.errors import UserError
from generators.program.case import Case, SettingValue
from generators.program.emit import source
from generators.program.settings import describe_settings
from generators.program.type_check import is_valid

EAGER, DYNAMO, AOT_EAGER, PASSES, INDUCTOR = "eager", "dynamo", "aot_eager", "passes", "inductor"
DYNAMIC = "inductor_dynamic"
EXPORTED = ("export", "aot_inductor")
MATH = "sdpa_math"
_CHEAP = (EAGER, DYNAMO, AOT_EAGER, DECOMPOSED, PASSES)
"""Subjects without code generation, which takes twenty times as long."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """The results of a case at every stage, and the subject that is reported."""

    hello: Hello
    stages: dict[str, SubjectResult]
    """By the id of the stage, in order."""
    accused: str
    """- `eager`: eager is wrong, and either the finding is about eager or nothing else is wrong
    - a public subject, if any ran: preferably a wrong one, then the finding's own
    - else the last stage before code generation that is wrong, or `passes`
    """

    @property
    def result(self) -> SubjectResult:
        """The result of the accused subject."""
        return self.stages[self.accused]

    def compare(self, stage: str) -> Tried:
        """The outcome of a stage, compared with the result of the accused subject."""
        found = self.stages.get(stage)
        return Tried(stage, "", Outcome.NOT_TRIED if found is None else compare_outcome(found, self.result))

    @property
    def cheapest(self) -> str:
        """The stage that shows the failure in the least time."""
        alike = Outcome.FAILS_ALIKE
        stages = () if self.accused == EAGER else (PASSES, INDUCTOR)
        return next((stage for stage in stages if self.compare(stage).outcome is alike), self.accused)

    def fails(self, stage: str) -> bool:
        """Whether the stage ran and shows a bug too."""
        return self.compare(stage).outcome.fails


def describe_stage(stage: str, subject: str = "", case: Case | None = None, *, as_config: bool = False) -> str:
    """The stage in words that a user of torch.compile knows, in Markdown.

    `subject`: the subject that ran this case at the stage.

    `as_config`: print settings as values of torch._inductor.config, for bugs that options of torch.compile don't show.
    """
    spec, row = get_spec(subject), EXPERIMENTS.get(INDUCTOR if stage == NO_PATTERNS else stage)
    settings: dict[str, SettingValue] = {"pattern_matcher": False} if stage == NO_PATTERNS else {}
    settings |= dict(case.settings) if case and spec.options else {}
    backend = get_spec(stage).sdpa
    name = f"`F.scaled_dot_product_attention` under `sdpa_kernel({backend})`" if backend else f"`{stage}`"
    foreign = get_spec(stage).compiler
    name = foreign.words if foreign and foreign.is_foreign else name
    words = [row.label if row else name, *(f"{keyword}={value!r}" for keyword, value in spec.keywords)]
    words += [f"torch._functorch.config.activation_memory_budget={MEMORY_BUDGET}" if spec.recomputes else ""]
    is_backend = words[0].startswith("backend=")
    words += ["dynamic=True"] * (is_backend and bool(case and case.dynamic) and "dynamic" not in words[0])
    told = ", ".join(filter(None, [*words, describe_settings(settings, as_config=as_config)]))
    return f"`{told}`" if is_backend else told


def run_ablation(entry: Entry, asker: Asker, *, full: bool = True) -> Ablation:
    """Judge a case at every stage: from eager to Inductor, with PyTorch's MATH backend and an attention function, or in
    eager and by a compiler that is no part of torch.

    Unless `full`, code generation is left out if the graph passes show the failure. The result that a campaign saved is
    then reused if this torch gave it. Raises UserError.
    """
    case, hello = entry.case, asker.hello
    if is_other_compiler(entry.subject, hello):
        own = {} if full else recall(entry, hello)
        stages = {EAGER: _ask_each(asker, case, (EAGER,))[EAGER]}
        stages |= {name: own.get(name) or _ask_each(asker, case, (name,))[name] for name in (entry.subject,)}
        return Ablation(hello, stages, entry.subject if _is_faulty(stages[entry.subject]) else EAGER)
    if is_attention(entry.subject):
        return Ablation(hello, _ask_each(asker, case, (EAGER, MATH, entry.subject)), entry.subject)
    if get_spec(entry.subject).sharded:
        stages = _ask_each(asker, case, (EAGER, SHARDED, entry.subject))
        faulty = (name for name in (SHARDED, entry.subject) if _is_faulty(stages[name]))
        return Ablation(hello, stages, next(faulty, EAGER))
    saved = {} if full else recall(entry, hello)

    def run(*stages: str, case: Case = case) -> dict[str, SubjectResult]:
        found = {name: subject_of(name, entry) for name in stages}
        return {
            name: saved.get(subject) or ask_or_raise(asker, Question(case, (subject,)))
            for name, subject in found.items()
        }

    stages = run(*_CHEAP)
    if full or not _is_decided(entry, stages):
        if not hello.cxx and hello.device == "cpu":
            raise UserError(
                f"worker {hello.pid} has no C++ compiler, which torch.compile needs on the CPU; install g++"
            )
        stages |= run(*([] if case.dynamic else [INDUCTOR]))
        # A report shows the symbolic form, if another stage is accused.
        is_shown = full and entry.subject != DYNAMIC and INDUCTOR in stages and _is_faulty(stages[INDUCTOR])
        symbolic = find_symbolic(case) if is_shown else None
        stages |= run(*([] if get_spec(entry.subject).random else [DYNAMIC]), case=symbolic or case)
        stages |= run(*(EXPORTED if entry.subject == EXPORTED[-1] else {entry.subject} & {*EXPORTED}))
        is_dynamic = case.dynamic or _find_accused(entry, stages) == DYNAMIC
        base = subject_of(DYNAMIC if is_dynamic else INDUCTOR, entry)
        stages[NO_PATTERNS] = ask_or_raise(asker, Question(case, (base,), (Trial(NO_PATTERNS),)))
    return Ablation(hello, stages, _find_accused(entry, stages))


def is_other_compiler(subject: str, hello: Hello) -> bool:
    """Whether the subject is a compiler that is no part of torch: of fuzz/compilers, or the user's."""
    return get_spec(subject).is_foreign or (is_user_function(subject) and subject not in hello.attention)


def _ask_each(asker: Asker, case: Case, subjects: tuple[str, ...]) -> dict[str, SubjectResult]:
    return {name: ask_or_raise(asker, Question(case, (name,))) for name in dict.fromkeys(subjects)}


def find_symbolic(case: Case) -> Case | None:
    """The case with symbolic sizes that its program reads off its arguments; None if that is no other program."""
    symbolic = replace(case, dynamic=True)
    return symbolic if is_valid(symbolic) and source(symbolic) != source(case) else None


def recall(entry: Entry, hello: Hello) -> dict[str, SubjectResult]:
    """The result that a campaign saved with the case, by subject, if the same torch and device gave it.

    Rewrites that are proven wrong under a subject that compiles are as wrong in the graph passes alone.
    """
    found = entry.found
    # A user's function can change while torch stays the same.
    if found is None or is_user_function(found.subject) or not found.failure:
        return {}
    if (found.torch, found.device) != (hello.torch, hello.device):
        return {}
    try:
        result = read_recorded_result(entry)
    except UserError:
        return {}  # another version wrote it
    return {result.subject: result} | ({subject_of(PASSES, entry): result} if result.wrong_rewrites else {})


def _is_decided(entry: Entry, stages: Mapping[str, SubjectResult]) -> bool:
    is_eager = stages[EAGER].verdict is Verdict.EAGER_SUSPECT and entry.subject == EAGER
    wanted = kind_of(Verdict(entry.verdict)) if entry.verdict in {*Verdict} else ""
    faulty = (stages[name].verdict for name in (AOT_EAGER, DECOMPOSED, PASSES) if _is_faulty(stages[name]))
    return is_eager or any(wanted in ("", kind_of(verdict)) for verdict in faulty)


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
