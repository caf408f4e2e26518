"""What was compiled once is judged on several sets of values."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from corpus import entry
from fuzz.check.check import check
from fuzz.check.subject_builder import Subject, find
from fuzz.evaluator import build_check
from fuzz.protocol import Result, Verdict
from generators.program.case import Case, Input, Op, Values
from generators.program.sizes import Size
from generators.sampling.value_sets import make_value_sets

KNOWN = Path(__file__).parents[2] / "corpus" / "known"


def judge(case: Case, subject: Subject, *value_sets: Case) -> Result:
    request = build_check(case, (subject.name,), value_sets=value_sets)
    return check(request, {subject.name: subject}, "cpu", lambda stage: None, lambda: 0.0)


def with_values(case: Case, kind: str, scale: float = 1.0) -> Case:
    """The case with these values for its last input."""
    *others, last = case.inputs
    return replace(case, inputs=(*others, replace(last, values=Values(kind, last.values.seed, scale))))


def wrong_from_five(module: nn.Module, _dynamic: bool | None) -> Callable[..., Any]:
    def run(x: torch.Tensor, *rest: torch.Tensor) -> Any:
        out = module(x, *rest)
        return out + 1 if x.amax() >= 5 else out

    return run


SQUARE = Case(
    (("R", 3), ("S", 5)),
    (Input("x", (Size.of("R"), Size.of("S")), "float32", Values("constant", 0, 1.0)),),
    (Op("out", "square", ("x",)),),
    ("out",),
)


def test_a_failure_says_on_which_values() -> None:
    subject = Subject("planted", compile=wrong_from_five)
    value_sets = [with_values(SQUARE, "constant", scale) for scale in (2.0, 5.0, 7.0)]
    (result,) = judge(SQUARE, subject, *value_sets).results
    assert (result.verdict, result.value_set) == (Verdict.WRONG_RESULT, 2)
    (alone,) = judge(value_sets[0], subject).results
    assert (alone.verdict, alone.value_set) == (Verdict.OK, 0)


def test_values_that_eager_refuses_leave_the_others_their_numbers() -> None:
    case = Case(
        (("N", 4), ("S", 5)),
        (
            Input("x", (Size.of("N"), Size.of("S")), "float32", Values("constant", 0, 9.0)),
            Input("index", (Size.of("S"),), "int64", Values("tokens", 0, 4.0)),
        ),
        (Op("out", "embedding", ("index", "x")),),
        ("out",),
    )
    refused = with_values(case, "tokens", 900.0)
    small = replace(case, inputs=(replace(case.inputs[0], values=Values("constant", 0, 1.0)), case.inputs[1]))
    result = judge(small, Subject("planted", compile=wrong_from_five), refused, case)
    assert result.rejected is None
    assert [(one.verdict, one.value_set) for one in result.results] == [(Verdict.WRONG_RESULT, 2)]


@pytest.mark.compiles
def test_the_rewrite_is_measured_on_the_values_that_fail() -> None:
    case = entry.load(KNOWN / "integer-mask.case.yaml").case
    (result,) = judge(with_values(case, "zero_one"), find("passes"), with_values(case, "small_counts")).results
    if not result.verdict.is_finding:
        pytest.skip("this torch has no such bug")
    assert result.value_set == 1
    ((mask, wrong),) = result.rewrites[0].wrong.items()
    assert (mask, "all 2" in wrong) == ("attn_mask", True)


@pytest.mark.compiles
def test_what_is_compiled_for_dynamic_sizes_meets_other_sizes() -> None:
    names = ("B", "H", "S", "D")
    shape = tuple(map(Size.of, names))
    case = Case(
        tuple(zip(names, (2, 4, 5, 8), strict=True)),
        tuple(Input(name, shape, "float32", Values("normal", seed)) for seed, name in enumerate("qkv")),
        (
            Op("kt", "transpose", ("k",)),
            Op("scores", "matmul", ("q", "kt")),
            Op("probs", "softmax", ("scores",)),
            Op("out", "matmul", ("probs", "v")),
        ),
        ("out",),
        dynamic=True,
    )
    value_sets = make_value_sets(case)
    assert len({other.dims for other in (case, *value_sets)}) > 1
    fixed = replace(case, inputs=(*case.inputs[:2], replace(case.inputs[2], parameter=True)))
    assert {other.dims for other in make_value_sets(fixed)} == {case.dims}
    seen = set()

    def compile_and_look(module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
        compiled = find("passes").compile(module, dynamic)

        def run(*inputs: torch.Tensor) -> Any:
            seen.add(inputs[0].shape)
            return compiled(*inputs)

        return run

    (result,) = judge(case, Subject("passes", compile=compile_and_look), *value_sets).results
    assert (result.verdict.is_finding, len(seen)) == (False, len({other.dims for other in (case, *value_sets)}))
