"""An attention function: its capabilities, the calls that it refuses, and a case that calls it as its attention."""

import functools
import inspect
import math
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuzz.check.run.attention.call import Call
from fuzz.check.run.attention.guard import GUARDED, Guard
from fuzz.check.run.attention.layouts import arrange
from fuzz.check.run.program import Program
from fuzz.check.run.tensor_memory import name_dtype
from fuzz.check.torch_api.exceptions import SubjectError, find_refusal
from fuzz.check.torch_api.process_state import restore_state
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import Sequences
from generators.program.attention_options import OPTIONS

AttentionFunction = Callable[..., Any]
DIFFERENTIATED = ("q", "k", "v", *(name for name, option in OPTIONS.items() if option.has_gradient))
"""The arguments that may want a gradient."""


@dataclass(eq=False)
class Attention:
    """An attention function."""

    load: Callable[[], AttentionFunction]
    """Imports it. Raises `SubjectError`."""
    guarded: tuple[str, ...] = GUARDED
    """The parts that are guarded. Fewer than `GUARDED` if the function raised in guarded memory alone."""
    seen_rounds: tuple[str, ...] = ()  # the values that its calls were seen to round, as in `Capabilities.rounds`
    is_unordered: bool = False  # whether its sums were seen to have no fixed order

    @cached_property
    def function(self) -> AttentionFunction:
        try:
            return self.load()
        except ImportError as error:
            raise SubjectError(f"can't be imported: {' '.join(str(error).split())}") from error

    @cached_property
    def capabilities(self) -> Capabilities:
        """The declared capabilities, with the options of its signature. Raises `SubjectError`."""
        try:
            declared = Capabilities.read(getattr(self.function, "capabilities", {}))
        except ValueError as error:
            raise SubjectError(str(error)) from error
        options = {*(OPTIONS if declared.options is None else declared.options)}
        if declared.layout != "dense":
            options -= {name for name, option in OPTIONS.items() if option.needs_axes}
        with suppress(TypeError, ValueError):
            parameters = inspect.signature(self.function).parameters
            if all(item.kind is not item.VAR_KEYWORD for item in parameters.values()):
                options &= parameters.keys()
        return replace(declared, options=tuple(sorted(options)))

    @property
    def rounds(self) -> tuple[str, ...]:
        """The values that it rounds, as declared or seen."""
        return tuple(dict.fromkeys((*self.capabilities.rounds, *self.seen_rounds)))

    def check(self, q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, object], *, training: bool) -> None:
        """Raises `SubjectError` for a call outside of its capabilities."""
        dtype, shapes = name_dtype(q.dtype), (q.shape, k.shape, v.shape)
        reason = self.capabilities.find_refusal(dtype, shapes, options, training=training, device=q.device.type)
        if reason is not None:
            raise SubjectError(f"it does not take {reason}")


LOWEST_FILL = -1e4
"""A fill of masked scores this low or lower is as good as -inf: exp of it is 0 beside the scores of a case."""


def call_and_check(function: AttentionFunction, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """The result of a function. Raises TypeError if it is no tensor of the expected shape, dtype and device."""
    with restore_state():
        out = function(q, k, v, **options)
    if not isinstance(out, Tensor):
        raise TypeError(f"it returned {type(out).__name__}, not a tensor")
    expected = [*q.shape[:-1], v.shape[-1]]
    if list(out.shape) != expected or out.dtype != q.dtype or out.device != q.device:
        raise TypeError(
            f"it returned {list(out.shape)} of {out.dtype} on {out.device}, "
            f"expected {expected} of {q.dtype} on {q.device}"
        )
    return out


def fill_matters(fill: float, mask: object, causal: object, columns: int) -> bool:
    """Whether a finite `fill` may give another result than -inf. A row that keeps no key gives the mean of v."""
    if fill == float("-inf") or not isinstance(mask, Tensor):
        return False
    if fill > LOWEST_FILL or causal is not None or mask.dtype != torch.bool:
        return True
    return columns == 0 or not bool(mask.any(-1).all())


def load_sdpa(backend: str) -> AttentionFunction:
    """`F.scaled_dot_product_attention` on a backend ("MATH"), with the signature of attention functions."""
    chosen = getattr(SDPBackend, backend)

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: str | None = None,
    ) -> Tensor:
        added = mask if bias is None else bias
        if sum(item is not None for item in (mask, bias, causal)) > 1:
            raise SubjectError("it takes one of mask, bias and causal")
        if added is not None:
            added = added.reshape((1,) * (4 - added.dim()) + added.shape)
        try:
            with sdpa_kernel([chosen]):
                return nn.functional.scaled_dot_product_attention(
                    q, k, v, added, is_causal=causal is not None, scale=scale, enable_gqa=k.shape[1] != q.shape[1]
                )
        except RuntimeError as error:
            if any(words in str(error) for words in _REFUSALS):
                raise SubjectError("the backend has no kernel for this case") from error
            raise

    attention.capabilities = {"causal": ("top_left",)}  # type: ignore[attr-defined]
    return attention


