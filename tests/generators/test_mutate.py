"""Mutations: always a valid case that a file can hold, mostly another one, whose contract still says what it computes."""

import itertools

import pytest

from corpus import casefile
from generators.program.case import Case, Contract, Values
from generators.program.edits import valid
from generators.program.emit import is_random, source
from generators.program.sizes import Size
from generators.program.type_check import check
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.mutate import EDITS, MOST_OPS, mutate, siblings
from generators.sampling.mutations.forms import DROPOUT, HALF, INFERENCE, MIXED, TRAINING, Variant, variant
from generators.sampling.mutations.spellings import respell
from generators.sampling.mutations.splicing import splice
from generators.sampling.sample import SampleSpec, sample
from tests.generators.plain import by_contract, close, in_float64, overwrites
from tests.generators.test_contracts import values_of
from tests.generators.test_sample import run_eager

pytestmark = pytest.mark.samples

POOL = [sample(3, i) for i in range(120)]


def mutated(count: int) -> list[tuple[Case, Case]]:
    """Cases and what mutation made of them."""
    cases = [POOL[i % len(POOL)] for i in range(count)]
    return [(case, mutate(case, Choices(f"mutate {i}"), POOL[:30]).case) for i, case in enumerate(cases)]


def test_a_mutated_case_is_another_valid_one_that_survives_its_file() -> None:
    pairs = mutated(600)
    assert sum(new.id != case.id for case, new in pairs) > 0.97 * len(pairs)
    for _, new in pairs:
        check(new)
        assert casefile.loads(casefile.dumps(new)) == new


def test_the_same_choices_give_the_same_case() -> None:
    assert mutated(60) == mutated(60)


def test_mutations_of_mutations_stay_small() -> None:
    case = POOL[0]
    for step in range(300):
        case = mutate(case, Choices(f"chain {step}"), POOL).case
    assert len(case.ops) <= max(MOST_OPS, len(POOL[0].ops))


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_every_edit_finds_something_to_do(edit: object) -> None:
    assert callable(edit)
    tried = [(case, edit(case, Choices(f"edit {i}"))) for i, case in enumerate(POOL)]
    made = [(case, valid(new)) for case, new in tried if new is not None]
    assert any(new is not None and new.id != case.id for case, new in made)


def test_a_spliced_case_computes_one_from_the_other() -> None:
    spliced = [(a, valid(s)) for a, b in itertools.pairwise(POOL) if (s := splice(a, Choices(a.id), b)) is not None]
    larger = [(a, new) for a, new in spliced if new is not None and len(new.ops) > len(a.ops)]
    assert len(larger) > 10
    for _, new in larger:
        assert in_float64(source(new), training=False).outputs


def test_contracts_that_are_kept_hold() -> None:
    others = [other for case in POOL[:60] for other in siblings(case, Choices(case.id))]
    made = [new for _, new in mutated(500)] + others[::5]
    kept = [new for new in made if new.contracts and not is_random(new) and not overwrites(new)]
    assert len(kept) > 150
    for case in kept:
        try:
            contract = case.contracts[0]
            values = values_of(case, contract)
        except IndexError:  # numbers beyond an embedding's table: eager rejects it
            continue
        assert close(values[contract.output], by_contract(contract, values)), source(case)


def test_another_spelling_computes_the_same() -> None:
    compared = 0
    for i, case in enumerate(POOL * 4):
        new = respell(case, Choices(f"respell {i}"))
        new = None if new is None else valid(new)
        if new is None or case.autocast or is_random(case) or overwrites(case) or overwrites(new):
            continue
        try:
            ours, theirs = (in_float64(source(one), training=False).outputs for one in (new, case))
        except RuntimeError as error:
            assert "view size" in str(error)  # of a tensor that lies otherwise now
            continue
        assert all(map(close, ours, theirs)), f"{source(case)}\n{source(new)}"
        compared += 1
    assert compared > 150


def test_layers_of_many_arguments_are_mutated_too() -> None:
    layers = [
        sample(3, i, spec=SampleSpec(name)) for name in ("transformer_layers", "multihead", "flex") for i in range(40)
    ]
    for step in range(600):
        case = mutate(layers[step % len(layers)], Choices(f"layer {step}"), layers).case
        check(case)


