"""ONNX Runtime on the CPU, through torch.onnx.export."""

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities, Package

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_ONE_THREAD, _FATAL = 1, 4


def compile_program(
    program: "ExportedProgram", inputs: "tuple[Tensor, ...]", *, opset: int, level: str = "ALL", disabled: str = ""
) -> CompiledCall:
    """An inference session. `level`: of its graph optimisations; `disabled`: names of optimizers, by commas."""
    import onnxruntime
    import torch

    def open_session(model: str | bytes) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = _ONE_THREAD, _FATAL
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        words = {"disabled_optimizers": disabled.split(",")} if disabled else {}
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], **words)

    _keep_registry()
    model = torch.onnx.export(program, inputs, dynamo=True, opset_version=opset, verbose=False)
    assert model is not None
    model.initialize_inference_session(open_session)
    return model


def _keep_registry() -> None:
    """Build the table of ONNX functions once a process: torch builds it at each export, in 70 % of the time of one."""
    from torch.onnx._internal.exporter import _registration

    registry = getattr(_registration, "ONNXRegistry", None)
    build = getattr(registry, "from_torchlib", None)
    if registry is not None and build is not None and not hasattr(build, "cache_info"):
        registry.from_torchlib = staticmethod(functools.cache(build))


ONNXRUNTIME = Compiler(
    "onnxruntime",
    "onnxruntime",
    "ONNX Runtime, through torch.onnx.export",
    compile_program,
    packages=(
        Package("onnxruntime", (1, 20), (2,)),
        Package("onnx", (1, 17), (2,)),
        Package("onnxscript", (0, 5), (1,)),
    ),
    capabilities=CompilerCapabilities(
        dynamic=True,
        refuses=("onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented",),
        refusals=(
            r"No ONNX function found for <OpOverload\(op='([\w.]+)'",
            r"No decompositions registered for the (?:real|complex)-valued input.*?([\w.]+)",
            r"NOT_IMPLEMENTED : Could not find an implementation for (\w+)\(",
        ),
    ),
    keywords={"opset": 18},
    extra="onnxruntime",
)
ONNXRUNTIME_OPSET23 = replace(
    ONNXRUNTIME,
    name="onnxruntime_opset23",
    words="the same with opset 23, which has attention as an operator",
    keywords={"opset": 23},
)
