"""Which minimal case comes out of the shrinker, to the letter, for planted bugs it has never seen."""

from collections.abc import Callable
from functools import cache
from itertools import islice

import pytest

from corpus.casefile import dumps, loads
from corpus.passes.contracts import simplify_contract
from corpus.shrink import shrink
from fuzz.ask.evaluator import Evaluator
from fuzz.ask.question import Question
from fuzz.campaign.investigation import Investigation
from fuzz.events import SuspicionOutcome
from fuzz.protocol import Verdict
from generators.program.attention_options import Contract
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case, Input, Op
from generators.program.contracts import as_bhsd
from generators.program.emit import source
from generators.program.ops import make_op
from generators.program.simplicity import sort_key
from generators.program.sizes import Size
from generators.program.type_check import types_of
from generators.sampling.sample import sample

pytestmark = pytest.mark.samples

Bug = Callable[[Case], bool]
STARTS = 3
MOST_PROBES = 150


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


def said(case: Case) -> Contract:
    return case.contracts[0]


def sizes(case: Case, name: str) -> tuple[int, ...]:
    """[batch, heads, length, dim] of q, k or v."""
    return tuple(s.value(case.sizes) for s in as_bhsd(said(case), types_of(case)[name]))


def causal_and_long(case: Case) -> bool:
    return said(case).causal is not None and sizes(case, said(case).q)[2] >= 65


def grouped_in_training(case: Case) -> bool:
    return case.training and sizes(case, said(case).q)[1] != sizes(case, said(case).k)[1]


def two_key_heads(case: Case) -> bool:
    return 1 < sizes(case, said(case).k)[1] < sizes(case, said(case).q)[1]


def softcap(case: Case) -> bool:
    return said(case).softcap is not None


def sees_few_to_the_left(case: Case) -> bool:
    return (said(case).window or (-1, -1))[0] >= 0


def sees_three_to_the_left(case: Case) -> bool:
    return (said(case).window or (-1, -1))[0] >= 3


def slopes_from_the_last_key(case: Case) -> bool:
    return said(case).alibi is not None and said(case).causal == "bottom_right"


def sinks(case: Case) -> bool:
    return said(case).sinks is not None


def mask(case: Case) -> bool:
    return said(case).mask is not None


def bias_in_half(case: Case) -> bool:
    return said(case).bias is not None and types_of(case)[said(case).q].dtype == "float16"


def long_keys_and_wide_heads(case: Case) -> bool:
    return sizes(case, said(case).k)[2] >= 127 and sizes(case, said(case).k)[3] >= 33


def heads_inside(case: Case) -> bool:
    """q does not lie in memory as its axes say."""
    given = next((i for i in case.inputs if i.name == said(case).q), None)
    return given is None or said(case).layout == "bshd" or given.layout == "heads_inner"


def anything(case: Case) -> bool:
    return True


SPELLINGS: dict[Bug, str] = {
    softmax_over_queries: "matmul softmax matmul",
    counts_as_mask: "eq masked_fill",
    long_keys_in_half: "matmul",
    dropout_in_training: "dropout",
}
"""Bugs of compilers, and the operations that they come down to."""
CONTRACTS: dict[Bug, str] = {
    causal_and_long: "transpose matmul ones tril where softmax matmul",
    grouped_in_training: "transpose matmul softmax matmul",
    two_key_heads: "repeat_interleave repeat_interleave transpose matmul softmax matmul",
    softcap: "transpose matmul tanh softmax matmul",
    sees_few_to_the_left: "transpose matmul ones triu where softmax matmul",
    sees_three_to_the_left: "transpose matmul ones triu where softmax matmul",
    slopes_from_the_last_key: "transpose matmul arange unsqueeze sub abs view mul sub ones tril where softmax matmul",
    sinks: "transpose matmul view expand cat softmax narrow matmul",
    mask: "transpose matmul masked_fill softmax matmul",
    bias_in_half: "transpose matmul add softmax matmul",
    long_keys_and_wide_heads: "transpose matmul softmax matmul",
    heads_inside: "transpose matmul softmax matmul",
    anything: "transpose matmul softmax matmul",
}
"""Bugs of attention functions, over what contracts say."""

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
CAUSAL_MINIMUM = """import torch
from torch import nn

B, H, S, T, D, V = 2, 3, 65, 4, 5, 6


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        kt = k.transpose(-2, -1)
        scores = q @ kt
        ones = torch.ones((S, T), dtype=torch.bool, device=q.device)
        tril = ones.tril()
        scores2 = torch.where(tril, scores, float("-inf"))
        probs = scores2.softmax(dim=-1)
        out = probs @ v
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
        torch.randn((B, H, T, V), generator=rng(2)),
    ]
"""
GROUPED_MINIMUM = """
class Module(nn.Module):
    def forward(self, q, k, v):
        kt = k.transpose(-2, -1)
        scores = q @ kt
        probs = scores.softmax(dim=-1)
        out = probs @ v
        return out
"""


@cache
def sampled(index: int, *, attention_only: bool) -> Case:
    return sample(23 if attention_only else 17, index, attention_only=attention_only)


