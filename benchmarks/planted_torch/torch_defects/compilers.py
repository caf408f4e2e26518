"""Mistakes on the way through other compilers: in torch's exporter, in ONNX Runtime and in OpenVINO."""

import functools
from collections.abc import Callable, Iterator
from typing import Any


def decompose_softmax_wrongly(run_decompositions: Any) -> Any:
    """The decomposition of softmax divides by the largest term in place of the sum."""

    def run(program: Any, table: Any = None, **options: Any) -> Any:
        import torch

        aten = torch.ops.aten

        def softmax(value: Any, dim: int, *_: Any, **__: Any) -> Any:
            terms = (value - value.amax(dim, keepdim=True)).exp()
            return terms / terms.amax(dim, keepdim=True)

        table = dict(torch.export.default_decompositions() if table is None else table)
        return run_decompositions(program, {**table, aten.softmax.int: softmax}, **options)

    return run


def _list_nodes(model: Any, kind: str) -> Iterator[Any]:
    return (node for node in model.graph if node.op_type == kind)


def turn_softmax(export: Any) -> Any:
    """The exporter gives Softmax the axis before the one that the program names."""

    @functools.wraps(export)
    def run(*args: Any, **options: Any) -> Any:
        from onnxscript import ir

        program = export(*args, **options)
        for node in _list_nodes(program.model, "Softmax"):
            axis = node.attributes["axis"].as_int()
            if node.inputs[0].shape is not None and len(node.inputs[0].shape) > 1:
                node.attributes["axis"] = ir.AttrInt64("axis", axis - 1 if axis else 1)
        return program

    return run


def swap_outputs(export: Any) -> Any:
    """The exporter swaps the last two outputs."""

    @functools.wraps(export)
    def run(*args: Any, **options: Any) -> Any:
        program = export(*args, **options)
        outputs = program.model.graph.outputs
        if len(outputs) > 1:
            outputs[-2:] = [outputs[-1], outputs[-2]]
        return program

    return run


def _edit_sessions(init: Any, edit: Callable[[Any, Any], None]) -> Any:
    @functools.wraps(init)
    def run(self: Any, model: Any, sess_options: Any = None, *args: Any, **options: Any) -> None:
        import onnx

        loaded = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
        edit(loaded, (sess_options, options.get("disabled_optimizers") or ()))
        init(self, loaded.SerializeToString(), sess_options, *args, **options)

    return run


def _skip_node(node: Any, kept: str) -> None:
    """The node returns its operand `kept`."""
    node.op_type, node.domain = "Identity", ""
    del node.input[:], node.attribute[:]
    node.input.append(kept)


def fold_factor(init: Any) -> Any:
    """An optimizer of level EXTENDED drops the factor of what a softmax reads."""

    def edit(model: Any, given: Any) -> None:
        from onnxruntime import GraphOptimizationLevel as Level

        level = getattr(given[0], "graph_optimization_level", Level.ORT_ENABLE_ALL)
        if level in (Level.ORT_DISABLE_ALL, Level.ORT_ENABLE_BASIC) or "MatMulScaleFusion" in given[1]:
            return
        made = {name: node for node in model.graph.node for name in node.output}
        constants = {tensor.name for tensor in model.graph.initializer}
        constants |= {name for name, node in made.items() if node.op_type == "Constant"}
        for node in model.graph.node:
            factor = made.get(node.input[0]) if node.op_type == "Softmax" else None
            if factor is not None and factor.op_type in ("Mul", "Div") and {*factor.input} & constants:
                _skip_node(factor, next(name for name in factor.input if name not in constants))

    return _edit_sessions(init, edit)


def ignore_mask(init: Any) -> Any:
    """The kernel of Where always takes its second operand."""

    def edit(model: Any, _given: Any) -> None:
        for node in model.graph.node:
            if node.op_type == "Where":
                _skip_node(node, node.input[1])

    return _edit_sessions(init, edit)


def confuse_axes(init: Any) -> Any:
    """A transpose of two axes of one size is taken for a copy."""

    def edit(model: Any, _given: Any) -> None:
        import onnx

        inferred = onnx.shape_inference.infer_shapes(model)
        values = (*inferred.graph.value_info, *inferred.graph.input)
        sizes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
        for node in model.graph.node:
            order = next((list(one.ints) for one in node.attribute if one.name == "perm"), [])
            shape = sizes.get(node.input[0], []) if node.op_type == "Transpose" else []
            if order and len(shape) == len(order) and all(shape) and [shape[axis] for axis in order] == shape:
                _skip_node(node, node.input[0])

    return _edit_sessions(init, edit)


def keep_session(run: Any) -> Any:
    """A later call of other sizes reads zeros beyond the sizes of the first call."""

    @functools.wraps(run)
    def run_stale(self: Any, names: Any, feeds: dict[str, Any], *args: Any, **options: Any) -> Any:
        from onnxruntime import OrtValue

        first = self.__dict__.setdefault("_first_sizes", {name: value.shape() for name, value in feeds.items()})
        given = {}
        for name, value in feeds.items():
            array = value.numpy().copy() if value.shape() != first[name] else None
            if array is not None:
                for axis, size in enumerate(first[name]):
                    array[(slice(None),) * axis + (slice(size, None),)] = 0
            given[name] = value if array is None else OrtValue.ortvalue_from_numpy(array)
        return run(self, names, given, *args, **options)

    return run_stale


def narrow_outputs(compile_model: Any) -> Any:
    """OpenVINO's plugin returns integers of 64 bits in 32."""

    @functools.wraps(compile_model)
    def run(self: Any, model: Any, *args: Any, **options: Any) -> Any:
        import openvino

        process = openvino.preprocess.PrePostProcessor(model)
        for number, output in enumerate(model.outputs):
            if output.get_element_type() == openvino.Type.i64:
                process.output(number).tensor().set_element_type(openvino.Type.i32)
        return compile_model(self, process.build(), *args, **options)

    return run


_EXPORT = ("torch.onnx._internal.exporter._core", "export")
_SESSION = "onnxruntime.capi.onnxruntime_inference_collection"

#: By name: as `FUNCTIONS`, then the subject that shows it, and the stage at fault (corpus/causes.py).
COMPILER_DEFECTS: dict[str, tuple[str, str, Any, str, str]] = {
    "softmax_decomposed_wrongly": (
        "torch.export.exported_program",
        "ExportedProgram.run_decompositions",
        decompose_softmax_wrongly,
        "onnxruntime",
        "decomposition",
    ),
    "axis_swapped": (*_EXPORT, turn_softmax, "onnxruntime", "conversion"),
    "outputs_swapped": (*_EXPORT, swap_outputs, "onnxruntime", "conversion"),
    "factor_folded": (_SESSION, "InferenceSession.__init__", fold_factor, "onnxruntime", "graph_optimisation"),
    "mask_ignored": (_SESSION, "InferenceSession.__init__", ignore_mask, "onnxruntime", "runtime"),
    "axes_confused": (_SESSION, "InferenceSession.__init__", confuse_axes, "onnxruntime", "runtime"),
    "session_stale": (_SESSION, "Session.run_with_ort_values", keep_session, "onnxruntime", "runtime"),
    "integers_narrowed": ("openvino._ov_api", "Core.compile_model", narrow_outputs, "openvino", "runtime"),
}
