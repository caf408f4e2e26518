"""Sentences of older versions: each is the failure that is met today."""

import json
from pathlib import Path

import pytest

from corpus import entry as corpus_entry
from corpus.entry import Entry, Found
from fuzz.bug_identity import Symptom
from fuzz.campaign.known_bugs import read_recorded_result
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.codec import encode
from fuzz.protocol.failures import (
    FURTHER_CALL,
    Failure,
    FaultyOperation,
    OutOfBounds,
    Process,
    ProcessLost,
    Raised,
    Recorded,
    RelationBroken,
    Write,
    WrongValue,
)
from fuzz.protocol.recorded import read_result
from generators.errors import UserError
from tests.campaign.fakes import case

INF, NAN = float("inf"), float("nan")
OLD = [
    (Verdict.COMPILE_ERROR, "KeyError: buf7", Raised("KeyError", "buf12")),
    (Verdict.RUNTIME_ERROR, "AssertionError", Raised("AssertionError")),
    (
        Verdict.RUNTIME_ERROR,
        "called again with other arguments: ValueError: no: 3",
        Raised("ValueError", "no: 4", call=FURTHER_CALL),
    ),
    (
        Verdict.TIMEOUT,
        "no end after 120 s, in call (generated code)",
        ProcessLost(Process.TIMEOUT, "60", "call (generated code)"),
    ),
    (
        Verdict.WORKER_DIED,
        "died by SIGSEGV in call (generated code)",
        ProcessLost(Process.SIGNAL, "SIGSEGV", "call (generated code)"),
    ),
    (Verdict.WORKER_DIED, "died by SIGABRT: free(): bad", ProcessLost(Process.SIGNAL, "SIGABRT", "", "free(): bad")),
    (Verdict.WORKER_DIED, "ended with exit code 7: cannot go", ProcessLost(Process.EXIT, "7", "", "cannot go")),
    (Verdict.OUT_OF_MEMORY, "used more than 4096 MiB", ProcessLost(Process.OUT_OF_MEMORY, "512", "f (a.py)")),
    (Verdict.OUT_OF_MEMORY, "OutOfMemoryError: tried 3", Raised("RuntimeError", "DefaultCPUAllocator: 7")),
    (
        Verdict.EAGER_SUSPECT,
        "aten.softmax gives nan where float64 gives 0.31: eager's output 0 is not finite; this subject's is wrong too",
        FaultyOperation("aten.softmax", -INF, 0.2, "output 1", INF),
    ),
    (
        Verdict.EAGER_SUSPECT,
        "aten.bmm gives 3 where float64 gives 0.2: eager's output 1 is off by 2.8 from float64",
        FaultyOperation("aten.bmm", 4.0, 0.2, "output 1", 3.8),
    ),
    (Verdict.WRONG_RESULT, "output 0: element [3] is off by 0.2", WrongValue("output 1", (0,), 1.0, 9.0, 4.0)),
    (
        Verdict.OUT_OF_BOUNDS,
        "called again with other arguments, it wrote 3 elements after out",
        OutOfBounds((Write("out", "after", 3),), call=FURTHER_CALL),
    ),
    (
        Verdict.WRONG_RESULT,
        "heads permuted: 3 of 96 elements differ, most at [0, 1]: 0.5 and -0.25, 12.3 times both bounds (limit 4)",
        RelationBroken("heads permuted", "rounding"),
    ),
]


def symptom(result: SubjectResult) -> Symptom:
    return Symptom.of(result, frozenset())


@pytest.mark.parametrize(("verdict", "text", "fresh"), OLD)
def test_a_sentence_has_the_identity_of_the_failure_met_today(verdict: Verdict, text: str, fresh: Failure) -> None:
    old = read_result({"subject": "inductor", "verdict": verdict.value, "message": text})
    new = SubjectResult("inductor", verdict, failure=fresh)
    assert symptom(old).signature == symptom(new).signature
    assert symptom(old).explains(symptom(new)) and symptom(new).explains(symptom(old))
    assert old.failure is not None and old.failure.call == fresh.call
    assert read_result(json.loads(json.dumps(encode(old)))) == old or "nan" in text
    assert type(old.failure) is type(fresh) or isinstance(old.failure, Recorded)


def test_the_fields_of_a_failure_survive_a_case_file(tmp_path: Path) -> None:
    for number, (verdict, text, fresh) in enumerate(OLD):
        found = Found(verdict.value, "inductor", message=text, failure=encode(fresh))
        path = corpus_entry.save(Entry(case("exp", rows=number + 1), found=found), tmp_path)
        assert read_recorded_result(corpus_entry.load(path)).failure == fresh


def test_fields_that_are_no_failure_are_a_users_error() -> None:
    entry = Entry(case("exp"), found=Found("wrong_result", "inductor", failure={"kind": "no such"}))
    with pytest.raises(UserError):
        read_recorded_result(entry)
