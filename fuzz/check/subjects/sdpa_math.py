"""F.scaled_dot_product_attention on its MATH backend, which the reference of the kernels equals bit for bit."""

import importlib

from torch.nn.attention import SDPBackend

from fuzz.check.attention.function import Function
from fuzz.check.attention.sdpa import backend


def _reference() -> Function:
    function: Function = importlib.import_module("kernels.reference").math_attention
    return function


SUBJECT = backend("sdpa_math", SDPBackend.MATH, _reference)
