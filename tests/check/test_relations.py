"""Metamorphic relations: right functions keep all, and mistakes that implementations could share break one."""

import math
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.check.exceptions import Unsupported
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.metamorphic import find_violations
from fuzz.check.oracle.attention.relation_table import RELATIONS
from fuzz.check.subject_builder import available
from fuzz.protocol.failures import RelationBroken
from kernels.attention import attention
from tests.kernels.reference import math_attention

ALL = (torch.float32, torch.float16, torch.bfloat16)
EVERY = len(RELATIONS)


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def qkv(
    dtype: torch.dtype = torch.float32, rows: int = 17, columns: int = 21, heads: int = 4, kv_heads: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        draw(2, heads, rows, 16, seed=0, dtype=dtype),
        draw(2, kv_heads, columns, 16, seed=1, dtype=dtype),
        draw(2, kv_heads, columns, 16, seed=2, dtype=dtype),
    )


def said(attend: Any, dtype: torch.dtype = torch.float32, *, sizes: Any = None, **options: Any) -> list[RelationBroken]:
    call = Call(*qkv(dtype, **(sizes or {})), {"scale": 0.25, **options})
    return find_violations(attend, call, Random(0), EVERY)


def names(found: list[RelationBroken]) -> set[str]:
    return {one.relation for one in found}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": "top_left", "alibi": torch.tensor([1.0, 0.5, 0.25, 0.125])},
    {"causal": "bottom_right", "window": (3, -1), "sinks": torch.tensor([1.0, -1.0, 0.0, 3.0])},
    {"mask": draw(2, 1, 17, 21, seed=5) > 0.0, "softcap": 2.0},
    {"mask": (torch.arange(17) != 4)[:, None], "sinks": torch.tensor([1.0, -1.0, 0.0, 3.0])},
    {"bias": torch.linspace(-3, 3, 21).expand(4, 17, 21), "scale": -0.5},
]


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_right_functions_break_nothing(dtype: torch.dtype, options: dict[str, Any]) -> None:
    assert said(math_attention, dtype, **options) == []


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_kernels_and_backends_break_nothing(dtype: torch.dtype) -> None:
    q, k, v = qkv(dtype)
    assert (
        find_violations(attention, Call(q[:1], k[:1], v[:1], {"scale": 0.25, "causal": "top_left"}), Random(1), 6) == []
    )
    flash = available("cpu")["sdpa_flash"].attention
    assert flash is not None
    assert said(flash.function, dtype) == []


def shared(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    fault: str,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: str | None = None,
) -> Tensor:
    """Attention in float32 with one mistake."""
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    q, k, v = q.float(), k.float(), v.float()
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    rows, columns = q.shape[2], k.shape[2]
    if fault == "batch taken for head" and mask is not None and mask.shape[:2] == (2, 1):
        mask = mask.transpose(0, 1)
    scores = q @ k.mT
    if fault == "features read beyond":
        scores = scores + 0.1 * (q.shape[3] % 16)
        scores[..., 1::2] -= 0.1 * (q.shape[3] % 16)
    if fault == "bias before scale" and bias is not None:
        scores, bias = scores + bias, None
    scores = scores * (scale * scale if fault == "negative scale twice" and scale < 0 else scale)
    scores = scores if bias is None else scores + bias
    keep = torch.ones(rows, columns, dtype=torch.bool)
    if causal is not None:
        offset = columns - rows if causal == "bottom_right" else 0
        keep = keep.tril(offset + (fault == "one key ahead"))
    keep = keep if mask is None else keep & mask
    scores = scores.masked_fill(~keep, -math.inf)
    if fault == "maximum before scale":
        raw = (q @ k.mT).masked_fill(~keep, -math.inf).amax(-1, keepdim=True)
        weights = (scores - scale * raw).exp()
        weights = weights / weights.sum(-1, keepdim=True)
    else:
        weights = scores.softmax(-1).nan_to_num(0.0)
    if fault == "first tile not rescaled":
        weights[..., : min(columns, 8)] *= 1.01
    if fault == "last key lost" and columns % 2:
        weights[..., -1] = 0.0
    return (weights @ v).to(dtype)


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("bias before scale", {"bias": draw(4, 17, 21, seed=3)}, "-q and -scale"),
    ("one key ahead", {"causal": "bottom_right"}, "queries and keys cut off under causality"),
    ("one key ahead", {"causal": "top_left"}, "a mask for causal and window"),
    (
        "batch taken for head",
        {"mask": draw(2, 1, 17, 21, seed=4) > 0.0, "sizes": {"heads": 2}},
        "mask and bias expanded",
    ),
    ("negative scale twice", {}, "-q and -scale"),
    ("negative scale twice", {"scale": -0.25}, "-q and -scale"),
    ("features read beyond", {}, "features of 0 appended"),
    ("maximum before scale", {"scale": 8.0}, "-q and -scale"),
    ("first tile not rescaled", {}, "keys permuted"),
    ("last key lost", {}, "keys permuted"),
]
UNSEEN = [("first tile not rescaled", dtype) for dtype in ALL[1:]] + [("features read beyond", torch.bfloat16)]


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize(("fault", "options", "relation"), FAULTS, ids=lambda value: str(value)[:24])
def test_a_mistake_that_all_could_share_breaks_a_relation(
    dtype: torch.dtype, fault: str, options: dict[str, Any], relation: str
) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        if not given.keys() <= {"scale", "mask", "bias", "causal"}:
            raise Unsupported("it has no such parameter")
        return shared(q, k, v, fault=fault, **given)

    if (fault, dtype) in UNSEEN:
        pytest.skip("within a few units of rounding of this dtype")
    assert relation in names(said(attend, dtype, **options)), said(attend, dtype, **options)


