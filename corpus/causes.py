"""Root causes as ids: where a fault is and how it works. Labels turn ids into words, only for printing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from corpus.versions import TORCH
from generators.program.calls import CHANGES
from generators.program.numbers import FORMULAS
from generators.program.regions import REGIONS
from generators.program.writes import TARGETS
from generators.records import KEYED, SORTED, Rule, Word

Details = tuple[tuple[str, tuple[str, ...]], ...]
"""Named lists, sorted by name. Items are ids, or texts such as an exception's."""
_FIELD = re.compile(r"\{(\w+)\}")
DETAIL_LABELS = {
    **CHANGES,
    **TARGETS,
    **{kind: row.effect for kind, row in REGIONS.items()},
    **{name: re.sub(r"^\((.*)\)$", r"\1", row.text.format(n="n")) for name, row in FORMULAS.items() if name},
    "associative_scan": "an associative scan",
    "causal_bottom_right": "causal from the bottom right",
    "group": "grouped queries",
    "negative_scale": "negative scale",
    "pointwise_scan": "a pointwise associative scan",
}
"""Labels for ids in details. An id that is not listed is its own label."""


class Stage(Word):
    """Where a fault is."""

    words: str  # in a report, of the compiler that has it; "" if the compiler's name says it
    step: str  # the experiment that leaves out a step of this stage by its name; "" if it has no steps

    DYNAMO = "dynamo_aot", "dynamo/aot"
    DECOMPOSITION = "decomposition", "dynamo/aot", "decompositions", "decomposition"
    """In the decomposition of the operation that `part` names."""
    JOINT_PASSES = "joint_graph_passes", "joint_graph_passes", "joint graph passes"
    GRAPH_PASSES = "graph_passes", "graph_passes", "graph passes", "pass"
    LOWERING = "lowering", "lowering", "lowerings", "lowering"
    CODEGEN = "codegen", "codegen", "code generation"
    OPERATION = "operation"
    """In an operation of ATen."""
    SHARDING = "sharding", "sharding", "", "sharding"
    """In the rules by which DTensor splits an operation over ranks."""
    KERNEL = "kernel"
    """In an attention function that is not part of torch."""
    CONVERSION = "conversion", "conversion", "conversion of the exported program"
    """Into the model of another project's compiler, which this and the next two stages are of."""
    GRAPH_OPTIMISATION = "graph_optimisation", "graph_optimisation", "graph optimisation"
    RUNTIME = "runtime", "runtime", "kernels"
    OPEN = "open"
    """Not known."""


class Part(Word):
    """Parts at fault for which torch and kernels have no name."""

    ATTENTION_PATTERNS = "attention_patterns", "patterns of attention"
    """All attention patterns of Inductor."""
    DECOMPOSITIONS = "decompositions", "decompositions or the partitioner"
    RECOMPUTATION = "recomputation"
    TORCH_EXPORT = "torch_export", "torch.export"
    AOT_INDUCTOR_PACKAGE = "aot_inductor_package", "AOTInductor's package"
    """The AOTInductor package fails, and torch.compile is right."""
    CACHES = "caches", "caches of compiled programs"
    PADDING = "padding", "padding of strides"
    CASTS = "casts", "casts left out"
    FUSION = "fusion"
    INDEX_PROPAGATION = "index_propagation", "index propagation"
    SNIPPETS = "snippets", "code generated for several operators"
    """OpenVINO's name for it."""
    DYNAMIC_SIZES = "dynamic_sizes", "dynamic sizes"
    RUNTIME_CACHE = "runtime_cache", "the cache of kernels"
    PRECISION = "precision", "a lower precision"
    LEVEL_BASIC = "level_basic", "the basic optimisations"
    LEVEL_EXTENDED = "level_extended", "the extended optimisations"
    LEVEL_ALL = "level_all", "the optimisations of memory layout"
    VECTORISATION = "vectorisation", "vectorised code"


