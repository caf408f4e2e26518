"""The calls of scaled_dot_product_attention that replacements make, in eager and forward and backward."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_map_only

from fuzz.check.exceptions import SubjectError, as_failure
from fuzz.check.oracle.eager_audit import Audit
from fuzz.check.rewrite_match import CALL, RewriteMatch
from fuzz.check.torch_internals import wrap
from fuzz.protocol.failures import Failure, FaultyOperation
from fuzz.protocol.rewrites import WrongRewrite

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments and options of a call of scaled_dot_product_attention."""
_HEADS = 3
"""The arguments that may want a gradient: query, key and value."""


def list_calls(match: RewriteMatch) -> list[Arguments]:
    """The calls that the replacement makes on the operands of the match, without dropout; none if it raises."""
    found: list[Arguments] = []

    def make_noting(_: Any) -> Any:
        def call_and_note(*args: Any, **options: Any) -> Tensor:
            found.append((args, {**options, "dropout_p": 0.0}))
            return attend(*args, backend=SDPBackend.MATH, **found[-1][1])[0]

        return call_and_note

    try:
        function, given = match.read_replacement()
        with wrap(*CALL, make_noting):
            function(*given)
    except (RuntimeError, TypeError, ValueError, IndexError, SubjectError):
        return []
    return found


def attend(
    *args: Any, gradient: Tensor | None = None, backend: SDPBackend | None = None, **options: Any
) -> tuple[Tensor, ...]:
    """The result of a call, and with `gradient` the gradients of query, key and value. Raises as the call does.

    backend: None for the backend that torch chooses
    """
    heads = tuple(value.detach().requires_grad_(gradient is not None) for value in args[:_HEADS])
    chosen: AbstractContextManager[None] = nullcontext() if backend is None else sdpa_kernel([backend])
    with torch.set_grad_enabled(gradient is not None), chosen:
        out: Tensor = scaled_dot_product_attention(*heads, *args[_HEADS:], **options)
        gradients = () if gradient is None else torch.autograd.grad(out, heads, gradient)
    return (out.detach(), *gradients)


def find_faulty_call(match: RewriteMatch) -> FaultyOperation | None:
    """`SDPA` as an operation that eager computes wrongly, forward or backward, on the operands of the match.

    The MATH backend in float64 gives the truth. The limits are those of `Audit`.
    """
    audit = Audit()
    is_training = any(name.startswith("tangents") for name in match.operands)
    for args, options in list_calls(match):
        with suppress(RuntimeError):  # as in `compare_exactly`
            given = {**options, "gradient": draw_gradient(args)} if is_training else options
            audit.compare(_OPERATION, _attend_on_math, (args, given), attend(*args, **given))
    return audit.faulty


_OPERATION = torch.ops.aten.scaled_dot_product_attention.default


def _attend_on_math(*args: Any, **options: Any) -> tuple[Tensor, ...]:
    return attend(*args, backend=SDPBackend.MATH, **options)


def draw_gradient(args: tuple[Any, ...]) -> Tensor:
    """A gradient of the result of a call."""
    query, _, value = args[:_HEADS]
    drawn = torch.randn((*query.shape[:-1], value.shape[-1]), generator=torch.Generator().manual_seed(0))
    return drawn.to(query)


def find_refused_calls(
    error: Failure | None, calls: Iterable[tuple[str, tuple[Any, ...], dict[str, Any]]]
) -> tuple[WrongRewrite, ...]:
    """The patterns as wrong rewrites whose fused call raises `error` in eager too, and runs on the MATH backend.

    calls: patterns, arguments and options, which are fake tensors; zeros replace them
    """
    found = {pattern: _find_refusal(error, args, options) for pattern, args, options in calls if error}
    return tuple(WrongRewrite(pattern, faulty=refusal) for pattern, refusal in found.items() if refusal)


def _find_refusal(error: Failure | None, args: tuple[Any, ...], options: dict[str, Any]) -> Failure | None:
    needs_gradient = any(value.requires_grad for value in args[:_HEADS])
    try:
        args, options = tree_map_only(Tensor, _make_zeros, (args, options))
        given = {**options, "gradient": draw_gradient(args)} if needs_gradient else options
        attend(*args, **given)
    except Exception as raised:
        refusal = as_failure(raised)
        with suppress(Exception):
            attend(*args, backend=SDPBackend.MATH, **given)
            return refusal if error and refusal.key() == error.key() else None
    return None


def _make_zeros(like: Tensor) -> Tensor:
    size, stride = (list(map(int, numbers)) for numbers in (like.shape, like.stride()))
    # Elements may share memory.
    span = 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True)) if all(size) else 0
    return torch.zeros(span, dtype=like.dtype, device=like.device).as_strided(size, stride)