def test_siblings_are_the_same_program_in_all_its_other_forms() -> None:
    found = {case.id: siblings(case, Choices(case.id)) for case in POOL}
    # In float32 and half precision, in three modes, with one batch and several; a program with another form is one of them.
    assert sum(len(others) >= 11 for others in found.values()) > 0.7 * len(POOL)
    for case in POOL:
        variants = [variant(other) for other in found[case.id]]
        assert variant(case) not in variants
        assert len(set(variants)) == len(variants)
        for other in found[case.id]:
            check(other)
            assert _steps(other) == _steps(case) or any(op.kind == "view" for op in case.ops)


def _steps(case: Case) -> list[str]:
    """The operations, but for dropout and for what cuts masks off from gradients: these differ from form to form."""
    return [op.kind for op in case.ops if op.kind not in ("dropout", "detach")]


def test_a_sibling_with_dropout_drops_the_weights_and_cuts_the_mask_off() -> None:
    b = Builder({"B": 2, "H": 2, "S": 3, "D": 4}, "float16", "inference")
    q = b.input("q", ("B", "H", "S", "D"))
    mask = b.input("mask", ("B", 1, 1, "S"), Values("padding_mask", scale=-1e4))
    scores = b.op("add", b.op("matmul", q, b.op("transpose", q, dim0=-2, dim1=-1), to="scores"), mask)
    weights = b.op("cast", b.op("softmax", scores, to="weights"), dtype="float16")
    case = b.case([b.op("matmul", weights, q, to="out")], dynamic=False)
    wanted = Variant(HALF, DROPOUT, one_batch=False)
    (other,) = (other for other in siblings(case, Choices("weights")) if variant(other) == wanted)
    steps = {op.name: op for op in other.ops}
    dropped = next(op for op in other.ops if op.kind == "dropout")
    assert dropped.args == (weights,) and steps["out"].args == (dropped.name, q)
    fixed = next(op for op in other.ops if op.kind == "detach")
    assert fixed.args == (mask,) and fixed.name in steps[scores].args
    (without,) = (
        again for again in siblings(other, Choices("back")) if variant(again) == wanted._replace(mode=TRAINING)
    )
    assert _steps(without) == _steps(case) and not any(op.kind == "dropout" for op in without.ops)


def test_masks_are_known_by_what_is_made_of_them_and_may_stay_in_float32() -> None:
    b = Builder({"B": 2, "H": 2, "S": 3, "D": 4}, "float16", "inference")
    q = b.input("q", ("B", "H", "S", "D"))
    kept = b.input("kept", ("B", "S"), Values("zero_one"))
    rows = b.op("view", kept, sizes=(Size.of("B"), Size.of(1), Size.of(1), Size.of("S")))
    low = b.op("mul", b.op("sub", rows, other=1.0, reverse=True), other=-1e4, to="low")
    scores = b.op("type_as", b.op("add", b.op("matmul", q, b.op("transpose", q, dim0=-2, dim1=-1)), low), q)
    out = b.op("matmul", b.op("softmax", scores, to="weights"), q, to="out")
    b.contracts.append(Contract(q, q, q, out, bias=low))
    case = b.case([out], dynamic=False)
    assert variant(case) == Variant(HALF, INFERENCE, one_batch=False)
    forms = {variant(other): other for other in siblings(case, Choices("masks"))}
    mixed = forms[Variant(MIXED, INFERENCE, one_batch=False)]
    assert {item.name: item.dtype for item in mixed.inputs} == {q: "float16", kept: "float32"}
    training = forms[Variant(HALF, TRAINING, one_batch=False)]
    assert [op.args for op in training.ops if op.kind == "detach"] == [(kept,)]


def test_a_sibling_in_float16_has_no_number_that_float16_has_not() -> None:
    b = Builder({"B": 2, "S": 3}, "float32", "inference")
    x = b.input("x", ("B", "S"))
    case = b.case([b.op("masked_fill", x, b.op("gt", x, other=0.0, to="high"), to="low", value=-1e9)], dynamic=False)
    for step in range(6):
        for other in siblings(case, Choices(f"fill {step}")):
            assert in_float64(source(other), training=False).outputs
            run_eager(other)
