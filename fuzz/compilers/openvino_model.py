"""OpenVINO's model of an exported program: made, compiled for the CPU, or evaluated without a device."""

import os
from typing import TYPE_CHECKING, Any
from unittest import mock

from fuzz.compilers.interface import CompiledCall

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2}
"""On processors with bfloat16 it computes in that by default. On one thread it loses errors of nodes
(openvino-lost-errors in the ledger)."""

REFUSALS = (
    r"No conversion rule found for operations: ([\w.]+)",
    r"Unsupported operation of type: (\w+)",
    r"Element type of data input must be numeric",
)
"""How its exceptions say that it does not take an operation."""


def convert(program: "ExportedProgram", inputs: "tuple[Tensor, ...]", *, sized: bool) -> Any:
    """The model. `sized`: for the sizes of `inputs` alone."""
    import openvino

    # It sends usage data but for this variable.
    with mock.patch.dict(os.environ, CI="true"):
        shapes = {"input": [tuple(value.shape) for value in inputs]} if sized else {}
        return openvino.convert_model(program, **shapes)


def compile_model(model: Any, config: dict[str, object]) -> Any:
    """OpenVINO's own object for a model that is compiled for the CPU."""
    import openvino

    return openvino.Core().compile_model(model, "CPU", {**CONFIG, **config})


def open_model(model: Any, config: dict[str, object]) -> CompiledCall:
    """A function that runs `compile_model`."""
    request = compile_model(model, config).create_infer_request()

    def run(*given: "Tensor") -> "list[Tensor]":
        request.infer([_to_openvino(value) for value in given])
        return [_to_torch(request.get_output_tensor(index)) for index in range(len(model.outputs))]

    return run


def evaluate(model: Any) -> CompiledCall:
    """The model by OpenVINO's reference implementations. Raises NotImplementedError for operators without one."""
    import openvino

    def run(*given: "Tensor") -> "list[Tensor]":
        results = [openvino.Tensor(one.get_element_type(), openvino.Shape([0])) for one in model.outputs]
        if not model.evaluate(results, [_to_openvino(value) for value in given]):
            raise NotImplementedError("an operator of the model has no reference implementation")
        return [_to_torch(result) for result in results]

    return run


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
