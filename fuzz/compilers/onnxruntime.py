"""ONNX Runtime on the CPU, through torch.onnx.export."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities, Package
from fuzz.compilers.onnx_model import export, open_session
from fuzz.compilers.onnx_nodes import find_node
from fuzz.compilers.onnxruntime_variations import OF_ONNX

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram


def compile_program(
    program: "ExportedProgram",
    inputs: "tuple[Tensor, ...]",
    *,
    opset: int,
    optimize: bool = True,
    omitted: str = "",
    evaluates: bool = False,
    **options: str,
) -> CompiledCall:
    """A call of the model in an inference session (`options`: as `open_session`), or in ONNX's reference evaluator."""
    model = export(program, inputs, opset=opset, optimize=optimize, omitted=omitted)
    if evaluates:
        return model.call_reference
    model.initialize_inference_session(partial(open_session, **options))
    return model


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
            # The exporter takes dtypes for which ONNX does not define the operator.
            r"INVALID_GRAPH.*Type 'tensor\(\w+\)' of input parameter \(.*\) of operator \((\w+)\)",
            r"data type is not supported with (\w+)",
            r"only 4D query, key, and value are supported",
        ),
    ),
    keywords={"opset": 18},
    extra="onnxruntime",
    converters={"": "onnxscript", **dict.fromkeys(("gelu", "group_norm", "rms_norm"), "pytorch")},
    variations=OF_ONNX,
    find_node=find_node,
)
ONNXRUNTIME_OPSET23 = replace(
    ONNXRUNTIME,
    name="onnxruntime_opset23",
    words="the same with opset 23, which has attention as an operator",
    keywords={"opset": 23},
)
