"""The calls of scaled_dot_product_attention that replacements make: in eager, forward and backward, and as calls of an
attention function."""

import functools
import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_map_only

from fuzz.check.judge.attention.judge_calls import repeat
from fuzz.check.judge.eager_audit import Audit
from fuzz.check.prove.rewrite_match import SDPA_OF_PATTERNS, RewriteMatch
from fuzz.check.run.attention.call import Call
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.tensor_memory import count_span
from fuzz.check.torch_api.exceptions import SubjectError, as_failure
from fuzz.check.torch_api.torch_internals import intercept
from fuzz.protocol.failures import Failure, FaultyOperation
from fuzz.protocol.rewrites import WrongRewrite

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments and options of a call of scaled_dot_product_attention."""
_RANK, _HEADS = 4, 3
"""The axes of query, key and value, and their number: they may want a gradient."""


def list_calls(match: RewriteMatch) -> list[Arguments]:
    """The calls that the replacement makes on the operands of the match, without dropout; none if it raises."""
    found: list[Arguments] = []

    def call_and_note(_: Any, *args: Any, **options: Any) -> Tensor:
        found.append((args, {**options, "dropout_p": 0.0}))
        return attend(*args, backend=SDPBackend.MATH, **found[-1][1])[0]

    try:
        function, given = match.read_replacement()
        with intercept(*SDPA_OF_PATTERNS, call_and_note):
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


def repeat_calls(matches: Iterable[RewriteMatch], attention: Attention, *, training: bool) -> list[Call]:
    """The calls of the replacements on their operands, made by `attention`; [] without a call.

    Raises `SubjectError` if it takes none of them.
    """
    made, refused = list[Call](), list[SubjectError]()
    for args, options in (call for match in matches for call in list_calls(match)):
        try:
            call = _as_call(args, options, training=training)
            attention.check(call.q, call.k, call.v, call.options, training=training)
            made.append(repeat(attention, call))
            call.differentiable = call.dout is not None
        except SubjectError as refusal:
            refused.append(refusal)
    if refused and not made:
        raise refused[0]
    return made


def _as_call(args: tuple[Any, ...], options: dict[str, Any], *, training: bool) -> Call:
    """A call of scaled_dot_product_attention as one of an attention function. Raises `SubjectError`."""
    q, k, v = (value.detach() for value in args[:_HEADS])
    if not (q.dim() == k.dim() == v.dim() == _RANK and q.shape[:2] == k.shape[:2] == v.shape[:2]):
        raise SubjectError("query, key and value have other batches or heads")
    added, scale = options.get("attn_mask"), options.get("scale")
    given: dict[str, Any] = {"scale": 1 / math.sqrt(max(1, q.shape[-1])) if scale is None else float(scale)}
    if added is not None:
        given["mask" if added.dtype == torch.bool else "bias"] = added.detach()
    if options.get("is_causal"):
        given["causal"] = "top_left"
    return Call(q, k, v, given, wanted=("dq", "dk", "dv") if training else ())


def find_faulty_call(match: RewriteMatch) -> FaultyOperation | None:
    """`SDPA` as an operation that eager computes wrongly, forward or backward, on the operands of the match.

    The MATH backend in float64 gives the truth. The limits are those of `Audit`.
    """
    audit, on_math = Audit(), functools.partial(attend, backend=SDPBackend.MATH)
    is_training = any(name.startswith("tangents") for name in match.operands)
    for args, options in list_calls(match):
        with suppress(RuntimeError):  # as in `compare_exactly`
            given = {**options, "gradient": draw_gradient(args)} if is_training else options
            audit.compare(_OPERATION, on_math, (args, given), attend(*args, **given))
    return audit.faulty


_OPERATION = torch.ops.aten.scaled_dot_product_attention.default


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
    return torch.zeros(count_span(size, stride), dtype=like.dtype, device=like.device).as_strided(size, stride)
