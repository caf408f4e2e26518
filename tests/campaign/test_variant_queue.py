"""Variants in which a pattern was not seen to match are tried, a few times each."""

from fuzz.campaign.search import TRIES, VariantQueue
from generators.program.case import Case
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.variants import TRAINING, variant_of

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