#: All but the first are of the memory-efficient backend, for a bias expanded along keys or of another dtype.
_REFUSALS = ("No available kernel", "(*bias): last dimension", "invalid dtype for bias", "Expected attn_mask dtype")


class AttentionHarness:
    """The program of an attention stub, which calls a global `attend`. Raises `SubjectError`."""

    def __init__(self, source: str, attention: Attention, device: str, *, training: bool) -> None:
        self.attention, self.training = attention, training
        attention.seen_rounds, attention.is_unordered = (), False
        self._function = attention.function
        # The guard and the calls of the run that `fresh` began.
        self.guard = Guard()
        self.calls: list[Call] = []
        self.sequences: Sequences | None = None  # of the last call
        self.shared: str | None = None  # an argument whose memory the result of a call has
        self._raised = False
        self.program = Program(source, device, {"attend": self._attend})

    def fresh(self) -> Guard:
        """The context of the next run."""
        self.calls = []
        self.guard = Guard(self.attention.guarded)
        return self.guard

    def runs_with_less_guarded(self, run: Callable[[], object]) -> bool:
        """Whether the function, which raised in guarded memory, runs with fewer parts guarded. Later calls guard these.

        Tracers and transforms of torch can't handle the replaced allocators.
        """
        before = self.attention.guarded
        for left in range(len(before) - 1, -1, -1):
            self.attention.guarded = before[:left]
            with suppress(Exception), self.fresh():
                run()
                return True
        self.attention.guarded = before
        return False

    def accuses(self, error: Exception) -> bool:
        """Whether the function raised `error`. Otherwise the text around it did, which may need eager's strides."""
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        return self._raised or self.program.filename not in files

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        fill = options.pop("fill", -math.inf)
        if fill_matters(fill, options.get("mask"), options.get("causal"), k.shape[2]):
            raise SubjectError(f"it does not take a fill of {fill:g} that can be told from -inf")
        self.attention.check(q, k, v, options, training=self.training)
        guard = self.guard
        layout = arrange(self.attention.capabilities, cut=True, q=q, k=k, v=v, **options)
        self.sequences = layout.sequences
        given = guard.protect_arguments(layout.arguments)
        for name in DIFFERENTIATED:
            if given.get(name) is not None and given[name].requires_grad:
                _watch_gradient(given[name], functools.partial(layout.record, f"d{name}"))
                for call in layout.calls:
                    call.wanted += (f"d{name}",)
        for call in layout.calls:
            call.is_inference = torch.is_inference_mode_enabled()
        self.calls += layout.calls
        try:
            out = call_and_check(self._function, **given)
        except Exception as error:
            if refusal := find_refusal(error, self.attention.capabilities.refuses):
                raise refusal from error
            self._raised = True
            raise
        memory = {x.untyped_storage()._cdata: name for name, x in given.items() if isinstance(x, Tensor) and x.numel()}
        self.shared = self.shared or memory.get(out.untyped_storage()._cdata)
        layout.record("out", out.detach().clone())  # `out` may be the static output of a captured graph.
        for call in layout.calls:
            call.differentiable = out.requires_grad
        if out.requires_grad:
            _watch_gradient(out, functools.partial(layout.record, "dout"))
            out.register_hook(functools.partial(_note_expansion, layout.calls))
        return layout.join(guard.protect_result(out))


def _note_expansion(calls: list[Call], gradient: Tensor) -> None:
    for call in calls:
        call.is_dout_expanded = gradient.numel() > 1 and not any(gradient.stride())


def _watch_gradient(value: Tensor, note: Callable[[Tensor], None]) -> None:
    # A function may return None for a gradient.
    value.register_hook(lambda gradient: None if gradient is None else note(gradient.detach().clone()))
