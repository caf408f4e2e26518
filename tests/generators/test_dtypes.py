"""Every operation takes the dtypes that eager takes, and gives eager's dtype."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from generators.errors import CaseError
from generators.program.case import Case, Input, Values
from generators.program.emit import source
from generators.program.ops import OPS
from generators.program.type_check import check, types_of
from generators.program.values import COMPLEX, DTYPES, FLOATS, INTEGERS, category, promote
from generators.sampling.parts import WithParts
from tests.generators.test_operations import EXAMPLES, UNIMPLEMENTED, program
from tests.generators.test_sample import has_its_types

MORE = [
    *(f"{kind}, args: [x, square_of_x]" for kind in ("add", "sub", "mul", "div", "eq", "ne", "lt", "ge")),
    *(f"{kind}, args: [x]" for kind, spec in OPS.items() if spec.arity == (1, 1) and not spec.writes),
    *("matmul, args: [weight, turned]", "bmm, args: [x, across]", "softmax, args: [x], dtype: float32"),
]
"""Operations that operations.yaml does not have."""
OF_FIRST = re.compile("gather|scatter|index|where|masked|set_|one_hot|embedding")
"""Operations whose first argument alone may have another dtype: the others are places or truths."""
LEFT_OUT = {
    ("scatter", "can't hold 0.5"): "eager cuts the fraction off",
    ("hardtanh", "takes no uint8"): "2.13.0 refuses it (aten/src/ATen/native/Activation.cpp)",
    ("where", "must be boolean"): "torch warns that a condition of uint8 is deprecated",
    ("interpolate", "takes no uint8"): "rounding decides the integers of smooth modes",
    ("baddbmm", "integers take no fraction"): "docs of torch.baddbmm: of integers, the factors are integers",
    ("addmm", "integers take no fraction"): "the same",
    ("decayed_sum", "common floating dtype"): "no operation of torch: models have recurrences of floating values",
    ("view_dtype", "needs booleans or integers"): "float64 has no reference for the bits of a rounded value",
    ("dropout", "needs a floating-point"): "torch has dropout of integers, which gives their dtype by rounding",
}
"""Refusals of the rules that eager does not make, by operation and words, with the reasons."""


def list_examples() -> Iterator[tuple[str, Case]]:
    for row in [*(row for rows in EXAMPLES.values() for row in rows if "args" in row), *MORE]:
        try:
            yield row.partition(",")[0], program([row.replace("square_of_x", '"y"')])
        except CaseError:
            assert row in MORE  # it needs other attributes


def at(case: Case, dtype: str) -> Case:
    """The case with this dtype for the operation's first argument, and for the arguments that have its dtype."""
    op, types = case.ops[-1], types_of(case)
    names = (
        op.args[:1] if OF_FIRST.search(op.kind) else [n for n in op.args if types[n].dtype == types[op.args[0]].dtype]
    )
    kind = {0: "random", 1: "constant", 2: "normal"}[category(dtype)]

    def change(item: Input) -> Input:
        return (
            replace(item, dtype=dtype, values=Values(kind, scale=1.0 if kind == "constant" else 0.5))
            if item.name in names
            else item
        )

    return replace(case, inputs=tuple(map(change, case.inputs)))


def run(case: Case, given: Case) -> torch.Tensor:
    """The result of the text of `case` with the arguments of `given`."""
    text, inputs = dict[str, object](), dict[str, object]()
    exec(source(case), text)
    exec(source(replace(given, ops=(), returns=(given.arguments[0].name,))), inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: object = text["Module"]().eval()(*inputs["inputs"]())  # type: ignore[operator]
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.samples
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rules_take_what_eager_takes(dtype: str) -> None:
    wrong = []
    for kind, case in list_examples():
        changed = at(case, dtype)
        try:
            stated, why = f"torch.{check(changed)[case.returns[0]].dtype}", ""
        except CaseError as error:
            stated, why = "refused", str(error)
        try:
            found = str(run(case, changed).dtype)
        except (RuntimeError, TypeError, ValueError) as error:
            found, why = "refused", str(error).partition("\n")[0]
        reason = next((row for row in LEFT_OUT if row[0] == kind.rstrip("_") and row[1] in why), None)
        is_kernel_missing = kind in UNIMPLEMENTED and found == "refused" and dtype in FLOATS
        if stated != found and not is_kernel_missing and (stated != "refused" or reason is None):
            wrong.append((kind, stated, found, why))
    assert not wrong


@pytest.mark.parametrize("first", DTYPES)
def test_dtypes_promote_as_in_torch(first: str) -> None:
    for second in DTYPES:
        stated = promote([(first, 1), (second, 1)])
        assert str(torch.promote_types(getattr(torch, first), getattr(torch, second))) == f"torch.{stated}"


@pytest.mark.samples
@pytest.mark.parametrize("part", ["reduced_integers", "complex_numbers", "places_in_memory"])
def test_drawn_programs_have_other_dtypes_and_their_types(part: str) -> None:
    cases = [WithParts([part]).sample(5, index) for index in range(40)]
    assert all(map(has_its_types, cases))
    plain = [{*types_of(case).values()} for case in cases]
    dtypes = {one.dtype for types in plain for one in types}
    assert {"reduced_integers": {*INTEGERS, "bool"}, "complex_numbers": {COMPLEX}}.get(part, {"int64"}) <= dtypes
