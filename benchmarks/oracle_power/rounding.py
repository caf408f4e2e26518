"""Rounding modes that kernels use besides round to nearest even: towards zero, and to the ten bits of TF32."""

import torch
from torch import Tensor


def truncate(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 x rounded towards zero to float16 or bfloat16, as float32."""
    nearest = x.to(dtype)
    over = nearest.float().abs() > x.abs()
    return (nearest.view(torch.int16) - over.to(torch.int16)).view(dtype).float()


def keep_ten_bits(x: Tensor) -> Tensor:
    """float32 x with TF32's ten bits of fraction, rounded to nearest."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
