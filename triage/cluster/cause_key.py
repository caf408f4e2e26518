"""When two findings have one root cause: when one change to the faulty program would fix both.

`key_of` gives equal keys to exactly those:

1. The same place: who is at fault, the stage, and the part. All attention patterns of Inductor (`_sfdp_pattern_*`) are
   one part: they share a matcher and a check of what it matched, and what these overlook shows under any pattern. Each
   is a part where the mistake is in its replacement, or where no more is known than how it fails (a crash, a hang).
   An operation of ATen is one part whether eager or a backend of F.scaled_dot_product_attention called it.
2. The same mechanism. An exception is one by its type and text, without numbers, names and kinds of tensors. For an
   attention function all wrong values are one mechanism: which of them shows is chance.

So clusters don't depend on the order of findings, and a finding never changes the cluster of another. Keys that a
person knows to be one bug are joined in the ledger (`also`).
"""

from corpus.entry import Entry
from corpus.ledger import CauseKey
from fuzz.bug_identity import PROCESS, SILENT
from fuzz.protocol import EAGER, Verdict
from fuzz.subjects import compiler_of
from triage.attribution.root_cause import KERNEL, OPERATION, PATTERNS, MechanismKind, RootCause

OPEN = "open"
"""The stage of a key whose cause is not known."""

_OF_ONE_PATTERN = {MechanismKind.of(verdict) for verdict in PROCESS | SILENT} | {
    MechanismKind.OTHER_RESULT,
    MechanismKind.FORM,
    MechanismKind.STRIDES,
}
"""Mechanisms that lie in what one pattern is replaced by, or that say no more than how it fails."""

_WRONG_VALUES = {
    MechanismKind.WRONG_VALUES,
    MechanismKind.NOT_FINITE,
    MechanismKind.RELATION,
    MechanismKind.FURTHER_CALL,
}


def key_of(cause: RootCause) -> CauseKey:
    """What tells a root cause from others."""
    who, part, mechanism = compiler_of(cause.who), cause.part, str(cause.mechanism)
    if cause.stage == OPERATION:
        who = EAGER  # whichever subject called it
    if cause.stage == KERNEL and cause.mechanism.name in _WRONG_VALUES:
        mechanism = MechanismKind.WRONG_VALUES.value
    if cause.is_attention_pattern and cause.mechanism.name not in _OF_ONE_PATTERN:
        part = PATTERNS
    return CauseKey(who, cause.stage, part, mechanism)


def open_key(entry: Entry) -> CauseKey:
    """The key of a finding whose cause is not known: one of its own."""
    verdict = entry.found.verdict if entry.found else entry.expectation.verdict
    who = EAGER if verdict == Verdict.EAGER_SUSPECT else compiler_of(entry.subject)
    fired = "+".join(sorted(name for name in entry.found.fired if "sfdp" in name)) if entry.found else ""
    return CauseKey(who, OPEN, fired, f"{verdict.replace('_', ' ') or 'fails'} ({entry.case.id})")
