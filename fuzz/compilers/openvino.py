"""OpenVINO on the CPU: its converter of exported programs, and its backend of torch.compile."""

import importlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities, Package

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.export import ExportedProgram


def compile_program(
    program: "ExportedProgram", inputs: "tuple[Tensor, ...]", *, sized: bool = False, **config: object
) -> CompiledCall:
    """A compiled model. `sized`: for the sizes of `inputs` alone; `config`: properties of the device."""
    import openvino

    # It sends usage data but for this variable.
    with mock.patch.dict(os.environ, CI="true"):
        shapes = {"input": [tuple(value.shape) for value in inputs]} if sized else {}
        model = openvino.convert_model(program, **shapes)
    request = openvino.Core().compile_model(model, "CPU", {**_CONFIG, **config}).create_infer_request()

    def run(*given: "Tensor") -> "list[Tensor]":
        request.infer([_to_openvino(value) for value in given])
        return [_to_torch(request.get_output_tensor(index)) for index in range(len(model.outputs))]

    return run


_CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
"""On processors with bfloat16 it computes in that by default."""


def _to_openvino(value: "Tensor") -> Any:
    import openvino
    import torch

    value = value.detach().contiguous()
    if value.dtype is torch.bfloat16:  # NumPy has no such dtype
        return openvino.Tensor(value.view(torch.int16).numpy(), list(value.shape), openvino.Type.bf16)
    return openvino.Tensor(value.numpy())


def _to_torch(result: Any) -> "Tensor":
    import openvino
    import torch

    value = torch.from_numpy(result.data.copy())  # a later call writes into the same memory
    return value.view(torch.bfloat16) if result.element_type == openvino.Type.bf16 else value


def compile_module(module: "nn.Module", _inputs: "tuple[Tensor, ...]") -> Callable[..., Any]:
    """A module for torch.compile, which calls OpenVINO for the parts of its graphs that OpenVINO takes."""
    import torch

    importlib.import_module("openvino.torch")  # registers the backend
    options: dict[str, Any] = {"config": {name: str(value) for name, value in _CONFIG.items()}}
    with mock.patch.dict(os.environ, CI="true"):
        return torch.compile(module, backend="openvino", options=options)


OPENVINO = Compiler(
    "openvino",
    "openvino",
    "OpenVINO, through convert_model of a program of torch.export",
    compile_program,
    packages=(Package("openvino", (2025, 1), (2027,)),),
    capabilities=CompilerCapabilities(
        dynamic=True,
        # docs.openvino.ai, "CPU Device", "Supported Model Precision": its primitives compute in these dtypes at most.
        precisions={"int64": ("int32",), "float64": ("float32",)},
        refuses=("openvino.frontend.OpConversionFailure", "openvino.frontend.NotImplementedFailure"),
        refusals=(r"No conversion rule found for operations: ([\w.]+)",),
    ),
    extra="openvino",
)
OPENVINO_SIZED = replace(
    OPENVINO,
    name="openvino_sized",
    words="the same for fixed sizes",
    keywords={"sized": True},
    capabilities=replace(OPENVINO.capabilities, dynamic=False),
)
OPENVINO_BACKEND = replace(
    OPENVINO, name="openvino_backend", words='torch.compile(backend="openvino")', compile=compile_module, takes="module"
)
