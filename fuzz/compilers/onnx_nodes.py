"""The first node of an ONNX model whose value is wrong."""

import re
from typing import TYPE_CHECKING, Any

from fuzz.compilers.differences import is_other
from fuzz.compilers.interface import WrongNode
from fuzz.compilers.onnx_model import export, open_session

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_TARGET = re.compile(r"target=torch\.ops\.([\w.]+)")
"""The operation in what the exporter writes about a node."""


def find_node(
    program: "ExportedProgram",
    inputs: "tuple[Tensor, ...]",
    *,
    opset: int,
    optimize: bool = True,
    omitted: str = "",
    **options: str,
) -> WrongNode:
    """The model is cut after each node in turn: with all values as outputs, nothing would be fused."""
    import onnx
    from onnx.reference import ReferenceEvaluator
    from torch import from_numpy

    model = export(program, inputs, opset=opset, optimize=optimize, omitted=omitted).model_proto
    given = {item.name: value.detach().numpy() for item, value in zip(model.graph.input, inputs, strict=True)}
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]

    def cut(*names: str) -> Any:
        shorter = onnx.ModelProto()
        shorter.CopyFrom(model)
        shorter.graph.ClearField("output")
        shorter.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        return shorter

    names = [name for node in nodes for name in node.output if name]
    wanted = dict(zip(names, ReferenceEvaluator(cut(*names)).run(None, given), strict=True))
    for node in nodes:
        session = open_session(cut(*filter(None, node.output)).SerializeToString(), **options)
        feeds = {item.name: given[item.name] for item in session.get_inputs()}
        values = zip(filter(None, node.output), session.run(None, feeds), strict=True)
        if any(is_other(from_numpy(value), from_numpy(wanted[name])) for name, value in values):
            told = " ".join(item.value for item in node.metadata_props if item.key.endswith("fx_node"))
            return WrongNode((node.op_type,), tuple(_TARGET.findall(told)))
    return WrongNode()
