"""A contract says in float64 what its spelling computes, and a stand-in gives what the case's own text gives."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from generators.program.attention_options import OPTIONS, Contract
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case, Input
from generators.program.contracts import list_described_ops
from generators.program.emit import is_random, source
from generators.program.ops import make_op
from generators.program.references import rename
from generators.program.sizes import Size
from generators.program.type_check import check
from generators.sampling.sample import sample
from tests.generators.plain import agrees, by_contract, close, in_float64, overwrites

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


@pytest.mark.samples
@pytest.mark.parametrize("attention_only", [False, True])
def test_every_contract_means_what_its_spelling_computes(attention_only: bool) -> None:
    cases = contracts(attention_only=attention_only)[:80]
    assert len(cases) > 50
    for case in cases:
        assert contract_holds(case), source(case)


@pytest.mark.samples
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


@pytest.mark.samples
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


@pytest.mark.samples
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


attention = cache(partial(sample, 3, attention_only=True))


@pytest.mark.samples
@pytest.mark.parametrize("attention_only", [False, True])
def test_a_stand_in_gives_what_the_case_gives(attention_only: bool) -> None:
    compared: Counter[str] = Counter()
    for index in range(90 if attention_only else 150):
        case = attention(index) if attention_only else sample(3, index)
        if emit_attention_stub(case) is None or is_random(case):
            continue
        assert agrees(case), f"{source(case)}\n{emit_attention_stub(case)}"
        compared[case.mode] += 1
    assert compared["inference"] > 20
    assert compared["training"] > (20 if attention_only else 3)


@pytest.mark.samples
def test_calls_of_sdpa_give_what_the_case_gives() -> None:
    compared: Counter[str] = Counter()
    for index in range(250):
        case = attention(index)
        stub = emit_attention_stub(case, as_sdpa=True)
        if stub is None or is_random(case) or not all(map(is_of_sdpa, case.contracts)):
            continue
        assert agrees(case, as_sdpa=True), f"{source(case)}\n{stub}"
        compared.update(
            word for word in ("attn_mask=", "None]", "is_causal=", "enable_gqa=", ".unsqueeze(1)") if word in stub
        )
    assert min(compared.values()) > 1
    assert len(compared) == 5


def is_of_sdpa(contract: Contract) -> bool:
    """Whether scaled_dot_product_attention has a keyword for all that the contract says."""
    others = (contract.window, contract.softcap, contract.alibi, contract.sinks, contract.causal == "bottom_right")
    given = sum(map(bool, (contract.mask, contract.bias, contract.causal)))
    return not any(others) and given <= 1 and contract.fill == -math.inf


def test_a_wrong_stand_in_is_noticed() -> None:
    for index in range(50):
        case = attention(index)
        if not is_random(case):
            wrong = replace(case, contracts=tuple(replace(c, scale=2 * c.scale + 1) for c in case.contracts))
            if not agrees(wrong):
                return
    pytest.fail("no wrong stand-in was noticed")


def test_what_the_contract_speaks_for_is_gone_and_what_is_returned_of_it_stays() -> None:
    case = next(
        c
        for i in range(1000)
        if (c := sample(4, i, attention_only=True)).contracts[0].causal
        and len(c.returns) == 1
        and any("softmax" in op.kind for op in c.ops)
    )
    text = emit_attention_stub(case)
    assert text is not None
    assert text.count("attend(") == 1
    assert "softmax" not in text.lower()
    probs = next(op.name for op in case.ops if "softmax" in op.kind)
    both = emit_attention_stub(replace(case, returns=(*case.returns, probs)))
    assert both is not None
    assert "softmax" in both.lower()


@pytest.mark.samples
def test_arguments_and_parameters_stay() -> None:
    def interface(text: str) -> list[str]:
        return [line for line in text.splitlines() if "def forward" in line or "nn.Parameter" in line]

    for index in range(60):
        case = attention(index)
        text = emit_attention_stub(case)
        assert text is not None
        assert interface(text) == interface(source(case))


def test_no_contract_no_stand_in() -> None:
    case = sample(4, 0, attention_only=True)
    assert emit_attention_stub(replace(case, contracts=())) is None


def test_steps_in_place_on_what_is_read_or_given_have_no_stand_in() -> None:
    """Seldom drawn, so built here: q is overwritten by a step that is returned as well."""
    shape = tuple(Size.of(s) for s in ("B", "S", "D"))
    case = Case(
        dims=(("B", 2), ("S", 3), ("D", 4)),
        inputs=(Input("x", shape, "float32"),),
        ops=(
            make_op("q", "neg", ["x"], {}),
            make_op("scaled", "mul", ["q"], {"other": 0.5, "form": "in_place"}),
            make_op("kt", "transpose", ["x"], {}),
            make_op("scores", "matmul", ["scaled", "kt"], {}),
            make_op("probs", "softmax", ["scores"], {}),
            make_op("out", "matmul", ["probs", "x"], {}),
        ),
        returns=("out",),
        contracts=(Contract("q", "x", "x", "out", "bsd", 0.5),),
    )
    check(case)
    assert agrees(case)
    assert emit_attention_stub(replace(case, returns=("out", "scaled"))) is None


@pytest.mark.samples
def test_slopes_and_sinks_that_need_a_gradient_are_nobodys_to_give() -> None:
    seen = set()
    for index in range(400):
        case = attention(index)
        contract = case.contracts[0]
        cut_off = [op for op in case.ops if op.kind == "detach" and op.name in (contract.alibi, contract.sinks)]
        is_differentiated = all(item.requires_grad for item in case.inputs)
        if not (case.training and is_differentiated and cut_off and (contract.alibi or contract.sinks)):
            continue
        names = {op.name: op.args[0] for op in cut_off}
        ops = tuple(
            replace(op, args=tuple(names.get(arg, arg) for arg in op.args)) for op in case.ops if op.name not in names
        )
        live = replace(case, ops=ops, contracts=(rename(contract, names),))
        assert emit_attention_stub(case) is not None and emit_attention_stub(live) is None
        assert emit_attention_stub(replace(live, mode="inference")) is not None
        seen.add(contract.alibi is not None)
        if len(seen) == 2:
            return
    pytest.fail(f"only {seen} were drawn")
