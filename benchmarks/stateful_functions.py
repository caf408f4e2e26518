"""Attention functions that are right in a new process, and wrong after certain earlier calls. Each is a subject:

python -m fuzz.run --subject benchmarks.stateful_functions:scale_cached --budget 5m

benchmarks/planted.py --memory measures how long each takes to be found with the calls that it needs.
"""

import itertools

import torch
from torch import Tensor

from benchmarks.faulty_functions import attend

FUNCTIONS = ("scale_cached", "mask_cached", "workspace_kept", "every_seventh", "dtype_remembered")

_scales: dict[object, float] = {}
_masks: dict[object, Tensor] = {}
_workspace = torch.zeros(0, dtype=torch.float64)
_calls = itertools.count(1)
_dtype: torch.dtype | None = None


def scale_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: str | None = None,
) -> Tensor:
    """The first scale of each head_dim and dtype is that of all later calls."""
    first = _scales.setdefault((q.shape[-1], q.dtype), scale)
    return attend(q, k, v, scale=first, mask=mask, bias=bias, causal=causal)


def mask_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: str | None = None,
) -> Tensor:
    """The first mask of each shape is that of all later calls."""
    first = None if mask is None else _masks.setdefault(tuple(mask.shape), mask.clone())
    return attend(q, k, v, scale=scale, mask=first, bias=bias, causal=causal)


def workspace_kept(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: str | None = None,
) -> Tensor:
    """Sums of keys go to a workspace that is cleared when it grows; a shorter call finds the sums of a longer call."""
    global _workspace  # noqa: PLW0603 - the defect
    right = attend(q, k, v, scale=scale, mask=mask, bias=bias, causal=causal)
    rest = _workspace[k.shape[2] :].sum()
    if k.shape[2] > len(_workspace):
        _workspace = torch.zeros(k.shape[2], dtype=torch.float64)
    _workspace[: k.shape[2]] = k.detach().double().sum((0, 1, 3))
    return right + rest.to(right.dtype)


def every_seventh(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: str | None = None,
) -> Tensor:
    """Every seventh call is off by half."""
    right = attend(q, k, v, scale=scale, mask=mask, bias=bias, causal=causal)
    return right * 1.5 if next(_calls) % 7 == 0 else right


def dtype_remembered(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: str | None = None,
) -> Tensor:
    """From the first call in low precision on, all results are rounded to its dtype."""
    global _dtype  # noqa: PLW0603 - the defect
    if q.dtype in (torch.float16, torch.bfloat16):
        _dtype = _dtype or q.dtype
    right = attend(q, k, v, scale=scale, mask=mask, bias=bias, causal=causal)
    return right.to(_dtype or q.dtype).to(q.dtype)
