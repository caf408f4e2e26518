"""The bundled Triton kernels: native on CUDA, under Triton's interpreter on CPU."""

import importlib

from fuzz.check.attention.function import Attention, Function
from fuzz.check.subjects.subject import Subject


def load() -> Function:
    """The kernels' function, imported when a case first needs it."""
    function: Function = importlib.import_module("kernels.attention").attention
    return function


SUBJECT = Subject("triton", attention=Attention(load))
