"""A case's source text as something that runs: a module, its inputs, and one execution of them."""

import itertools
import linecache
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fuzz.check import settings
from fuzz.check.process_state import restore_state

_serial = itertools.count()


class Program:
    """The executed source of one case: `Module` and `inputs` of the source contract (see docs/architecture.md).

    `given` are names the source may use without defining them. Raises whatever the source raises. The source stays
    visible to tracebacks until `close`.
    """

    def __init__(self, source: str, device: str = "cpu", given: dict[str, Any] | None = None) -> None:
        self.device = device
        self.filename = f"<case {next(_serial)}>"
        linecache.cache[self.filename] = (len(source), None, source.splitlines(keepends=True), self.filename)
        settings.restore_switches()
        self._names: dict[str, Any] = {"__name__": "case", "__file__": self.filename, **(given or {})}
        exec(compile(source, self.filename, "exec"), self._names)

    def module(self, training: bool) -> nn.Module:
        """A fresh module, equal to every other one this program makes."""
        _seed(0)
        module: nn.Module = self._names["Module"]()
        return module._apply(lambda value: place([value], self.device)[0]).train(training)

    def inputs(self) -> list[Any]:
        """Fresh inputs: equal values, shapes, dtypes and strides at every call."""
        _seed(0)
        return place(self._names["inputs"](), self.device)

    def close(self) -> None:
        """Let go of the source."""
        linecache.cache.pop(self.filename, None)


def is_from_text(error: BaseException) -> bool:
    """Whether a case's text, or what torch did for it, raised an error, and nothing of ours that the text called."""
    ours, inside = str(Path(__file__).parent), False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        inside = name.startswith("<case ") or (inside and not name.startswith(ours))
    return inside


