"""ONNX Runtime on the CPU, through torch.onnx.export."""

import functools
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities, Package, Variation, WrongNode
from fuzz.compilers.tensors import is_other

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_ONE_THREAD, _FATAL = 1, 4
_TARGET = re.compile(r"target=torch\.ops\.([\w.]+)")
"""The operation in what the exporter writes about a node."""


def compile_program(
    program: "ExportedProgram",
    inputs: "tuple[Tensor, ...]",
    *,
    level: str = "ENABLE_ALL",
    disabled: str = "",
    evaluates: bool = False,
    **keywords: Any,
) -> CompiledCall:
    """A call of the model (`keywords`: as `export`) in an inference session, or in ONNX's reference evaluator."""
    model = export(program, inputs, **keywords)
    if evaluates:
        return model.call_reference
    model.initialize_inference_session(functools.partial(open_session, level=level, disabled=disabled))
    return model


def find_node(
    program: "ExportedProgram",
    inputs: "tuple[Tensor, ...]",
    *,
    level: str = "ENABLE_ALL",
    disabled: str = "",
    **keywords: Any,
) -> WrongNode:
    """The first node of the model whose value is wrong.

    The model is cut after each node in turn: with all values as outputs, nothing would be fused.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator
    from torch import from_numpy

    model = export(program, inputs, **keywords).model_proto
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
        session = open_session(cut(*filter(None, node.output)).SerializeToString(), level=level, disabled=disabled)
        feeds = {item.name: given[item.name] for item in session.get_inputs()}
        values = zip(filter(None, node.output), session.run(None, feeds), strict=True)
        if any(is_other(from_numpy(value), from_numpy(wanted[name])) for name, value in values):
            told = " ".join(item.value for item in node.metadata_props if item.key.endswith("fx_node"))
            return WrongNode((node.op_type,), tuple(_TARGET.findall(told)))
    return WrongNode()


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


_OPTIMIZERS = """
    EliminateIdentity EliminateSlice UnsqueezeElimination EliminateDropout ExpandElimination CastElimination
    CastChainElimination PreShapeNodeElimination NoopElimination DivMulFusion FuseReluClip GemmSumFusion
    GemmTransposeFusion NotWhereFusion ConvAddFusion ConvMulFusion ConvBNFusion Pad_Fusion
    MatMul_BatchNormalization_Fusion LabelEncoderFusion CommonSubexpressionElimination ConstantSharing
    ConstantFolding MatMulAddFusion ReshapeFusion GatherSliceToSplitFusion GatherToSliceFusion
    SliceConcatToSpaceToDepthFusion GeluFusionL1 LayerNormFusionL1 GroupQueryAttentionFusion TransposeOptimizer
    GemmActivationFusion ConvActivationFusion ConvAddActivationFusion GeluFusionL2 LayerNormFusionL2
    SimplifiedLayerNormFusion AttentionFusion EmbedLayerNormFusion SkipLayerNormFusion BiasSkipLayerNormFusion
    FastGeluFusion QuickGeluFusion BiasGeluFusion BiasSoftmaxFusion BiasDropoutFusion SwiGluFusion
    MatmulTransposeFusion MatMulScaleFusion MatMulActivationFusion NchwcTransformer NhwcTransformer
    RemoveDuplicateCastTransformer
"""
"""What applies to a model on a CPU, by the names that `disabled_optimizers` takes, in the order of
onnxruntime/core/optimizer/graph_transformer_utils.cc: rules of level 1, then other optimizers of
levels 1, 2 and 3. Names that a version lacks are ignored."""

_RULES = """
    no_op broadcast_to_matmul cast_constant_of_shape collapse_slices MaterializeReshapeShape FuseSuccessiveMin
    FuseSuccessiveMax FuseMinMaxToClip FuseMaxMinToClip FuseSuccessiveClipRelu FuseSuccessiveReluClip FuseSuccessiveRelu
    FuseSuccessiveClip CastCast CastIdentity ExpandIdentity Flatten2Reshape ReshapeReshape SlicesSplit TransposeIdentity
    TransposeTranspose UnsqueezeUnsqueeze SqueezeReshape1d ScatterAllDynamic ScatterAllStatic NormalizePadFormatConv
    NormalizePadFormatConvInteger FuseConvPad FuseConvIntegerPad FuseBatchNormIntoConv FuseBatchNormIntoConvTranspose
    FuseBatchNormIntoGemm RemoveOptionalBiasFromConv RemoveOptionalBiasFromConvTranspose
    RemoveOptionalBiasFromQLinearConv
"""
"""The rewrite rules of onnxscript 0.7.2, in their order (onnxscript/rewriter/__init__.py). Rules without a name have
that of their file in rewriter/rules/common. Without any rule it raises, so the last, RemoveOptionalBiasFromGemm, stays.
Names that a version lacks are ignored."""

_OPTIMISED, _SCRIPT = ("onnxruntime", "graph_optimisation"), ("onnxscript", "graph_optimisation")
_VARIATIONS = (
    Variation(
        *("onnxruntime_optimizer", "ONNX Runtime's optimizer {} disabled", {"disabled": "{}"}, *_OPTIMISED),
        arguments=tuple(_OPTIMIZERS.split()),
    ),
    *(
        Variation(
            *(f"onnxruntime_{level.lower()}", f"ONNX Runtime's optimisation level ORT_{level}", {"level": level}),
            *(*_OPTIMISED, left_out),
        )
        for level, left_out in (
            ("ENABLE_EXTENDED", "level_all"),
            ("ENABLE_BASIC", "level_extended"),
            ("DISABLE_ALL", "level_basic"),
        )
    ),
    Variation(
        *("onnxscript_rule", "ONNX Script's rewrite rule {} left out", {"omitted": "{}"}, *_SCRIPT),
        arguments=tuple(_RULES.split()),
    ),
    Variation("onnxscript_unoptimised", "optimize=False at export", {"optimize": False}, *_SCRIPT),
    Variation("onnx_reference", "ONNX's reference evaluator", {"evaluates": True}, "onnxruntime", "runtime"),
)
"""Plainer ways to make and run a model, which tell whose bug a failure is."""

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
    variations=_VARIATIONS,
    find_node=find_node,
)
ONNXRUNTIME_OPSET23 = replace(
    ONNXRUNTIME,
    name="onnxruntime_opset23",
    words="the same with opset 23, which has attention as an operator",
    keywords={"opset": 23},
)
