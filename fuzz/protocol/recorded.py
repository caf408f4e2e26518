"""Results stored by any version: older ones kept a sentence in stores, case files and run directories.

The one place that reads a sentence. What it gives has the identity of the same failure met today.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.codec import decode
from fuzz.protocol.failures import FURTHER_CALL, Failure, FaultyOperation, Process, ProcessLost, Raised, Recorded
from fuzz.protocol.render import MEANINGS

_AGAIN = re.compile(r"called again with other arguments(: |, it )")
_FAULTY = re.compile(
    r"(?P<operation>\S+) gives (?P<given>\S+) where float64 gives (?P<exact>[^\s:;,]+)"
    r"(?:: eager's (?P<value>.+?) (?:is not finite|is off by (?P<error>\S+) from float64))?"
    r"(?P<wrong>; this subject's is wrong too)?(?P<own>, though its own call is right)?"
    r"(?P<right>; this subject's is right)?"
)
_RAISED = re.compile(r"(?P<error>[A-Za-z_][\w.]*): (?P<text>.+)", re.DOTALL)
_PROCESS = {
    Process.TIMEOUT: r"(?:no end|timed out) after (?P<detail>\S+) s",
    Process.OUT_OF_MEMORY: r"used more than (?P<detail>\S+) MiB",
    Process.SIGNAL: r"died by (?P<detail>signal \d+|\w+)",
    Process.EXIT: r"ended with exit code (?P<detail>-?\d+)",
    Process.PROTOCOL: r"broke the protocol: (?P<detail>.*)",
}
_PLACE = r"(?s:,? in (?P<place>.+ \(.+\))$|: (?P<words>.+)$)?"


def read_result(data: Mapping[str, Any]) -> SubjectResult:
    """A `SubjectResult` from its JSON form. Raises `ValueError` when it is none."""
    result = decode(SubjectResult, {key: value for key, value in data.items() if (key, value) != ("where", {})})
    text = str(data.get("message", ""))
    if result.failure is not None or not text:
        return result
    again = _AGAIN.match(text)
    failure = _read(result.verdict, text[again.end() if again else 0 :])
    return replace(result, failure=replace(failure, call=FURTHER_CALL) if again else failure)


def _read(verdict: Verdict, text: str) -> Failure:
    if verdict is Verdict.EAGER_SUSPECT:
        return _read_faulty_operation(text)
    if verdict in (Verdict.TIMEOUT, Verdict.WORKER_DIED, Verdict.OUT_OF_MEMORY):
        return _read_process(text)
    if verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR):
        return _read_exception(text) or Raised(text)
    failure = Recorded(text)
    return replace(failure, call=FURTHER_CALL) if text.partition(": ")[0] in MEANINGS else failure


def _read_faulty_operation(text: str) -> Failure:
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


def _read_process(text: str) -> Failure:
    for how, pattern in _PROCESS.items():
        found = re.match(pattern + _PLACE, text)
        if found:
            return ProcessLost(how, found["detail"], found["place"] or "", found["words"] or "")
    return _read_exception(text) or Recorded(text)  # A worker that can say so itself.


def _read_exception(text: str) -> Raised | None:
    raised = _RAISED.fullmatch(text)
    return Raised(raised["error"], raised["text"]) if raised else None
