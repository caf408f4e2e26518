"""A module that a compiler of fuzz/compilers compiles at its first call."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fuzz.check.run.program import same_bits
from fuzz.check.torch_api import compilation, settings
from fuzz.check.torch_api.exceptions import CompilingFailed, SubjectError, find_refused, find_root
from fuzz.compilers.interface import CompiledCall, Compiler

_Form = tuple[torch.Size, tuple[int, ...], torch.dtype]

LARGEST = 2**31
"""Bytes of weights. A message of protobuf, such as an ONNX model in memory, holds less than 2 GiB."""
_TENSOR = torch.Tensor
"""Stands for a tensor among constants."""
_CONSTANTS = (type, bool, int, float, complex, str, torch.dtype, torch.device, type(None))

_exported: list[tuple[type, bool, list[_Form], list[Tensor], ExportedProgram]] = []
"""The programs of the case at hand: module, dynamic, forms and parameters, program. Compilers share them."""


def begin_case() -> None:
    """Forget the programs of the last case."""
    _exported.clear()


class CompiledModule:
    """A module that `compiler` compiles at its first call.

    Calls that the compiler does not promise to take raise `SubjectError`:

    - in training, with hooks; for a program, with objects among its arguments, or more weights than a file holds
    - with other dtypes, parameters or forms than the first call; other sizes too, unless it promises dynamic sizes

    dynamic: sizes are symbolic if the program allows it
    """

    def __init__(self, compiler: Compiler, module: nn.Module, dynamic: bool | None) -> None:
        self._compiler, self._module = compiler, module
        self._dynamic = bool(dynamic)
        self._form: list[_Form] | None = None
        self._weights: list[Tensor] = []
        self._program: ExportedProgram | None = None
        self._run: CompiledCall = module

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        promised = self._compiler.capabilities
        is_program = self._compiler.takes == "program"
        if is_program:
            inputs, named = self._list_tensors(inputs, named), {}
        if "training" not in promised.modes and (torch.is_grad_enabled() or self._module.training):
            raise SubjectError(f"{self._compiler.name} is for inference")
        if not promised.state or is_program:
            self._require_same(inputs)
        if self._form is None:
            self._form, self._weights = _read_form(self._module, inputs), _copy_weights(self._module)
            with self._refusing(CompilingFailed):
                self._compile(inputs)
        if self._program is not None and self._dynamic:
            _require_sizes(self._program, inputs)
        with self._refusing():
            result = self._run(*inputs, **named)
        return self._restore(result)

    def _list_tensors(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Tensor, ...]:
        """The tensors of a call, which are the inputs of the program. Its other arguments are constants there."""
        leaves, form = pytree.tree_flatten((inputs, named))
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        constants = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if others := [type(leaf).__name__ for leaf in constants if not isinstance(leaf, _CONSTANTS)]:
            raise SubjectError(f"an exported program takes no {others[0]} among its arguments")
        known = self._module if isinstance(self._module, _OfTensors) else None
        if self._form is None and (named or len(tensors) < len(leaves) or not all(map(torch.is_tensor, inputs))):
            self._module = _OfTensors(self._module, form, constants)
        elif known is not None and (known.form, known.constants) != (form, constants):
            raise SubjectError("the program is exported for other arguments that are no tensors")
        return tensors

    def _require_same(self, inputs: tuple[Any, ...]) -> None:
        if any(part._forward_hooks or part._forward_pre_hooks for part in self._module.modules()):
            raise SubjectError("exported programs have no hooks")
        if self._form is None:
            return
        form = _read_form(self._module, inputs)
        if self._compiler.capabilities.dynamic and self._dynamic:
            same = [(len(size), dtype) for size, _, dtype in form] == [(len(s), d) for s, _, d in self._form]
        else:
            same = form == self._form
        if not same or not all(map(same_bits, self._weights, _copy_weights(self._module))):
            raise SubjectError("the program is exported for other sizes, strides, dtypes or parameters")

    def _compile(self, inputs: tuple[Any, ...]) -> None:
        compiler = self._compiler
        if compiler.takes == "program" and compiler.is_foreign:
            n_bytes = sum(value.nbytes for value in (*self._module.parameters(), *self._module.buffers()))
            if n_bytes > LARGEST:
                raise SubjectError(
                    f"it has {n_bytes / 2**30:.2g} GiB of weights; the limit is {LARGEST / 2**30:.2g} GiB"
                )
        if compiler.takes == "program":
            self._program = self._export(inputs)
        self._run = compiler.compile(self._program or self._module, inputs, **compiler.keywords)
        if compiler.takes == "module" and compilation.is_compiled_by_dynamo(self._run):
            compilation.expect(compilation.DYNAMO_GRAPH)

    def _export(self, inputs: tuple[Tensor, ...]) -> ExportedProgram:
        """The exported program: that of an earlier compiler of the case, unless this one may change it."""
        assert self._form is not None
        is_shared = self._compiler.is_foreign and not self._compiler.capabilities.state
        mine = (type(self._module), self._dynamic, self._form)
        for *of, weights, program in _exported if is_shared else ():
            same = zip(weights, self._weights, strict=False)
            if (*of,) == mine and len(weights) == len(self._weights) and all(same_bits(*pair) for pair in same):
                return program
        sizes = [[torch.export.Dim.AUTO] * value.dim() for value in inputs]
        with settings.trace_flex_attention():
            program = torch.export.export(self._module, inputs, dynamic_shapes=sizes if self._dynamic else None)
        if is_shared:
            _exported.append((type(self._module), self._dynamic, self._form, self._weights, program))
        return program

    @contextmanager
    def _refusing(self, wrapper: type[Exception] | None = None) -> Iterator[None]:
        """Exceptions that mean a refusal become `SubjectError`; others a `wrapper` of them, if any."""
        try:
            yield
        except SubjectError:
            raise
        except Exception as error:
            if refusal := find_refused(error, self._compiler.capabilities):
                raise refusal from error
            if isinstance(root := find_root(error), ModuleNotFoundError):
                raise SubjectError(f"{sys.executable} has no package {root.name}") from error
            if wrapper is None:
                raise
            raise wrapper(self._compiler.name) from error

    def _restore(self, result: Any) -> Any:
        """The outputs in the structure of the module's."""
        if self._program is None or not self._compiler.is_foreign:
            return result
        spec, leaves = self._program.call_spec.out_spec, pytree.tree_leaves(result)
        if spec is None or spec.num_leaves != len(leaves):
            return result
        return pytree.tree_unflatten(leaves, spec)


