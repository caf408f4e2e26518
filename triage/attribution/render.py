"""The evidence for a root cause, and what a failure takes, in sentences: the one place with words for experiments."""

import itertools
import re
from collections.abc import Iterable

from fuzz.protocol.controls import DecompositionDiffers, KernelDiffers, NotMeasured, PassDiffers
from fuzz.protocol.rewrites import WrongRewrite
from triage.attribution.ablation import label
from triage.attribution.explain import Explanation
from triage.attribution.root_cause import Compared, Evidence, Experiment, FusedCall, Measured

CONTROLS = {
    "pattern_matcher_off": "the pattern matcher off",
    "without_attention_patterns": "all patterns of attention off",
    "without_pattern": "_sfdp_pattern_{} off and all other rewrites on",
    "only_pattern": "_sfdp_pattern_{} as the only pattern of attention",
    "without_rewrite": "the rewrite {} off and all others on",
    "without_pass": "the pass {} off and all others on",
    "constants_compared": "patterns that compare constants",
    "sdpa scale_as_tensor": "a replacement that multiplies the query by the scale",
    "sdpa mask_expanded": "a replacement that expands the mask to the shape of the scores",
    "sdpa operands_copied": "a replacement that copies its operands into contiguous memory",
    "eager": "the lowering of {} left to eager and all others on",
    "unfused": "each operation in a kernel of its own",
    "unvectorized": "vectorisation off",
}
_OPERATIONS = {
    "amax": ("takes the maximum", "over dim"),
    "sum": ("sums", "over dim"),
    "full": ("fills", "with"),
    "permute": ("permutes dims", "to"),
    "convert_element_type": ("casts", "to"),
}


def describe_evidence(evidence: Iterable[Evidence]) -> list[str]:
    """What a root cause rests on, a sentence for each kind of experiment and outcome."""

    def outcome(item: Evidence) -> object:
        if not isinstance(item, Experiment):
            return type(item)
        return item.passes, item.change, item.control and item.control.name, bool(item.subject)

    return [_describe(list(alike)) for _, alike in itertools.groupby(evidence, outcome)]


def describe_explanation(found: Explanation) -> list[str]:
    """What the failure takes, and what that rests on."""
    judged = sum(one.fails is not None for one in found.tried)
    sentences = [
        f"It needs {'; '.join(found.needs)}." if found.needs else "",
        f"{judged} cases were judged, each with one property changed{'' if found.whole else '; time ran out'}."
        if found.needs
        else "",
    ]
    return [sentence for sentence in sentences if sentence]


def _describe(alike: list[Evidence]) -> str:
    match alike[0]:
        case Experiment(passes=passes):
            words = " or ".join(_describe_change(one) for one in alike if isinstance(one, Experiment))
            return f"It {'passes' if passes else 'fails' if passes is False else 'gives no verdict'} with {words}."
        case Measured():
            return " ".join(_describe_rewrite(one.rewrite) for one in alike if isinstance(one, Measured))
        case Compared(first=first):
            return _describe_difference(first)
        case FusedCall(pattern=pattern):
            return f"In float64 the replacement of {pattern} is right, so the kernel of its fused call is at fault."
        case _:
            return "No control was tried, since each would lose its process too."


def _describe_difference(first: DecompositionDiffers | PassDiffers | KernelDiffers | NotMeasured) -> str:
    """The first step of compiling that changes a value, what it does, and by how much."""
    if isinstance(first, NotMeasured):
        return f"Values could not be compared by {first.what}: {first.why}."
    far = f"{first.error:.2g} of the largest element"
    if isinstance(first, DecompositionDiffers):
        return f"In float64 the decomposition of {first.operation} is off by {far}."
    if isinstance(first, KernelDiffers):
        operations = ", ".join(first.operations)
        return (
            f"What the kernel `{first.kernel}` reads is right. Of `{first.node}`, which it computes by {operations}, "
            f"{first.wrong} of {first.elements} elements are wrong by up to {far}; eager's operations, on the same "
            f"memory, are off by {first.eager:.2g}."
        )
    by = f"the rewrite `{first.rewrite}` of the pass `{first.name}`" if first.rewrite else f"the pass `{first.name}`"
    before, after = (", ".join(operations) or "nothing" for operations in (first.removed, first.added))
    line = f", of the line `{first.line}`" if first.line else ""
    return (
        f"In float64, on the operands of this case, the graph computes something else after {by} ({first.stage}): "
        f"`{first.node}` ({first.operation}{line}) is off by {far}. It had {before}, now has {after} in its place."
    )


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
    mixed = ("one 0 in 1", "one 1 in 0")
    whole = [change.split()[1] for change in changes if change.startswith("all")]
    words = [f"{' or '.join(whole)} throughout"] if whole else []
    words += ["0 and 1 mixed"] if {*mixed} <= {*changes} else []
    for change in changes:
        kind, value, *others = change.split()
        if (
            kind == "one"
            and change not in (mixed if "0 and 1 mixed" in words else ())
            and (value in ("0", "1") or value not in whole)
        ):
            words.append(f"{others[-1]} but for one {value}")
    return ", or ".join(words)


def _describe_constant(operation: str, program: str, expected: str) -> str:
    mine, theirs = (value[1:-1] if re.fullmatch(r"\[[^,]*\]", value) else value for value in (program, expected))
    does, how = _OPERATIONS.get(operation, (f"has {operation}", "with"))
    return f"The pattern {does} {how} {theirs}, the program {how} {mine}."


def _describe_change(one: Experiment) -> str:
    if one.control is not None:
        name, argument = one.control.name, one.control.argument
        words = CONTROLS.get(f"{name} {argument}") or CONTROLS.get(name, f"{name} {{}}")
        return words.format(argument)
    return one.change.explanation.format(one.detail) if one.change else label(one.subject)
