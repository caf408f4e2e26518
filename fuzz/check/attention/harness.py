"""A case with an attention function in place of its own attention."""

import functools
import math
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor

from fuzz.check.attention.function import Attention, call_checked, fill_matters
from fuzz.check.attention.guard import Guard
from fuzz.check.attention.layouts import arrange
from fuzz.check.exceptions import Unsupported, find_refusal
from fuzz.check.oracle.attention.call import Call
from fuzz.check.program import Program
from fuzz.protocol.failures import Sequences
from generators.program.attention_options import OPTIONS

DIFFERENTIATED = ("q", "k", "v", *(name for name, option in OPTIONS.items() if option.has_gradient))
"""The arguments that may want a gradient."""


class AttentionHarness:
    """The program of an attention stub, which calls a global `attend`. Raises `SubjectError`."""

    def __init__(self, source: str, attention: Attention, device: str, *, training: bool) -> None:
        self.attention, self.training = attention, training
        attention.seen_rounds, attention.is_unordered = (), False
        self._function = attention.function
        self.guard = Guard()  # of the run since `fresh`, as are `calls`
        self.calls: list[Call] = []
        self.sequences: Sequences | None = None  # of the last call
        self._raised = False
        self.program = Program(source, device, {"attend": self._attend})

    def fresh(self) -> Guard:
        """The context of the next run."""
        self.calls = []
        self.guard = Guard(self.attention.guarded)
        return self.guard

    def runs_with_less_guarded(self, run: Callable[[], object]) -> bool:
        """Whether the function, which raised in guarded memory, runs with less of it, which it has from then on.

        Tracers and transforms of torch refuse the functions that guard allocations.
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
        """Whether the function raised an exception. The text around it may need an output with eager's strides."""
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        return self._raised or self.program.filename not in files

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        fill = options.pop("fill", -math.inf)
        if fill_matters(fill, options.get("mask"), options.get("causal"), k.shape[2]):
            raise Unsupported(f"it does not take a fill of {fill:g} that can be told from -inf")
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
        try:
            out = call_checked(self._function, **given)
        except Exception as error:
            if refusal := find_refusal(error, self.attention.capabilities.refuses):
                raise refusal from error
            self._raised = True
            raise
        layout.record("out", out.detach().clone())  # `out` may be the static output of a captured graph.
        for call in layout.calls:
            call.differentiable = out.requires_grad
        if out.requires_grad:
            _watch_gradient(out, functools.partial(layout.record, "dout"))
        self.calls += layout.calls
        return layout.join(guard.protect_result(out))


def _watch_gradient(value: Tensor, note: Callable[[Tensor], None]) -> None:
    # A function may give None for a gradient.
    value.register_hook(lambda gradient: None if gradient is None else note(gradient.detach().clone()))
