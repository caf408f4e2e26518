"""FlagGems 5.0: `scaled_dot_product_attention` and `flash_attention_forward`, on CUDA."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from kernels.adapters import import_adapted, require

_OPS = import_adapted("flag_gems.ops.attention", "flag-gems")
_FLASH = import_adapted("flag_gems.ops.flash_kernel", "flag-gems").flash_fwd_kernel


def _take_first(
    bench: Callable[[Any], list[float]], configs: Iterable[Any], _args: object, _kwargs: object
) -> tuple[Any, dict[Any, list[float]]]:
    """The first configuration that the device has room for: FlagGems compiles and times 36 for each new length."""
    timed = ((config, bench(config)) for config in configs)
    first, times = next((item for item in timed if item[1][0] < math.inf), (None, [math.inf]))
    return first, {first: times}


for _kernel in ("_attn_fwd", "_attn_bwd"):
    getattr(_OPS, _kernel).fn.policy = _take_first
_FLASH.fn.configs = _FLASH.fn.configs[:1]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: str | None = None,
) -> Tensor:
    """`scaled_dot_product_attention`, forward and backward."""
    require(causal != "bottom_right", "causal from the bottom right")
    require((mask is None) + (bias is None) + (causal is None) >= 2, "more than one of mask, bias and causal")
    added = mask if bias is None else bias
    if added is not None:
        added = added.reshape((1,) * (4 - added.dim()) + added.shape)
    out: Tensor = _OPS.scaled_dot_product_attention(
        q, k, v, added, is_causal=causal is not None, scale=scale, enable_gqa=k.shape[1] != q.shape[1]
    )
    return out


attention.capabilities = {  # type: ignore[attr-defined]
    "head_dims": (16, 32, 64, 128, 256),
    "value_dim": False,
    "empty": False,
    "devices": ("cuda",),
    "rounds": ("weights", "sums"),
}


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: str | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi: Tensor | None = None,
) -> Tensor:
    """`flash_attention_forward`, whose windows and slopes count from the bottom right."""
    counted = causal or window or alibi is not None
    require(not counted or causal == "bottom_right" or q.shape[2] == k.shape[2], "a corner other than the bottom right")
    left, right = window or (-1, -1)
    out: Tensor = _OPS.flash_attention_forward(
        *(x.transpose(1, 2) for x in (q, k, v)),
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        causal is not None,
        False,
        scale=scale,
        softcap=softcap or 0.0,
        window_size_left=left,
        window_size_right=right,
        alibi_slopes=alibi,
    )[0]
    return out.transpose(1, 2)


flash.capabilities = {  # type: ignore[attr-defined]
    "dtypes": ("float16", "bfloat16"),
    "max_head_dim": 256,
    "value_dim": False,
    "training": False,
    "empty": False,
    "devices": ("cuda",),
}
