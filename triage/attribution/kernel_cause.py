"""Which part of an attention function is at fault: forward or which gradient, which feature it takes, which tiles."""

import itertools
from collections.abc import Iterator

from corpus.passes.contracts import simplify_contract
from fuzz.evaluator import Evaluator
from fuzz.localisation import gradient
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.controls import Control
from fuzz.relations import is_of_another_call, relation_of
from fuzz.subjects import get_spec
from generators.errors import UserError
from generators.program.case import Case
from generators.program.type_check import types_of
from triage.attribution import operation
from triage.attribution.ablation import EAGER, Ablation
from triage.attribution.root_cause import RootCause

_MOST = 12
"""Spellings that are tried."""

_FEATURES = ("alibi", "sinks", "window", "causal", "softcap", "bias", "mask", "dropout")
_OTHERWISE = {
    Verdict.OUT_OF_BOUNDS: "writes out of bounds",
    Verdict.NONDETERMINISTIC: "different results for equal inputs",
    Verdict.METADATA: "another form of result",
}


def cause(case: Case, ablation: Ablation, trials: Evaluator) -> RootCause:
    """The cause of a finding about the attention function that `ablation` accuses."""
    result, subject = ablation.result, ablation.accused
    if result.verdict is Verdict.EAGER_SUSPECT:
        return operation.cause(case, result, trials)
    if get_spec(subject).sdpa:
        return operation.of_backend(case, subject, result, trials)
    needed, evidence = _needed(case, subject, trials)
    evidence += launches(case, subject, trials)
    part = ", ".join([place(case, result), *needed])
    told = ["PyTorch's MATH backend gets the same call right."] if ablation.fails("sdpa_math") is False else []
    if ablation.fails(EAGER) is False:
        told.append("Eager of the same dtypes is right.")
    return RootCause(subject, "kernel", part, _mechanism(result), (*told, *evidence))


def place(case: Case, result: SubjectResult) -> str:
    """Which computation is wrong: "attention_forward", "attention_backward (dq)"."""
    value = result.where.value if result.where is not None else result.message.partition(":")[0]
    wrong_gradient = result.verdict is Verdict.WRONG_GRADIENT or value.startswith(
        ("grad of", "dq", "dk", "dv", "dbias")
    )
    if not wrong_gradient:
        return "attention_forward" if not case.training or result.verdict is not Verdict.OUT_OF_BOUNDS else "attention"
    name = gradient(case, value)
    return f"attention_backward ({name})" if name.startswith("d") else "attention_backward"


def launches(case: Case, subject: str, trials: Evaluator) -> list[str]:
    """What other tiles make of it, and on a GPU other warps and stages; [] where the function takes none."""
    wanted = [Control("tile", f"{side},{side}") for side in (16, 32, 128)]
    if trials.hello.device != "cpu":  # Triton's interpreter has neither
        wanted += [Control("warps", "1"), Control("warps", "8"), Control("stages", "1"), Control("stages", "3")]
    told: dict[bool, list[str]] = {True: [], False: []}
    for launch in wanted:
        fails = trials.fails(case, subject, launch)
        if fails is not None:
            size = launch.argument.replace(",", " x ")
            told[fails].append(f"tile {size}" if launch.name == "tile" else f"num_{launch.name} = {size}")
    sentences = [f"It goes away with {', '.join(told[False])}."] if told[False] else []
    sentences += [f"It stays with {', '.join(told[True])}."] if told[True] else []
    return sentences + _interpreted(case, subject, trials)


def _interpreted(case: Case, subject: str, trials: Evaluator) -> list[str]:
    """What Triton's interpreter makes of a call that fails on a GPU."""
    if trials.hello.device == "cpu":
        return []
    try:
        fails = trials.on("cpu").fails(case, subject)
    except UserError:
        return []  # no worker for the CPU there
    if fails is None:
        return []
    if fails:
        return [
            "Triton's interpreter, on the CPU, gets it wrong too: what the kernel says is wrong, not how it is compiled."
        ]
    return ["Triton's interpreter, on the CPU, gets it right: it takes the GPU, its compiler or its order of work."]


def features(case: Case) -> list[str]:
    """What the case's contract has beyond plain attention, in words."""
    if not case.contracts:
        return []
    contract, types = case.contracts[0], types_of(case)
    found = [name for name in _FEATURES if getattr(contract, name)]
    if contract.causal == "bottom_right":
        found[found.index("causal")] = "causal from the bottom right"
    axis = {"bhsd": 1, "bshd": 2}.get(contract.layout)
    if axis is not None and types[contract.q].shape[axis].value(case.sizes) != types[contract.k].shape[axis].value(
        case.sizes
    ):
        found.append("grouped queries")
    return found + (["negative scale"] if contract.scale < 0 else [])


def _needed(case: Case, subject: str, trials: Evaluator) -> tuple[list[str], list[str]]:
    """The features without which it passes, and the sentences that say so."""
    if not case.contracts:
        return [], []
    own = features(case)
    needed: list[str] = []
    for name, other in itertools.islice(_fewer(case, own), _MOST):
        if name not in needed and trials.fails(other, subject) is False:
            needed.append(name)
    spare = [name for name in own if name not in needed]
    told = (
        [f"It takes {' and '.join(needed)}: without {'it' if len(needed) == 1 else 'either'} it is right."]
        if needed
        else []
    )
    if spare:
        told.append(f"{', '.join(spare).capitalize()} may be left out.")
    return needed, told


def _fewer(case: Case, own: list[str]) -> Iterator[tuple[str, Case]]:
    """Spellings of the contract with exactly one feature fewer."""
    for other in simplify_contract(case):
        left = features(other)
        gone = [name for name in own if name not in left]
        if len(gone) == 1 and len(left) == len(own) - 1:
            yield gone[0], other


def _mechanism(result: SubjectResult) -> str:
    relation = relation_of(result.message)
    if relation:
        return f"the relation {relation} is broken"
    if is_of_another_call(result.message):
        return "wrong when called again with other arguments"
    if result.message.startswith("dropout: "):
        return "dropout of another distribution"
    if result.verdict in _OTHERWISE:
        return _OTHERWISE[result.verdict]
    if result.verdict is Verdict.NONFINITE:
        return "not finite"
    if result.verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT):
        return "wrong values"
    return str(result.verdict).replace("_", " ")
