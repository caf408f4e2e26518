"""What a case file records of a failure is the failure itself."""

from pathlib import Path
from typing import Any

import pytest

from corpus import entry as corpus_entry
from corpus.entry import Entry, Found
from fuzz.protocol.failures import FaultyOperation, OutOfBounds, Process, ProcessLost, Raised, Sequences, Value, Write
from fuzz.replay_result import read_recorded_result
from generators.errors import UserError
from generators.records import encode
from tests.campaign.fakes import case

FAILURES = (
    Raised("ValueError", "no: 4", unwritten=True),
    ProcessLost(Process.SIGNAL, "SIGSEGV", "call (generated code)"),
    FaultyOperation("aten.softmax", float("-inf"), 0.2, Value("output", 1), float("inf")),
    OutOfBounds((Write("out", "after", 3),), sequences=Sequences("packed", (3, 1), (3, 1))),
)


def test_the_fields_of_a_failure_survive_a_case_file(tmp_path: Path) -> None:
    for number, failure in enumerate(FAILURES):
        found = Found("wrong_result", "inductor", failure=encode(failure))
        path = corpus_entry.save(Entry(case("exp", rows=number + 1), found=found), tmp_path)
        assert read_recorded_result(corpus_entry.load(path)).failure == failure


@pytest.mark.parametrize(
    "fields",
    [
        {"failure": {"kind": "no such"}},
        {"failure": {"kind": "nondeterministic", "value": "output 0"}},
        {"rewrites": ({"pattern": "_sfdp_pattern_1", "constants": ["amax [-2] for [-1]"]},)},
    ],
)
def test_fields_of_another_version_are_refused_in_one_line(fields: dict[str, Any]) -> None:
    entry = Entry(case("exp"), found=Found("wrong_result", "inductor", **fields))
    with pytest.raises(UserError) as refused:
        read_recorded_result(entry)
    assert "`found` is not readable" in str(refused.value) and "\n" not in str(refused.value)
