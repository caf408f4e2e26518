"""Which other forms of a pattern are tried: those it was not seen in, a few times each."""

from fuzz.campaign.search import TRIES, SourceBandit, VariantQueue
from generators.program.case import Case
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.variants import HALF, TRAINING, variant_of

PATTERN = frozenset({"_sfdp_pattern_5"})


def attention(width: int = 4) -> Case:
    b = Builder({"B": 2, "H": 2, "S": 3, "D": width}, "float32", "inference")
    q = b.input("q", ("B", "H", "S", "D"))
    scores = b.op("matmul", q, b.op("transpose", q, dim0=-2, dim1=-1), to="scores")
    return b.case([b.op("matmul", b.op("softmax", scores, to="weights"), q, to="out")], dynamic=False)


def taken(waiting: VariantQueue, changes: SourceBandit) -> list[tuple[Case, tuple[str, ...]]]:
    found: list[tuple[Case, tuple[str, ...]]] = []
    while one := waiting.take(Choices(f"take {len(found)}"), changes):
        found.append(one)
    return found


def test_all_other_forms_of_a_case_wait_once() -> None:
    waiting = VariantQueue(1)
    waiting.plan(attention(), PATTERN, PATTERN)
    forms = [variant_of(case) for case, _ in taken(waiting, SourceBandit())]
    assert len(forms) == len(set(forms)) == 11
    assert variant_of(attention()) not in forms


def test_a_form_is_tried_for_a_pattern_a_few_times_and_then_no_more() -> None:
    waiting = VariantQueue(1)
    for width in range(2, 10):
        waiting.plan(attention(width), PATTERN, PATTERN)
    assert len(taken(waiting, SourceBandit())) == 11 * TRIES


def test_a_form_the_pattern_was_seen_in_meanwhile_is_left_out() -> None:
    waiting = VariantQueue(1)
    waiting.plan(attention(), PATTERN, PATTERN)
    other, change = next(one for one in taken(waiting, SourceBandit()) if one[1] == (TRAINING,))
    waiting = VariantQueue(1)
    waiting.plan(attention(), PATTERN, PATTERN)
    waiting.plan(other, PATTERN, frozenset())
    assert change not in [made for _, made in taken(waiting, SourceBandit())]


def test_changes_that_brought_something_new_come_first() -> None:
    waiting, changes = VariantQueue(1), SourceBandit()
    waiting.plan(attention(), PATTERN, PATTERN)
    words = {word for _, change in taken(waiting, SourceBandit()) for word in change}
    for step in range(200):
        for word in words:
            changes.credit([word], {f"new {step}"} if word == HALF else {"old"}, 1.0)
    first = []
    for seed in range(40):
        waiting = VariantQueue(seed)
        waiting.plan(attention(), PATTERN, PATTERN)
        found = waiting.take(Choices(f"first {seed}"), changes)
        assert found is not None
        first.append(found[1])
    assert first.count((HALF,)) > 35