class _OfTensors(nn.Module):
    """A module that is called with the tensors among its arguments. `constants`: all, `_TENSOR` for a tensor."""

    def __init__(self, module: nn.Module, form: Any, constants: list[Any]) -> None:
        super().__init__()
        self.module, self.form, self.constants = module, form, constants
        self.training = module.training

    def forward(self, *tensors: Tensor) -> Any:
        rest = iter(tensors)
        leaves = [next(rest) if constant is _TENSOR else constant for constant in self.constants]
        args, named = pytree.tree_unflatten(leaves, self.form)
        return self.module(*args, **named)


def _read_form(module: nn.Module, inputs: tuple[Any, ...]) -> list[_Form]:
    tensors = (value for value in (*inputs, *module.buffers()) if isinstance(value, Tensor))
    return [(value.shape, value.stride(), value.dtype) for value in tensors]


def _copy_weights(module: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in module.parameters()]


def _require_sizes(program: ExportedProgram, inputs: tuple[Tensor, ...]) -> None:
    """Raise `SubjectError` for sizes that the program is not for: tracing fixed them, or made them equal."""
    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    made = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    known: dict[Any, int] = {}
    for name, given in zip(names, inputs, strict=True):
        for size, wanted in zip(given.shape, made[name].shape, strict=True):
            symbol = wanted.node.expr if isinstance(wanted, torch.SymInt) else int(wanted)
            if getattr(symbol, "is_symbol", False):
                bounds = program.range_constraints.get(symbol)
                fits = known.setdefault(symbol, size) == size and (bounds is None or size in bounds)
            else:
                fits = symbol == size
            if not fits:
                raise SubjectError("the program is not for these sizes")
