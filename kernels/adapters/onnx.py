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
    try:
        imported = core.read_model(model.SerializeToString())
    except RuntimeError as refusal:
        raise NotImplementedError("an operator that its frontend does not import") from refusal
    return core.compile_model(imported, "CPU", _SINGLE)(feeds)[0].copy()


def _attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, mask: Tensor | None = None, bias: Tensor | None = None,
    causal: str | None = None, softcap: float | None = None, opset: int = 24,
    run: Callable[[Any, dict[str, Any]], Any] = _evaluate,
) -> Tensor:  # fmt: skip
    """ONNX takes one of mask and bias, and a bias of q's dtype. A `scale` of None is ONNX' default."""
    require(mask is None or bias is None, "mask and bias")
    require(bias is None or bias.dtype == q.dtype, "a bias of another dtype")
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


def _refuse_padding(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Refuses a mask or bias of fewer keys, which opset 24 pads instead of broadcasting it; `__wrapped__` takes it."""

    @functools.wraps(attend)
    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        added = [x for x in (options.get("mask"), options.get("bias")) if x is not None]
        require(all(x.shape[-1] == k.shape[2] for x in added), "a mask or bias that broadcasts along keys")
        return attend(q, k, v, **options)

    return attention


_FAIL = "onnxruntime.capi.onnxruntime_pybind11_state.Fail"
_LIMITS = {
    "dtypes": ("float32", "float16"),
    "training": False,
    "causal": ("top_left",),
    "rounds": ("scores", "weights"),
    "devices": ("cpu",),
}
attention, attention_23 = _refuse_padding(_attend), functools.partial(_attend, opset=23)
onnxruntime = functools.partial(_attend, run=_run_onnxruntime)
openvino = _refuse_padding(functools.partial(_attend, run=_run_openvino))
attention.capabilities = attention_23.capabilities = _LIMITS  # type: ignore[attr-defined]
openvino.capabilities = _LIMITS  # type: ignore[attr-defined]
# It says that it takes no scale of 0 or less, and no mask of one axis, [1, kv_len] or [seq_len, 1].
onnxruntime.capabilities = _LIMITS | {"refuses": (_FAIL,)}  # type: ignore[attr-defined]
