"""Whether two values of a model differ by more than rounding, to name a node. The oracle decides what is wrong."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def is_other(mine: "Tensor", wanted: "Tensor") -> bool:
    """Whether an element is off by more than half of the digits of its dtype, of its size or of the largest's."""
    import torch

    if mine.shape != wanted.shape or mine.dtype != wanted.dtype:
        return True
    if not mine.is_floating_point():
        return not torch.equal(mine, wanted)
    share = torch.finfo(mine.dtype).eps ** 0.5
    mine, wanted = mine.double(), wanted.double()
    finite = wanted[wanted.isfinite()].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    return not torch.allclose(mine, wanted, rtol=share, atol=share * size, equal_nan=True)
