"""Defects that are planted in torch for a form of programs: each shows in the smallest program of its form."""

import pytest

from benchmarks.attribution import planted
from benchmarks.planted import PARTS
from benchmarks.planted_torch.torch_defects import FUNCTIONS
from corpus import casefile
from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.ask.question import Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.protocol import Verdict
from generators.sampling.parts import WithParts

CACHE = "cache: {shape: [D, 3], dtype: float32, values: {seed: 0}}"
TAIL = "tail: {shape: [D - 1, 3], dtype: float32, part: {of: cache, start: 1}}"
FORMS: dict[str, tuple[str, ...]] = {
    "shared_offset_lost": (
        f"{CACHE}\n  {TAIL}",
        "{name: written, op: add_, args: [tail], other: 1.0}",
        "{name: out, op: neg, args: [cache]}",
    ),
    "overlap_missed": (
        f"{CACHE}\n  {TAIL}",
        "{name: written, op: add_, args: [cache], other: 1.0}",
        "{name: out, op: neg, args: [tail]}",
    ),
    "diagonal_cut": (
        "x: {shape: [D, D], dtype: float32, values: {seed: 0}}",
        "{name: base, op: clone, args: [x]}",
        "{name: diagonal, op: diagonal, args: [base]}",
        "{name: written, op: add_, args: [diagonal], other: 1.0}",
        "{name: out, op: neg, args: [base]}",
    ),
    "bytes_cut": (
        "x: {shape: [D], dtype: int64, values: {kind: signed, seed: 0}}",
        "{name: base, op: clone, args: [x]}",
        "{name: bytes, op: view_dtype, args: [base], dtype: uint8}",
        "{name: written, op: add_, args: [bytes], other: 3}",
        "{name: out, op: neg, args: [base]}",
    ),
    "sum_wrapped": (
        "x: {shape: [D], dtype: int16, values: {kind: between, scale: 30001.0, param: 30000.0}}",
        "{name: out, op: sum, args: [x]}",
    ),
    "negative_ignored": (
        "x: {shape: [D], dtype: int8, values: {kind: constant, scale: -1.0}}",
        "{name: out, op: all, args: [x]}",
    ),
    "real_in_both_parts": (
        "x: {shape: [D, 2], dtype: float32, values: {seed: 0}}\n  r: {shape: [D], dtype: float32, values: {seed: 1}}",
        "{name: pairs, op: view_as_complex, args: [x]}",
        "{name: total, op: add, args: [pairs, r]}",
        "{name: out, op: view_as_real, args: [total]}",
    ),
    "own_dtype_saturated": (
        "x: {shape: [D], dtype: uint8, values: {kind: between, scale: 101.0, param: 100.0}}",
        "{name: out, op: sum, args: [x], dtype: uint8}",
    ),
    "pooled_sizes_swapped": (
        "x: {shape: [1, 2, D, 6], dtype: float32, values: {seed: 0}, layout: channels_last}",
        "{name: out, op: max_pool2d, args: [x], kernel: [2], part: indices}",
    ),
    "remainder_dropped": (
        "x: {shape: [1, 2, D, 6], dtype: float32, values: {seed: 0}}",
        "{name: out, op: adaptive_avg_pool2d, args: [x], sizes: [3, 6]}",
    ),
}


def judge(evaluator: Evaluator, name: str) -> Verdict:
    inputs, *ops = FORMS[name]
    listed = "".join(f"  - {op}\n" for op in ops)
    case = casefile.loads(f"case_format: 1\ndims: {{D: 4}}\ninputs:\n  {inputs}\nops:\n{listed}returns: [out]\n")
    return evaluator.ask(Question(case, ("passes",))).only.verdict


@pytest.mark.worker
def test_each_defect_shows_in_the_smallest_program_of_its_form() -> None:
    with open_evaluator(WorkerConfig(timeout=120), repeat=1) as right:
        assert {name: judge(right, name) for name in FORMS} == dict.fromkeys(FORMS, Verdict.OK)
    with planted(",".join(FORMS)), open_evaluator(WorkerConfig(timeout=120), repeat=1) as wrong:
        assert {name: judge(wrong, name) for name in FORMS} == dict.fromkeys(FORMS, Verdict.WRONG_RESULT)


def test_the_part_that_a_defect_is_about_can_be_drawn() -> None:
    assert set(PARTS) <= set(FUNCTIONS)
    for part in PARTS.values():
        WithParts([part])  # raises if nothing draws it
