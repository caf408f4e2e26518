"""The compilers of PyTorch modules that are not torch.compile."""

from fuzz.compilers.executorch import EXECUTORCH, EXECUTORCH_XNNPACK
from fuzz.compilers.iree import IREE
from fuzz.compilers.onnxruntime import ONNXRUNTIME, ONNXRUNTIME_OPSET23
from fuzz.compilers.openvino import OPENVINO, OPENVINO_BACKEND, OPENVINO_ONE_THREAD, OPENVINO_SIZED
from fuzz.compilers.torch_export import AOT_INDUCTOR, EXPORT, EXPORT_DECOMPOSED
from fuzz.compilers.tvm import TVM

_ROWS = (
    *(EXPORT, EXPORT_DECOMPOSED, AOT_INDUCTOR),
    *(ONNXRUNTIME, ONNXRUNTIME_OPSET23),
    *(OPENVINO, OPENVINO_SIZED, OPENVINO_ONE_THREAD, OPENVINO_BACKEND),
    *(EXECUTORCH, EXECUTORCH_XNNPACK, IREE, TVM),
)
COMPILERS = {row.name: row for row in _ROWS}
"""By name, which is also that of the subject."""
VARIATIONS = {row.id: row for compiler in _ROWS for row in compiler.variations}
"""By id."""
