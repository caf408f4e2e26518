"""Families of models: what each writes is a valid case that eager accepts."""

import ast
import itertools
from collections import Counter
from pathlib import Path

import pytest

import generators.sampling
from corpus.casefile import dumps, loads
from generators.program.emit import source
from generators.program.type_check import check
from generators.sampling.choices import Choices
from generators.sampling.families import FAMILIES
from generators.sampling.sample import sample
from tests.generators.test_contracts import contract_holds
from tests.generators.test_sample import has_its_types, plain_cases

KINDS = tuple(itertools.product(("float32", "bfloat16", "float16"), ("inference", "training")))
WITHOUT_GRADIENTS = ("flex",)
SAMPLING = Path(generators.sampling.__file__).parent
COMMON = ("anyone", "bert", "distilbert", "fused", "gpt2", "gpt2_masked", "mbart", "t5", "visformer")


def test_preferences_name_decisions_that_are_made() -> None:
    nodes = [node for path in SAMPLING.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    calls = [(node.func, node.args) for node in nodes if isinstance(node, ast.Call)]
    arguments = [
        arg
        for function, args in calls
        if isinstance(function, ast.Attribute) and function.attr in ("choose", "choose_default")
        for arg in args
    ]
    made = {arg.value for arg in arguments if isinstance(arg, ast.Constant)}
    for name, family in FAMILIES.items():
        assert set(family.preferences) <= made, name


@pytest.mark.samples
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_writes_valid_cases_in_both_modes_and_all_dtypes(name: str) -> None:
    for index, (dtype, mode) in enumerate(KINDS):
        case = sample(2, index, family=name, dtype=dtype, mode=mode)
        assert case.mode == ("inference" if name in WITHOUT_GRADIENTS else mode)
        assert loads(dumps(case)) == case
        assert has_its_types(case)


@pytest.mark.samples
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.write is not None])
def test_what_a_family_says_its_attention_computes_is_what_it_computes(name: str) -> None:
    for index in range(12):
        case = sample(4, index, family=name)
        assert contract_holds(case), source(case)


def test_every_family_is_drawn_and_the_common_ones_most() -> None:
    c, weights = Choices("0"), {name: family.weight for name, family in FAMILIES.items()}
    drawn = Counter(c.draw(weights) for _ in range(5000))
    assert set(drawn) == {name for name, weight in weights.items() if weight}
    assert 0.55 < sum(drawn[name] for name in COMMON) / drawn.total() < 0.65


@pytest.mark.samples
def test_sizes_of_zero_are_seldom() -> None:
    empty = [case for case in plain_cases() if 0 in case.sizes.values()]
    assert 0 < len(empty) < 0.025 * len(plain_cases())
    for case in empty:
        check(case)
