"""OpenVINO on the CPU: its converter of exported programs, and its backend of torch.compile."""

import importlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities, Package, Variation, WrongNode
from fuzz.compilers.tensors import is_other, to_numpy, to_torch

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.export import ExportedProgram

_CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2}
"""On processors with bfloat16 it computes in that by default. On one thread it loses errors of nodes
(openvino-lost-errors in the ledger)."""

_PLAIN: dict[str, object] = {"SNIPPETS_MODE": "DISABLE", "EXECUTION_MODE_HINT": "ACCURACY"}
_GIVEN = ("Parameter", "Constant", "Result")


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
    options: dict[str, Any] = {"config": {name: str(value) for name, value in {**_CONFIG, **config}.items()}}
    with mock.patch.dict(os.environ, CI="true"):
        return torch.compile(module, backend="openvino", options=options)


def find_node(
    program: "ExportedProgram", inputs: "tuple[Tensor, ...]", *, sized: bool = False, **config: object
) -> WrongNode:
    """The first node of the model whose value is wrong on the CPU.

    The model is cut after each node in turn: with all values as outputs, nothing would be fused.
    """
    import openvino

    model = convert(program, inputs, sized=sized)
    nodes = [node for node in model.get_ordered_ops() if node.get_type_name() not in _GIVEN]
    given = model.get_parameters()
    for node in nodes:
        cut = openvino.Model(node.outputs(), given, "cut")
        if any(map(is_other, open_model(cut, config)(*inputs), _run_plainly(cut, inputs))):
            fused = _list_fused(compile_model(cut, config), {*map(_name, nodes)})
            found = [one for one in nodes if _name(one) in (fused or {_name(node)})]
            operations = {part for one in found for part in _name(one).split("/")[1:2] if "." in part}
            return WrongNode(tuple(sorted({one.get_type_name() for one in found})), tuple(sorted(operations)))
    return WrongNode()


def _run_plainly(model: Any, inputs: "tuple[Tensor, ...]") -> Any:
    """The values by reference implementations; by the plainest kernels if an operator has none."""
    try:
        return evaluate(model)(*inputs)
    except (NotImplementedError, RuntimeError):
        return open_model(model, _PLAIN)(*inputs)


def _list_fused(compiled: Any, known: set[str]) -> set[str]:
    """The nodes of the model, whose names are `known`, that the last node of the compiled model computes.

    Conversions of the result follow that node, under names that the model does not have.
    """
    node = next(one for one in compiled.get_runtime_model().get_ordered_ops() if one.get_type_name() == "Result")
    while node.inputs():
        node = node.input_value(0).get_node()
        info = node.get_rt_info()
        fused = {*info["originalLayersNames"].astype(str).split(",")} if "originalLayersNames" in info else set()
        if fused & known:
            return fused
    return set()


def _name(node: Any) -> str:
    return str(node.get_friendly_name())


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

    return openvino.Core().compile_model(model, "CPU", {**_CONFIG, **config})


def open_model(model: Any, config: dict[str, object]) -> CompiledCall:
    """A function that runs `compile_model`."""
    request = compile_model(model, config).create_infer_request()

    def run(*given: "Tensor") -> "list[Tensor]":
        request.infer([_to_openvino(value) for value in given])
        return [_read(request.get_output_tensor(index)) for index in range(len(model.outputs))]

    return run


def evaluate(model: Any) -> CompiledCall:
    """The model by OpenVINO's reference implementations. Raises NotImplementedError for operators without one."""
    import openvino

    def run(*given: "Tensor") -> "list[Tensor]":
        results = [openvino.Tensor(one.get_element_type(), openvino.Shape([0])) for one in model.outputs]
        if not model.evaluate(results, [_to_openvino(value) for value in given]):
            raise NotImplementedError("an operator of the model has no reference implementation")
        return [_read(result) for result in results]

    return run


def _to_openvino(value: "Tensor") -> Any:
    import openvino
    import torch

    kind = (list(value.shape), openvino.Type.bf16) if value.dtype is torch.bfloat16 else ()
    return openvino.Tensor(to_numpy(value), *kind)


def _read(result: Any) -> "Tensor":
    import openvino

    return to_torch(result.data, is_bfloat16=result.element_type == openvino.Type.bf16)


_GRAPH, _RUNTIME = ("openvino", "graph_optimisation"), ("openvino", "runtime")
_OF_DEVICE = (
    Variation("openvino_snippets_off", "SNIPPETS_MODE=DISABLE", {"SNIPPETS_MODE": "DISABLE"}, *_GRAPH, "snippets"),
    Variation(
        *("openvino_uncached", "CPU_RUNTIME_CACHE_CAPACITY=0", {"CPU_RUNTIME_CACHE_CAPACITY": "0"}, *_RUNTIME),
        "runtime_cache",
    ),
    Variation(
        *("openvino_accurate", "EXECUTION_MODE_HINT=ACCURACY", {"EXECUTION_MODE_HINT": "ACCURACY"}, *_RUNTIME),
        "precision",
    ),
)
_OF_MODEL = (
    Variation("openvino_with_sizes", "fixed sizes", {"sized": True}, *_GRAPH, "dynamic_sizes"),
    Variation("openvino_evaluated", "Model.evaluate, which uses no device", {"evaluates": True}, *_RUNTIME),
)
"""Plainer ways to run a model, which tell whose bug a failure is."""

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
        refusals=(
            r"No conversion rule found for operations: ([\w.]+)",
            r"Unsupported operation of type: (\w+)",
            r"Element type of data input must be numeric",
        ),
    ),
    extra="openvino",
    variations=(*_OF_DEVICE, *_OF_MODEL),
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
    variations=_OF_DEVICE,
    find_node=None,
)
