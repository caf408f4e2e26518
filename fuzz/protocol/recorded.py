"""Failures read from the sentences that older versions kept in stores, case files and run directories.

The one place that reads a sentence. What it gives has the identity of the same failure met today.
"""

import re
from dataclasses import replace

from fuzz.protocol.failures import (
    FURTHER_CALL,
    AnyFailure,
    FaultyOperation,
    Process,
    ProcessLost,
    Raised,
    Recorded,
    RelationBroken,
)
from fuzz.protocol.verdict import Verdict

_FAULTY = re.compile(
    r"(?P<operation>\S+) gives (?P<given>\S+) where float64 gives (?P<exact>[^\s:;,]+)"
    r"(?:: eager's (?P<value>.+?) (?:is not finite|is off by (?P<error>\S+) from float64))?"
    r"(?P<wrong>; this subject's is wrong too)?(?P<own>, though its own call is right)?"
    r"(?P<right>; this subject's is right)?"
)
_RAISED = re.compile(r"(?P<error>[A-Za-z_][\w.]*): (?P<text>.+)", re.DOTALL)
_PROCESS = (
    (Process.TIMEOUT, re.compile(r"(?:no end|timed out) after (?P<detail>\S+) s")),
    (Process.OUT_OF_MEMORY, re.compile(r"used more than (?P<detail>\S+) MiB")),
    (Process.SIGNAL, re.compile(r"died by (?P<detail>signal \d+|\w+)")),
    (Process.EXIT, re.compile(r"ended with exit code (?P<detail>-?\d+)")),
    (Process.PROTOCOL, re.compile(r"broke the protocol: (?P<detail>.*)")),
)
_PLACE = re.compile(r",? in (?P<place>.+ \(.+\))$|: (?P<words>.+)$", re.DOTALL)
_AGAIN = re.compile(r"called again with other arguments(: |, it )")
_RELATION = re.compile(
    r"(?P<relation>[^:]+): (?P<count>\d+) of (?P<total>\d+) elements differ, most at \[(?P<index>[\d, ]*)\]: "
    r"(?P<left>\S+) and (?P<right>\S+), (?P<end>.+)"
)
_RATIO = re.compile(r"(?P<ratio>\S+) times .+\(limit (?P<limit>[^)]+)\)")


def read_sentence(verdict: Verdict, text: str) -> AnyFailure | None:
    """The failure that an older version wrote down as `text`; None where it wrote nothing."""
    if not text:
        return None
    again = _AGAIN.match(text)
    if again:
        return replace(_read(verdict, text[again.end() :]), call=FURTHER_CALL)
    return _read(verdict, text)


def _read(verdict: Verdict, text: str) -> AnyFailure:
    if verdict is Verdict.EAGER_SUSPECT:
        return _read_faulty_operation(text)
    if verdict in (Verdict.TIMEOUT, Verdict.WORKER_DIED, Verdict.OUT_OF_MEMORY):
        return _read_process(text)
    if verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR):
        found = _RAISED.fullmatch(text)
        return Raised(found["error"], found["text"]) if found else Raised(text)
    relation = _RELATION.fullmatch(text)
    return _read_relation(relation) if relation else Recorded(text)


def _read_faulty_operation(text: str) -> AnyFailure:
    found = _FAULTY.match(text)
    try:
        return Recorded(text) if found is None else _faulty_operation(found)
    except ValueError:
        return Recorded(text)


def _faulty_operation(found: re.Match[str]) -> FaultyOperation:
    return FaultyOperation(
        operation=found["operation"],
        given=float(found["given"]),
        exact=float(found["exact"]),
        value=found["value"] or "",
        error=float(found["error"] or ("inf" if found["value"] else 0.0)),
        subject_is_wrong=True if found["wrong"] else False if found["right"] else None,
        subject_call_is_right=bool(found["own"]),
    )


def _read_process(text: str) -> AnyFailure:
    for how, pattern in _PROCESS:
        found = pattern.match(text)
        if found:
            rest = _PLACE.match(text, found.end())
            place, words = (rest["place"] or "", rest["words"] or "") if rest else ("", "")
            return ProcessLost(how, found["detail"], place, words)
    raised = _RAISED.fullmatch(text)  # A worker that can say so itself.
    return Raised(raised["error"], raised["text"]) if raised else Recorded(text)


def _read_relation(found: re.Match[str]) -> RelationBroken:
    ratio = _RATIO.match(found["end"])
    aspects = {"which must be equal bit for bit": "bitwise", "not finite on one side": "not_finite"}
    return RelationBroken(
        relation=found["relation"],
        aspect=aspects.get(found["end"], "rounding"),
        count=int(found["count"]),
        total=int(found["total"]),
        index=tuple(map(int, filter(None, found["index"].split(", ")))),
        left=float(found["left"]),
        right=float(found["right"]),
        ratio=float(ratio["ratio"]) if ratio else 0.0,
        limit=float(ratio["limit"]) if ratio else 0.0,
    )
