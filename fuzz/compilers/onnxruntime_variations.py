"""Plainer ways to make and run an ONNX model, which tell whose bug a failure is."""

from fuzz.compilers.interface import Variation

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


def _vary(name: str, words: str, who: str, stage: str, part: str = "", **keywords: object) -> Variation:
    return Variation(f"onnx{name}", words, keywords, who, stage, part)


def _at_level(level: str, next_level: str) -> Variation:
    name, words = f"runtime_{level.lower()}", f"ONNX Runtime's optimisation level ORT_{level}"
    return _vary(name, words, "onnxruntime", "graph_optimisation", next_level, level=level)


OF_ONNX = (
    Variation(
        "onnxruntime_optimizer",
        "ONNX Runtime's optimizer {} disabled",
        {"disabled": "{}"},
        "onnxruntime",
        "graph_optimisation",
        arguments=tuple(_OPTIMIZERS.split()),
    ),
    _at_level("ENABLE_EXTENDED", "level_all"),
    _at_level("ENABLE_BASIC", "level_extended"),
    _at_level("DISABLE_ALL", "level_basic"),
    Variation(
        "onnxscript_rule",
        "ONNX Script's rewrite rule {} left out",
        {"omitted": "{}"},
        "onnxscript",
        "graph_optimisation",
        arguments=tuple(_RULES.split()),
    ),
    _vary("script_unoptimised", "optimize=False at export", "onnxscript", "graph_optimisation", optimize=False),
    _vary("_reference", "ONNX's reference evaluator", "onnxruntime", "runtime", evaluates=True),
)
