"""Case files: what a person writes, what a stranger sends, and that nothing changes on the way through."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.casefile import dumps, loads
from generators.program.attention_options import Contract
from generators.program.case import Case, Input, Op, Values
from generators.program.ops import make_op
from generators.program.sizes import Size
from generators.program.type_check import check
from generators.sampling.sample import sample
from tests.corpus.test_mistakes import GROUPS, PLAIN


def test_a_case_written_by_hand() -> None:
    case = loads(PLAIN)
    assert case.sizes == {"B": 2, "S": 4, "D": 8}
    assert [i.parameter for i in case.inputs] == [False, True]
    assert case.inputs[1].shape == (Size.of("D"), Size.of("2*D - 8"))
    assert case.ops[1] == Op("s", "div", ("h",), (("other", 4.0),))
    assert not case.ops[2].attrs  # -1 is the default
    assert not case.training


def test_what_is_left_out_has_its_default() -> None:
    short = "\n".join(line for line in PLAIN.splitlines() if not re.match("mode|dynamic|contracts", line))
    short = short.replace(", values: {kind: normal, seed: 0, scale: 1.0}, layout: contiguous", "").replace(
        ", dim: -1", ""
    )
    assert loads(short) == loads(PLAIN)
    assert loads(short).id == loads(PLAIN).id


def test_every_input_and_attribute_form_is_kept() -> None:
    case = Case(
        dims=(("B", 1), ("S", 3)),
        inputs=(
            Input("x", (Size.of("B"), Size.of("S")), "bfloat16", Values("uniform", 7, 0.1), "transposed"),
            Input("p", (Size.of("S"),), "float32", Values("constant", 0, 5e-324), parameter=True),
            Input("y", (), "int64", Values("zero_one")),
        ),
        ops=(
            make_op("no", "full", (), {"sizes": (Size.of("S"), 1), "value": float("-inf"), "dtype": "bfloat16"}),
            make_op("on", "full", (), {"sizes": (3,), "value": "min"}),
            make_op("e", "einsum", ("x", "no"), {"equation": "bs,st->bt"}),
            make_op("v", "view", ("e",), {"sizes": (-1,)}),
            make_op("w", "permute", ("x",), {"dims": (1, 0)}),
            make_op("z", "sum", ("w",), {"keepdim": True, "dim": -2}),
        ),
        returns=("v", "z", "on"),
        mode="training",
        dynamic=True,
    )
    check(case)
    assert loads(dumps(case)) == case
    assert loads(dumps(case)).id == case.id


def test_earlier_cases_are_kept_and_tell_cases_apart() -> None:
    case = loads(GROUPS["earlier case"]["text"])
    assert [(one.times, [op.kind for op in one.case.ops]) for one in case.before] == [(3, ["exp"])]
    assert loads(dumps(case)) == case
    fewer = replace(case, before=(replace(case.before[0], times=2),))
    assert len({case.id, fewer.id, loads(PLAIN).id}) == 3


def test_settings_are_kept_and_tell_cases_apart() -> None:
    plain, settings = loads(PLAIN), "settings: {freezing: true, cpp.threads: 4}\n"
    case = loads(PLAIN + settings)
    assert case.settings == (("cpp.threads", 4), ("freezing", True))
    assert loads(dumps(case)) == case
    assert case.id != plain.id == replace(case, settings=()).id


def test_a_contract_is_kept() -> None:
    source = PLAIN.replace(
        "contracts: []",
        "contracts:\n- {q: q, k: q, v: q, output: out, layout: bsd, scale: 2, softcap: 30.0, bias: b, "
        "causal: bottom_right, window: [3, -1], dropout: 0.5}",
    )
    source = source.replace("ops:\n", "ops:\n  - {name: b, op: zeros, sizes: [S, S], dtype: float32}\n")
    case = loads(source)
    assert case.contracts == (
        Contract("q", "q", "q", "out", "bsd", 2, 30.0, bias="b", causal="bottom_right", window=(3, -1), dropout=0.5),
    )
    assert loads(dumps(case)).id == case.id


@pytest.mark.samples
@pytest.mark.parametrize("attention_only", [False, True])
def test_sampled_cases_come_back_unchanged(attention_only: bool) -> None:
    for index in range(200):
        case = sample(0, index, attention_only=attention_only)
        again = loads(dumps(case))
        assert again == case
        assert again.id == case.id


@pytest.mark.samples
@given(st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(), st.floats(0, 1))
def test_every_number_survives_bit_for_bit(number: float, share: float) -> None:
    shape = (Size.of("B"), Size.of("3*B + 1"))
    inputs = Input("x", shape, "float32"), Input("m", shape, "bool", Values("random", 3, share))
    ops = (
        make_op("a", "mul", ["x"], {"other": number}),
        make_op("b", "masked_fill", ["a", "m"], {"value": number}),
        make_op("c", "pow", ["b"], {"exponent": number}),
        make_op("out", "lt", ["c"], {"other": number}),
    )
    case = Case((("B", 0),), inputs, ops, ("out",))
    # NaN differs from itself, so what is compared is the canonical form, which holds every bit.
    assert loads(dumps(case)).canonical() == case.canonical()
    assert dumps(loads(dumps(case))) == dumps(case)
