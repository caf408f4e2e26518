"""Whether two values of a model differ by more than rounding, to name a node. The oracle decides what is wrong."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def is_other(mine: "Tensor", wanted: "Tensor") -> bool:
    """Whether an element is off within the first 60 % of its dtype's digits, of those of its size and of the largest's.

    Rounding moves the last digits of a sum, and a first wrong value that is missed is found one node later.
    """
    import torch

    if mine.shape != wanted.shape or mine.dtype != wanted.dtype:
        return True
    if not mine.is_floating_point():
        return not torch.equal(mine, wanted)
    share = torch.finfo(mine.dtype).eps ** 0.6
    mine, wanted = mine.double(), wanted.double()
    finite = wanted[wanted.isfinite()].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    return not torch.allclose(mine, wanted, rtol=share, atol=share * size, equal_nan=True)
