"""Cases that are one attention and data movement: reads their results as those of a call of an attention function.

The stub is run on inputs whose elements are numbered, so that outputs show where each element was moved.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fuzz.check.attention.function import fill_matters
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.reference import Float64
from fuzz.check.program import Execution, Program, execute

_APART = 1 << 32
"""The numbers of different tensors lie this far apart; float64 holds them exactly."""


class PureAttention:
    """Reads the results of a case as those of one call; there is none if the case is more than an attention."""

    def __init__(self, stub: str, device: str, *, training: bool) -> None:
        self._given: dict[str, Any] = {}
        self._sources: dict[str, tuple[int, Tensor]] = {}
        self._output: tuple[str, Tensor] | None = None
        self._outputs = 0
        program = Program(stub, device, {"attend": self._attend})
        self._answer: Callable[[Tensor], Tensor] = torch.zero_
        self._calls = 0
        try:
            module = program.module(training)
            execute(module, module, [program.inputs()], training=False)
            self._trace(program, module, self._given)
        except (RuntimeError, TypeError, IndexError, ValueError):  # a text that does not run on such numbers
            self._output = None
        finally:
            program.close()

    def call(self, run: Execution, cotangents: dict[str, Tensor]) -> Call | None:
        """The call with the results of `run`; with gradients if the attention is the only output; or None."""
        if self._output is None:
            return None
        name, places = self._output
        value = run.outputs.get(name)
        given = self._given
        if value is None or value.dtype != given["q"].dtype or value.numel() != places.numel():
            return None
        options = {key: item for key, item in given.items() if key not in ("q", "k", "v")}
        shape = torch.Size((*given["q"].shape[:3], given["v"].shape[3]))
        call = Call(given["q"], given["k"], given["v"], options, _undo_moves(value, places, shape))
        if self._outputs == 1 and name in cotangents:
            call.dout = _undo_moves(cotangents[name].to(value.dtype), places, shape)
            for key, (index, where) in self._sources.items():
                gradient = run.gradients.get(f"grad of input {index}")
                if gradient is not None and gradient.dtype == given[key].dtype:
                    call.gradients[f"d{key}"] = gradient.flatten()[where]
        return call

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self._calls += 1
        if not fill_matters(options.get("fill", -math.inf), options.get("mask"), options.get("causal"), k.shape[2]):
            options.pop("fill", None)
        self._given = {"q": q.detach(), "k": k.detach(), "v": v.detach(), **options}
        return self._answer(q.new_empty((*q.shape[:3], v.shape[3])))

    def _trace(self, program: Program, module: nn.Module, native: dict[str, Any]) -> None:
        if self._calls != 1 or "fill" in native or native.get("dropout") or not native["q"].is_floating_point():
            return
        inputs = program.inputs()
        named = [_places(value, index) if _is_float(value) else value for index, value in enumerate(inputs)]
        self._answer = lambda like: _places(like, len(inputs))
        run = execute(module, module, [named], training=False, mode=Float64())
        traced, self._given = self._given, native
        self._outputs = len(run.outputs)
        first, last = len(inputs) * _APART, (len(inputs) + 1) * _APART
        for name, value in run.outputs.items():
            within = value.numel() and bool(((value >= first) & (value < last)).all())
            if within and value.unique().numel() == value.numel():
                self._output = (name, value.double() - first)
        seen: set[int] = set()
        for key in ("q", "k", "v"):
            places = traced[key]
            index = int(places.flatten()[0]) // _APART if places.numel() else -1
            if not 0 <= index < len(inputs) or index in seen or not _is_float(inputs[index]):
                self._output = None
                return
            seen.add(index)
            inside = places - index * _APART
            source = inputs[index].reshape(-1)
            moved = bool(((inside >= 0) & (inside < source.numel()) & (inside == inside.round())).all())
            if not moved or not torch.equal(source[inside.long()], native[key]):
                self._output = None
                return
            if inside.numel() == source.numel() and inside.unique().numel() == inside.numel():
                self._sources[key] = (index, inside.long())


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _places(like: Tensor, index: int) -> Tensor:
    """The numbers of its elements, in float64, in a tensor like this one."""
    numbers = torch.arange(like.numel(), dtype=torch.float64, device=like.device) + index * _APART
    return numbers.reshape(like.shape)


def _undo_moves(value: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
    """The attention's output, of `shape`, from what is returned: each of its elements was at `places` before."""
    output = value.new_empty(value.numel())
    output[places.long().flatten()] = value.flatten()
    return output.reshape(shape)
