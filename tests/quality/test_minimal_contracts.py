"""Which minimal case an attention function's failure comes down to, for planted bugs over what contracts say."""

from collections.abc import Callable
from functools import cache
from itertools import islice

import pytest

from corpus.casefile import dumps, loads
from corpus.passes.contracts import simplify_contract
from corpus.shrink import shrink
from generators.program.attention_options import Contract
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.contracts import as_bhsd
from generators.program.emit import source
from generators.program.simplicity import sort_key
from generators.program.type_check import types_of
from generators.sampling.sample import sample

pytestmark = pytest.mark.samples

Bug = Callable[[Case], bool]
STARTS = 3
MOST_PROBES = 150


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


KINDS: dict[Bug, list[str]] = {
    causal_and_long: ["transpose", "matmul", "ones", "tril", "where", "softmax", "matmul"],
    grouped_in_training: ["transpose", "matmul", "softmax", "matmul"],
    two_key_heads: ["repeat_interleave", "repeat_interleave", "transpose", "matmul", "softmax", "matmul"],
    softcap: ["transpose", "matmul", "tanh", "softmax", "matmul"],
    sees_few_to_the_left: ["transpose", "matmul", "ones", "triu", "where", "softmax", "matmul"],
    sees_three_to_the_left: ["transpose", "matmul", "ones", "triu", "where", "softmax", "matmul"],
    slopes_from_the_last_key: [
        "transpose",
        "matmul",
        "arange",
        "unsqueeze",
        "sub",
        "abs",
        "view",
        "mul",
        "sub",
        "ones",
        "tril",
        "where",
        "softmax",
        "matmul",
    ],
    sinks: ["transpose", "matmul", "view", "expand", "cat", "softmax", "narrow", "matmul"],
    mask: ["transpose", "matmul", "masked_fill", "softmax", "matmul"],
    bias_in_half: ["transpose", "matmul", "add", "softmax", "matmul"],
    long_keys_and_wide_heads: ["transpose", "matmul", "softmax", "matmul"],
    heads_inside: ["transpose", "matmul", "softmax", "matmul"],
    anything: ["transpose", "matmul", "softmax", "matmul"],
}

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
def sampled(index: int) -> Case:
    return sample(23, index, attention_only=True)


@cache
def shrunk(bug: Bug, *, fused: bool) -> list[tuple[list[Case], list[Case]]]:
    """Of the first sampled cases that have the bug, in one fused call or in steps: the trajectory, and all probes."""

    def is_start(case: Case) -> bool:
        # A grouped call whose contract is over [B, S, H, D] comes down to steps.
        is_fused = any(op.kind == "sdpa" for op in case.ops)
        return bug(case) and is_fused == fused and not (fused and case.contracts[0].layout == "bshd")

    found = []
    for start in islice(filter(is_start, map(sampled, range(4000))), STARTS):
        probes: list[Case] = []

        def fails(case: Case, probes: list[Case] = probes) -> bool:
            probes.append(case)
            return bug(case)

        found.append((shrink(start, fails, attention_only=True), probes))
    assert len(found) == STARTS
    return found


def minima(bug: Bug, *, fused: bool = False) -> list[Case]:
    return [trajectory[-1] for trajectory, _ in shrunk(bug, fused=fused)]


@pytest.mark.parametrize("bug", KINDS, ids=lambda bug: bug.__name__)
def test_it_comes_down_to_the_plainest_lines_in_few_probes_with_a_stand_in_all_the_way(bug: Bug) -> None:
    for trajectory, asked in shrunk(bug, fused=False):
        assert [op.kind for op in trajectory[-1].ops] == KINDS[bug], source(trajectory[-1])
        assert len(asked) == len({case.id for case in asked}) <= MOST_PROBES
        assert all(case.contracts and emit_attention_stub(case) is not None for case in asked)
        keys = [sort_key(case) for case in trajectory]
        falling = keys[: keys.index(min(keys)) + 1]  # forms for readers follow
        assert falling == sorted(set(falling), reverse=True)
        assert loads(dumps(trajectory[-1])) == trajectory[-1]


def test_the_text_is_the_same_to_the_letter_wherever_it_came_from() -> None:
    assert {source(case) for case in minima(causal_and_long)} == {CAUSAL_MINIMUM}
    assert {said(case) for case in minima(causal_and_long)} == {Contract("q", "k", "v", "out", causal="top_left")}
    for case in minima(grouped_in_training):
        assert GROUPED_MINIMUM in source(case)
        shapes = [item.type.sizes(case.sizes) for item in case.inputs]
        assert shapes == [(2, 3, 4, 6), (2, 1, 5, 6), (2, 1, 5, 7)]


def test_a_contract_keeps_what_matters_in_its_simplest_words() -> None:
    assert {said(case).softcap for case in minima(softcap)} == {1.0}
    assert {said(case).window for case in minima(sees_few_to_the_left)} == {(0, -1)}
    assert {said(case).window for case in minima(sees_three_to_the_left)} <= {(3, -1), (4, -1), (5, -1)}
    assert {(said(case).causal, said(case).scale) for case in minima(slopes_from_the_last_key)} == {
        ("bottom_right", 1.0)
    }
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

    start = next(case for i in range(100) if divides(case := sample(23, i, attention_only=True)))
    smallest = shrink(start, divides)[-1]
    assert [op.kind for op in smallest.ops] == ["div"]
    assert not smallest.contracts


def test_without_a_contract_there_is_nothing_to_respell() -> None:
    start = next(case for i in range(100) if not (case := sample(23, i)).contracts)
    assert list(simplify_contract(start)) == []
    assert shrink(start, anything, attention_only=True) == [start]
