"""Sizes over named dimensions: what is written is what is read, and nothing but sums of products is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.errors import CaseError
from generators.program.sizes import Size, product

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
