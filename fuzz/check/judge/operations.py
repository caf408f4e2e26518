"""Kinds and definitions of aten operations, and a mode that sees higher-order operations as plain operations."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.subjects import SUBJECTS


def names(text: str) -> frozenset[str]:
    """The words of the text."""
    return frozenset(text.split())


#: Results without rounding of their own: data movement, selection, sign changes, constants.
_EXACT = names("""
    _to_copy abs alias amax amin arange argmax argmin as_strided bernoulli broadcast_to cat ceil clamp clamp_max
    clamp_min clone constant_pad_nd contiguous copy copy_ detach detach_ embedding empty empty_like empty_strided expand
    eye fill fill_ flip floor floor_divide full full_like gather index index_copy index_copy_ index_fill index_fill_
    index_put index_put_ _index_put_impl_ index_select lift lift_fresh lift_fresh_copy masked_fill masked_fill_
    masked_scatter masked_scatter_ masked_scatter_backward masked_select max maximum min minimum narrow native_dropout
    neg neg_ new_empty new_empty_strided new_full new_ones new_zeros ones ones_like permute pin_memory put_ relu relu_
    repeat reshape roll round scalar_tensor scatter scatter_ select select_backward select_scatter sgn sign slice
    slice_backward slice_scatter sort split stack t threshold_backward topk transpose tril tril_ triu triu_ unbind
    unfold unsqueeze view where zero_ zeros zeros_like _unsafe_view _reshape_alias _local_scalar_dense set_ resize_
    trunc hardtanh max_pool2d_with_indices upsample_nearest1d upsample_nearest2d abs_ sign_ floor_ ceil_ round_ clamp_
    clamp_min_ clamp_max_ hardtanh_ nan_to_num nan_to_num_ reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d histc squeeze_ unsqueeze_ transpose_ t_ as_strided_
""")


def is_exact(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the operation never rounds its result. `index_put` with accumulate=True and a range of fractions round.

    Quotients that are rounded to integers count as exact.
    """
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    name = func.overloadpacket.__name__
    is_integral = kwargs.get("rounding_mode") is not None
    rounds = ("index_put" in name and accumulates) or (name == "arange" and any(type(arg) is float for arg in args))
    return is_integral or (name in _EXACT and not rounds)


#: Operations that draw random numbers. The tag `nondeterministic_seeded` is wider: fused attention always has it.
RANDOM = names("""
    bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial native_dropout normal normal_ rand
    rand_like randint randint_like randn randn_like random_ randperm rrelu_with_noise uniform uniform_
""")

#: Operations that return unwritten memory.
UNWRITTEN = names("empty empty_like empty_strided new_empty new_empty_strided resize_ set_")

#: Operations that add any number of elements to an element of the result, in its dtype.
SCATTERING = names("""
    _index_put_impl_ embedding_dense_backward index_add index_add_ index_put index_put_ scatter_add scatter_add_
""")


def bind(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a call gives, by name."""
    return dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs


def take(values: Tensor, axis: int, places: Tensor) -> Tensor:
    """The elements at places along an axis, which `places` may lack."""
    if places.dim() < values.dim():
        return values.gather(axis, places.unsqueeze(axis)).squeeze(axis)
    return values.gather(axis, places)


class OperationMode(TorchDispatchMode):
    """A mode that sees a higher-order operation, such as flex_attention, as plain operations."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation. Raises NotImplementedError for a higher-order operation without a plain definition."""
        if not isinstance(func, HigherOrderOperator):
            if torch.is_inference_mode_enabled():
                # Here composite operations, such as `to` and `linear`, arrive whole.
                with self:
                    result = func.decompose(*args, **(kwargs or {}))
                if result is not NotImplemented:
                    return result
            return self._run(func, args, kwargs or {})
        definition = func.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
        if definition is None:
            raise NotImplementedError(f"{func.name()} has no definition in plain operations")
        with self:
            return definition(*args, **(kwargs or {}))

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class Nested(AbstractContextManager[None]):
    """Several contexts as one, the first outermost. Can be entered again: a function makes a context that can't."""

    def __init__(self, *contexts: AbstractContextManager[Any] | Callable[[], AbstractContextManager[Any]]) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context if isinstance(context, AbstractContextManager) else context())
            self._exit = stack.pop_all().close

    def __exit__(self, *_: object) -> None:
        self._exit()


_FUSED = {name for spec in SUBJECTS.values() for name in spec.operations}
_FUSED |= {"_scaled_dot_product_fused_attention_overrideable"}


def is_fused(func: OpOverload) -> bool:
    """Whether it is a fused attention operation, forward or backward."""
    return func.overloadpacket.__name__.removesuffix("_backward") in _FUSED


FILL = 2.0**100
"""Numbers of this size fill masks: the distance between float32 numbers is 2^77 here, and no score is as large."""


def absorb(total: Tensor) -> Tensor:
    """A float64 sum whose elements of the size of a fill are rounded as in float32.

    There a score that is added to the lowest number of a dtype is lost, so a row of such sums has equal weights.
    """
    size = total.abs()
    filled = (size >= FILL) & (size <= torch.finfo(torch.float32).max)
    return torch.where(filled, total.float().double(), total)


def decompose_fused(func: OpOverload) -> Callable[..., Any]:
    """The definition of a fused attention operation. Its kernels make the same mistakes in float64.

    It returns only the first results: (out, logsumexp), or (dq, dk, dv).
    """

    def run(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        given = bind(func, args, kwargs)
        if given.get("dropout_p"):
            raise NotImplementedError("dropout")
        q, k, v = given["query"], given["key"], given["value"]
        scale = given.get("scale")
        scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
        mask = given.get("attn_mask", given.get("attn_bias"))
        group = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = scale * (q @ k.mT)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else absorb(scores + mask)
        if given.get("is_causal", False):
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
        if "logsumexp" not in given:
            # A row without a key gives 0.
            empty = (scores == -math.inf).all(-1, keepdim=True)
            return scores.softmax(-1).masked_fill(empty, 0.0) @ v, scores.logsumexp(-1)
        do = given["grad_out" if "grad_out" in given else "grad_out_"]
        # Some kernels pad the logsumexp of a head, or add a last axis to it.
        lse = given["logsumexp"].reshape(*q.shape[:2], -1)[..., : q.size(2)].unsqueeze(-1)
        weights = (scores - lse).exp().masked_fill(scores == -math.inf, 0.0)
        # The logarithm of the number of keys is lost in a logsumexp of this size.
        weights = torch.where(lse.abs() >= FILL, scores.softmax(-1), weights)
        dscores = weights * (do @ v.mT - (given["out"] * do).sum(-1, keepdim=True))
        by_head = (scale * (dscores.mT @ q), weights.mT @ do)
        return scale * (dscores @ k), *(value.unflatten(1, (-1, group)).sum(2) for value in by_head)

    return run


def to_float64(value: Any) -> Any:
    """A copy of an argument of an operation or graph, in float64 if it is floating."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if is_floating(value) or (isinstance(value, Tensor) and value.is_complex()):
        return value.to(torch.complex128 if value.is_complex() else torch.float64, copy=True)
    return value.clone() if isinstance(value, Tensor) else value


def is_floating(value: Any) -> bool:
    """Whether it is a tensor of floating numbers in memory: zeros of forward-mode gradients have none."""
    return isinstance(value, Tensor) and value.is_floating_point() and not value._is_zerotensor()
