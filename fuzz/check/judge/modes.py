"""Modes under which a program runs. Float64 gives the reference; other modes round differently, to measure rounding.

The modes work below autograd, so backward operations are included. Modes that round differently move neither inputs nor
the results of operations that do not round: views, copies, casts, fills, selections and random numbers.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from fuzz.check.judge.constants import LOW_PRECISION_DTYPES, UNIT_ROUNDOFF
from fuzz.check.judge.operations import RANDOM, Nested, OperationMode, absorb, is_exact, is_fused
from fuzz.check.run.program import Execution, Tensors, execute
from fuzz.check.torch_api.process_state import hold_state

_LOWER = (torch.float32, torch.float16, torch.bfloat16)
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
_POOL = 1 << 16
_LOG_OF_SUM = frozenset({"_log_softmax", "logsumexp"})
"""Operations that round a sum of at least 1 before its logarithm, so a logarithm near 0 has a large relative error."""
_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward"})


def reference(
    module: nn.Module,
    calls: Callable[[nn.Module, Callable[[Any], Any]], Iterable[list[Any]]],
    *,
    training: bool,
    cotangents: Tensors | None,
    choices: AbstractContextManager[Any] | None = None,
) -> Execution:
    """Run a fresh `module` in float64 on its `calls` (`Program.calls`), with the gradients for `cotangents`.

    `choices`: a mode that sees the operations of the program.

    - Casts to lower float dtypes become casts to float64.
    - scaled_dot_product_attention runs on its MATH backend, and attention layers without their fast path: a fused
      kernel makes the same mistakes in float64.
    - Constants are first rounded to their dtype. Random operations draw the same numbers as in their own dtype.
    """
    exact = module.double()
    raised = calls(exact, lambda memory: memory.double() if _is_lower(memory) else memory)
    # Active during calls only: the text that makes the inputs runs outside, in its own dtypes.
    mode = Nested(
        partial(hold_state, "torch's default dtype", torch.float64),
        partial(hold_state, "torch's fast path", False),
        lambda: sdpa_kernel([SDPBackend.MATH]),
        Float64Mode(),
        choices or nullcontext(),
    )
    return execute(exact, exact, raised, training=training, cotangents=cotangents, mode=mode)


class Float64Mode(OperationMode):
    """A mode below autograd in which every floating result is float64."""

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.overloadpacket.__name__ in RANDOM:
            return _draw(func, args, kwargs)
        if kwargs.get("dtype") in _LOWER:
            if not any(isinstance(arg, Tensor) for arg in args):
                return func(*args, **kwargs).double()  # a constant: round it as the program would
            kwargs = {**kwargs, "dtype": torch.float64}
        if not func._schema.is_mutable and any(_is_lower(arg) for arg in args):
            args = tuple(arg.double() if _is_lower(arg) else arg for arg in args)
        exactly = _IN_FLOAT64.get(func.overloadpacket.__name__, func)
        result = exactly(*args, **kwargs)
        is_sum = func.overloadpacket.__name__.strip("_") in ("add", "sub")
        if is_sum and isinstance(result, Tensor) and result.dtype == torch.float64:  # sums of numbers come here too
            result.copy_(absorb(result))
        return result


def _grouped_mm(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    _dtype: torch.dtype | None = None,
) -> Tensor:
    """The products of groups of rows, of columns or of the axis that is summed, which end at `offs`. The operation has
    no float64 kernel (aten/src/ATen/native/GroupedMMUtils.h)."""
    assert bias is None
    if offs is None:
        return left @ right
    ends = offs.tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if left.dim() == right.dim() == 2:
        return torch.stack([left[:, span] @ right[span] for span in spans])
    if left.dim() == 2:
        made = left.new_zeros(left.shape[0], right.shape[-1])
        for span, factor in zip(spans, right, strict=True):
            made[span] = left[span] @ factor
        return made
    made = left.new_zeros(left.shape[1], right.shape[-1])
    for span, factor in zip(spans, left, strict=True):
        made[:, span] = factor @ right[:, span]
    return made


_IN_FLOAT64 = {"_grouped_mm": _grouped_mm}
"""Operations without a float64 kernel, by name."""


def _draw(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The CPU generator takes more bits for a float64 than for a float32.
    if kwargs.get("dtype") == torch.float64:
        kwargs = {**kwargs, "dtype": torch.float32}
    narrow = tuple(arg.float() if isinstance(arg, Tensor) and arg.dtype == torch.float64 else arg for arg in args)
    result = func(*narrow, **kwargs)
    if isinstance(result, Tensor) and args and result is narrow[0] and result is not args[0]:
        return args[0].copy_(result)
    return tree_map(lambda value: value.double() if _is_lower(value) else value, result)


@contextmanager
def drop_by_index(device: str) -> Iterator[None]:
    """In this context dropout of any dtype and strides keeps the same elements, by their indices.

    Its own kernels draw the mask of a tensor in the order of its memory.
    """
    kind = torch.device(device).type.upper()

    def draw(like: Tensor, share: float) -> Tensor:
        return torch.rand(like.shape, dtype=torch.float32, device=like.device) < share

    def keep(mask: Tensor, share: float = 0.5) -> Tensor:
        return mask.copy_(draw(mask, share))

    def drop(value: Tensor, rate: float, _: bool | None) -> tuple[Tensor, Tensor]:
        kept = draw(value, 1 - rate)
        return value * kept / (1 - rate), kept

    with warnings.catch_warnings(), torch.library._scoped_library("aten", "IMPL") as library:
        warnings.simplefilter("ignore")  # of a kernel that is replaced
        library.impl("bernoulli_.float", keep, kind)
        library.impl("native_dropout", drop, kind)
        yield


def _is_lower(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _LOWER


class Noise(OperationMode):
    """Moves the result of every operation by some ulps up or down, as `seed` decides. share: of elements that move."""

    def __init__(self, seed: int, ulps: Callable[[torch.dtype], int] = lambda _: 1, share: float = 1.0) -> None:
        super().__init__()
        self._ulps, self._share = ulps, share
        self._generator = torch.Generator().manual_seed(seed)
        self._signs = {torch.device("cpu"): self._draw_signs(_POOL)}  # by device: each copy to a GPU waits for the GPU
        self._next = 0
        self.dtypes: list[set[torch.dtype]] = []
        """The float dtypes that results were rounded to, for each call of the case. Data movement does not round."""
        self._depth = 0

    def __enter__(self) -> Any:
        if not self._depth:
            self.dtypes.append(set())
        self._depth += 1
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        super().__exit__(*error)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` and move its results. After a write in place, only changed elements move."""
        name = func.overloadpacket.__name__
        target = kwargs.get("out", args[0] if args else None) if func._schema.is_mutable else None
        before = target.clone() if isinstance(target, Tensor) else None
        result = func(*args, **kwargs)
        if name in ("_to_copy", "copy_"):
            given, after = args[name == "copy_"].dtype, result.dtype
            both = given.is_floating_point and after.is_floating_point
            if both and torch.finfo(after).eps > torch.finfo(given).eps:
                self.dtypes[-1].add(after)
        if not (is_exact(func, args, kwargs) or func.is_view or name in RANDOM):
            for item in result if isinstance(result, (tuple, list)) else (result,):
                if type(item) is Tensor and item.is_complex():
                    self._move_complex(item)
                elif type(item) is Tensor and item.dtype in UNIT_ROUNDOFF:
                    self._move(name, item, before if item is target else None)
        return result

    def _move(self, name: str, value: Tensor, before: Tensor | None) -> None:
        dtype = value.dtype
        self.dtypes[-1].add(dtype)
        if not value.numel() or value._is_zerotensor():  # zeros of forward-mode gradients have no memory
            return
        size = value.abs()
        # 0 and the largest finite number stay. The latter fills masks and must not become infinite.
        ulps, form = self._ulps(dtype), torch.finfo(dtype)
        least, most = (0.0, form.max) if ulps == 1 else (form.smallest_normal, form.max / 2)
        live = (size > least).logical_and_(size < most)
        if before is not None:
            live.logical_and_(value != before)
        signs = self._draw(value.numel(), value) * ulps
        value.view(_BITS[dtype.itemsize]).add_(signs.mul(live))
        if name in _LOG_OF_SUM:
            value.add_(signs * (2 * min(UNIT_ROUNDOFF[dtype], UNIT_ROUNDOFF[torch.float32])))

    def _move_complex(self, value: Tensor) -> None:
        # A part of a product is a sum of two products, which may cancel: it rounds relative to the whole number.
        parts = torch.view_as_real(value)
        self.dtypes[-1].add(parts.dtype)
        unit = 2 * UNIT_ROUNDOFF[parts.dtype] * self._ulps(parts.dtype)
        parts.add_(self._draw(parts.numel(), parts) * value.abs().unsqueeze(-1) * unit)

    def _draw(self, count: int, like: Tensor) -> Tensor:
        if count > _POOL:
            drawn = self._draw_signs(count).to(like.device)
        else:
            if like.device not in self._signs:
                self._signs[like.device] = self._signs[torch.device("cpu")].to(like.device)
            if self._next + count > _POOL:
                self._next = self._next * 31 % 61 if count < _POOL - 61 else 0
            drawn = self._signs[like.device][self._next : self._next + count]
            self._next += count
        return drawn.view(like.shape)

    def _draw_signs(self, count: int) -> Tensor:
        signs = torch.randint(0, 2, (count,), generator=self._generator, dtype=torch.int8).mul_(2).sub_(1)
        if self._share < 1:
            signs *= torch.rand(count, generator=self._generator) < self._share
        return signs


