"""Tensors beside the arrays of other runtimes: handed over, taken back, compared."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def to_numpy(value: "Tensor", bfloat16: Any = "int16") -> Any:
    """An array with the elements. NumPy has no bfloat16: a dtype of such numbers, or their bits take its place."""
    import torch

    value = value.detach().contiguous()
    return value.view(torch.int16).numpy().view(bfloat16) if value.dtype is torch.bfloat16 else value.numpy()


def to_torch(array: Any, *, is_bfloat16: bool) -> "Tensor":
    """A tensor with a copy of the elements: a later call may write into the memory of the array."""
    import torch

    array = array.copy()
    return torch.from_numpy(array.view("int16")).view(torch.bfloat16) if is_bfloat16 else torch.from_numpy(array)


def is_other(mine: "Tensor", wanted: "Tensor") -> bool:
    """Whether two values of a model differ by more than rounding, to name a node. The oracle decides what is wrong.

    They do if an element is off within the first 60 % of its dtype's digits, of those of its size and of the largest's.

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
