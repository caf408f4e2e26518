"""torch's `flex_attention`, compiled: forward and backward on CUDA, forward on the CPU."""

from typing import Any

import torch
import torch._dynamo.config as dynamo_config
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from kernels.adapters import HEAD_DIMS, read_window, require

#: On the CPU the C++ for a captured integer that varies does not compile (torch 2.11 to 2.13), so nothing is dynamic.
_DYNAMIC = {"cpu": False, "cuda": None}
_COMPILED = {name: torch.compile(flex_attention, fullgraph=True, dynamic=value) for name, value in _DYNAMIC.items()}
#: `kernel_options`, and blocks of block masks with them.
_TILES: Any = dict.fromkeys(("BLOCK_M", "BLOCK_N", "BLOCK_N1", "BLOCK_M2"), 64) | {"BLOCK_M1": 32, "BLOCK_N2": 32}
_BLOCKS: Any = ((128, {}), (256, {"FORCE_USE_FLEX_ATTENTION": True}), (128, _TILES), (64, _TILES))


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, bias: Tensor | None = None,
    causal: str | None = None, window: tuple[int, int] | None = None, softcap: float | None = None,
    alibi: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Scores are modified for softcap, alibi and bias; mask, causal and window make a block mask, sized by kv_len."""
    on_cpu = q.device.type == "cpu"
    require(not (on_cpu and q.requires_grad), "gradients on the CPU")
    sizes = (*q.shape[:3], k.shape[2])
    offset = k.shape[2] - q.shape[2] if causal == "bottom_right" else 0
    left, right = read_window(causal, window)
    kept = None if mask is None else mask.expand(sizes)
    added = None if bias is None else bias.expand(sizes)

    def modify(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if alibi is not None:
            score = score - alibi[h] * (i + offset - j).abs()
        return score if added is None else score + added[b, h, i, j]

    def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        keeps = j >= 0 if kept is None else kept[b, h, i, j]
        if left >= 0:
            keeps = keeps & (j >= i + offset - left)
        return keeps if right < 0 else keeps & (j <= i + offset + right)

    block, options = _BLOCKS[k.shape[2] % len(_BLOCKS)]
    batch, heads = sizes[:2] if kept is not None else (None, None)
    blocks = None
    if kept is not None or left >= 0 or right >= 0:
        blocks = create_block_mask(keep, batch, heads, q.shape[2], k.shape[2], q.device, BLOCK_SIZE=block)
    with dynamo_config.patch(recompile_limit=1 << 16, accumulated_recompile_limit=1 << 16):
        out: Tensor = _COMPILED[q.device.type](
            q,
            k,
            v,
            score_mod=None if softcap is None and alibi is None and added is None else modify,
            block_mask=blocks,
            scale=scale,
            enable_gqa=k.shape[1] != q.shape[1],
            kernel_options=None if on_cpu else options,
        )
    return out


attention.capabilities = {  # type: ignore[attr-defined]
    "head_dims": HEAD_DIMS[1:],
    "empty": False,
    "deterministic": ("cpu",),
}