class FusedNoise(OperationMode):
    """Moves the results of fused attention as far as a right kernel may be off, by moving its arguments.

    Moving query, key and logsumexp in float32 stands for errors of scores. Moving value and out stands for errors of
    weights and their gradients.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not is_fused(func):
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        moved = (self._move(name, value) for name, value in zip(names, args, strict=False))
        return func(*moved, **{name: self._move(name, value) for name, value in kwargs.items()})

    def _move(self, name: str, value: Any) -> Any:
        in_float32 = (
            name in ("query", "key", "logsumexp") and isinstance(value, Tensor) and value.dtype == torch.float32
        )
        if not in_float32 and name not in ("value", "out"):
            return value
        signs = torch.randint(0, 2, value.shape, generator=self._generator).to(value.device) * 2 - 1
        return value + value * signs * (2 * UNIT_ROUNDOFF[value.dtype])


class SkippedCasts(OperationMode):
    """Each low-precision argument is read, at random, as it is or as the float32 value before it was rounded.

    Inductor skips casts within a kernel. Products of matrices read rounded values from memory.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self._unrounded = WeakIdKeyDictionary()

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if func._schema.is_mutable:
            # After a write, unrounded values of all views of that memory are invalid.
            memory = [value.untyped_storage()._cdata for value in tree_leaves(result) if isinstance(value, Tensor)]
            for value in [key for key in self._unrounded if key.untyped_storage()._cdata in memory]:
                del self._unrounded[value]
            return result
        if name in RANDOM or name in _PRODUCTS or "attention" in name or name == "as_strided":
            return result
        wide_args, wide_kwargs = tree_map(self._read, (args, kwargs))
        wide = func(*wide_args, **wide_kwargs)
        for rounded, unrounded in zip(tree_leaves(result), tree_leaves(wide), strict=True):
            if isinstance(rounded, Tensor) and rounded.is_floating_point() and rounded.shape == unrounded.shape:
                is_own = not any(rounded is value for value in args) and not rounded._is_zerotensor()
                if is_own and not func.is_view:
                    rounded.copy_(unrounded)
                if rounded.dtype in LOW_PRECISION_DTYPES:
                    self._unrounded[rounded] = unrounded
        return result

    def _read(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float32 if value in LOW_PRECISION_DTYPES else value
        if not isinstance(value, Tensor) or value.dtype not in LOW_PRECISION_DTYPES:
            return value
        unrounded = self._unrounded.get(value)
        is_skipped = unrounded is not None and bool(torch.randint(2, (), generator=self._generator))
        return unrounded if is_skipped else value.float()


_FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Products of matrices, by the number of their first factor among the arguments."""


class HalvedSums(OperationMode):
    """Adds up each half of a sum, rounds it to the dtype of the result, and then adds both.

    So do two ranks that have half of the terms each: DTensor computes `Partial` results, and an all-reduce adds them in
    their dtype (torch/distributed/tensor/_ops/_matrix_ops.py and _math_ops.py). Halves that are far larger than their
    sum round more than an operation of eager that moves by one ulp.

    number: of the axis that is halved, among the axes longer than 1 of a sum over several
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, at = func.overloadpacket.__name__, _FACTORS.get(func.overloadpacket.__name__)
        if at is not None:
            left, right = args[at : at + 2]
            half = left.size(-1) // 2
            first = func(*args[:at], left[..., :half], right[..., :half, :], *args[at + 2 :], **kwargs)
            return first + kwargs.get("alpha", 1) * (left[..., half:] @ right[..., half:, :])
        if name in ("sum", "mean") and args[0].numel() > 1:
            values, axes = args[0], (args[1] if len(args) > 1 else ()) or range(args[0].dim())
            long = [axis for axis in axes if values.size(axis) > 1]
            if not long:
                return func(*args, **kwargs)
            axis = long[self._number % len(long)]
            count = values.size(axis)
            shares = [part.size(axis) / count if name == "mean" else 1 for part in values.tensor_split(2, axis)]
            parts = [func(part, *args[1:], **kwargs) for part in values.tensor_split(2, axis)]
            return sum(part * share for part, share in zip(parts, shares, strict=False))
        return func(*args, **kwargs)