@dataclass
class Execution:
    """What one run gave.

    outputs: tensors by name ("output 0"), detached; structure: what was returned, leaves named by kind;
    mutated: inputs and parameters that the run changed in place ("input 1 afterwards"); gradients: by name ("grad of
    input 1", "grad of parameter w"), only those that exist; cotangents: what the outputs' gradients were multiplied
    with; before: what those in `mutated` were before the run.
    """

    structure: str
    outputs: dict[str, Tensor]
    mutated: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    cotangents: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Tensor]:
        """All that is compared, by name."""
        return {**self.outputs, **self.mutated, **self.gradients}

    def merge(self, other: "Execution", keeps: Callable[[str, Tensor], Tensor]) -> "Execution":
        """This run with the elements of `other` (0 for what that lacks) where `keeps(name, value)` is False."""
        theirs = other.values

        def choose(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {
                name: torch.where(keeps(name, value), value, theirs.get(name, torch.zeros_like(value)))
                for name, value in values.items()
            }

        outputs, mutated, gradients = map(choose, (self.outputs, self.mutated, self.gradients))
        return replace(self, outputs=outputs, mutated=mutated, gradients=gradients)

    def shift(self, before: "Execution", after: "Execution") -> "Execution":
        """This run, moved by as much as `after` is away from `before`, of equal form, where values are floating."""

        def move(values: dict[str, Tensor], old: dict[str, Tensor], new: dict[str, Tensor]) -> dict[str, Tensor]:
            moved = {name: value for name, value in values.items() if value.is_floating_point() and name in new}
            return values | {name: value + (new[name] - old[name]) for name, value in moved.items()}

        return replace(
            self,
            outputs=move(self.outputs, before.outputs, after.outputs),
            mutated=move(self.mutated, before.mutated, after.mutated),
            gradients=move(self.gradients, before.gradients, after.gradients),
        )


def execute(
    call: Callable[..., Any],
    module: nn.Module,
    inputs: list[Any],
    *,
    training: bool,
    cotangents: dict[str, Tensor] | None = None,
    mode: AbstractContextManager[Any] | None = None,
    watched: bool = False,
    seed: int = 0,
) -> Execution:
    """Run `call(*inputs)` once from the random state of `seed` and, in training, differentiate it.

    `call` is `module` or something compiled from it. `cotangents` come from an earlier execution of the same case
    (None: draw them); they are cast to the outputs' dtypes, and outputs they don't fit take no part in gradients.
    `mode` surrounds forward and backward; with `watched`, state of the process that they change is put back. Parameters
    and buffers that the run changed are put back, so that the next one begins alike. Raises whatever the call raises.
    """
    leaves = _leaves(module, inputs) if training else {}
    given = {f"input {index}": value for index, value in enumerate(inputs) if isinstance(value, Tensor)}
    given |= {f"parameter {name}": value for name, value in (*module.named_parameters(), *module.named_buffers())}
    before = {name: (value._version, value.detach().clone()) for name, value in given.items()}
    _seed(seed)
    watch = restore_state() if watched else nullcontext()
    with torch.set_grad_enabled(training), warnings.catch_warnings(), mode or nullcontext(), watch:
        warnings.simplefilter("ignore")
        result = call(*inputs)
        structure, tensors = _flatten(result)
        outputs = {f"output {index}": tensor for index, tensor in enumerate(tensors)}
        used = {name: out for name, out in outputs.items() if training and out.requires_grad}
        if cotangents is None:
            cotangents = {name: _cotangent(index, out) for index, (name, out) in enumerate(used.items())}
        used = {name: out for name, out in used.items() if name in cotangents and cotangents[name].shape == out.shape}
        gradients: dict[str, Tensor] = {}
        if used and leaves:
            found: tuple[Tensor | None, ...] = torch.autograd.grad(
                list(used.values()),
                list(leaves.values()),
                [cotangents[name].to(out.dtype) for name, out in used.items()],
                allow_unused=True,
            )
            gradients = {
                f"grad of {name}": grad.detach() for name, grad in zip(leaves, found, strict=True) if grad is not None
            }
    if torch.cuda.is_initialized():
        # So that what a kernel does wrong is raised here and not in whatever waits for its result.
        torch.cuda.synchronize()
    changed = {name: value for name, value in given.items() if _is_changed(value, *before[name])}
    mutated = {f"{name} afterwards": value.detach() for name, value in changed.items()}
    outputs = {name: out.detach() for name, out in outputs.items()}
    state = {name: value for name, value in changed.items() if name.startswith("parameter")}
    if state:
        # Outputs may be views of the state.
        outputs, mutated = (
            dict(zip(values, map_memory(values.values(), Tensor.clone), strict=True)) for values in (outputs, mutated)
        )
    for name, value in state.items():
        # What needs a gradient and is written into a buffer makes the buffer need one.
        (value.detach_() if value.grad_fn is not None else value.detach()).copy_(before[name][1])
    earlier = {f"{name} afterwards": before[name][1] for name in changed}
    return Execution(structure, outputs, mutated, gradients, cotangents, earlier)


def _is_changed(value: Tensor, version: int, copy: Tensor) -> bool:
    """Whether a tensor was written to; kernels that write through a pointer count no version up."""
    if value._version != version:
        return True
    return not same_bits(value, copy)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors have one dtype, one shape and equal elements; NaN equals NaN."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if torch.equal(left, right):
        return True
    if not left.is_floating_point():
        return False
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def _seed(seed: int) -> None:
    # For devices that may be used later torch.manual_seed takes a stack trace, ten times as long as seeding.
    if torch.cuda.is_initialized():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _leaves(module: nn.Module, inputs: list[Any]) -> dict[str, Tensor]:
    floating = {i: x for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.is_floating_point()}
    leaves = {f"input {index}": value.requires_grad_() for index, value in floating.items()}
    return leaves | {f"parameter {name}": x for name, x in module.named_parameters() if x.requires_grad}


def _cotangent(index: int, output: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + index)
    drawn = torch.randn(output.shape, generator=generator, dtype=torch.float32)
    return drawn.to(device=output.device, dtype=output.dtype)


def _flatten(result: Any) -> tuple[str, list[Tensor]]:
    if isinstance(result, Tensor):
        return "tensor", [result]
    if isinstance(result, (list, tuple)):
        parts = [_flatten(item) for item in result]
        return f"({', '.join(part[0] for part in parts)})", [leaf for part in parts for leaf in part[1]]
    if isinstance(result, dict):
        parts = [_flatten(item) for item in result.values()]
        keys = [f"{key}: {part[0]}" for key, part in zip(result, parts, strict=True)]
        return f"{{{', '.join(keys)}}}", [leaf for part in parts for leaf in part[1]]
    return repr(result), []


def place(values: Iterable[Any], device: str) -> list[Any]:
    """The values on `device`, their tensors as `map_memory` gives them.

    Dynamo never frees what it made of an input that is a view, about half a megabyte each; and `.to` would drop the
    strides of expanded and padded tensors.
    """
    return map_memory(values, lambda memory: memory.to(device))


def map_memory(values: Iterable[Any], change: Callable[[Tensor], Tensor]) -> list[Any]:
    """The values with `change` applied to the memory behind each tensor, which it gets as one axis.

    Strides and offsets stay. What is one tensor stays one, and tensors that share memory still do, but none is a view.
    """
    memory: dict[tuple[int, torch.dtype], Tensor] = {}
    tensors: dict[int, Tensor] = {}

    def convert(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in tensors:
            storage = value.untyped_storage()
            key = storage._cdata, value.dtype
            if key not in memory:
                memory[key] = change(value.as_strided((storage.nbytes() // value.element_size(),), (1,), 0))
            bare = memory[key].new_empty(0)
            form = value.storage_offset(), value.shape, value.stride()
            tensors[id(value)] = bare.set_(memory[key].untyped_storage(), *form)
        return tensors[id(value)]

    return list(map(convert, values))