@cache
def shrunk(bug: Bug, *, fused: bool = False) -> list[tuple[list[Case], list[Case]]]:
    """Of the first sampled cases that have the bug: the trajectory, and all probes.

    fused: those of one fused call, of a contract's bug; else those in steps
    """
    attention_only = bug in CONTRACTS

    def is_start(case: Case) -> bool:
        # A grouped call over [B, S, H, D] with dropout comes down to steps.
        is_fused = any(op.kind == "sdpa" for op in case.ops)
        fits = is_fused == fused and not (fused and said(case).layout == "bshd" and said(case).dropout)
        return bug(case) and (fits or not attention_only)

    found = []
    drawn = (sampled(index, attention_only=attention_only) for index in range(6000))
    for start in islice(filter(is_start, drawn), STARTS):
        probes: list[Case] = []

        def fails(case: Case, probes: list[Case] = probes) -> bool:
            probes.append(case)
            return bug(case)

        found.append((shrink(start, fails, attention_only=attention_only), probes))
    assert len(found) == STARTS
    return found


def minima(bug: Bug, *, fused: bool = False) -> list[Case]:
    return [trajectory[-1] for trajectory, _ in shrunk(bug, fused=fused)]


@pytest.mark.parametrize("bug", [*SPELLINGS, *CONTRACTS], ids=lambda bug: bug.__name__)
def test_it_comes_down_to_the_plainest_lines_and_is_asked_of_each_case_once(bug: Bug) -> None:
    for trajectory, asked in shrunk(bug):
        wanted = (SPELLINGS | CONTRACTS)[bug].split()
        assert [op.kind for op in trajectory[-1].ops] == wanted, source(trajectory[-1])
        assert all(map(bug, trajectory)) and len(asked) == len({case.id for case in asked})
        keys = [sort_key(case) for case in trajectory]
        falling = keys[: keys.index(min(keys)) + 1]  # forms for readers follow
        assert falling == sorted(set(falling), reverse=True)
        assert loads(dumps(trajectory[-1])) == trajectory[-1]


@pytest.mark.parametrize("bug", CONTRACTS, ids=lambda bug: bug.__name__)
def test_a_contract_takes_few_probes_and_has_a_stand_in_all_the_way(bug: Bug) -> None:
    for _, asked in shrunk(bug):
        assert len(asked) <= MOST_PROBES
        assert all(case.contracts and emit_attention_stub(case) is not None for case in asked)


def test_an_ignored_axis_comes_down_to_q_k_and_v() -> None:
    for smallest in minima(softmax_over_queries):
        shapes = [[str(size) for size in item.shape] for item in smallest.inputs]
        # The number of an axis may need a batch to be another one than the last.
        batch = shapes[0][:-2]
        assert shapes == [[*batch, "S", "D"], [*batch, "D", "T"], [*batch, "T", "V"]]
        assert list(smallest.sizes.values()) == list(range(2, 6 + len(batch)))
        assert "def forward(self, q, k, v):\n        scores = q @ k\n" in source(smallest)


def test_the_text_is_the_same_to_the_letter_wherever_it_came_from() -> None:
    for smallest in minima(counts_as_mask):
        assert COUNTS_MINIMUM.replace("(S,)", f"({smallest.dims[0][0]},)") in source(smallest)
    assert {source(case) for case in minima(causal_and_long)} == {CAUSAL_MINIMUM}
    assert {said(case) for case in minima(causal_and_long)} == {Contract("q", "k", "v", "out", causal="top_left")}
    for case in minima(grouped_in_training):
        assert GROUPED_MINIMUM in source(case)
        shapes = [item.type.sizes(case.sizes) for item in case.inputs]
        assert shapes == [(2, 3, 4, 6), (2, 1, 5, 6), (2, 1, 5, 7)]


def test_sizes_dtypes_modes_and_words_of_contracts_stay_where_they_matter() -> None:
    for case in minima(long_keys_in_half):
        # 4 where the inner size of the product took 3: each has a number of its own.
        assert types_of(case)[case.returns[0]].sizes(case.sizes)[-1] in (3, 4)
    assert all(case.training for case in minima(dropout_in_training))
    assert {said(case).softcap for case in minima(softcap)} == {1.0}
    assert {said(case).window for case in minima(sees_few_to_the_left)} == {(0, -1)}
    assert {said(case).window for case in minima(sees_three_to_the_left)} <= {(3, -1), (4, -1), (5, -1)}
    sloped = {(said(case).causal, said(case).scale) for case in minima(slopes_from_the_last_key)}
    assert sloped == {("bottom_right", 1.0)}
    assert {case.inputs[0].dtype for case in minima(bias_in_half)} == {"float16"}
    assert {case.inputs[0].layout for case in minima(heads_inside)} == {"heads_inner"}
    assert {(case.sizes["D"], case.sizes["T"]) for case in minima(long_keys_and_wide_heads)} == {(33, 127)}


def test_a_fused_call_stays_one() -> None:
    for case in minima(causal_and_long, fused=True):
        assert "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n" in source(case)


def test_other_failures_do_not_know_of_contracts() -> None:
    """A compiler's bug is in a spelling: the program is not respelled, and its contract may go."""

    def divides(case: Case) -> bool:
        return any(op.kind == "div" for op in case.ops)

    start = next(case for i in range(100) if divides(case := sampled(i, attention_only=True)))
    smallest = shrink(start, divides)[-1]
    assert [op.kind for op in smallest.ops] == ["div"]
    assert not smallest.contracts


def test_without_a_contract_there_is_nothing_to_respell() -> None:
    start = next(case for i in range(100) if not (case := sample(23, i)).contracts)
    assert list(simplify_contract(start)) == []
    assert shrink(start, anything, attention_only=True) == [start]


def test_when_time_is_up_the_best_so_far_is_returned() -> None:
    start = shrunk(softmax_over_queries)[0][0][0]
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
