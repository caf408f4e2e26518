"""The bundled Triton kernels: native on CUDA, under Triton's interpreter on CPU."""

import importlib

from fuzz.check.attention.function import Attention, Function
from fuzz.check.subjects.subject import Subject


def load() -> Function:
    """The kernels' function, imported when a case first needs it. Raises ImportError where they can't run."""
    refusal = importlib.import_module("kernels.interpreter").refusal()
    if refusal:
        raise ImportError(refusal)
    function: Function = importlib.import_module("kernels.attention").attention
    return function


SUBJECT = Subject("triton", attention=Attention(load))
