"""The ONNX model of an exported program: made, and run by ONNX Runtime."""

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_ONE_THREAD, _FATAL = 1, 4


def export(
    program: "ExportedProgram", inputs: "tuple[Tensor, ...]", *, opset: int, optimize: bool = True, omitted: str = ""
) -> Any:
    """The model, as an object of torch. `optimize`: by onnxscript; `omitted`: rules that it leaves out, by commas."""
    import torch

    _keep_registry()
    with _omit_rules(omitted.split(",")):
        model = torch.onnx.export(program, inputs, dynamo=True, opset_version=opset, optimize=optimize, verbose=False)
    assert model is not None
    return model


def _omit_rules(names: Sequence[str]) -> AbstractContextManager[object]:
    """While entered, onnxscript optimizes without these rules. One without a name has that of its file."""
    from onnxscript import rewriter
    from onnxscript.rewriter.rules import common

    rules = getattr(rewriter, "_DEFAULT_REWRITE_RULES", None)
    if not any(names) or rules is None:
        return nullcontext()
    files = {
        id(rule): name.strip("_")
        for name, file in vars(common).items()
        for rule in getattr(getattr(file, "rules", None), "rules", ())
    }
    kept = tuple(rule for rule in rules if (rule.name or files.get(id(rule))) not in names)
    return mock.patch.object(rewriter, "_DEFAULT_REWRITE_RULES", kept)


def _keep_registry() -> None:
    """Build the table of ONNX functions once a process: torch builds it at each export, in 70 % of the time of one."""
    from torch.onnx._internal.exporter import _registration

    registry = getattr(_registration, "ONNXRegistry", None)
    build = getattr(registry, "from_torchlib", None)
    if registry is not None and build is not None and not hasattr(build, "cache_info"):
        registry.from_torchlib = staticmethod(functools.cache(build))


def open_session(model: str | bytes, *, level: str = "ENABLE_ALL", disabled: str = "") -> Any:
    """An inference session. `level`: of its graph optimisations; `disabled`: names of optimizers, by commas."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = _ONE_THREAD, _FATAL
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    words = {"disabled_optimizers": disabled.split(",")} if disabled else {}
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], **words)
