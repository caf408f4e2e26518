"""Which operation of an eager run is wrong by itself.

Every aten operation, also of backward, runs again in float64 on the arguments it got. Its tolerance is measured, so
that cancellation counts: the operation runs with each element of its arguments moved by up to one ulp of its dtype and,
where PyTorch can decompose it, each intermediate result too. Not audited are operations that draw random numbers,
views, uninitialised memory, and operations that float64 lacks.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from fuzz.check.oracle import constants
from fuzz.check.oracle.operations import RANDOM, SCATTERING, UNWRITTEN, OperationMode, is_exact
from fuzz.check.oracle.row_error_bound import Envelope, largest_finite
from fuzz.protocol.failures import FaultyOperation

Float64 = Callable[..., Any]

_FUSED = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


class Audit(OperationMode):
    """A mode below autograd that notes the first wrong operation, as `faulty`.

    Wrong elements are replaced by those of float64, so that the run goes on as without the mistake.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faulty: FaultyOperation | None = None
        self._chance = torch.Generator().manual_seed(0)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        exactly = _find_float64(func)
        if exactly is None:
            return func(*args, **kwargs)
        taken: Any = (args, kwargs)
        if func._schema.is_mutable:
            taken = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, taken)
        result = func(*args, **kwargs)
        self._compare(func, exactly, taken, result)
        return result

    def _compare(self, func: OpOverload, exactly: Float64, taken: Any, result: Any) -> None:
        values = tree_leaves(result)
        given = [leaf for leaf in tree_leaves(taken) if _is_floating(leaf)]
        judged = {index: value for index, value in enumerate(values) if _is_floating(value) and value.numel()}
        if not judged or any(leaf.dtype not in constants.UNIT_ROUNDOFF for leaf in (*given, *judged.values())):
            return  # a dtype of 8 bits
        try:
            replay = _Float64Replay(func, exactly, taken, self._chance)
        except (RuntimeError, ValueError, TypeError):  # there is no such operation in float64
            return
        name = f"{func.namespace}.{func.overloadpacket.__name__}"
        for index, value in judged.items():
            # A kernel may give more than its definition.
            if index < len(replay.exact) and _shape(replay.exact[index]) == value.shape:
                known = replay.envelope(index, value, tolerance_factor=math.sqrt(_count_terms(name, value, given)))
                self._judge(name, value, replay.exact[index], known, given)

    def _judge(self, name: str, value: Tensor, truth: Tensor, known: Envelope, given: list[Tensor]) -> None:
        wrong = known.find_wrong(value)
        if any(largest_finite(leaf) > constants.NO_OVERFLOW_WITHIN for leaf in given):
            wrong &= value.isfinite()
        if not wrong.any():
            return
        if self.faulty is None:
            error = (value.double() - truth).abs().nan_to_num(math.inf).masked_fill(~wrong, -1.0)
            worst = int(error.argmax())
            self.faulty = FaultyOperation(name, float(value.flatten()[worst]), float(truth.flatten()[worst]))
        value.copy_(torch.where(wrong, truth.to(value.dtype), value))


def _find_float64(func: Any) -> Float64 | None:
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func.is_view:
        return None
    name = func.overloadpacket.__name__
    if is_fused(func):
        return decompose_fused(func)
    if name in RANDOM or name in UNWRITTEN or torch.Tag.nondeterministic_seeded in func.tags:
        return None
    if name in ("_softmax", "_log_softmax"):
        return lambda values, dim, _half_to_float: func(values, dim, False)
    return func


def is_fused(func: OpOverload) -> bool:
    """Whether it is a fused attention operation, forward or backward."""
    return func.overloadpacket.__name__.removesuffix("_backward") in _FUSED


