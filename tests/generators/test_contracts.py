"""A contract says in float64 what its spelling computes: this finds mistakes of the generator's own."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from generators.program.attention_options import OPTIONS, Contract
from generators.program.case import Case
from generators.program.contracts import list_described_ops
from generators.program.emit import is_random, source
from generators.program.type_check import check
from generators.sampling.sample import sample
from tests.generators.plain import by_contract, close, in_float64, overwrites

pytestmark = pytest.mark.samples

SAMPLED = 250


def values_of(case: Case, contract: Contract) -> dict[str, torch.Tensor]:
    """Every value the contract names, from the case run in float64."""
    shown = replace(case, returns=tuple(dict.fromkeys([*contract.reads.values(), contract.output])))
    return dict(zip(shown.returns, in_float64(source(shown), training=case.training).outputs, strict=True))


def contract_holds(case: Case) -> bool:
    """Whether all contracts hold; live dropout and in-place steps cannot be checked."""
    if is_random(case) or overwrites(case):
        return True
    found = ((contract, values_of(case, contract)) for contract in case.contracts)
    return all(close(values[contract.output], by_contract(contract, values)) for contract, values in found)


@cache
def contracts(*, attention_only: bool) -> list[Case]:
    """Cases with a contract and no live dropout. In-place steps would change the values to look at."""
    cases = (sample(11, i, attention_only=attention_only) for i in range(SAMPLED))
    return [c for c in cases if c.contracts and not is_random(c) and not overwrites(c)]


@pytest.mark.parametrize("attention_only", [False, True])
def test_every_contract_means_what_its_spelling_computes(attention_only: bool) -> None:
    cases = contracts(attention_only=attention_only)[:80]
    assert len(cases) > 50
    for case in cases:
        assert contract_holds(case), source(case)


def test_every_option_is_drawn() -> None:
    drawn = [contract for i in range(SAMPLED) for contract in sample(11, i, attention_only=True).contracts]
    for name, option in OPTIONS.items():
        assert any(getattr(contract, name) != option.absent for contract in drawn), name


WRONG: dict[str, object] = {
    "scale": 0.77,
    "softcap": 1.5,
    "alibi": None,
    "bias": None,
    "causal": None,
    "window": (1, 0),
    "sinks": None,
    "mask_means": "keep",
    "dropout": 0.0,
    "mask": None,
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_contract_is_noticed(field: str) -> None:
    """The check above can fail: a contract with one field changed disagrees with its spelling."""
    tried = 0
    for case in contracts(attention_only=True):
        contract = case.contracts[0]
        default = "keep" if field == "mask_means" else 0.0 if field == "dropout" else None
        if getattr(contract, field) in (default, WRONG[field]):
            continue
        changed = replace(contract, **{field: WRONG[field]})  # type: ignore[arg-type]
        if field == "mask":
            changed = replace(changed, mask_means="keep", fill=float("-inf"))
        check(replace(case, contracts=(changed,)))
        values = values_of(case, changed)
        tried += 1
        if not close(values[contract.output], by_contract(changed, values)):
            return
    pytest.fail(f"none of {tried} wrong contracts was noticed")


def test_a_contract_speaks_for_all_that_its_output_depends_on_beside_what_it_reads() -> None:
    closed = 0
    for case in contracts(attention_only=False):
        contract = case.contracts[0]
        spoken_for = list_described_ops(case, contract)
        made = {op.name for op in case.ops}
        read = {arg for op in case.ops if op.name in spoken_for for arg in op.args}
        named = set(contract.reads.values())
        assert read & made <= spoken_for | named, source(case)
        closed += read <= spoken_for | named
        assert read <= spoken_for | named or named & made <= spoken_for, source(case)
    assert closed > 50
