"""The evidence for a root cause in sentences: the one place with words for experiments."""

import itertools
import re
from collections.abc import Iterable

from fuzz.experiments import EXPERIMENTS
from fuzz.protocol.rewrites import WrongRewrite
from triage.attribution.ablation import label
from triage.attribution.root_cause import Evidence, Experiment, FirstStep, FusedCall, Measured


def describe_evidence(evidence: Iterable[Evidence]) -> list[str]:
    """What a root cause rests on, a sentence for each kind of experiment and outcome."""

    def outcome(item: Evidence) -> object:
        if not isinstance(item, Experiment):
            return type(item)
        return item.passes, item.change, item.control and item.control.experiment, bool(item.subject)

    return [_describe(list(alike)) for _, alike in itertools.groupby(evidence, outcome)]


def _describe(alike: list[Evidence]) -> str:
    match alike[0]:
        case Experiment(passes=passes):
            words = " or ".join(_describe_change(one) for one in alike if isinstance(one, Experiment))
            return f"It {'passes' if passes else 'fails' if passes is False else 'gives no verdict'} with {words}."
        case Measured():
            return " ".join(_describe_rewrite(one.rewrite) for one in alike if isinstance(one, Measured))
        case FirstStep(step=step, name=name):
            return f"With the {step} `{name}` and all later ones off it passes; with `{name}` on again it fails."
        case FusedCall(pattern=pattern):
            return f"In float64 the replacement of {pattern} is right, so the kernel of its fused call is at fault."


def _describe_rewrite(one: WrongRewrite) -> str:
    """What was measured: for which operands a rewrite is right and wrong, or which constants differ."""
    if one.is_of_strides:
        return f"The replacement of `{one.pattern}` orders the dimensions of its output in memory in another way."
    of = "In float64, on the operands of this case, the replacement of"
    said = [f"{of} `{one.pattern}` gives another result than the program."]
    said += ["They differ only in rows whose mask keeps no key."] if one.rows else []
    for name in one.right:
        right, wrong = (_describe_values(which.get(name, ())) for which in (one.right, one.wrong))
        said.append(f"It is right where `{name}` is {right}{f'; wrong where it is {wrong}' if wrong else ''}.")
    for constant in one.constants:
        operation, _, values = constant.partition(" ")
        differ = f"The program and the pattern differ in the constants of {operation}."
        said.append(_describe_constant(operation, *values.split(" for ")) if values else differ)
    if not one.right and not one.constants and not one.rows:
        said.append("No value of an operand makes it right, and no constant differs.")
    return " ".join(said)


def _describe_values(changes: tuple[str, ...]) -> str:
    """The values that changes give an operand: "1 throughout, or 0 and 1 mixed"."""
    whole = [change.split()[1] for change in changes if change.startswith("all")]
    words = [f"{' or '.join(whole)} throughout"] if whole else []
    words += ["0 and 1 mixed"] if {"one 0 in 1", "one 1 in 0"} <= {*changes} else []
    return ", or ".join(words)


def _describe_constant(operation: str, program: str, expected: str) -> str:
    mine, theirs = (value[1:-1] if re.fullmatch(r"\[[^,]*\]", value) else value for value in (program, expected))
    return f"The pattern has {operation} with {theirs}, the program with {mine}."


def _describe_change(one: Experiment) -> str:
    if one.control is not None:
        return EXPERIMENTS[one.control.experiment].label
    return one.change.explanation.format(one.detail) if one.change else label(one.subject)
