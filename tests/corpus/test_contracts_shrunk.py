"""Whatever a pass of the shrinker makes of a case, a contract that stays says what the smaller program computes."""

import random
from dataclasses import replace

import pytest

from corpus.passes.contracts import simplify_contract
from corpus.passes.program import bypass, shrink_dims
from corpus.shrink import CONTRACT_PASSES, PASSES, Pass
from generators.program.case import Case
from generators.program.edits import prune_if_valid
from generators.program.emit import is_random, source
from generators.sampling.sample import sample
from tests.generators.plain import agrees, by_contract, close, in_float64, overwrites

pytestmark = pytest.mark.samples

CASES = [next(shrink_dims(sample(77, i, attention_only=True))) for i in range(30)]


def holds(case: Case) -> bool:
    contract = case.contracts[0]
    shown = replace(case, returns=tuple(dict.fromkeys([*contract.reads.values(), contract.output])))
    values = dict(zip(shown.returns, in_float64(source(shown), training=case.training).outputs, strict=True))
    return close(values[contract.output], by_contract(contract, values))


@pytest.mark.parametrize("shrink", dict.fromkeys((*PASSES, *CONTRACT_PASSES)), ids=lambda p: p.__name__)
def test_a_contract_that_a_pass_keeps_still_holds(shrink: Pass) -> None:
    drawn = random.Random(0)
    for case in CASES:
        candidates = [
            c for c in map(prune_if_valid, shrink(case)) if c and c.contracts and not is_random(c) and not overwrites(c)
        ]
        for candidate in drawn.sample(candidates, min(len(candidates), 6)):
            try:
                kept = holds(candidate)
            except RuntimeError:
                continue  # eager refuses this candidate: it is no program that would be kept
            assert kept, f"{source(case)}\n{source(candidate)}\n{candidate.contracts}"


def test_what_lies_outside_a_contract_goes_without_it() -> None:
    case = next(
        c
        for i in range(100)
        if len((c := sample(78, i, attention_only=True)).returns) == 1 and c.ops[-1].name != c.contracts[0].output
    )
    assert any(c and len(c.ops) < len(case.ops) and c.contracts for c in map(prune_if_valid, bypass(case)))


def test_what_is_respelled_has_a_stand_in_that_gives_the_same_with_gradients() -> None:
    drawn, compared = random.Random(1), 0
    for case in CASES:
        candidates = [c for c in simplify_contract(case) if not is_random(c)]
        for candidate in drawn.sample(candidates, min(len(candidates), 4)):
            assert agrees(candidate), source(candidate)
            compared += candidate.training
    assert compared > 10
