"""Sizes over named dimensions, and kinds of values: what is written is what is read."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.passes.program import simplify_inputs
from generators.errors import CaseError
from generators.program.case import Case, Input, Op, Values
from generators.program.kept_places import PATTERNS, SPELLINGS, split_kind
from generators.program.sizes import Size, product
from generators.program.values import DISTRIBUTIONS
from tests.test_tables import read_section

NAMES = ("B", "H", "S", "Dk")
sizes = st.recursive(
    st.one_of(st.integers(0, 99).map(Size.of), st.sampled_from(NAMES).map(Size.parse)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda t: t[0] + t[1]),
        st.tuples(inner, inner).map(lambda t: t[0] - t[1]),
        st.tuples(inner, inner).map(lambda t: t[0] * t[1]),
    ),
    max_leaves=4,
)
dims = st.fixed_dictionaries({name: st.integers(0, 50) for name in NAMES})


@given(sizes)
def test_text_round_trip(size: Size) -> None:
    assert Size.parse(str(size)) == size


@given(sizes, dims)
def test_text_is_python_for_the_same_number(size: Size, values: dict[str, int]) -> None:
    assert eval(str(size), {"__builtins__": {}}, values) == size.value(values)


@given(sizes, sizes, dims)
def test_arithmetic_agrees_with_numbers(a: Size, b: Size, values: dict[str, int]) -> None:
    assert (a + b).value(values) == a.value(values) + b.value(values)
    assert (a - b).value(values) == a.value(values) - b.value(values)
    assert product((a, b)).value(values) == a.value(values) * b.value(values)


def test_equal_polynomials_are_equal() -> None:
    assert Size.parse("H*D + B") == Size.parse("B + D * H")
    assert Size.parse("S + S") == Size.parse("2*S")
    assert Size.parse("S - S") == Size.of(0)


@pytest.mark.parametrize(
    "text", ["", "B*", "*B", "b", "B//2", "B(2)", "__import__('os')", "B B", "1e3", "2**9", "B.x", "B+*H", "B" * 200]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CaseError):
        Size.parse(text)


def test_an_undefined_dimension_is_named() -> None:
    with pytest.raises(CaseError, match="'Q' is not defined"):
        Size.parse("Q*2").value({"B": 1})


MASK = Input("mask", tuple(Size.of(size) for size in ("B", 1, "S", "S")), "float32", Values("normal"))
CASE = Case((("B", 2), ("S", 9)), (MASK,), (Op("out", "softmax", ("mask",)),), ("out",))


def fill(kind: str, scale: float = 1.0, param: float = 0.0, dtype: str = "float32") -> Case:
    return replace(CASE, inputs=(replace(MASK, values=Values(kind, scale=scale, param=param), dtype=dtype),))


def test_the_docs_list_all_kinds() -> None:
    parts = {part.name for pattern in PATTERNS.values() for part in pattern.parts}
    others = {name for name in DISTRIBUTIONS if split_kind(name) is None}
    assert parts | others | {spelling.suffix for spelling in SPELLINGS} - {""} <= read_section("Values")


def test_a_mask_loses_its_parts_and_keeps_its_spelling() -> None:
    case = fill("window+left_key_padding_mask", -1e4, 3.0)
    simpler = {item.values for one in simplify_inputs(case) for item in one.inputs}
    assert simpler >= {Values(kind, 0, -1e4, param=3.0) for kind in ("window_mask", "left_key_padding_mask")}
