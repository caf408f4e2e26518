"""A case file records the failure itself, and in words where a value is wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from corpus import casefile
from corpus import entry as corpus_entry
from corpus.entry import Entry, Found
from fuzz.check.judge.row_error_bound import locate
from fuzz.error_location import (
    BATCH,
    FEATURE,
    HEAD,
    KEY,
    QUERY,
    describe_elements,
    describe_where,
    label_axes,
    name_value,
)
from fuzz.protocol.failures import FaultyOperation, OutOfBounds, Process, ProcessLost, Raised, Sequences, Value, Write
from fuzz.replay_result import read_recorded_result
from generators.errors import UserError
from generators.program.attention_options import Contract
from generators.program.case import LaterCall
from generators.records import encode
from tests.campaign.fakes import case
from tests.programs import program

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


OUT = (BATCH, HEAD, QUERY, FEATURE)


def wrong(shape: tuple[int, ...], *index: Any) -> Tensor:
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[index] = True
    return mask


def lone_head() -> Tensor:
    mask = wrong((2, 4, 65, 8), slice(None), slice(None), slice(0, 63))
    mask[0, 0] = False
    return mask


ALL = slice(None)
PLACES = [
    (wrong((1, 8, 65, 16), 0, slice(1, 8), slice(0, 63)), OUT, "head 1-7 of 8, query row 0-62 of 65 (7056 elements)"),
    (
        wrong((2, 8, 100, 16), 0, ALL, slice(64, 99)),
        (BATCH, HEAD, KEY, FEATURE),
        "batch 0 of 2, key row 64-98 of 100 (4480 elements)",
    ),
    (
        wrong((2, 8, 65, 256), ALL, ALL, ALL, slice(63, None, 64)),
        OUT,
        "feature 63, 127, 191, 255 of 256 (4160 elements)",
    ),
    (wrong((2, 8, 65, 16), ALL, [1, 3, 4], 0), OUT, "head 1, 3-4 of 8, query row 0 of 65 (96 elements)"),
    (torch.eye(3, dtype=torch.bool), (BATCH, FEATURE), "scattered among all 9 (3 elements)"),
    (wrong((4, 6), [0, 1], [0, 1]), (BATCH, "S"), "batch 0-1 of 4, S 0-1 of 6 (2 elements)"),
    (wrong((20, 6), [0, 2, 5, 9, 11]), ("S", FEATURE), "S 0, 2, 5, 9, ... (5 in all) of 20 (30 elements)"),
    (lone_head(), OUT, "query row 0-62 of 65 (3528 elements)"),
]


@pytest.mark.parametrize(("mask", "names", "text"), PLACES, ids=[place[2] for place in PLACES])
def test_places_read_as_a_person_would_say_them(mask: Tensor, names: tuple[str, ...], text: str) -> None:
    data = locate(Value("output", 0), mask)
    assert describe_elements(data, names) == text
    assert data.wrong == int(mask.sum())


def test_axes_are_called_what_the_contract_calls_them() -> None:
    inputs = {"q": "B, S, H, D", "k": "B, S, H, D", "mask": "S, S; dtype: bool, values: {kind: random, seed: 2}"}
    contract = Contract("q", "k", "k", "out", "bshd", mask="mask")
    case = casefile.loads(program("B: 2, S: 3, H: 4, D: 5", inputs | {"other": "B, D"}, "out = exp q"))
    case = replace(case, contracts=(contract,))
    assert label_axes(case, Value("output", 0), 4) == (BATCH, QUERY, HEAD, FEATURE)
    assert label_axes(case, Value("input", 1, is_gradient=True), 4) == (BATCH, KEY, HEAD, FEATURE)
    assert label_axes(case, Value("input", 2, is_written=True), 2) == (QUERY, KEY)
    assert label_axes(case, Value("input", 3, is_gradient=True), 2) == ("B", "D")
    assert label_axes(case, Value("parameter", "w", is_gradient=True), 2) == ("axis 0", "axis 1")
    data = locate(Value("input", 1, is_gradient=True), wrong((2, 3, 4, 5), ALL, 2))
    assert describe_where(case, data) == "gradient of k: key row 2 of 3 (40 elements)"
    assert describe_where(case, None) == ""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Value("output", 0), "output of the first call"),
        (Value("output", 0, call=2), "output of the second call"),
        (Value("input", 0, is_gradient=True, call=3), "gradient of x after the third call"),
        (Value("parameter", "w", is_gradient=True, call=2), "gradient of w after the second call"),
        (Value("buffer", "cache", is_written=True, call=2), "buffer cache after the second call"),
    ],
)
def test_values_of_a_sequence_are_told_with_their_call(value: Value, words: str) -> None:
    inputs = {"x": "D", "w": "D; parameter: true", "cache": "D; parameter: true, buffer: true"}
    case = replace(casefile.loads(program("D: 2", inputs, "out = exp x")), calls=(LaterCall(), LaterCall()))
    assert name_value(case, value) == words
    assert label_axes(case, value, 1) == ("D",)
    assert (
        name_value(replace(case, calls=()), Value("buffer", "cache", is_written=True)) == "buffer cache after the call"
    )
