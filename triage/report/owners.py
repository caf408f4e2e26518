"""Who owns the code at fault: the file of PyTorch's tests for it, and the label of its maintainers."""

from dataclasses import dataclass

from corpus.causes import COMPILER_LABELS, CauseKey, Part, Project, Stage, find_project
from corpus.fault import FaultyLine
from generators.program.case import Case
from generators.program.regions import list_indirect


@dataclass(frozen=True, slots=True)
class Owner:
    """A test file of PyTorch, with the class for new tests and the label of those who own it."""

    file: str
    group: str
    label: str


_DISPATCHER, _INDUCTOR, _HIGHER_ORDER = "module: pt2-dispatcher", "module: inductor", "module: higher order operators"
_FUSED = Owner("test/inductor/test_fused_attention.py", "TestSDPAPatternRewriterTemplate", _INDUCTOR)
_FLEX = Owner("test/inductor/test_flex_attention.py", "TestFlexAttention", "module: flex attention")
_CONTROL = Owner("test/functorch/test_control_flow.py", "TestControlFlow", _HIGHER_ORDER)
_REGION = Owner("test/higher_order_ops/test_invoke_subgraph.py", "TestInvokeSubgraphCompile", _HIGHER_ORDER)
_SDPA = Owner("test/test_transformers.py", "TestSDPA", "module: sdpa")
_AOT = Owner("test/functorch/test_aotdispatch.py", "TestAOTAutograd", _DISPATCHER)
_DYNAMO = Owner("test/dynamo/test_misc.py", "MiscTests", "module: dynamo")
_DISTRIBUTED = "oncall: distributed"
_DTENSOR = Owner("test/distributed/tensor/test_dtensor.py", "DTensorTest", _DISTRIBUTED)
_DTENSOR_OPS = Owner("test/distributed/tensor/test_tensor_ops.py", "DistTensorOpsTest", _DISTRIBUTED)
_DTENSOR_COMPILE = Owner("test/distributed/tensor/test_dtensor_compile.py", "TestDTensorCompileE2E", _DISTRIBUTED)
_ONNX = Owner("test/onnx/exporter/test_api.py", "TestExportAPIDynamo", "module: onnx")
_OTHER = Owner("test/inductor/test_torchinductor.py", "CommonTemplate", _INDUCTOR)
_APART = {
    Part.TORCH_EXPORT: Owner("test/export/test_export.py", "TestExport", "oncall: export"),
    Part.AOT_INDUCTOR_PACKAGE: Owner(
        "test/inductor/test_aot_inductor.py", "AOTInductorTestsTemplate", "module: aotinductor"
    ),
    Part.RECOMPUTATION: Owner("test/functorch/test_ac.py", "MemoryBudgetTest", _DISPATCHER),
}
"""By the part at fault, for parts with tests of their own."""
_BY_FILE = {
    "_inductor/fx_passes/fuse_attention.py": _FUSED,
    "_inductor/codegen/cpp_flex": _FLEX,
    "_inductor/kernel/flex/": _FLEX,
    "_inductor/": _OTHER,
    "_functorch/partitioners.py": Owner(_AOT.file, "TestPartitioning", _DISPATCHER),
    "_functorch/": _AOT,
    "_dynamo/variables/invoke_subgraph.py": _REGION,
    "_dynamo/compiled_autograd.py": Owner(
        "test/inductor/test_compiled_autograd.py", "TestCompiledAutograd", "module: compiled autograd"
    ),
    "_dynamo/": _DYNAMO,
    "_higher_order_ops/": _CONTROL,
    "distributed/tensor/_ops/": _DTENSOR_OPS,
    "distributed/tensor/": _DTENSOR,
    "_meta_registrations.py": Owner("test/test_meta.py", "TestMeta", "module: meta tensors"),
    "_library/": Owner("test/test_custom_ops.py", "TestCustomOpAPI", "module: custom-operators"),
    "nn/": Owner("test/test_transformers.py", "TestTransformers", "module: nn"),
    "include/ATen/native/transformers/": _SDPA,
}
"""By the beginning of the file at fault, the longest first."""
_COMPILED = ("_inductor/", "_functorch/", "_dynamo/", "_higher_order_ops/")
_BY_STAGE = {
    Stage.DECOMPOSITION: Owner("test/test_decomp.py", "DecompOneOffTests", _DISPATCHER),
    Stage.OPERATION: _SDPA,
    Stage.KERNEL: _SDPA,
}
_BY_COMPILER = {"aot": _AOT, "dynamo": _DYNAMO, "inductor": _OTHER, "sharded": _DTENSOR}
_CONTROL_FLOW = {"cond": "CondTests", "while_loop": "WhileLoopTests", "map": "MapTests", "scan": "ScanTests"}
_CONTROL_FLOW |= {"map_uncaptured": "MapTests", "pointwise_scan": "AssociativeScanTests"}
"""Regions of control flow, with the classes for their tests in Inductor."""


