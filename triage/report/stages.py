"""The table of a report: every way to run a case, and its verdict."""

from fuzz.ask.question import Asker, Question, ask_or_raise
from fuzz.attribution.ablation import DYNAMIC, EAGER, Ablation, describe_stage, find_symbolic
from fuzz.bug_identity import compare_outcome
from fuzz.experiments import Outcome
from fuzz.subjects import get_spec
from fuzz.versions import spell_verdict
from generators.program.case import Case
from triage.report.failing_run import is_kernel, is_of_config
from triage.report.wording import spell


def run_symbolic(case: Case, ablation: Ablation, asker: Asker) -> None:
    """If the program fixes sizes that may be symbolic, run its stage with dynamic=True again: with the program that
    reads them off its arguments."""
    if (symbolic := _find_symbolic(case, ablation)) is not None:
        question = Question(symbolic, (ablation.stages[DYNAMIC].subject,))
        ablation.stages[DYNAMIC] = ask_or_raise(asker, question)


def _find_symbolic(case: Case, ablation: Ablation) -> Case | None:
    return find_symbolic(case) if DYNAMIC in ablation.stages and ablation.accused != DYNAMIC else None


def list_stages(case: Case, ablation: Ablation) -> list[tuple[str, str]]:
    """The words for each stage that torch has, and its verdict. `run_symbolic` ran before."""
    as_config, of_kernel = is_of_config(ablation.result), is_kernel(ablation.result)
    names = {
        name: describe_stage(name, one.subject, case, as_config=as_config) for name, one in ablation.stages.items()
    }
    names |= {EAGER: "eager, the attention as products and softmax"} if of_kernel else {}
    if _find_symbolic(case, ablation) is not None:
        names[DYNAMIC] += ", sizes read off the arguments"
    rows = []
    for name, one in ablation.stages.items():
        is_other = compare_outcome(one, ablation.result) is Outcome.FAILS_OTHERWISE
        words = spell(spell_verdict(one)) + (", another failure" if is_other else "")
        rows += [(names[name], words)] * (name == ablation.accused or not get_spec(one.subject).is_surrogate)
    return rows
