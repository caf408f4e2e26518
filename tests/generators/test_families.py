"""Families of models: what each writes is a valid case that eager accepts, and a file is all that one needs."""

import importlib
import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

import generators.sampling.families
from corpus.casefile import dumps, loads
from generators.program.emit import source
from generators.program.type_check import check
from generators.sampling.choices import Choices
from generators.sampling.families import FAMILIES
from generators.sampling.families.family import Family
from generators.sampling.sample import Form, sample
from tests.generators.test_contracts import contract_holds
from tests.generators.test_sample import run_eager

KINDS = tuple(itertools.product(("float32", "bfloat16", "float16"), ("inference", "training")))
WITHOUT_GRADIENTS = ("flex",)
GENERATORS = Path(generators.sampling.families.__file__).parent.parent
FORMER = ("anyone", "bert", "distilbert", "fused", "gpt2", "gpt2_masked", "mbart", "t5", "visformer")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_habits_of_decisions_that_are_made(name: str) -> None:
    texts = [path.read_text() for path in GENERATORS.rglob("*.py")]
    for habit in FAMILIES[name].habits:
        # Where it is decided; a family may name it in its habits alone.
        assert any(re.search(rf'c\.(structure|detail)\([^\n]*"{re.escape(habit)}"', text) for text in texts), habit


@pytest.mark.samples
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_writes_valid_cases_in_both_modes_and_all_dtypes(name: str) -> None:
    for index, (dtype, mode) in enumerate(KINDS * 2):
        case = sample(2, index, form=Form(name, dtype, mode))
        assert case.mode == ("inference" if name in WITHOUT_GRADIENTS else mode)
        assert loads(dumps(case)) == case
        types = check(case)
        for value, tensor in zip(case.returns, run_eager(case), strict=True):
            assert tuple(tensor.shape) == types[value].sizes(case.sizes), source(case)
            assert str(tensor.dtype) == f"torch.{types[value].dtype}", source(case)


@pytest.mark.samples
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.write is not None])
def test_what_a_family_says_its_attention_computes_is_what_it_computes(name: str) -> None:
    for index in range(12):
        case = sample(4, index, form=Form(name))
        assert contract_holds(case), source(case)


def test_a_file_is_all_that_a_family_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nobody.py").write_text(
        '"""Nobody."""\n\nfrom generators.sampling.families.family import Family\n\nFAMILY = Family(weight=1.0, habits={"order": "sbhd"})\n'
    )
    monkeypatch.setattr(
        generators.sampling.families, "__path__", [*generators.sampling.families.__path__, str(tmp_path)]
    )
    found = importlib.import_module("generators.sampling.families")._all()
    assert set(found) == {*FAMILIES, "nobody"}
    assert isinstance(found["nobody"], Family)


def test_every_family_is_drawn_and_the_common_ones_most() -> None:
    c, weights = Choices("0"), {name: family.weight for name, family in FAMILIES.items()}
    drawn = Counter(c.weighted(weights) for _ in range(5000))
    assert set(drawn) == set(FAMILIES)
    assert 0.55 < sum(drawn[name] for name in FORMER) / drawn.total() < 0.65


@pytest.mark.samples
def test_sizes_of_zero_are_seldom() -> None:
    empty = [case for i in range(1500) if 0 in (case := sample(6, i)).sizes.values()]
    assert 1 <= len(empty) <= 30
    for case in empty:
        check(case)
