"""Wrong replacements of attention, wrong operations of attention, and the mistakes that Inductor plants itself."""

import functools
from collections.abc import Callable
from typing import Any

Change = Callable[..., Any]
_FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def _scale(sdpa: Any, *qkv: Any, change: Callable[[Any], Any], **options: Any) -> Any:
    return sdpa(*qkv, **{**options, "scale": change(options.get("scale"))})


def _option(sdpa: Any, *qkv: Any, name: str, change: Callable[[Any], Any], **options: Any) -> Any:
    return sdpa(*qkv, **{**options, name: change(options.get(name))})


#: By name: the pattern whose replacement is wrong, and what that calls in the place of F.scaled_dot_product_attention.
REPLACEMENTS: dict[str, tuple[int, Change]] = {
    "scale_dropped": (1, functools.partial(_scale, change=lambda scale: 1.0)),
    "scale_squared": (5, functools.partial(_scale, change=lambda scale: scale**2)),
    "mask_dropped": (14, functools.partial(_option, name="attn_mask", change=lambda mask: None)),
    "mask_negated": (15, functools.partial(_option, name="attn_mask", change=lambda mask: ~mask)),
    "causal_added": (11, functools.partial(_option, name="is_causal", change=lambda causal: True)),
    "queries_and_keys_swapped": (2, lambda sdpa, q, k, v, **options: sdpa(k, q, v, **options)),
    "heads_rolled": (9, lambda sdpa, q, k, v, **options: sdpa(q, k, v.roll(1, 1), **options)),
    "queries_reversed": (19, lambda sdpa, q, k, v, **options: sdpa(q, k, v, **options).flip(-2)),
    "output_transposed": (23, lambda sdpa, q, k, v, **options: sdpa(q, k, v, **options).transpose(1, 2)),
}


#: By name: what `inject_relu_bug_TESTING_ONLY` is set to, of Inductor's options for C++ and for Triton.
RELUS = {"relu_accuracy": "accuracy", "relu_compile_error": "compile_error", "relu_runtime_error": "runtime_error"}


def _ignore_last_key(
    q: Any, k: Any, v: Any, _dropout: float = 0.0, causal: bool = False, *, attn_mask: Any = None,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """Flash attention that ignores the last key if it is given a mask."""
    import torch

    scores = q.float() @ k.float().mT * (q.size(-1) ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        scores = (scores + attn_mask).index_fill_(-1, torch.tensor([k.size(-2) - 1]), float("-inf"))
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    out = torch.empty_like(q).copy_(scores.softmax(-1) @ v.float())
    return out, scores.logsumexp(-1).mT.contiguous().mT


def _compute_gradients(
    grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, _dropout: float, causal: bool, *, attn_mask: Any = None,
    scale: float | None = None, factor: float = 1.0,
) -> Any:  # fmt: skip
    """The backward pass of flash attention. The gradient of the query is multiplied by `factor`."""
    import torch

    scale = q.size(-1) ** -0.5 if scale is None else scale
    scores = q.float() @ k.float().mT * scale + (0.0 if attn_mask is None else attn_mask)
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    weights, grad = (scores - sums.unsqueeze(-1)).exp(), grad.float()
    of_scores = weights * (grad @ v.float().mT - (grad * out).sum(-1, keepdim=True)) * scale
    found = (factor * of_scores @ k.float(), of_scores.mT @ q.float(), weights.mT @ grad)
    return tuple(torch.empty_like(like).copy_(value) for like, value in zip((q, k, v), found, strict=True))


def _refuse_odd_sizes(grad: Any, q: Any, *rest: Any, **options: Any) -> Any:
    """The backward pass of flash attention, which raises for an odd number of features."""
    if q.size(-1) % 2:
        raise RuntimeError("the number of features must be even")
    return _compute_gradients(grad, q, *rest, **options)


def _scale_by_padded_size(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout: float = 0.0, causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """scaled_dot_product_attention that pads the features for its fused kernel, and takes the scale from their number.

    It is right on the MATH backend.
    """
    import torch

    aten = torch.ops.aten
    if not torch.backends.cuda.flash_sdp_enabled():
        math = aten._scaled_dot_product_attention_math  # noqa: SLF001
        return math(q, k, v, attn_mask, dropout, causal, scale=scale, enable_gqa=enable_gqa)[0]
    padded = -(-q.size(-1) // 16) * 16
    scale = (q.size(-1) ** -0.5 if scale is None else scale) * (q.size(-1) / padded) ** 0.5
    mask = attn_mask
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    fused = aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
    return fused(q, k, v, dropout, causal, attn_mask=mask, scale=scale)[0]


#: By name: an operation of aten, its dispatch key, and the wrong kernel. Eager and compiled code call it.
OPERATIONS: dict[str, tuple[str, str, Change]] = {
    "last_key_ignored": (_FLASH, "CPU", _ignore_last_key),
    "query_gradient_doubled": (f"{_FLASH}_backward", "CPU", functools.partial(_compute_gradients, factor=2.0)),
    "odd_sizes_refused": (f"{_FLASH}_backward", "CPU", _refuse_odd_sizes),
    "scale_of_padded_size": ("scaled_dot_product_attention", "CompositeImplicitAutograd", _scale_by_padded_size),
}
