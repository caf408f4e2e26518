"""The first node of a model of OpenVINO whose value is wrong on the CPU."""

from typing import TYPE_CHECKING, Any

from fuzz.compilers.differences import is_other
from fuzz.compilers.interface import WrongNode
from fuzz.compilers.openvino_model import compile_model, convert, evaluate, open_model

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_PLAIN: dict[str, object] = {"SNIPPETS_MODE": "DISABLE", "EXECUTION_MODE_HINT": "ACCURACY"}
_GIVEN = ("Parameter", "Constant", "Result")


def find_node(
    program: "ExportedProgram", inputs: "tuple[Tensor, ...]", *, sized: bool = False, **config: object
) -> WrongNode:
    """The model is cut after each node in turn: with all values as outputs, nothing would be fused."""
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
