"""Which minimal case comes out of the shrinker, to the letter, for planted bugs it has never seen."""

from collections.abc import Callable
from functools import cache
from itertools import islice

import pytest

from corpus.shrink import PASSES, shrink
from fuzz.ask.evaluator import Evaluator
from fuzz.ask.question import Question
from fuzz.campaign.investigation import Investigation
from fuzz.events import SuspicionOutcome
from fuzz.protocol import Verdict
from generators.program.case import Case, Input, Op
from generators.program.emit import source
from generators.program.ops import make_op
from generators.program.simplicity import sort_key
from generators.program.sizes import Size
from generators.program.type_check import types_of
from generators.sampling.sample import sample

Bug = Callable[[Case], bool]
STARTS = 3


def made_by(case: Case, name: str) -> Op | None:
    return next((op for op in case.ops if op.name == name), None)


def softmax_over_queries(case: Case) -> bool:
    """A softmax over another axis than the last, between two products: a rewrite that ignores the axis."""
    for op in case.ops:
        if op.kind == "softmax" and op.attr("dim") not in (None, -1, types_of(case)[op.args[0]].rank - 1):
            before = made_by(case, op.args[0])
            if before is not None and before.kind == "matmul":
                return any(o.kind == "matmul" and op.name == o.args[0] for o in case.ops)
    return False


def counts_as_mask(case: Case) -> bool:
    """A mask with numbers other than 0 and 1 compared with 0: a rewrite that compares it with 1."""
    counted = {i.name for i in case.inputs if i.dtype == "int64" and i.values.kind == "small_counts"}
    for op in case.ops:
        drop = made_by(case, op.args[1]) if op.kind == "masked_fill" else None
        while drop is not None and drop.kind in ("view", "expand", "expand_as"):
            drop = made_by(case, drop.args[0])
        if drop is not None and drop.kind == "eq" and drop.attr("other") == 0 and drop.args[0] in counted:
            return True
    return False


def long_keys_in_half(case: Case) -> bool:
    """A product in low precision over 3 or more columns."""
    types = types_of(case)
    return any(
        op.kind == "matmul" and types[op.name].dtype == "bfloat16" and types[op.name].sizes(case.sizes)[-1] >= 3
        for op in case.ops
    )


def dropout_in_training(case: Case) -> bool:
    """Dropout that is on, of whatever probability."""
    return case.training and any(op.kind == "dropout" and op.attr("p") not in (None, 0) for op in case.ops)


COUNTS_MINIMUM = """
class Module(nn.Module):
    def forward(self, mask, x):
        drop = mask == 0
        out = x.masked_fill(drop, float("-inf"))
        return out


def inputs():
    return [
        torch.randint(0, 3, (S,), generator=rng(0)),
        torch.randn((S,), generator=rng(1)),
    ]
"""


@cache
def sampled(index: int) -> Case:
    return sample(17, index)


@cache
def found(bug: Bug) -> list[Case]:
    """The first sampled cases that have the bug."""
    return list(islice(filter(bug, map(sampled, range(6000))), STARTS))


@pytest.mark.samples
def test_an_ignored_axis_comes_down_to_two_products_and_a_softmax_of_q_k_and_v() -> None:
    starts = found(softmax_over_queries)
    assert len(starts) == STARTS
    for start in starts:
        smallest = shrink(start, softmax_over_queries)[-1]
        assert [op.kind for op in smallest.ops] == ["matmul", "softmax", "matmul"]
        shapes = [[str(size) for size in item.shape] for item in smallest.inputs]
        # The number of an axis may need a batch to be another one than the last.
        batch = shapes[0][:-2]
        assert shapes == [[*batch, "S", "D"], [*batch, "D", "T"], [*batch, "T", "V"]]
        assert list(smallest.sizes.values()) == list(range(2, 6 + len(batch)))
        assert "def forward(self, q, k, v):\n        scores = q @ k\n" in source(smallest)


@pytest.mark.samples
def test_a_misread_mask_comes_down_to_a_comparison_and_a_fill() -> None:
    starts = found(counts_as_mask)
    assert len(starts) == STARTS
    for start in starts:
        smallest = shrink(start, counts_as_mask)[-1]
        assert COUNTS_MINIMUM.replace("(S,)", f"({smallest.dims[0][0]},)") in source(smallest)


@pytest.mark.samples
def test_sizes_stop_at_the_threshold_and_dtypes_stay_where_they_matter() -> None:
    for start in found(long_keys_in_half):
        smallest = shrink(start, long_keys_in_half)[-1]
        assert [op.kind for op in smallest.ops] == ["matmul"]
        # 4 where the inner size of the product took 3: each has a number of its own.
        assert types_of(smallest)[smallest.returns[0]].sizes(smallest.sizes)[-1] in (3, 4)


@pytest.mark.samples
def test_the_mode_stays_where_it_matters() -> None:
    for start in found(dropout_in_training):
        smallest = shrink(start, dropout_in_training)[-1]
        assert smallest.training
        assert [op.kind for op in smallest.ops] == ["dropout"]


@pytest.mark.samples
def test_every_accepted_case_is_simpler_fails_and_is_asked_once() -> None:
    asked: list[str] = []

    def bug(case: Case) -> bool:
        asked.append(case.id)
        return softmax_over_queries(case)

    start = found(softmax_over_queries)[0]
    trajectory = shrink(start, bug, passes=PASSES, is_readable=False)
    keys = [sort_key(case) for case in trajectory]
    assert keys == sorted(keys, reverse=True)
    assert len(set(keys)) == len(keys)
    assert all(softmax_over_queries(case) for case in trajectory)
    assert len(asked) == len(set(asked))


@pytest.mark.samples
def test_when_time_is_up_the_best_so_far_is_returned() -> None:
    start = found(softmax_over_queries)[0]
    probes = 0

    def bug(case: Case) -> bool:
        nonlocal probes
        probes += 1
        return softmax_over_queries(case)

    smallest = shrink(start, bug, deadline=lambda: probes >= 20)[-1]
    assert probes <= 21
    assert softmax_over_queries(smallest)
    assert sort_key(smallest) < sort_key(start)


MINIMUM = """
class Module(nn.Module):
    def forward(self, x):
        out = F.relu(x)
        return out
"""
PLANTED = "tests.check.planted:relu_accuracy"


def attention_with_relu() -> Case:
    """relu(x x^T) x."""
    inputs = (Input("x", tuple(Size.of(name) for name in ("B", "S", "E")), "float32"),)
    lines = [
        make_op("kt", "transpose", ["x"], {}),
        make_op("scores", "matmul", ["x", "kt"], {}),
        make_op("kept", "relu", ["scores"], {}),
        make_op("out", "matmul", ["kept", "x"], {}),
    ]
    return Case((("B", 2), ("S", 5), ("E", 8)), inputs, tuple(lines), ("out",))


@pytest.mark.worker
@pytest.mark.compiles
def test_a_planted_relu_comes_down_to_one_relu(shared: Evaluator) -> None:
    if shared.hello.cxx is None:
        pytest.skip("no C++ compiler")

    case = attention_with_relu()
    suspect = shared.ask(Question(case, (PLANTED,))).only
    assert suspect.verdict is Verdict.WRONG_RESULT
    found = Investigation(case, suspect, (PLANTED,), shared, lambda: False).run()
    assert found.outcome is SuspicionOutcome.FINDING
    assert [op.kind for op in found.case.ops] == ["relu"]
    assert MINIMUM in source(found.case)
