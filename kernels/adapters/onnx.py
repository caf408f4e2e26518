"""The ONNX operator `Attention` on the CPU, forward: in the reference evaluator of onnx 1.23 and in ONNX Runtime."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.adapters import import_adapted, require

_ONNX = import_adapted("onnx", "onnx")
_evaluate = import_adapted("onnx.reference", "onnx").ReferenceEvaluator


def _run_onnxruntime(model: Any) -> Any:
    runtime = import_adapted("onnxruntime", "onnxruntime")
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def _attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, mask: Tensor | None = None, bias: Tensor | None = None,
    causal: str | None = None, softcap: float | None = None, opset: int = 24,
    load: Callable[[Any], Any] = _evaluate,
) -> Tensor:  # fmt: skip
    """ONNX takes one of mask and bias. `load` gives a session for a model; a `scale` of None is ONNX' default."""
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
    out: np.ndarray[Any, Any] = load(model).run(None, feeds)[0]
    return torch.from_numpy(out)


attention, attention_23 = functools.partial(_attend), functools.partial(_attend, opset=23)
onnxruntime = functools.partial(_attend, load=_run_onnxruntime)
for _function in (attention, attention_23, onnxruntime):
    _function.capabilities = {  # type: ignore[attr-defined]
        "dtypes": ("float32", "float16"),
        "training": False,
        "causal": ("top_left",),
        "rounds": ("scores", "weights"),
        "devices": ("cpu",),
    }
