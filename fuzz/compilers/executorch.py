"""ExecuTorch on the CPU: its portable kernels, and XNNPACK for the parts of a program that XNNPACK takes."""

import io
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities, Package

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram


def compile_program(program: "ExportedProgram", _inputs: "tuple[Tensor, ...]", *, xnnpack: bool) -> CompiledCall:
    """A loaded program, for contiguous inputs: the runtime refuses others. `xnnpack`: its delegate has parts of it."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from executorch.extension.pybindings import portable_lib

    delegates = [XnnpackPartitioner()] if xnnpack else []
    # The check refuses operators outside of core ATen, also those that have kernels.
    config = EdgeCompileConfig(_check_ir_validity=False)
    with ExitStack() as stack:
        for node in program.graph.find_nodes(op="placeholder"):
            if node.name in program.graph_signature.user_inputs:
                stack.enter_context(mock.patch.dict(node.meta, val=node.meta["val"].contiguous()))
        edge = to_edge_transform_and_lower(program, partitioner=delegates, compile_config=config)
        buffer = edge.to_executorch().buffer
    _explain(lambda: portable_lib._unsafe_reset_threadpool(1))  # it logs that
    loaded = _explain(lambda: portable_lib._load_for_executorch_from_buffer(buffer))

    # A loaded program reads its buffer, and does not keep it alive.
    def run(*given: "Tensor", _buffer: bytes = buffer) -> Any:
        return _explain(lambda: loaded.forward([value.detach().contiguous() for value in given]))

    return run


def _explain(call: Callable[[], Any]) -> Any:
    """The result of `call`. Its exceptions have numbers alone: the log, on Python's stderr, has the reasons."""
    with redirect_stderr(io.StringIO()) as log:
        try:
            return call()
        except RuntimeError as error:
            told = [line for line in log.getvalue().splitlines() if any(words in line for words in _REASONS)]
            reasons = (line.partition("] ")[2] for line in told)  # after the place in ExecuTorch's sources
            raise RuntimeError("; ".join([str(error).strip(), *reasons])) from error


_REASONS = ("Check failed", " in operator ", " not found", "XNN")

EXECUTORCH = Compiler(
    "executorch",
    "executorch",
    "ExecuTorch with its portable kernels",
    compile_program,
    packages=(Package("executorch", (1, 0), (2,)),),
    capabilities=CompilerCapabilities(
        refusals=(r"kernel '([\w:.]+)' not found", r"'(FlexAttentionHOP)' object has no attribute '_schema'")
    ),
    keywords={"xnnpack": False},
    extra="executorch",
)
EXECUTORCH_XNNPACK = replace(
    EXECUTORCH, name="executorch_xnnpack", words="the same, and XNNPACK where it can", keywords={"xnnpack": True}
)
