"""OpenVINO on the CPU: its converter of exported programs, and its backend of torch.compile."""

import importlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities, Package
from fuzz.compilers.openvino_model import CONFIG, REFUSALS, convert, evaluate, open_model
from fuzz.compilers.openvino_nodes import find_node
from fuzz.compilers.openvino_variations import OF_DEVICE, OF_MODEL

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.export import ExportedProgram


def compile_program(
    program: "ExportedProgram",
    inputs: "tuple[Tensor, ...]",
    *,
    sized: bool = False,
    evaluates: bool = False,
    **config: object,
) -> CompiledCall:
    """A compiled model. `sized`, `evaluates`: as `convert` and `evaluate`; `config`: properties of the device."""
    model = convert(program, inputs, sized=sized)
    return evaluate(model) if evaluates else open_model(model, config)


def compile_module(module: "nn.Module", _inputs: "tuple[Tensor, ...]", **config: object) -> Callable[..., Any]:
    """A module for torch.compile, which calls OpenVINO for the parts of its graphs that OpenVINO takes."""
    import torch

    importlib.import_module("openvino.torch")  # registers the backend
    options: dict[str, Any] = {"config": {name: str(value) for name, value in {**CONFIG, **config}.items()}}
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
        refusals=REFUSALS,
    ),
    extra="openvino",
    variations=(*OF_DEVICE, *OF_MODEL),
    find_node=find_node,
)
OPENVINO_SIZED = replace(
    OPENVINO,
    name="openvino_sized",
    words="the same for fixed sizes",
    keywords={"sized": True},
    capabilities=replace(OPENVINO.capabilities, dynamic=False),
)
OPENVINO_ONE_THREAD = replace(
    OPENVINO,
    name="openvino_one_thread",
    words="the same on one thread, where it loses errors of nodes",
    keywords={"INFERENCE_NUM_THREADS": 1},
)
OPENVINO_BACKEND = replace(
    OPENVINO,
    name="openvino_backend",
    words='torch.compile(backend="openvino")',
    compile=compile_module,
    takes="module",
    variations=OF_DEVICE,
    find_node=None,
)
