"""Families of models and torch's own layers: what each writes is a valid case that eager accepts."""

import ast
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import generators.sampling
from corpus.casefile import dumps, loads
from corpus.passes.program import drop_attributes, simplify_mode
from generators.errors import CaseError
from generators.program.case import Case, Values
from generators.program.emit import is_random, source
from generators.program.type_check import check
from generators.sampling.builder import Builder
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
        assert case.training == (mode == "training" and name not in WITHOUT_GRADIENTS)
        assert loads(dumps(case)) == case
        assert has_its_types(case)


@pytest.mark.samples
@pytest.mark.parametrize("name", ["multihead", "transformer_layers", "flex"])
def test_layers_are_written_as_eager_takes_them(name: str) -> None:
    cases = [sample(4, index, family=name) for index in range(8 if name == "flex" else 25)]
    assert all(loads(dumps(case)) == case for case in cases)
    assert sum(map(has_its_types, cases)) >= 0.95 * len(cases)


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


@pytest.fixture(autouse=True)
def _fast_path() -> Iterator[None]:
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.samples
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
def test_autocast_gives_the_types_that_torch_gives() -> None:
    agreed = tried = 0
    for index in range(100):
        under = replace(sample(8, index), autocast=("bfloat16", "float16")[index % 2], contracts=())
        try:
            check(under)
        except CaseError:
            continue
        tried += 1
        agreed += has_its_types(under)
    assert tried > 47
    assert agreed >= 0.95 * tried


@pytest.mark.samples
def test_autocast_is_seldom_and_kept_by_files_and_ids() -> None:
    cases = [case for case in plain_cases() if case.autocast]
    assert 0.01 <= len(cases) / len(plain_cases()) <= 0.044
    for case in cases:
        assert loads(dumps(case)) == case
        assert f"dtype=torch.{case.autocast}):" in source(case)
        assert replace(case, autocast=None).id != case.id
    assert any(smaller.autocast is None for smaller in simplify_mode(cases[0]))


def attention(**attrs: object) -> Case:
    """Self attention by nn.MultiheadAttention, with a mask of scores and one of keys."""
    b = Builder({"B": 2, "S": 3, "H": 2, "D": 4}, "float32", "inference")
    x = b.input("x", ("B", "S", "H*D"))
    keys, scores = (b.input(n, s, Values("ones"), "bool") for n, s in (("keys", ("B", "S")), ("scores", ("S", "S"))))
    given = {"heads": "H", "batch_first": True, "masks": "attn_mask+key_padding_mask", **attrs}
    return b.case([b.op("multihead_attention", x, x, x, scores, keys, to="out", **given)], dynamic=False)  # type: ignore[arg-type]


def test_the_text_of_a_layer_is_what_a_person_writes() -> None:
    text = source(attention(fast_path=False))
    assert "self.out = set_weights(nn.MultiheadAttention(D * H, H, batch_first=True), 0)" in text
    assert "out = self.out(x, x, x, attn_mask=scores, key_padding_mask=keys)[0]" in text
    assert "\ntorch.backends.mha.set_fastpath_enabled(False)\n" in text
    assert "fastpath" not in source(attention())


def test_a_mask_goes_with_the_attribute_that_asks_for_it() -> None:
    smaller = [case.ops[0] for case in drop_attributes(attention())]
    assert ("x", "x", "x") in [op.args for op in smaller]
    assert ("x", "x", "x", "keys") in [op.args for op in smaller]


def test_dropout_of_a_layer_is_random_in_training_alone() -> None:
    case = attention(dropout=0.5)
    assert not is_random(case)
    assert is_random(replace(case, mode="training"))


def test_flex_attention_defines_its_modifications() -> None:
    texts = [source(sample(4, i, family="flex")) for i in range(80)]
    assert any("        def score_mod(score, b, h, q_idx, kv_idx):\n            return " in text for text in texts)
    assert any(
        "block_mask=create_block_mask(mask_mod, None, None, q.size(2), k.size(2), device=q.device)" in t for t in texts
    )
