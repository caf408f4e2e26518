"""Variants of a case hold its contracts, and those in which a pattern was not seen to match are tried a few times."""

from contextlib import suppress

import pytest

from corpus import casefile
from fuzz.campaign.search import TRIES, VariantQueue
from generators.program.attention_options import Contract
from generators.program.case import Case, Values
from generators.program.emit import is_random, source
from generators.program.sizes import Size
from generators.program.type_check import check
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.neighbours import Neighbourhood
from generators.sampling.sample import sample
from generators.sampling.variants import DROPOUT, HALF, INFERENCE, MIXED, TRAINING, Variant, make_variants, variant_of
from tests.generators.plain import in_float64, overwrites
from tests.generators.test_contracts import contract_holds
from tests.generators.test_sample import run_eager

POOL = [sample(4, i) for i in range(60)]


@pytest.mark.samples
def test_neighbours_of_a_block_in_training_are_called_again_and_recomputed() -> None:
    block = next(case for case in POOL if case.training and not (case.calls or case.checkpoint))
    near = [Neighbourhood({"block": block}).sample(1, index) for index in range(300)]
    called = [case for case in near if case.calls and case.training]
    assert 0.1 * len(called) < sum(case.checkpoint == "full" for case in called) < 0.4 * len(called)


def test_contracts_that_are_kept_hold() -> None:
    made = [other for case in POOL for other in make_variants(case, Choices(case.id))]
    kept = [new for new in made[::2] if new.contracts and 0 not in new.sizes.values()]
    kept = [new for new in kept if not is_random(new) and not overwrites(new)]
    assert len(kept) > 40
    for case in kept:
        with suppress(IndexError):  # numbers beyond an embedding's table: eager rejects it
            assert contract_holds(case), source(case)


@pytest.mark.samples
def test_variants_are_the_same_program() -> None:
    found = {case.id: make_variants(case, Choices(case.id)) for case in POOL}
    # Float32 or half precision, three modes, one batch or several: 12 variants, one of them the case itself.
    # A case with one batch, in a region or of several calls has fewer.
    assert sum(len(others) >= 11 for others in found.values()) > 0.6 * len(POOL)
    for case in POOL[:20]:
        variants = [variant_of(other) for other in found[case.id]]
        assert variant_of(case) not in variants
        assert len(set(variants)) == len(variants)
        for other in found[case.id]:
            check(other)
            assert casefile.loads(casefile.dumps(other)) == other
            assert _steps(other) == _steps(case) or any(op.kind == "view" for op in case.ops)


def _steps(case: Case) -> list[str]:
    """The operations, but for dropout and for what cuts masks off from gradients: these differ from form to form."""
    return [op.kind for op in case.ops if op.kind not in ("dropout", "detach")]


@pytest.mark.samples
def test_a_variant_with_dropout_drops_the_weights_and_cuts_the_mask_off() -> None:
    b = Builder({"B": 2, "H": 2, "S": 3, "D": 4}, "float16", "inference")
    q = b.input("q", ("B", "H", "S", "D"))
    mask = b.input("mask", ("B", 1, 1, "S"), Values("padding_mask", scale=-1e4))
    scores = b.op("add", b.op("matmul", q, b.op("transpose", q, dim0=-2, dim1=-1), to="scores"), mask)
    weights = b.op("cast", b.op("softmax", scores, to="weights"), dtype="float16")
    case = b.case([b.op("matmul", weights, q, to="out")], dynamic=False)
    wanted = Variant(HALF, DROPOUT, one_batch=False)
    (other,) = (other for other in make_variants(case, Choices("weights")) if variant_of(other) == wanted)
    steps = {op.name: op for op in other.ops}
    dropped = next(op for op in other.ops if op.kind == "dropout")
    assert dropped.args == (weights,) and steps["out"].args == (dropped.name, q)
    fixed = next(op for op in other.ops if op.kind == "detach")
    assert fixed.args == (mask,) and fixed.name in steps[scores].args
    (without,) = (
        again for again in make_variants(other, Choices("back")) if variant_of(again) == wanted._replace(mode=TRAINING)
    )
    assert _steps(without) == _steps(case) and not any(op.kind == "dropout" for op in without.ops)


@pytest.mark.samples
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
    assert variant_of(case) == Variant(HALF, INFERENCE, one_batch=False)
    forms = {variant_of(other): other for other in make_variants(case, Choices("masks"))}
    mixed = forms[Variant(MIXED, INFERENCE, one_batch=False)]
    assert {item.name: item.dtype for item in mixed.inputs} == {q: "float16", kept: "float32"}
    training = forms[Variant(HALF, TRAINING, one_batch=False)]
    assert [op.args for op in training.ops if op.kind == "detach"] == [(kept,)]


@pytest.mark.samples
def test_a_variant_in_float16_has_no_number_that_float16_has_not() -> None:
    b = Builder({"B": 2, "S": 3}, "float32", "inference")
    x = b.input("x", ("B", "S"))
    case = b.case([b.op("masked_fill", x, b.op("gt", x, other=0.0, to="high"), to="low", value=-1e9)], dynamic=False)
    for step in range(6):
        for other in make_variants(case, Choices(f"fill {step}")):
            assert in_float64(source(other), training=False).outputs
            run_eager(other)


PATTERN = frozenset({"_sfdp_pattern_5"})


def attention(width: int = 4) -> Case:
    b = Builder({"B": 2, "H": 2, "S": 3, "D": width}, "float32", "inference")
    q = b.input("q", ("B", "H", "S", "D"))
    scores = b.op("matmul", q, b.op("transpose", q, dim0=-2, dim1=-1), to="scores")
    return b.case([b.op("matmul", b.op("softmax", scores, to="weights"), q, to="out")], dynamic=False)


def taken(waiting: VariantQueue) -> list[Case]:
    found: list[Case] = []
    while one := waiting.take(Choices(f"take {len(found)}")):
        found.append(one)
    return found


def test_all_other_forms_of_a_case_wait_once() -> None:
    waiting = VariantQueue(1)
    waiting.plan(attention(), PATTERN, PATTERN)
    forms = [variant_of(case) for case in taken(waiting)]
    assert len(forms) == len(set(forms)) == 11
    assert variant_of(attention()) not in forms


def test_a_form_is_tried_for_a_pattern_a_few_times_and_then_no_more() -> None:
    waiting = VariantQueue(1)
    for width in range(2, 10):
        waiting.plan(attention(width), PATTERN, PATTERN)
    assert len(taken(waiting)) == 11 * TRIES


def test_a_form_the_pattern_was_seen_in_meanwhile_is_left_out() -> None:
    waiting = VariantQueue(1)
    waiting.plan(attention(), PATTERN, PATTERN)
    other = next(one for one in taken(waiting) if variant_of(one).mode == TRAINING)
    waiting = VariantQueue(1)
    waiting.plan(attention(), PATTERN, PATTERN)
    waiting.plan(other, PATTERN, frozenset())
    assert variant_of(other) not in map(variant_of, taken(waiting))
