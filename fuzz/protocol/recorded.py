"""Results stored by any version: older ones kept a sentence in stores, case files and run directories.

The one place that reads a sentence. What it gives has the identity of the same failure met today.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.codec import decode
from fuzz.protocol.failures import CASE_CALL, FURTHER_CALL, Failure, Process, ProcessLost, Recorded
from fuzz.protocol.render import MEANINGS

_AGAIN = re.compile(r"called again with other arguments(: |, it )")
_FAULTY = re.compile(r"(\S+) gives (\S+) where float64 gives ")
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
    if verdict is Verdict.EAGER_SUSPECT and (found := _FAULTY.match(text)):
        is_finite = found[2].lstrip("-") not in ("nan", "inf")
        return Recorded(text, f"{found[1]} {'wrong' if is_finite else 'not finite'}")
    if verdict in (Verdict.TIMEOUT, Verdict.WORKER_DIED, Verdict.OUT_OF_MEMORY):
        for how, pattern in _PROCESS.items():
            if found := re.match(pattern + _PLACE, text):
                return ProcessLost(how, found["detail"], found["place"] or "", found["words"] or "")
    return Recorded(text, call=FURTHER_CALL if text.partition(": ")[0] in MEANINGS else CASE_CALL)
