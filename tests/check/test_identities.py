"""Gradient identities: right gradients keep them, and each fault that shared mistakes would hide breaks one."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.identities import find_violations
from fuzz.protocol.failures import GradientIdentityBroken
from tests.kernels.reference import math_attention

ALL = (torch.float32, torch.float16, torch.bfloat16)
LOW = ALL[1:]


def ran(dtype: torch.dtype, rows: int = 17, columns: int = 23, seed: int = 0, **options: Any) -> dict[str, Any]:
    """A call with two query heads a key head, and its gradients by autograd."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    options = {"scale": 0.25, **options}
    leaves = [draw(2, 4, rows, 16), draw(2, 2, columns, 16), draw(2, 2, columns, 12)]
    leaves += [options["bias"]] if "bias" in options else []
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    given = {**options, **({"bias": leaves[3]} if "bias" in options else {})}
    p, seed = given.pop("dropout", (0.0, 0))
    out = math_attention(*leaves[:3], dropout_p=p, dropout_mask=kept(p, seed, rows, columns), **given)
    dout = draw(*out.shape)
    named = dict(zip(("dq", "dk", "dv", "dbias"), torch.autograd.grad(out, leaves, dout), strict=False))
    q, k, v = (leaf.detach() for leaf in leaves[:3])
    return {"q": q, "k": k, "v": v, "out": out.detach(), "dout": dout, **named, **options}


def kept(p: float, seed: int, rows: int, columns: int) -> Tensor:
    return torch.rand(2, 4, rows, columns, generator=torch.Generator().manual_seed(seed)) >= p


def said(call: dict[str, Any]) -> list[GradientIdentityBroken]:
    gradients: dict[str, Tensor] = {name: call[name] for name in ("dq", "dk", "dv", "dbias") if name in call}
    named = {*gradients, "q", "k", "v", "out", "dout"}
    options = {name: x for name, x in call.items() if name not in named}
    return find_violations(Call(call["q"], call["k"], call["v"], options, call["out"], call["dout"], gradients))


def equations(call: dict[str, Any]) -> set[str]:
    return {one.equation for one in said(call)}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": "top_left"},
    {"causal": "bottom_right", "window": (3, -1)},
    {"mask": torch.arange(23) < 20, "scale": -0.5},
    {"mask": torch.rand(17, 1, generator=torch.Generator().manual_seed(1)) < 0.5},
    {"bias": torch.linspace(-3, 3, 23).expand(4, 17, 23)},
    {"bias": torch.linspace(-3, 3, 23), "alibi": torch.tensor([1.0, 0.5, 0.25, 0.1])},
    {"softcap": 2.0},
    {"sinks": torch.tensor([1.0, -1.0, 0.0, 3.0])},
    {"dropout": (0.3, 5)},
    {"dropout": (1.0, 5)},
]


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("columns", [23, 1])
def test_right_gradients_break_nothing(dtype: torch.dtype, options: dict[str, Any], columns: int) -> None:
    if columns == 1:
        options = {name: value for name, value in options.items() if name not in {"mask", "bias"}}
    assert said(ran(dtype, columns=columns, **options)) == []


def test_one_key_that_takes_all_the_weight_leaves_rounding_alone() -> None:
    for dtype in ALL:
        assert said(ran(dtype, scale=40.0)) == []


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_equal_weights_that_round_alike_break_nothing(dtype: torch.dtype) -> None:
    call = ran(dtype, scale=0.0, columns=201)
    assert said(call) == []


@pytest.mark.parametrize("columns", [64, 128, 300])
def test_nearly_equal_weights_that_are_summed_in_blocks_break_nothing(columns: int) -> None:
    """CPU flash rounds dk and dv after each block of queries, and rows of dv that are nearly equal round alike."""
    for scale in (0.0, 0.02):
        generator = torch.Generator().manual_seed(columns)
        q, k, v, dout = (torch.randn(2, 2, n, 64, generator=generator) for n in (128, columns, columns, 128))
        q, k, v = ((x * scale).bfloat16().requires_grad_() for x in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v)
        found = torch.autograd.grad(out, (q, k, v), dout.bfloat16())
        call = Call(q.detach(), k.detach(), v.detach(), {"scale": 0.125}, out.detach())
        call.dout = dout.bfloat16()
        call.gradients.update(zip(("dq", "dk", "dv"), found, strict=True))
        assert find_violations(call) == []


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_a_row_without_gradient_is_seen(dtype: torch.dtype) -> None:
    call = ran(dtype)
    call["dk"][1, 0, 7] = 0.0
    (found,) = [one for one in said(call) if one.equation == "sum_j dK_j = 0"]
    assert found.total == 64 and found.index[:2] == (1, 0)


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.float32, 0.9), (torch.float16, 0.9), (torch.bfloat16, 0.5)], ids=str
)
def test_a_row_of_dv_too_small_is_seen(dtype: torch.dtype, factor: float) -> None:
    call = ran(dtype)
    call["dv"][0, 1, 3] *= factor
    assert "sum_j dV_j = sum_i dO_i" in equations(call)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_another_dropout_mask_in_the_backward_pass_is_seen(dtype: torch.dtype) -> None:
    right, other = ran(dtype, dropout=(0.3, 5)), ran(dtype, dropout=(0.3, 6))
    mixed = {**right, **{name: other[name] for name in ("dq", "dk", "dv")}}
    assert "<dV, V> = <dO, O>" in equations(mixed)
    only_keys = {**right, "dk": other["dk"]}
    assert "<dQ, Q> = <dK, K>" in equations(only_keys)


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"dropout": (0.2, 1)}], ids=str)
def test_a_wrong_row_of_dbias_is_seen(options: dict[str, Any]) -> None:
    for dtype in ALL:
        call = ran(dtype, bias=torch.zeros(4, 17, 23, dtype=dtype), **options)
        call["dbias"][2, 5, :8] = 0.0
        (found,) = said(call)
        assert (found.equation, found.count, found.total) == ("sum_j dbias_ij = 0", 1, 68)
        assert found.index == (2, 5, 0)


def test_what_is_not_finite_is_left_to_others() -> None:
    call = ran(torch.float32)
    call["dk"][1, 0, 7] = torch.nan
    call["dv"][0, 1] = torch.inf
    assert said(call) == []
    call["dv"][0, 0, 3] *= 0.9
    assert said(call)


def test_rows_of_no_key_count_for_nothing_by_either_convention() -> None:
    mask = (torch.arange(17) != 4)[:, None]
    call = ran(torch.float32, mask=mask)
    assert said(call) == []
    mean_of_values = {**call, "out": call["out"].clone()}
    mean_of_values["out"][:, :, 4] = 1.0
    assert said(mean_of_values) == []


def test_sizes_of_0_say_nothing() -> None:
    assert said(ran(torch.float32, rows=0)) == []
