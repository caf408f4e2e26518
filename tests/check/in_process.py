"""Hand-written sources as generators.emit prints them, planted subjects, and checks without a worker around them."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fuzz.ask.question import Question, build_check
from fuzz.check.check import check
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.program import Execution, Program, execute
from fuzz.check.run.subject_builder import Subject, find
from fuzz.check.torch_api.settings import configure_torch
from fuzz.experiments import Trial
from fuzz.protocol import Check, Result, SubjectResult
from fuzz.protocol.failures import Failure
from generators.program.case import Case
from generators.program.emit import source as emit

_TEXT = """
import torch
import torch.nn.functional as F
from torch import nn

B, H, S, D = {dims}


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v, *rest):
{body}


def inputs():
    q, k, v = (torch.randn({layout}, generator=rng(seed)).to(torch.{dtype}) for seed in range(3))
    return [q, k, v{extra}]
"""


def source(
    *body: str, dims: str = "2, 4, 17, 16", layout: str = "B, H, S, D", dtype: str = "float32", extra: str = ""
) -> str:
    """A module whose forward has the lines of `body`, with q, k, v of one shape and the expressions in `extra`."""
    lines = "\n".join(" " * 8 + line for line in body)
    return _TEXT.format(dims=dims, body=lines, layout=layout, dtype=dtype, extra=f", {extra}" if extra else "")


def is_nan_with_a_negative_scale() -> bool:
    """Whether eager's fused attention is NaN for a negative scale with `is_causal`, as in torch 2.13.0."""
    q = torch.ones(1, 1, 2, 4)
    return bool(functional.scaled_dot_product_attention(q, q, q, is_causal=True, scale=-0.5).isnan().any())


def plain(dtype: str = "float32") -> str:
    """Attention as everybody writes it."""
    return source("return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1) @ v", dtype=dtype)


_ADDED = "return ((q @ k.transpose(-2, -1) / 4.0) + rest[0]).softmax(dim=-1) @ v"
_CAUSAL = "torch.ones(S, S).tril().bool()"

#: Programs that eager runs and torch 2.13.0 does not compile rightly. corpus/known has these bugs and others.
WRONG = {
    "softmax over queries": source("return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-2) @ v"),
    "mask of one dimension": source(_ADDED, extra="torch.randn(S, generator=rng(3))"),  # an exception
}

#: Programs that differ from eager by no more than rounding.
RIGHT = {
    "mask of three dimensions": source(_ADDED, extra="torch.randn(H, S, S, generator=rng(3))"),
    "boolean mask added to float32": source(_ADDED, extra=_CAUSAL),
    "one key": source("return (q @ k[:, :, :1].transpose(-2, -1) / 4.0).softmax(dim=-1) @ v[:, :, :1]"),
    "expanded keys": source(
        "return (q @ k[:, :1].expand(B, H, S, D).transpose(-2, -1) / 4.0).softmax(dim=-1) @ v", dtype="bfloat16"
    ),
    "softmax in float32": source(
        "return (q @ k.transpose(-2, -1) / 4.0).float().softmax(dim=-1).to(q.dtype) @ v", dtype="float16"
    ),
    "fused": source("return F.scaled_dot_product_attention(q, k, v, is_causal=True)", dtype="bfloat16"),
    "ties in a ReLU": source(
        "hidden = F.relu((q - q.roll(1, dims=-1).roll(-1, dims=-1)) + k @ v.transpose(-2, -1) @ v * 1e-3)",
        "return hidden @ v.transpose(-2, -1)",
    ),
}


EAGER = "return ((q @ k.transpose(-2, -1)) * {scale}).softmax(-1) @ v"
DROPPED = "return F.dropout(((q @ k.transpose(-2, -1)) * {scale}).softmax(-1), 0.2) @ v"

Function = Callable[..., Any]


def run_subject(
    subject: Function | Subject,
    *,
    training: bool = False,
    dropout: bool = False,
    scale: float = 0.25,
    text: str = "",
    attention_stub: str = "",
    repeat: int = 2,
    settings: dict[str, Any] | None = None,
    **options: str,
) -> SubjectResult:
    """The result of a function or subject on `text` (default: plain attention); `options` are those of `source`."""
    if not isinstance(subject, Subject):
        function = subject
        subject = Subject("asked", attention=Attention(lambda: function))
    keywords = ", dropout=(0.2, 0)" if dropout else ""
    request = Check(
        id=0,
        source=text or source((DROPPED if dropout else EAGER).format(scale=scale), **options),
        subjects=(subject.name,),
        training=training,
        random=dropout,
        repeat=repeat,
        settings=settings or {},
        attention_stub=attention_stub or source(f"return attend(q, k, v, scale={scale}{keywords})", **options),
    )
    return only(check_here(request, subject))


def judge_case(case: Case, subject: Subject | str, *experiments: Trial) -> SubjectResult:
    """The result of a case under one subject."""
    subject = find(subject) if isinstance(subject, str) else subject
    return only(check_here(build_check(Question(case, (subject.name,), experiments)), subject))


def run_case(case: Case, change: Callable[[Tensor], Tensor] | None = None) -> Execution:
    """What eager makes of a case, whose tensors `change` changes first."""
    program = Program(emit(case))
    module = program.module(case.training)
    try:
        return execute(module, module, program.calls(module, change), training=case.training)
    finally:
        program.close()


def check_here(request: Check, *subjects: Subject) -> Result:
    """What a worker answers."""
    configure_torch()
    return check(request, {subject.name: subject for subject in subjects}, "cpu")


def only(result: Result) -> SubjectResult:
    """The one result about a case that eager takes."""
    assert result.rejected is None, result.rejected
    (found,) = result.results
    return found


def changing(change: Callable[[Any], Any], name: str = "package.module:planted") -> Subject:
    """A subject whose results are those of eager, changed."""
    return Subject(name, lambda module, _: lambda *inputs: change(module(*inputs)))


@contextmanager
def planted(name: str, wrong: Callable[..., Any], key: str = "CPU") -> Iterator[None]:
    """In this context the aten operation `name` is `wrong`, for a dispatch key."""
    with warnings.catch_warnings(), torch.library._scoped_library("aten", "IMPL") as library:
        warnings.simplefilter("ignore")
        library.impl(name, wrong, key)
        yield


def is_failure(failure: Failure | None, kind: str, **fields: Any) -> bool:
    """Whether a failure is of that kind and has these fields, among others."""
    if failure is None or failure.kind != kind:
        return False
    return all(getattr(failure, name) == value for name, value in fields.items())
