"""The ONNX operator `Attention` on the CPU, forward: in onnx 1.23's reference evaluator, ONNX Runtime and OpenVINO."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.adapters import import_adapted, require

_ONNX = import_adapted("onnx", "onnx")
_SINGLE = {"INFERENCE_PRECISION_HINT": "f32"}  # by default it may compute in bfloat16


def _evaluate(model: Any, feeds: dict[str, Any]) -> Any:
    return import_adapted("onnx.reference", "onnx").ReferenceEvaluator(model).run(None, feeds)[0]


def _run_onnxruntime(model: Any, feeds: dict[str, Any]) -> Any:
    runtime = import_adapted("onnxruntime", "onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def _run_openvino(model: Any, feeds: dict[str, Any]) -> Any:
    core = import_adapted("openvino", "openvino").Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", _SINGLE)
    return compiled(feeds)[0].copy()


def _attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, mask: Tensor | None = None, bias: Tensor | None = None,
    causal: str | None = None, softcap: float | None = None, opset: int = 24,
    run: Callable[[Any, dict[str, Any]], Any] = _evaluate,
) -> Tensor:  # fmt: skip
    """ONNX takes one of mask and bias. A `scale` of None is ONNX' default."""
    require(mask is None or bias is None, "mask and bias")
    named = {"q": q, "k": k, "v": v, "attn_mask": mask if bias is None else bias}
    feeds = {name: x.detach().contiguous().numpy() for name, x in named.items() if x is not None}
    attributes = {"scale": scale, "softcap": softcap, "is_causal": int(causal is not None)}
    given = {name: value for name, value in attributes.items() if value is not None}
    make, types = _ONNX.helper, _ONNX.helper.np_dtype_to_tensor_dtype
    inputs = [make.make_tensor_value_info(name, types(x.dtype), x.shape) for name, x in feeds.items()]
    output = make.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, [*q.shape[:3], v.shape[3]])
    graph = make.make_graph([make.make_node("Attention", [*feeds], ["y"], **given)], "attention", inputs, [output])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", opset)], ir_version=11)
    return torch.from_numpy(run(model, feeds))


attention, attention_23 = functools.partial(_attend), functools.partial(_attend, opset=23)
onnxruntime, openvino = (functools.partial(_attend, run=run) for run in (_run_onnxruntime, _run_openvino))
for _function in (attention, attention_23, onnxruntime, openvino):
    _function.capabilities = {  # type: ignore[attr-defined]
        "dtypes": ("float32", "float16"),
        "training": False,
        "causal": ("top_left",),
        "rounds": ("scores", "weights"),
        "devices": ("cpu",),
    }