def is_higher_order(cause: CauseKey) -> bool:
    """Whether an operation of torch that calls functions, such as a scan, is at fault."""
    return cause.stage is Stage.OPERATION and not cause.part.startswith("aten.")


def find_owner(case: Case, cause: CauseKey, fault: FaultyLine | None = None) -> Owner | None:
    """The file of PyTorch's tests for the file at fault; if that is not known, for the part, stage or compiler. None
    for a bug of another project.
    """
    if find_project(cause.who) is not Project.PYTORCH:
        return None
    if cause.who == Project.PYTORCH and cause.stage is Stage.CONVERSION:
        return _ONNX
    if cause.part in _APART:
        return _APART[Part(cause.part)]
    if cause.who == "sharded" and cause.stage is not Stage.SHARDING:
        return _DTENSOR_COMPILE
    group = next((_CONTROL_FLOW[kind] for kind in list_indirect(case) if kind in _CONTROL_FLOW), "")
    owner = next((one for start, one in _BY_FILE.items() if fault and fault.file.startswith(start)), None)
    if owner is _OTHER and group:
        return Owner("test/inductor/test_control_flow.py", group, _INDUCTOR)
    # AOTAutograd traces the patterns of Inductor.
    if owner in (None, _AOT) and (cause.part == Part.ATTENTION_PATTERNS or cause.part.startswith("_sfdp_pattern_")):
        return _FUSED
    if owner is not None:
        return owner
    if group or is_higher_order(cause):
        return _CONTROL
    if any(op.kind == "flex_attention" for op in case.ops):
        return _FLEX
    return _BY_STAGE.get(cause.stage) or _BY_COMPILER.get(cause.who, _OTHER)


def list_labels(case: Case, cause: CauseKey | None, fault: FaultyLine | None = None) -> list[str]:
    """The labels of PyTorch's tracker: of those who own the code at fault, if that is known, and of operations."""
    labels = [*(_list_owners(case, cause, fault) if cause else []), "topic: fuzzer"]
    if cause and cause.stage is Stage.OPERATION and "scaled_dot_product" in cause.part:
        labels.append("module: sdpa")
    if (cause and not fault and is_higher_order(cause)) or {*list_indirect(case)} & {*_CONTROL_FLOW, "compile_region"}:
        labels.append(_HIGHER_ORDER)
    if any(op.kind == "flex_attention" for op in case.ops):
        labels.append(_FLEX.label)
    return [*dict.fromkeys(labels)]


def _list_owners(case: Case, cause: CauseKey, fault: FaultyLine | None) -> list[str]:
    is_compiled = cause.who in COMPILER_LABELS and cause.who not in {*Project} and cause.stage is not Stage.SHARDING
    if fault and cause.who != "sharded":
        is_compiled = fault.file.startswith(_COMPILED)
    owner = (
        _BY_COMPILER.get(cause.who) if fault is None and cause.part not in _APART else find_owner(case, cause, fault)
    )
    dtensor = ["module: dtensor"] * (owner is not None and owner.label == _DISTRIBUTED)
    return [*["oncall: pt2"] * is_compiled, *([owner.label] if owner else []), *dtensor]