def decompose_fused(func: OpOverload) -> Float64:
    """A fused attention operation by its definition, since its kernels make the same mistakes in float64.

    It gives the first results alone: (out, logsumexp), or (dq, dk, dv).
    """
    names = [argument.name for argument in func._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        given = dict(zip(names, args, strict=False)) | kwargs
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
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        if given.get("is_causal", False):
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
        if "logsumexp" not in given:
            # A row without a key gives 0.
            empty = (scores == -math.inf).all(-1, keepdim=True)
            return scores.softmax(-1).masked_fill(empty, 0.0) @ v, scores.logsumexp(-1)
        do = given["grad_out" if "grad_out" in given else "grad_out_"]
        # Some kernels pad the statistics of a head, or give them a last axis.
        lse = given["logsumexp"].reshape(*q.shape[:2], -1)[..., : q.size(2)].unsqueeze(-1)
        weights = (scores - lse).exp().masked_fill(scores == -math.inf, 0.0)
        dscores = weights * (do @ v.mT - (given["out"] * do).sum(-1, keepdim=True))
        by_head = (scale * (dscores.mT @ q), weights.mT @ do)
        return scale * (dscores @ k), *(value.unflatten(1, (-1, group)).sum(2) for value in by_head)

    return run


class _Float64Replay:
    """An operation in float64; `exact` are the leaves of its result. Raises the operation's exceptions."""

    def __init__(self, func: OpOverload, exactly: Float64, taken: Any, chance: torch.Generator) -> None:
        self._exactly, self._taken, self._chance = exactly, taken, chance
        self._in_steps = None if func._schema.is_mutable else decomposition_table.get(func)
        dtypes = [leaf.dtype for leaf in tree_leaves(taken) if _is_floating(leaf)]
        self._coarsest = constants.coarsest(torch.float64, *dtypes)
        args, kwargs = tree_map(to_float64, taken)
        self.exact = tree_leaves(exactly(*args, **kwargs))
        self._replicas = [self._replica() for _ in range(constants.REPLICAS)]

    def envelope(self, index: int, value: Tensor, tolerance_factor: float) -> Envelope:
        """The envelope of a leaf, from more replicas if `value` seems wrong."""
        known = self._envelope(index, value, tolerance_factor)
        more = constants.REPLICAS_BEFORE_WRONG - len(self._replicas)
        if more > 0 and known.find_wrong(value).any():
            self._replicas += [self._replica() for _ in range(more)]
            known = self._envelope(index, value, tolerance_factor)
        return known

    def _envelope(self, index: int, value: Tensor, tolerance_factor: float) -> Envelope:
        exact, replicas = self.exact[index], [replica[index] for replica in self._replicas]
        coarsest = constants.coarsest(self._coarsest, value.dtype)
        return Envelope(exact.to(value.dtype), exact, replicas, coarsest, tolerance_factor=tolerance_factor)

    def _replica(self) -> list[Any]:
        if self._in_steps is not None:
            try:
                found = self._perturb(self._in_steps)
            except (RuntimeError, ValueError, TypeError, AssertionError):  # not for these arguments
                found = []
            if [_shape(leaf) for leaf in found] == [_shape(leaf) for leaf in self.exact]:
                return found
            self._in_steps = None
        return self._perturb(self._exactly)

    def _perturb(self, call: Float64) -> list[Any]:
        args, kwargs = tree_map(
            lambda value: (
                _perturb(to_float64(value), torch.finfo(value.dtype).eps, self._chance)
                if _is_floating(value)
                else to_float64(value)
            ),
            self._taken,
        )
        with _PerturbationMode(torch.finfo(self._coarsest).eps, self._chance):
            return tree_leaves(call(*args, **kwargs))


class _PerturbationMode(OperationMode):
    """Moves every float64 result by up to the relative amount `ulp`."""

    def __init__(self, ulp: float, chance: torch.Generator) -> None:
        super().__init__()
        self._ulp, self._chance = ulp, chance

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func.is_view or is_exact(func, args, kwargs):
            return result
        for leaf in tree_leaves(result):
            if _is_floating(leaf) and leaf.dtype == torch.float64:
                leaf.copy_(_perturb(leaf, self._ulp, self._chance))
        return result


def _perturb(value: Tensor, ulp: float, chance: torch.Generator) -> Tensor:
    # Terms that cancel would often move together by exactly one ulp. A factor keeps zero and infinity.
    moves = torch.rand(value.shape, generator=chance, dtype=torch.float64).mul_(2).sub_(1)
    return value * (1 + moves.to(value.device) * ulp)


def to_float64(value: Any) -> Any:
    """A copy of an argument of an operation or graph, in float64 where it is floating."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if _is_floating(value):
        return value.to(torch.float64, copy=True)
    return value.clone() if isinstance(value, Tensor) else value


def _count_terms(name: str, value: Tensor, given: list[Tensor]) -> float:
    """About how many elements a kernel adds up into an element of the result, rounding each sum to its dtype.

    The error of such a sum is that of moving each element by an ulp, times the square root of their number.
    """
    count = value.size(-1) if value.dim() and name.removeprefix("aten.") in SCATTERING else value.numel()
    return max(1.0, *(leaf.numel() / count for leaf in given)) if given else 1.0


def _shape(value: Any) -> torch.Size | None:
    return value.shape if _is_floating(value) else None


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
