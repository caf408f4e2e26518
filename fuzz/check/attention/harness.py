"""A case with an attention function in the place of its own attention."""

import functools
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from fuzz.check.attention.function import NOTHING, Attention, Function, call_checked, fill_matters
from fuzz.check.attention.guard import Guard
from fuzz.check.attention.layouts import arrange
from fuzz.check.exceptions import Unsupported, find_refusal
from fuzz.check.oracle.attention.call import Call
from fuzz.check.program import Program
from fuzz.protocol.failures import Write

DIFFERENTIATED = ("q", "k", "v", "bias", "sinks")
"""The arguments that may want a gradient."""


class AttentionHarness:
    """The program of an attention stub, which calls a global `attend`.

    `dtypes` are those the function was handed; `calls` its calls, `sequences` those of the last one, and `damage` what
    was written where it should not be, all since `fresh`. Raises `Unsupported` and `SubjectError`.
    """

    def __init__(self, source: str, attention: Attention, device: str, *, training: bool) -> None:
        self._source, self._device = source, device
        self.attention, self.training = attention, training
        attention.observed = NOTHING
        function = attention.function
        self.guard: Guard | None = None
        self.dtypes: set[torch.dtype] = set()
        self.calls: list[Call] = []
        self.sequences = ""
        self._raised = False
        if attention.compiled:
            self._dry_run()
        call = _make_contiguous(function) if attention.compiled else self._attend
        self.program = Program(source, device, {"attend": call})

    def fresh(self) -> Guard | None:
        """What is to surround the next run."""
        self.calls = []
        self.guard = None if self.attention.compiled else Guard(self.attention.guarded)
        return self.guard

    @property
    def damage(self) -> tuple[Write, ...]:
        """What was written where it should not be."""
        return self.guard.damage() if self.guard else ()

    @property
    def is_deterministic(self) -> bool:
        """Whether two runs have to be equal bit for bit."""
        return self.attention.is_deterministic(self._device)

    def runs_with_less_guarded(self, run: Callable[[], object]) -> bool:
        """Whether the function, which raised in guarded memory, does not with less of it; it has so much from then on.

        Tracers and transforms of torch refuse the functions that guard what a function allocates.
        """
        before = self.attention.guarded
        for left in range(len(before) - 1, -1, -1):
            self.attention.guarded = before[:left]
            with suppress(Exception), self.fresh() or nullcontext():
                run()
                return True
        self.attention.guarded = before
        return False

    def open_uncompiled(self) -> AbstractContextManager[Program]:
        """The program with the function called as it is, by nothing that compiles or watches it."""
        return self._program(_make_contiguous(self.attention.function))

    @contextmanager
    def _program(self, attend: Function) -> Iterator[Program]:
        program = Program(self._source, self._device, {"attend": attend})
        try:
            yield program
        finally:
            program.close()

    def accuses(self, error: Exception) -> bool:
        """Whether an exception is the function's: the text around it may need an output of eager's strides."""
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        return self.attention.compiled or self._raised or self.program.filename not in files

    def _dry_run(self) -> None:
        """Find out, without compiling anything, whether the function takes the case."""

        def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
            self._check(q, k, v, options)
            return q.new_zeros((*q.shape[:3], v.shape[3]))

        with self._program(attend) as program, torch.no_grad():
            program.module(self.training)(*program.inputs())

    def _check(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> None:
        self.dtypes |= {q.dtype, k.dtype, v.dtype}
        fill = options.pop("fill", -math.inf)
        if fill_matters(fill, options.get("mask"), options.get("causal"), k.shape[2]):
            raise Unsupported(f"it does not take a fill of {fill:g} that can be told from -inf")
        self.attention.check(q, k, v, options, training=self.training)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self._check(q, k, v, options)
        guard = self.guard
        assert guard is not None
        layout = arrange(self.attention.capabilities, cut=True, q=q, k=k, v=v, **options)
        self.sequences = layout.sequences
        given = guard.protect_arguments(layout.arguments)
        for name in DIFFERENTIATED:
            if given.get(name) is not None and given[name].requires_grad:
                _watch_gradient(given[name], functools.partial(layout.record, f"d{name}"))
                for call in layout.calls:
                    call.wanted += (f"d{name}",)
        try:
            out = call_checked(self.attention.function, **given)
        except Exception as error:
            if refusal := find_refusal(error, self.attention.capabilities.refuses):
                raise refusal from error
            self._raised = True
            raise
        layout.record("out", out.detach().clone())  # It may be the static output of a captured graph.
        for call in layout.calls:
            call.differentiable = out.requires_grad
        if out.requires_grad:
            _watch_gradient(out, functools.partial(layout.record, "dout"))
        self.calls += layout.calls
        return layout.join(guard.protect_result(out))


def _watch_gradient(value: Tensor, note: Callable[[Tensor], None]) -> None:
    # A function may give None for a gradient.
    value.register_hook(lambda gradient: None if gradient is None else note(gradient.detach().clone()))


def _make_contiguous(function: Function) -> Function:
    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        options.pop("fill", None)
        return function(q, k, v, **options).clone(memory_format=torch.contiguous_format)

    return attend
