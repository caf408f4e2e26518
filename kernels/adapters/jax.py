"""JAX 0.10's `jax.nn.dot_product_attention` on the CPU, compiled by XLA, forward and backward."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from kernels.adapters import add_axes, call_foreign, import_adapted, refuse_empty_rows

_JAX = import_adapted("jax", "jax")
_eager = _JAX.nn.dot_product_attention
_compiled = _JAX.jit(_eager, static_argnames=("is_causal", "local_window_size"))


@refuse_empty_rows
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, mask: Tensor | None = None, bias: Tensor | None = None,
    causal: str | None = None, window: tuple[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """Windows count from the top left. A `scale` of None is JAX's default."""
    options = {
        "mask": _to_jax(add_axes(mask)),
        "scale": scale,
        "is_causal": causal is not None,
        "local_window_size": window and tuple(q.shape[2] + k.shape[2] if side < 0 else side for side in window),
    }
    # JAX 0.10 compiles no product of float16 on the CPU.
    attend = functools.partial(_eager if q.dtype == torch.float16 else _compiled, **options)

    def pull_back(gradient: Tensor, *inputs: Tensor | None) -> tuple[Any, ...]:
        return tuple(map(_to_torch, _JAX.vjp(attend, *map(_to_jax, inputs))[1](_to_jax(gradient))))

    dense = [x.transpose(1, 2) for x in (q, k, v)]
    return call_foreign(
        lambda *inputs: _to_torch(attend(*map(_to_jax, inputs))), pull_back, *dense, add_axes(bias)
    ).transpose(1, 2)


def _to_jax(value: Tensor | None) -> Any:
    return None if value is None else _JAX.dlpack.from_dlpack(value.detach().contiguous(), copy=True)


def _to_torch(value: Any) -> Any:
    return None if value is None else from_dlpack(value).clone()


attention.capabilities = {  # type: ignore[attr-defined]
    "value_dim": False,
    "empty": False,
    "causal": ("top_left",),
    "rounds": ("scores", "weights"),  # gradients of weights
    "devices": ("cpu",),
}