class MechanismKind(Word):
    """How a fault works. An id that equals a verdict means that no more is known. `{name}` stands for a detail."""

    # Faults of a rewrite of attention.
    OPERANDS = "operands", "wrong for some values of {operands}"
    EMPTY_ROWS = "empty_rows", "a row without a key"
    CONSTANTS_IGNORED = "constants_ignored", "constants of the program ignored"
    OTHER_RESULT = "other_result", "the replacement computes something else"
    # Faults of an operation.
    NEGATIVE_SCALE = "negative_scale", "a negative scale"
    BROADCAST = "broadcast", "a broadcast {operand}"
    OVERLAPPING_ROWS = "overlapping_rows", "operands whose rows overlap in memory"
    NOT_CONTIGUOUS = "not_contiguous", "operands that are not contiguous"
    WRONG = "wrong"
    WRONG_IN = "wrong_in", "wrong in {dtype}"
    NOT_FINITE = "not_finite"
    NOT_FINITE_IN = "not_finite_in", "not finite in {dtype}"
    # Failures of an attention function.
    WRONG_VALUES = "wrong_values"
    DROPOUT = "dropout", "dropout of another distribution"
    WRITES = "writes", "writes out of bounds"
    RESULTS_DIFFER = "results_differ", "different results for equal inputs"
    # Needs of a program that keeps state.
    LATER_CALL = "later_call", "a later call with {changed}"
    WRITTEN = "written", "a write into {into} by {by}"
    WRITTEN_THROUGH = "written_through", "a write through {view}"
    SHARED_MEMORY = "shared_memory", "memory that arguments share"
    LATER_CALL_AND_WRITE = "later_call_and_write", "a later call with {changed}, and a write into {into} by {by}"
    REGION = "region", "{region}"
    CHANGED = "changed", "{changed}"
    FORWARD_CAST = "forward_cast", "a backward pass outside of the autocast around its call"
    EARLIER_CASES = "earlier_cases", "something that earlier calls leave in the process"
    # Failures of any part.
    TWO_DTYPES = "two_dtypes", "an operation is given tensors of two dtypes"
    COMPILING_RAISES = "compiling_raises", "compiling raises {error}"
    RUNNING_RAISES = "running_raises", "running raises {error}"
    STRIDES = "strides", "strides in another order"
    MEMORY = "memory", "memory shared with another value"
    FORM = "form", "another form of result"
    OTHER_VALUES = "other_values"
    FAILS = "fails"
    # Verdicts.
    WRONG_RESULT = "wrong_result"
    WRONG_GRADIENT = "wrong_gradient"
    NONFINITE = "nonfinite"
    NONDETERMINISTIC = "nondeterministic"
    OUT_OF_BOUNDS = "out_of_bounds"
    EAGER_SUSPECT = "eager_suspect"
    STATE_CHANGED = "state_changed"
    METADATA = "metadata"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    DEVICE_ERROR = "device_error"
    TIMEOUT = "timeout"
    WORKER_DIED = "worker_died", "the process dies"
    OUT_OF_MEMORY = "out_of_memory"


def details(**named: str | Sequence[str]) -> Details:
    """Details of a mechanism by name, each a text or several texts. Empty details are left out."""
    lists = {name: (given,) if isinstance(given, str) else tuple(given) for name, given in named.items() if given}
    return tuple(sorted(lists.items()))


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How a fault works: a kind and its details, such as the normalized exception."""

    kind: MechanismKind
    details: Details = ()

    def __str__(self) -> str:
        words = {name: " and ".join(DETAIL_LABELS.get(one, one) for one in given) for name, given in self.details}
        told = _FIELD.sub(lambda found: words.pop(found[1], ""), self.kind.label)
        told = ": ".join(filter(None, [told, words.pop("error", "")]))
        return f"{told} ({', '.join(words.values())})" if words else told


@dataclass(frozen=True, slots=True, order=True)
class CauseKey:
    """A root cause as data. Equal keys are the same bug. Unequal keys are the same bug too if their measurements agree
    (`WrongRewrite.is_same_bug`)."""

    who: str
    """`inductor`, `aot`, `dynamo`, `eager`, an attention function, or a `Project`."""
    stage: Stage
    part: Annotated[str, Rule(lambda text: text not in _PART_LABELS, "is the label of a part, not its id")]
    """A `Part`, or a name that torch or the attention function owns; "" if it is not known."""
    mechanism: MechanismKind
    details: Annotated[Details, KEYED, SORTED] = ()
    """Details of the mechanism; empty if `right` names the operands."""
    right: Annotated[Details, KEYED, SORTED] = ()
    wrong: Annotated[Details, KEYED, SORTED] = ()
    """By operand of a rewrite that is proven wrong: the experiments that make it right, and that leave it wrong."""

    @property
    def words(self) -> Mechanism:
        """The mechanism with its details."""
        operands = details(operands=[name for name, _ in self.right])
        return Mechanism(self.mechanism, self.details or operands)

    def __str__(self) -> str:
        """On one line, for people."""
        right, wrong = dict(self.right), dict(self.wrong)
        measured = (f"{n} right: {', '.join(right[n])}; wrong: {', '.join(wrong.get(n, ())) or 'none'}" for n in right)
        told = ", ".join(filter(None, (self.who, self.stage.label, name_part(self.part, self.stage), str(self.words))))
        return f"{told} ({'; '.join(measured)})" if right else told


_PART_LABELS = {part.label for part in Part} - {*Part}
_PARTS = {part.value: part.label for part in Part}


class Project(Word):
    """A project that a bug is reported to."""

    package: str  # whose versions have its bugs

    PYTORCH = "pytorch", "PyTorch", TORCH
    ONNXSCRIPT = "onnxscript", "ONNX Script", "onnxscript"
    ONNXRUNTIME = "onnxruntime", "ONNX Runtime", "onnxruntime"
    OPENVINO = "openvino", "OpenVINO", "openvino"
    EXECUTORCH = "executorch", "ExecuTorch", "executorch"
    IREE = "iree", "IREE", "iree-turbine"
    TVM = "tvm", "TVM", "apache-tvm"


def find_project(who: str) -> Project:
    """The project that `CauseKey.who` names; PyTorch for its compilers and for attention functions.

    A subject's name begins with that of its project.
    """
    named = who.partition("_")[0]
    return Project(named) if named in {*Project} else Project.PYTORCH


COMPILER_LABELS = {
    "inductor": "Inductor",
    "dynamo": "Dynamo",
    "aot": "AOTAutograd",
    "sharded": "DTensor",
    **{project.value: project.label for project in Project},
}
"""The names of compilers for people, by `CauseKey.who`."""


def name_part(part: str, stage: Stage) -> str:
    """A part for people: the label of a `Part`, other names unchanged."""
    return f"decomposition of {part}" if stage is Stage.DECOMPOSITION else _PARTS.get(part, part)
