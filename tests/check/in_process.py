"""A check without a worker around it, of attention functions that are written beside the test."""

from collections.abc import Callable
from typing import Any

from fuzz.check.check import check
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.subject_builder import Subject
from fuzz.check.torch_api.settings import configure_torch
from fuzz.protocol import Check, SubjectResult
from fuzz.protocol.failures import Failure
from tests.check.sources import source

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
    configure_torch()
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
    result = check(request, {subject.name: subject}, "cpu", lambda _: None, lambda: 0.0)
    assert result.rejected is None, result.rejected
    return result.results[0]


def is_failure(failure: Failure | None, kind: str, **fields: Any) -> bool:
    """Whether a failure is of that kind and has these fields, among others."""
    if failure is None or failure.kind != kind:
        return False
    return all(getattr(failure, name) == value for name, value in fields.items())
