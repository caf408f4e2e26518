"""The table of a report: every way to run a case, and its verdict."""

from dataclasses import replace

from fuzz.attribution.ablation import DYNAMIC, EAGER, Ablation, describe_stage
from fuzz.evaluator import Evaluator, compare_outcome
from fuzz.experiments import Outcome
from fuzz.subjects import get_spec
from fuzz.versions import spell_verdict
from generators.program.case import Case
from generators.program.emit import source
from generators.program.type_check import is_valid
from triage.report import repro
from triage.report.wording import spell


def run_symbolic(case: Case, ablation: Ablation, evaluator: Evaluator) -> bool:
    """Whether the program fixes sizes that may be symbolic. Its stage with dynamic=True is then that of a program that
    reads them off its arguments, as the test does.
    """
    symbolic, stage = replace(case, dynamic=True), ablation.stages.get(DYNAMIC)
    is_fixed = stage is not None and ablation.accused != DYNAMIC and is_valid(symbolic)
    if stage is None or not is_fixed or source(symbolic) == source(case):
        return False
    ablation.stages[DYNAMIC] = evaluator.evaluate_or_raise(symbolic, stage.subject)
    return True


def list_stages(case: Case, ablation: Ablation, *, is_symbolic: bool = False) -> list[tuple[str, str]]:
    """The words for each stage that torch has, and its verdict. `is_symbolic`: as `run_symbolic` says."""
    as_config, is_kernel = repro.is_of_config(ablation.result), repro.is_kernel(ablation.result)
    names = {
        name: describe_stage(name, one.subject, case, as_config=as_config) for name, one in ablation.stages.items()
    }
    names |= {EAGER: "eager, the attention as products and softmax"} if is_kernel else {}
    names |= {DYNAMIC: f"{names[DYNAMIC]}, sizes read off the arguments"} if is_symbolic else {}
    rows = []
    for name, one in ablation.stages.items():
        is_other = compare_outcome(one, ablation.result) is Outcome.FAILS_OTHERWISE
        words = spell(spell_verdict(one)) + (", another failure" if is_other else "")
        rows += [(names[name], words)] * (name == ablation.accused or not get_spec(one.subject).is_surrogate)
    return rows
