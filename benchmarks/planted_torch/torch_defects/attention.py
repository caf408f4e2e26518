"""Wrong replacements of attention, wrong operations of attention, and the mistakes that Inductor plants itself."""

import functools
from collections.abc import Callable
from typing import Any

Change = Callable[..., Any]


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


#: By name: an operation of aten, its dispatch key, and the wrong kernel. Eager and compiled code call it.
OPERATIONS: dict[str, tuple[str, str, Change]] = {
    "last_key_ignored": ("_scaled_dot_product_flash_attention_for_cpu", "CPU", _ignore_last_key)
}
