"""Which part of an attention function is at fault: forward or which gradient, which feature it takes, which tiles."""

import itertools
from collections.abc import Iterator

from corpus.passes.contracts import simplify_contract
from fuzz.error_location import gradient
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import DropoutMask, RelationBroken
from generators.errors import UserError
from generators.program.case import Case
from generators.program.type_check import types_of
from triage.attribution.ablation import EAGER, MATH, Ablation
from triage.attribution.experiments import Study, passes
from triage.attribution.operation import find_backend_cause
from triage.attribution.root_cause import KERNEL, CaseChange, Experiment, Mechanism, MechanismKind, RootCause

_SDPA = "sdpa_"
_MAX_SPELLINGS = 12
_FEATURES = ("alibi", "sinks", "window", "causal", "softcap", "bias", "mask", "dropout")
_TILES = (("tile", "16,16"), ("tile", "32,32"), ("tile", "128,128"))
_SCHEDULES = (("warps", "1"), ("warps", "8"), ("stages", "1"), ("stages", "3"))
"""Controls of launches. Triton's interpreter has no warps or stages."""

_MECHANISMS = {
    Verdict.OUT_OF_BOUNDS: MechanismKind.WRITES,
    Verdict.NONDETERMINISTIC: MechanismKind.RESULTS_DIFFER,
    Verdict.METADATA: MechanismKind.FORM,
    Verdict.NONFINITE: MechanismKind.NOT_FINITE,
    Verdict.WRONG_RESULT: MechanismKind.WRONG_VALUES,
    Verdict.WRONG_GRADIENT: MechanismKind.WRONG_VALUES,
}


def find_kernel_cause(study: Study, ablation: Ablation) -> RootCause:
    """The cause of a finding about the attention function that `ablation` accuses."""
    if study.subject.startswith(_SDPA):
        return find_backend_cause(study)
    needed, features = _find_features(study)
    controls = [Experiment(True, subject=name) for name in (MATH, EAGER) if ablation.fails(name) is False]
    part = ", ".join([find_place(study.case, study.result), *needed])
    evidence = (*controls, *features, *_try_launches(study))
    return RootCause(study.subject, KERNEL, part, _mechanism_of(study.result), evidence)


def find_place(case: Case, result: SubjectResult) -> str:
    """Which computation is wrong: "attention_forward", "attention_backward (dq)"."""
    value = result.where.value if result.where is not None else getattr(result.failure, "value", "")
    is_gradient = result.verdict is Verdict.WRONG_GRADIENT or value.startswith(("grad of", "dq", "dk", "dv", "dbias"))
    if not is_gradient:
        return "attention_forward" if not case.training or result.verdict is not Verdict.OUT_OF_BOUNDS else "attention"
    name = gradient(case, value)
    return f"attention_backward ({name})" if name.startswith("d") else "attention_backward"


def list_features(case: Case) -> list[str]:
    """What the case's contract has beyond plain attention, in words."""
    if not case.contracts:
        return []
    contract, types = case.contracts[0], types_of(case)
    found = [name for name in _FEATURES if getattr(contract, name)]
    if contract.causal == "bottom_right":
        found[found.index("causal")] = "causal from the bottom right"
    axis = {"bhsd": 1, "bshd": 2}.get(contract.layout)
    if axis is not None:
        q_heads, k_heads = (types[name].shape[axis].value(case.sizes) for name in (contract.q, contract.k))
        found += ["grouped queries"] if q_heads != k_heads else []
    return found + (["negative scale"] if contract.scale < 0 else [])


def _try_launches(study: Study) -> list[Experiment]:
    """What other tiles make of it, and on a GPU other warps and stages, and Triton's interpreter."""
    device = study.evaluator.hello.device
    wanted = _TILES if device == "cpu" else (*_TILES, *_SCHEDULES)
    tried = sorted((study.try_control(*launch) for launch in wanted), key=lambda one: not one.passes)
    if device != "cpu":
        try:
            interpreted = study.evaluator.on("cpu").judge(study.case, study.subject)
            tried.append(Experiment(passes(interpreted), subject=study.subject, device="cpu"))
        except UserError:
            pass  # no worker for the CPU there
    return [one for one in tried if one.passes is not None]


def _find_features(study: Study) -> tuple[list[str], list[Experiment]]:
    """The features without which it passes, and what came of leaving out each."""
    own = list_features(study.case)
    tried: dict[str, Experiment] = {}
    for name, other in itertools.islice(_leave_out_one(study.case, own), _MAX_SPELLINGS):
        if name not in tried or not tried[name].passes:
            tried[name] = study.try_case(other, CaseChange.WITHOUT_FEATURE, name)
    needed = [name for name, one in tried.items() if one.passes]
    spare = [tried.get(name) or Experiment(None, change=CaseChange.WITHOUT_FEATURE, detail=name) for name in own]
    return needed, [*(tried[name] for name in needed), *(one for one in spare if one.passes is False)]


def _leave_out_one(case: Case, own: list[str]) -> Iterator[tuple[str, Case]]:
    """Spellings of the contract with exactly one feature fewer."""
    if not case.contracts:
        return
    for other in simplify_contract(case):
        left = list_features(other)
        gone = [name for name in own if name not in left]
        if len(gone) == 1 and len(left) == len(own) - 1:
            yield gone[0], other


def _mechanism_of(result: SubjectResult) -> Mechanism:
    failure = result.failure
    if isinstance(failure, RelationBroken):
        return Mechanism(MechanismKind.RELATION, failure.relation)
    if failure is not None and failure.is_of_further_call:
        return Mechanism(MechanismKind.FURTHER_CALL)
    if isinstance(failure, DropoutMask):
        return Mechanism(MechanismKind.DROPOUT)
    return Mechanism(_MECHANISMS.get(result.verdict) or MechanismKind.of(result.verdict))
