"""The reference is PyTorch's MATH backend, bit for bit."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tests.kernels.reference import math_attention
from tests.kernels.trial import DEVICE, NAMES

SHAPES = (
    (2, 2, 17, 17, 16, 16),
    (4, 2, 5, 33, 24, 24),
    (3, 1, 64, 64, 64, 64),
    (1, 1, 1, 7, 8, 16),
    (2, 1, 33, 5, 1, 3),
)
"""heads, kv_heads, rows, columns, dim, value_dim"""
SCALES = (None, 0.3, -0.5, 1.0, 7.0)
MASKS = ("none", "causal", "keep", "empty rows", "bias")


def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    heads, kv_heads, rows, columns, dim, value_dim = shape
    sizes = ((2, heads, rows, dim), (2, kv_heads, columns, dim), (2, kv_heads, columns, value_dim))
    q, k, v = (torch.randn(size, device=DEVICE).to(dtype) for size in sizes)
    return q, k, v


def masks(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    rows, columns = shape[2:4]
    if kind == "keep":
        return {"mask": torch.rand(rows, columns, device=DEVICE) < 0.8}
    if kind == "empty rows":
        return {"mask": torch.rand(rows, 1, device=DEVICE) < 0.5}
    return {"bias": torch.randn(2, 1, rows, columns, device=DEVICE).to(dtype)} if kind == "bias" else {}


def backend(q: Tensor, k: Tensor, v: Tensor, kind: str, extra: dict[str, Any], scale: float | None) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=extra.get("mask", extra.get("bias")),
            is_causal=kind == "causal",
            scale=scale,
            enable_gqa=q.size(1) != k.size(1),
        )


@pytest.mark.samples
@pytest.mark.parametrize("dtype", NAMES.values(), ids=NAMES)
def test_the_reference_is_the_math_backend_bit_for_bit(dtype: torch.dtype) -> None:
    tried = 0
    for shape, scale, kind in itertools.product(SHAPES, SCALES, MASKS):
        q, k, v = inputs(shape, dtype)
        extra = masks(kind, shape, dtype)
        expected = backend(q, k, v, kind, extra, scale)
        causal = "top_left" if kind == "causal" else None
        got = math_attention(q, k, v, scale=q.size(-1) ** -0.5 if scale is None else scale, causal=causal, **extra)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, msg=f"{shape} {scale} {kind}")
        tried += 1
    assert tried >= 100


def test_gradients_of_the_reference_are_those_of_the_math_backend_in_float64() -> None:
    for kind in MASKS:
        q, k, v = inputs(SHAPES[1], torch.float64)
        extra = masks(kind, SHAPES[1], torch.float64)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        causal = "top_left" if kind == "causal" else None
        mine = torch.autograd.grad(math_attention(q, k, v, scale=-0.4, causal=causal, **extra).sum(), leaves)
        theirs = torch.autograd.grad(backend(q, k, v, kind, extra, -0.4).sum(), leaves)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:Dropout mask should only be used for testing:UserWarning")
def test_dropout_with_a_given_mask_is_that_of_the_math_operator() -> None:
    q, k, v = inputs(SHAPES[0], torch.float32)
    kept = torch.rand(2, 2, 17, 17, device=DEVICE) < 0.7
    expected, _ = torch.ops.aten._scaled_dot_product_attention_math(
        q, k, v, dropout_p=0.3, dropout_mask=kept, scale=0.25
    )
    got = math_attention(q, k, v, scale=0.25, dropout_p=0.3, dropout_mask=kept)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_a_row_without_a_key_gives_0() -> None:
    q, k, v = inputs(SHAPES[0], torch.float32)
    mask = torch.ones(17, 17, dtype=torch.bool, device=DEVICE)
    mask[3] = False
    got = math_attention(q, k, v, scale=0.25, mask=mask)
    assert (got[:, :, 3] == 0).all() and got.isfinite().all()
