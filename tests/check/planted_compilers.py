"""Compilers as users write them, which promise what an exporter does."""

import copy
import inspect
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_map

from fuzz.check.run.compiled_module import CompiledModule
from tests.check.faults import declares

Call = Callable[..., Any]


@declares(precisions={"float32": ["bfloat16"]})
def declared(module: nn.Module, _inputs: tuple[Tensor, ...]) -> Call:
    """Computes in bfloat16, and says so."""
    narrow = copy.deepcopy(module).to(torch.bfloat16)

    def cast(value: Any, dtype: torch.dtype) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    def run(*inputs: Tensor, **named: Any) -> Any:
        args, keywords = tree_map(lambda value: cast(value, torch.bfloat16), (inputs, named))
        return tree_map(lambda value: cast(value, torch.float32), narrow(*args, **keywords))

    return run


def refuses_softmax(program: ExportedProgram) -> Call:
    """Takes programs without softmax."""
    for node in program.graph.nodes:
        if "softmax" in str(node.target):
            raise NotImplementedError(f"{node.target} is not supported")
    return program.module()


def falls_back(program: ExportedProgram, _inputs: tuple[Tensor, ...]) -> Call:
    """Gives up without a word: the module runs in eager, and all its results are right."""
    owners = (one.frame.f_locals.get("self") for one in inspect.stack())
    return next(owner for owner in owners if isinstance(owner, CompiledModule))._module


def needs_a_package(module: nn.Module) -> Call:
    """Imports it late, as careful users do."""
    import not_installed_anywhere  # type: ignore[import-not-found]

    return not_installed_anywhere.compile(module)  # type: ignore[no-any-return]


def ends_the_process(_module: nn.Module, _inputs: tuple[Tensor, ...]) -> Call:
    """Compiling crashes."""
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def flattens(program: ExportedProgram, _inputs: tuple[Tensor, ...]) -> Call:
    """Gives a list of copies in another layout, as runtimes do."""
    module = program.module()

    def run(*inputs: Tensor) -> list[Tensor]:
        return [value.clone(memory_format=torch.contiguous_format) for value in tree_leaves(module(*inputs))]

    return run


def turns_softmax(program: ExportedProgram) -> Call:
    """Takes each softmax along axis 1."""
    for node in program.graph.nodes:
        if node.op == "call_function" and "softmax" in str(node.target):
            node.args = (node.args[0], 1, *node.args[2:])
    program.graph_module.recompile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.module()
