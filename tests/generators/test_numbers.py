"""Numbers that forward takes beside tensors: the text, the rules, later calls, shrinking."""

import math
from dataclasses import replace

import pytest

from corpus.casefile import dumps, loads
from corpus.passes.program import drop, simplify_numbers
from generators.errors import CaseError
from generators.program.calls import at_call
from generators.program.case import Case, LaterCall, Number, NumberUse
from generators.program.edits import compute_before, make_constant
from generators.program.emit import source
from generators.program.numbers import FORMULAS, compute, list_uses, set_numbers
from generators.program.ops import make_op
from generators.program.portability import find_obstacle
from generators.program.references import rename
from generators.program.simplicity import sort_key
from generators.program.type_check import check, prune, types_of
from generators.sampling.parts import WithParts

_TEXT = """
case_format: 1
dims: {B: 2, S: 4}
inputs:
  x: {shape: [B, S], dtype: float32}
ops:
- {name: scaled, op: div, args: [x], other: 0.5}
- {name: summed, op: add, args: [scaled, x], alpha: 1.0}
- {name: out, op: roll, args: [summed], dims: [1], shifts: [3]}
returns: [out]
calls:
- {numbers: [[scale, -2.0], [alpha, 0.5]]}
- {numbers: [[alpha, 2.0]]}
numbers:
  scale: {value: 1.5, uses: [{op: scaled, attribute: other, formula: third}]}
  alpha: {value: 1.0, uses: [{op: summed, attribute: alpha}]}
"""


@pytest.fixture
def case() -> Case:
    return loads(_TEXT)


def test_forward_takes_numbers(case: Case) -> None:
    text = source(case)
    assert "def forward(self, x, scale, alpha):" in text
    assert "scaled = x / (scale / 3)" in text
    assert "scaled.add(x, alpha=alpha)" in text
    assert "def inputs(scale=1.5, alpha=1.0):" in text
    assert "yield inputs(scale=-2.0, alpha=0.5)" in text


def test_file_keeps_numbers(case: Case) -> None:
    assert loads(dumps(case)) == case
    assert case.id != replace(case, numbers=(), calls=()).id


def test_later_call_is_a_program_with_its_numbers(case: Case) -> None:
    called = at_call(case, 1)
    assert called.makers["scaled"].attr("other") == pytest.approx(-2 / 3)
    assert called.makers["summed"].attr("alpha") == 0.5
    assert "def inputs():" in source(called)
    # The number that the second call leaves out is that of the first call.
    assert at_call(case, 2).makers["scaled"].attr("other") == 0.5
    assert check(called)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value: 1.0, uses", "value: 2.0, uses", "alpha of summed is 1.0, not 2.0"),
        ("formula: third", "formula: fourth", "formula is 'fourth'"),
        ("attribute: alpha}", "attribute: beta}", "summed.beta is no attribute"),
        ("[[alpha, 2.0]]", "[[beta, 2.0]]", "beta is no number"),
        ("[[alpha, 2.0]]", "[[alpha, 5000000000]]", "more than 31 bits"),
        ("{op: scaled, attribute: other, formula: third}", "{op: out, attribute: dims}", "dims of out is"),
        ("scale: {value", "max: {value", "the text has the name"),
        ("returns: [out]", "returns: [out]\nregions: [{kind: checkpoint, ops: [scaled]}]", "lies in a region"),
    ],
)
def test_numbers_that_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(CaseError, match=message):
        loads(_TEXT.replace(old, new))


def test_structure_of_the_text_is_no_number(case: Case) -> None:
    """`reverse` decides which side of the operator the argument stands on, so no argument can stand for it."""
    number = Number("flag", value=False, uses=(NumberUse("scaled", "reverse"),))
    with pytest.raises(CaseError, match="has no place for flag"):
        check(replace(case, numbers=(number,), calls=()))


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(CaseError, match="division"):
        compute(0, "divided")
    with pytest.raises(CaseError):
        compute(math.inf, "rounded")


def test_uses_follow_operations(case: Case) -> None:
    kept = prune(replace(case, ops=case.ops[:1], returns=("scaled",)))
    assert [number.name for number in kept.numbers] == ["scale"]
    assert kept.calls == (LaterCall(numbers=(("scale", -2.0),)), LaterCall())
    renamed = rename(case, {"scaled": "y", "scale": "n"})
    assert types_of(renamed).keys() == {"x", "y", "summed", "out"}
    assert renamed.numbers[0].name == "n"
    assert renamed.numbers[0].uses[0].op == "y"
    assert renamed.calls[0].numbers[0] == ("n", -2.0)


def test_shrinking_makes_literals_and_drops_formulas(case: Case) -> None:
    simpler = [one for one in (*drop("numbers")(case), *simplify_numbers(case)) if sort_key(one) < sort_key(case)]
    assert simpler[0].numbers == ()
    assert "x / 0.5" in source(prune(simpler[0]))
    plain = next(one for one in simpler if [len(number.uses) for number in one.numbers] == [1, 1])
    assert plain.numbers[0] == Number("scale", 0.5, (NumberUse("scaled", "other"),))
    assert plain.calls[0].numbers[0] == ("scale", -2 / 3)
    assert check(plain)


def test_experiments_take_a_formula_or_an_attribute_from_what_varies(case: Case) -> None:
    assert list_uses(case) == ["add.alpha", "third"]
    computed = compute_before(case, "third")
    assert check(computed)
    assert [(use.formula, one.value) for one in computed.numbers for use in one.uses] == [("", 0.5), ("", 1.0)]
    assert computed.calls[0].numbers == (("scale", -2 / 3), ("alpha", 0.5))
    constant = prune(make_constant(case, "add.alpha"))
    assert [one.name for one in constant.numbers] == ["scale"]
    assert constant.calls[0].numbers == (("scale", -2.0),)


def test_a_number_keeps_its_other_uses_when_a_formula_is_computed_before(case: Case) -> None:
    scale, alpha = case.numbers
    shared = replace(scale, value=1.5, uses=(*scale.uses, NumberUse("summed", "alpha")))
    ops = (case.ops[0], make_op("summed", "add", ("scaled", "x"), {"alpha": 1.5}), *case.ops[2:])
    both = replace(case, ops=ops, numbers=(shared,), calls=(LaterCall(numbers=(("scale", 3.0),)),))
    computed = compute_before(both, "third")
    assert check(computed)
    assert [(one.name, one.value) for one in computed.numbers] == [("scale", 1.5), ("scale_third", 0.5)]
    assert computed.calls[0].numbers == (("scale", 3.0), ("scale_third", 1.0))
    assert alpha not in computed.numbers


def test_compilers_of_programs_take_no_numbers(case: Case) -> None:
    assert find_obstacle(replace(case, calls=())) == "numbers"


def test_all_numbers_change_together(case: Case) -> None:
    changed = set_numbers(case, {"scale": 6.0})
    assert changed.makers["scaled"].attr("other") == 2.0
    assert changed.numbers[1] == case.numbers[1]


@pytest.mark.samples
def test_numbers_are_drawn() -> None:
    cases = [WithParts(["numbers"]).sample(3, index) for index in range(60)]
    assert all(check(one) and one.numbers for one in cases)
    used = {use.formula for one in cases for number in one.numbers for use in number.uses}
    assert "" in used
    assert used <= FORMULAS.keys()
    assert len(used) > 3
    assert {type(number.value) for one in cases for number in one.numbers} >= {float, int}
    assert any(call.sizes for one in cases for call in one.calls)
