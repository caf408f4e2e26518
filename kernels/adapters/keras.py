"""Keras 3.15's `keras.ops.dot_product_attention` on its torch backend, forward and backward."""

import os

from torch import Tensor

from kernels.adapters import add_axes, import_adapted, refuse_empty_rows, require

os.environ.setdefault("KERAS_BACKEND", "torch")
_OPS = import_adapted("keras", "keras").ops


@refuse_empty_rows
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, mask: Tensor | None = None, bias: Tensor | None = None,
    causal: str | None = None,
) -> Tensor:  # fmt: skip
    """A `scale` of None is Keras' default."""
    require(mask is None or bias is None, "mask and bias")
    dense = [x.transpose(1, 2) for x in (q, k, v)]
    out: Tensor = _OPS.dot_product_attention(
        *dense, bias=add_axes(bias), mask=add_axes(mask), scale=scale, is_causal=causal is not None
    )
    return out.transpose(1, 2)


attention.capabilities = {"causal": ("top_left",), "devices": ("cpu",)}  # type: ignore[attr-defined]
