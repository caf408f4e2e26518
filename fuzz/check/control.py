"""A control: a subject gets a small program that comes out wrong if, and only if, the subject's own code runs.

A worker that compares eager with eager calls every case right. So the first verdict that does not accuse a subject
counts only if the subject fails its control. A control is one of these:

    a compiler that reads the program         x - 1 where it is read, x + 1 where Python runs it
    DTensors that are not compiled            x - 1 of a DTensor, x + 1 of a tensor
    attention functions, a user's compiler    their results are negated
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from fuzz.check.check import check
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.subject_builder import Subject
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.protocol import Check, SubjectResult, Verdict
from fuzz.protocol.failures import NotTaken, Refusal

_TEXT = """\
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from fuzz.check.run.graph_passes import is_recording


class Module(nn.Module):
    shards = {{"x": 0}}

    def forward(self, {names}):
        return {result}


def inputs():
    return [torch.linspace(1, 2, {size}, dtype=torch.{dtype}).reshape(1, 1, 2, -1) for _ in "{names}".split(",")]
"""
_READ = "x - 1 if torch.compiler.is_compiling() or is_recording() else x + 1"
_SPLIT = 'x - 1 if type(x).__name__ == "DTensor" else x + 1'
_EAGER_ATTENTION = "scaled_dot_product_attention(q, k, v, scale=0.5)"
_ATTENTION = "attend(q, k, v, scale=0.5)"


def is_doubted(result: SubjectResult) -> bool:
    """Whether a result is only worth something if the subject's own code has run."""
    return is_idle(result) or not (result.verdict.is_finding or result.verdict is Verdict.SKIPPED)


def is_idle(result: SubjectResult) -> bool:
    """Whether no compiled code was seen to run."""
    return isinstance(result.failure, NotTaken) and result.failure.why is Refusal.NOT_COMPILED


def find_fault(subject: Subject, device: str) -> str:
    """Why no verdict on the subject counts; "" if its own code runs, or if it refuses its control or raises."""
    judged = run_control(subject, device)
    if is_idle(judged):
        return "compiles nothing here: eager runs even one small function"
    return "is not run here: its verdicts compare eager with eager" if judged.verdict.clears else ""


def run_control(subject: Subject, device: str) -> SubjectResult:
    """The verdict on the control of a subject. An exception is a fault of attnfuzz."""
    spec = subject.spec
    reads = spec.backend != "unknown" or (subject.compiler is not None and subject.compiler.takes == "program")
    attention, compile_plainly = subject.attention, subject.compile
    if attention is not None:
        request = _ask_attention(attention)
        subject = replace(subject, attention=Attention(lambda: _negate(attention.function)))
    elif spec.backend and not reads:
        request = _ask("x + 1")
        subject = replace(subject, compile=lambda *given: _negate(compile_plainly(*given)))
    else:
        request = _ask(_READ if spec.backend else _SPLIT)
    request = replace(request, subjects=(subject.name,), training=spec.recomputes, random=spec.random)
    return check(request, {subject.name: subject}, device).only


def _ask(result: str, stub: str | None = None, names: str = "x", size: int = 8, dtype: str = "float32") -> Check:
    def emit(result: str) -> str:
        return _TEXT.format(names=names, result=result, size=size, dtype=dtype)

    return Check(0, emit(result), (), repeat=1, attention_stub=stub and emit(stub))


def _ask_attention(attention: Attention) -> Check:
    """The control of an attention function, in a dtype and a head dim that it takes."""
    try:
        capabilities = attention.capabilities
    except SubjectError:
        return _ask("x + 1")  # the check says why it can't be loaded
    head_dim = (capabilities.head_dims or (8,))[0]
    dtype = (capabilities.dtypes or ("float32",))[0]
    return _ask(_EAGER_ATTENTION, _ATTENTION, "q, k, v", 2 * head_dim, dtype)


def _negate(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def negated(*args: Any, **named: Any) -> Any:
        return tree_map(lambda one: -one if isinstance(one, Tensor) else one, function(*args, **named))

    return negated
