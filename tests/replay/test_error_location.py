"""Where a value is wrong, in words. The data is what fuzz/check/judge/row_error_bound.py makes of a mask."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

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
from fuzz.protocol.failures import Value
from generators.program.attention_options import Contract
from generators.program.case import Case, Input, LaterCall, Op
from generators.program.sizes import Size

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
    def sizes(*names: str) -> tuple[Size, ...]:
        return tuple(Size.of(name) for name in names)

    inputs = (
        Input("q", sizes("B", "S", "H", "D"), "float32"),
        Input("k", sizes("B", "S", "H", "D"), "float32"),
        Input("mask", sizes("S", "S"), "bool"),
        Input("other", sizes("B", "D"), "float32"),
    )
    contract = Contract("q", "k", "k", "out", "bshd", mask="mask")
    dims = (("B", 2), ("S", 3), ("H", 4), ("D", 5))
    case = Case(dims, inputs, (Op("out", "exp", ("q",)),), ("out",), contracts=(contract,))
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
    shape = (Size.of("D"),)
    inputs = tuple(
        Input(name, shape, "float32", parameter=name != "x", buffer=name == "cache") for name in ("x", "w", "cache")
    )
    case = Case((("D", 2),), inputs, (Op("out", "exp", ("x",)),), ("out",), calls=(LaterCall(), LaterCall()))
    assert name_value(case, value) == words
    assert label_axes(case, value, 1) == ("D",)
    assert (
        name_value(replace(case, calls=()), Value("buffer", "cache", is_written=True)) == "buffer cache after the call"
    )
