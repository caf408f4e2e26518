"""FlagGems 5.0 on CUDA: `scaled_dot_product_attention`, and its flash kernels with dense, packed and paged keys."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor

from kernels.adapters import HEAD_DIMS, add_axes, import_adapted, read_window, require

_OPS = import_adapted("flag_gems.ops.attention", "flag-gems")
_FLASH = import_adapted("flag_gems.ops.flash_kernel", "flag-gems").flash_fwd_kernel


def _choose(
    bench: Callable[[Any], list[float]], configs: Iterable[Any], _args: object, options: dict[str, Any]
) -> tuple[Any, dict[Any, list[float]]]:
    """For head_dim 32 and 128 the largest configuration that fits, else the smallest. FlagGems times up to 36."""
    ordered = list(configs) if options.get("BLOCK_DMODEL") in (32, 128) else list(configs)[::-1]
    return next(config for config in ordered if bench(config)[0] < float("inf")), {}


for _kernel in ("_attn_fwd", "_attn_bwd"):
    getattr(_OPS, _kernel).fn.policy = _choose
_FLASH.fn.configs = _FLASH.fn.configs[-1:]


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, bias: Tensor | None = None,
    causal: str | None = None,
) -> Tensor:  # fmt: skip
    """`scaled_dot_product_attention`, forward and backward; backward for contiguous tensors, which it asserts."""
    require(causal != "bottom_right", "causal from the bottom right")
    require((mask is None) + (bias is None) + (causal is None) >= 2, "more than one of mask, bias and causal")
    added = add_axes(mask if bias is None else bias)
    out: Tensor = _OPS.scaled_dot_product_attention(
        q, k, v, added, is_causal=causal is not None, scale=scale, enable_gqa=k.shape[1] != q.shape[1]
    )
    if out.requires_grad:
        require(all(x.is_contiguous() for x in (q, k, v)), "gradients of strided tensors")
        out.register_hook(Tensor.contiguous)
    return out


def flash(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: str | None = None,
    window: tuple[int, int] | None = None, softcap: float | None = None, alibi: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`flash_attention_forward`."""
    require(all(x.stride(3) == 1 for x in (q, k, v)), "a strided last axis")
    is_free = q.shape[2] == k.shape[2] or not (causal or window or alibi is not None)
    require(is_free or causal == "bottom_right", "a corner other than the bottom right")
    left, right = read_window(causal, window)
    out: Tensor = _OPS.flash_attention_forward(
        *(x.transpose(1, 2) for x in (q, k, v)),
        *(None, None, q.shape[2], k.shape[2], 0.0, causal is not None, False),
        scale=scale,
        softcap=softcap or 0.0,
        window_size_left=left,
        window_size_right=right,
        alibi_slopes=alibi,
    )[0]
    return out.transpose(1, 2)


def packed(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, max_seqlen_q: int, max_seqlen_k: int, scale: float,
    cu_seqlens_k: Tensor | None = None, seqused_k: Tensor | None = None, block_table: Tensor | None = None,
    causal: str | None = None, window: tuple[int, int] | None = None, softcap: float | None = None,
    alibi: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`flash_attn_varlen_func`."""
    require(causal or (window is None and alibi is None), "windows and slopes from the top left")
    out: Tensor = _OPS.flash_attn_varlen_func(
        q,
        k,
        v,
        max_seqlen_q,
        cu_seqlens_q,
        max_seqlen_k,
        cu_seqlens_k=cu_seqlens_k,
        seqused_k=seqused_k,
        softmax_scale=scale,
        causal=causal is not None,
        window_size=read_window(causal, window),
        softcap=softcap or 0.0,
        alibi_slopes=alibi,
        block_table=block_table,
    )
    return out


_LIMITS = {"value_dim": False, "empty": False, "devices": ("cuda",)}
attention.capabilities = _LIMITS | {  # type: ignore[attr-defined]
    "head_dims": (16, 32, 64, 128, 256),
    "causal": ("top_left",),
    "rounds": ("weights", "sums"),
}
_FLASH_LIMITS = _LIMITS | {"dtypes": ("float16", "bfloat16"), "max_head_dim": 256, "training": False}
flash.capabilities = _FLASH_LIMITS  # type: ignore[attr-defined]
_VARLEN_LIMITS = _FLASH_LIMITS | {"head_dims": HEAD_DIMS, "empty": True}
packed.capabilities = _VARLEN_LIMITS | {"layout": "packed"}  # type: ignore[attr-defined]
paged = partial(packed)
paged.capabilities = _VARLEN_LIMITS | {"layout": "paged"}  # type: ignore[attr-defined]