def test_a_broken_relation_says_where_and_by_how_much() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = math_attention(q, k, v, **options)
        if k.shape[2] > 21:
            out[0, 2, 5, 7] = 100.0
        return out

    (found,) = [one for one in said(attend) if one.relation == "masked keys appended"]
    assert (found.count, found.total, found.index, found.left) == (1, 2176, (0, 2, 5, 7), 100.0)
    assert found.aspect == "rounding" and found.ratio > found.limit == 12


def test_a_function_may_refuse_a_changed_call() -> None:
    q, k, v = qkv()

    def attend(new_q: Tensor, new_k: Tensor, new_v: Tensor, **options: Any) -> Tensor:
        if new_k is not k or new_v is not v or options != {"scale": 0.25}:
            raise Unsupported("other keys")
        return math_attention(new_q, new_k, new_v, **options)

    assert find_violations(attend, Call(q, k, v, {"scale": 0.25}), Random(0), EVERY) == []


def test_numbers_that_are_not_finite_on_one_side_are_told_from_wrong_ones() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = math_attention(q, k, v, **options)
        return out / 0.0 if k.shape[2] > 21 else out

    (found,) = [one for one in said(attend) if one.relation == "masked keys appended"]
    assert found.aspect == "not_finite"


def test_as_many_are_tried_as_are_wanted() -> None:
    calls: list[int] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        calls.append(1)
        return math_attention(q, k, v, **options)

    assert find_violations(attend, Call(*qkv(), {"scale": 0.25}), Random(3), 2) == []
    assert 2 <= len(calls) <= 6


@pytest.mark.parametrize("options", [{"dropout": (0.5, 3)}, {"scale": math.inf}, {"alibi": torch.full((4,), math.nan)}])
def test_nothing_is_said_where_nothing_follows(options: dict[str, Any]) -> None:
    def attend(*_: Tensor, **_options: Any) -> Tensor:
        raise AssertionError("called")

    assert said(attend, **options) == []
    q, k, v = qkv()
    v[0, 0, 3] = torch.nan
    assert find_violations(attend, Call(q, k, v, {"scale": 1.0}), Random(0), EVERY) == []


def test_rows_of_no_key_are_never_compared() -> None:
    mask = (torch.arange(17) != 4)[:, None]

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = math_attention(q, k, v, **options)
        if "mask" in options:
            out = out.masked_fill(~options["mask"].any(-1, keepdim=True), torch.nan)
        return out

    assert said(attend, mask=mask) == []
