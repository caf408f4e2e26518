"""When two findings have one root cause: where one change of the program at fault would mend both.

`root_of` writes the cause of a finding in words that are equal for exactly those findings:

1. The same place: who is at fault, the stage, and the part. Every attention pattern of Inductor (`_sfdp_pattern_*`) is one
   part where the mechanism is told: the patterns share a matcher and a check of what they matched, and what those let pass
   shows under one pattern as under another. With the mechanism open, or in what a pattern is replaced by, or no more
   than a way of failing (a crash, a hang), each pattern is a part. An operation of ATen is one part whether eager or a
   backend of F.scaled_dot_product_attention called it.
2. The same mechanism. An exception is one by its type and text, without numbers, names and kinds of tensors. For an attention
   function all wrong values are one mechanism. Where it is open, the way of failing stands for it: not finite, wrong, or
   the verdict.

So clusters don't depend on the order of findings, and a finding never changes the cluster of another. What this rule tells
apart and a person knows to be one is joined in the ledger (`also`).
"""

import re

from corpus.entry import Entry
from corpus.ledger import CauseKey
from fuzz.bug_identity import EAGER, PROCESS, SILENT, VALUES
from fuzz.protocol import Verdict
from fuzz.protocol.failures import normalize
from fuzz.subjects import compiler_of
from triage.attribution.cause import RootCause

OPERATION, KERNEL = "operation", "kernel"
"""Stages: an operation of ATen, and an attention function that is none of torch's."""

PATTERNS = "patterns of attention"
"""The part that all attention patterns are."""

_SFDP = re.compile(r"_?(sfdp_pattern_\d+)")
_OF_ONE_PATTERN = re.compile(
    "|".join(
        [
            "the replacement .+",
            "another form of result",
            "strides in another order",
            *(str(v).replace("_", " ") for v in PROCESS | SILENT),
        ]
    )
)
"""Mechanisms that lie in what one pattern is replaced by, or that say no more than how it fails."""

_RAISES = re.compile(r"\braises\b")
_VALUES = re.compile(r"wrong values|not finite|the relation .+ is broken|wrong when called again with other arguments")
"""Ways in which the output of an attention function is wrong; which of them shows is chance."""


def root_of(cause: RootCause, entry: Entry) -> CauseKey:
    """The root cause of a finding whose cause is told, in words that are equal for what one change would mend."""
    who, stage, part = compiler_of(cause.who), cause.stage, cause.part
    mechanism = _mechanism(cause.mechanism) or way_of(entry)
    if stage == OPERATION:
        who = EAGER  # whichever subject called it
    if stage == KERNEL and _VALUES.fullmatch(mechanism):
        mechanism = "wrong values"
    pattern = _SFDP.match(part)
    if pattern is not None:
        shared = bool(cause.mechanism) and not _OF_ONE_PATTERN.fullmatch(cause.mechanism)
        part = PATTERNS if shared else f"_{pattern[1]}"
    return CauseKey(who, stage, part, mechanism)


def way_of(entry: Entry) -> str:
    """How a finding fails, in a word or two."""
    found = entry.found
    verdict, message = (found.verdict, found.message) if found else (entry.expectation.verdict, "")
    if verdict == Verdict.NONFINITE or "not finite" in message:
        return "not finite"
    if verdict in {Verdict.EAGER_SUSPECT, *VALUES}:
        return "wrong"
    return verdict.replace("_", " ") or "fails"


def _mechanism(text: str) -> str:
    line = " ".join(text.split())
    return normalize(line) if _RAISES.search(line) else line
