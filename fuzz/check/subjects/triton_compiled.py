"""The bundled Triton kernels inside a module that torch.compile compiles."""

from fuzz.check.attention.function import Attention
from fuzz.check.subjects.inductor import SUBJECT as INDUCTOR
from fuzz.check.subjects.subject import Subject
from fuzz.check.subjects.triton import load

SUBJECT = Subject("triton_compiled", INDUCTOR.compile, Attention(load, compiled=True))
