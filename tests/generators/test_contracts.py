"""A contract says in float64 what its spelling computes: this finds mistakes of the generator's own."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from generators.case import Case, Contract
from generators.emit import is_random, source
from generators.program import check
from generators.sample import sample

SAMPLED = 1500


def attention(contract: Contract, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """The contract's meaning, written once and plainly, in the dtype of `values`."""
    q, k, v = (values[name] for name in (contract.q, contract.k, contract.v))
    if contract.layout != "bsd" and k.size(1) != q.size(1):
        group = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = contract.scale * (q @ k.transpose(-1, -2))
    if contract.causal:
        rows, columns = scores.shape[-2:]
        scores = scores.masked_fill(~torch.ones(rows, columns, dtype=torch.bool).tril(), float("-inf"))
    if contract.mask is not None:
        mask = values[contract.mask]
        if contract.mask_means == "add":
            scores = scores + mask
        else:
            scores = torch.where(mask if contract.mask_means == "keep" else ~mask, scores, contract.fill)
    return scores.softmax(-1) @ v * (0.0 if contract.dropout == 1 else 1.0)


def in_float64(case: Case) -> dict[str, torch.Tensor]:
    """Every value the contract names, from the case run in float64."""
    contract = case.contracts[0]
    names = [contract.q, contract.k, contract.v, contract.output, *([contract.mask] if contract.mask else [])]
    shown = replace(case, returns=tuple(dict.fromkeys(names)))
    text = source(shown).replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    scope: dict[str, object] = {}
    exec(text, scope)
    module = scope["Module"]().double().train(case.training)  # type: ignore[operator]
    arguments = [x.double() if x.is_floating_point() else x for x in scope["inputs"]()]  # type: ignore[operator]
    # The fused CPU kernel is not a reference: with a negative scale and is_causal torch 2.13.0 gives NaN.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        found = module(*arguments)
    return dict(zip(shown.returns, found if isinstance(found, tuple) else (found,), strict=True))


def contracts() -> list[Case]:
    """Cases in float32 with a contract and no live dropout. In-place steps would change the values to look at."""
    cases = (sample(11, i) for i in range(SAMPLED))
    return [
        c for c in cases
        if c.contracts and not is_random(c) and {i.dtype for i in c.inputs} <= {"float32", "bool", "int64"}
        and not any(op.attr("form") == "in_place" for op in c.ops)
    ]


def test_every_contract_means_what_its_spelling_computes() -> None:
    cases = contracts()
    assert len(cases) > SAMPLED / 10
    for case in cases:
        values = in_float64(case)
        contract = case.contracts[0]
        got, expected = values[contract.output], attention(contract, values)
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True), source(case)


@pytest.mark.parametrize("field", ["scale", "mask_means"])
def test_a_wrong_contract_is_noticed(field: str) -> None:
    """The check above can fail: a contract with one field changed disagrees with its spelling."""
    wrong: dict[str, object] = {"scale": 0.77, "mask_means": "keep"}
    differs = False
    for case in contracts():
        contract = case.contracts[0]
        if field == "mask_means" and (contract.mask is None or contract.mask_means != "drop"):
            continue
        values = in_float64(case)
        changed = replace(contract, **{field: wrong[field]})  # type: ignore[arg-type]
        check(replace(case, contracts=(changed,)))
        differs |= not torch.allclose(values[contract.output], attention(changed, values), equal_nan=True)
    assert differs
