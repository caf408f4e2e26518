"""F.scaled_dot_product_attention on one of its backends, as an attention function."""

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuzz.check.attention.function import DEVICES, Function
from fuzz.check.exceptions import Unsupported


def function(backend: str) -> Function:
    """`F.scaled_dot_product_attention` on a backend ("MATH"), with the signature of attention functions."""
    chosen = getattr(SDPBackend, backend)

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
        added = mask if bias is None else bias
        if causal == "bottom_right":
            raise Unsupported("it does not take causal from the bottom right")
        if sum(item is not None for item in (mask, bias, causal)) > 1:
            raise Unsupported("it takes one of mask, bias and causal")
        if bias is not None and bias.dtype != q.dtype:
            raise Unsupported(f"it does not take a bias of {bias.dtype} for q of {q.dtype}")
        if added is not None:
            added = added.reshape((1,) * (4 - added.dim()) + added.shape)
        try:
            with sdpa_kernel([chosen]):
                return nn.functional.scaled_dot_product_attention(
                    q, k, v, added, is_causal=causal is not None, scale=scale, enable_gqa=k.shape[1] != q.shape[1]
                )
        except RuntimeError as error:
            if any(words in str(error) for words in _REFUSALS):
                raise Unsupported("the backend has no kernel for this case") from error
            raise

    # On CPU, flash adds up dk and dv in the inputs' dtype, block by block, and takes a cubic for the exponential.
    flash = ("weights", "sums", "exponentials")
    rounds = flash if chosen is SDPBackend.FLASH_ATTENTION else ("weights",)
    # On CUDA the backward passes of all but MATH add up dq with atomics, or may.
    repeats = DEVICES if chosen is SDPBackend.MATH else ("cpu",)
    attention.capabilities = {"rounds": rounds, "deterministic": repeats}  # type: ignore[attr-defined]
    return attention


#: The second is what the memory-efficient backend says of a bias that is expanded along keys.
_REFUSALS = ("No available kernel", "(*bias): last dimension must be contiguous")
