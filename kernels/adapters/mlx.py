"""MLX 0.32's `mlx.core.fast.scaled_dot_product_attention` on the CPU, forward and backward."""

from typing import Any

from torch import Tensor, promote_types
from torch.utils.dlpack import from_dlpack

from kernels.adapters import call_foreign, import_adapted, refuse_empty_rows, require

_MX = import_adapted("mlx.core", "mlx[cpu]")


@refuse_empty_rows
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, bias: Tensor | None = None,
    causal: str | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Takes one of mask, bias and causal, and no bias or sinks of a wider dtype than q's."""
    require((mask is None) + (bias is None) + (causal is None) >= 2, "more than one of mask, bias and causal")
    added = [x.dtype for x in (bias, sinks) if x is not None]
    require(all(promote_types(q.dtype, dtype) == q.dtype for dtype in added), "a bias or sinks of a wider dtype")
    fixed = "causal" if causal else None if mask is None else _to_mlx(mask)
    names = [name for name, value in (("mask", bias), ("sinks", sinks)) if value is not None]

    def attend(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        options = {"mask": fixed, **dict(zip(names, rest, strict=True))}
        return _MX.fast.scaled_dot_product_attention(q, k, v, scale=scale, **options)

    def pull_back(gradient: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        found = _MX.vjp(attend, [*map(_to_mlx, inputs)], [_to_mlx(gradient)])[1]
        return tuple(map(from_dlpack, found))

    inputs = [x for x in (q, k, v, bias, sinks) if x is not None]
    return call_foreign(lambda *given: from_dlpack(attend(*map(_to_mlx, given))), pull_back, *inputs)


def _to_mlx(value: Tensor) -> Any:
    return _MX.array(value.detach().contiguous())


attention.capabilities = {  # type: ignore[attr-defined]
    "empty": False,
    "causal": ("bottom_right",),
    "rounds": ("scores", "weights"),
    "devices": ("cpu",),
}
