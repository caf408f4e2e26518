"""The table of experiments, which tell bugs apart: change one thing, and see whether the failure stays.

Requests, answers, stored causes and case files name a row by its id. The argument of a row fills the "{}" of its label.
Changes of operands, and experiments that narrow a fault down, are tried in the order of their rows, so a new row
suffices. Parent and worker share this module, which imports the standard library, the codec and the table of compilers
alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fuzz.compilers.table import VARIATIONS
from generators.records import Word


class Outcome(Word):
    """How an experiment ends, compared with the failure under study."""

    PASSES = "passes"
    FAILS_ALIKE = "fails_alike"
    FAILS_OTHERWISE = "fails_otherwise"
    DOES_NOT_APPLY = "does_not_apply"
    """There is no verdict, or nothing to change."""
    NOT_TRIED = "not_tried"

    @property
    def fails(self) -> bool:
        """Whether there is a failure of any kind."""
        return self in (Outcome.FAILS_ALIKE, Outcome.FAILS_OTHERWISE)


@dataclass(frozen=True)
class OtherSubject:
    """The case runs under another subject."""

    name: str


@dataclass(frozen=True)
class OtherTorch:
    """The case runs under another interpreter. The argument names its version of torch."""


@dataclass(frozen=True)
class WithoutAxis:
    """The case runs under the subject without this variation, a field of `SubjectSpec`."""

    axis: str


@dataclass(frozen=True)
class WithSetting:
    """The subject compiles and runs under a setting of fuzz/check/torch_api/settings.py."""

    name: str
    value: Any


@dataclass(frozen=True)
class StepLimit:
    """Compiling takes the first N steps of the row's kind, and omits all later steps; or it omits all steps of a name.
    The argument is N or that name in a request, and the first omitted step in an outcome."""


@dataclass(frozen=True)
class Varied:
    """The subject's compiler works as this row of `VARIATIONS` says. The argument names steps, by commas."""


@dataclass(frozen=True)
class FirstNode:
    """Nothing changes, and the first node whose value is wrong is found. The argument names operators of the compiler's
    model, by commas, which that node has to compute."""


@dataclass(frozen=True)
class Noted:
    """Nothing changes, and the outcome names the operation that was running when the process or the device was lost."""


@dataclass(frozen=True)
class Edit:
    """The label describes a change of the case or of an attention call. The argument is an option or a size."""

    subject: str = ""
    """That runs the changed case; "" for the subject of the failure."""
    keeps_fault: bool = False
    """Whether the fault stays, if it has no part in what changes. The exception, which names it, must then stay too."""


@dataclass(frozen=True)
class OperandValue:
    """An operand of a rewrite, named by the argument, gets another value."""

    number: float
    rest: float | None = None
    """The value of all elements of a row but the first, which is `number`. None: all elements are `number`."""
    dtype: str = ""
    """The only dtype to which the row applies; "" for all that can hold the number."""


@dataclass(frozen=True)
class EqualAlong:
    """An operand of a rewrite, named by the argument, repeats its first element along an axis."""

    axis: int


@dataclass(frozen=True)
class ReplacementAlone:
    """The replacement of the rewrite that the argument names runs on the operands of the case: in float64, as does the
    pattern, or in eager, where each operation is compared with float64."""

    in_eager: bool


_OfCase = OtherSubject | OtherTorch | WithoutAxis | WithSetting | StepLimit | Varied | FirstNode | Noted | Edit
ExperimentChange = _OfCase | OperandValue | EqualAlong | ReplacementAlone


@dataclass(frozen=True)
class Experiment:
    """A change, and the fault that it shows. `who`, `stage`, `part` and `mechanism` are ids of corpus/causes.py. An
    empty field is filled in from the failure."""

    id: str
    change: ExperimentChange
    label: str
    """The change in words, for "It passes with ..."."""
    who: str = ""
    stage: str = ""
    part: str = ""
    mechanism: str = ""
    error: str = ""
    """A part of the exception by which torch tells the mechanism itself; "" if there is none."""
    device: str = ""
    """The only device where the change has an effect; "" for all."""
    narrows: tuple[str, ...] = ()
    """The experiments whose fault it narrows down: if it flips, it says more of the cause."""

    @property
    def is_uniform(self) -> bool:
        """Whether the operand becomes constant, throughout or along an axis."""
        return isinstance(self.change, EqualAlong) or (
            isinstance(self.change, OperandValue) and self.change.rest is None
        )

    def flips(self, outcome: Outcome) -> bool:
        """Whether the outcome shows the fault: by failing for `OtherSubject` and `ReplacementAlone`, by failing alike
        for `FirstNode` and an `Edit` that keeps the fault, else by passing."""
        if isinstance(self.change, FirstNode) or (isinstance(self.change, Edit) and self.change.keeps_fault):
            return outcome is Outcome.FAILS_ALIKE
        return outcome.fails if isinstance(self.change, (OtherSubject, ReplacementAlone)) else outcome is Outcome.PASSES


@dataclass(frozen=True)
class Trial:
    """An experiment with its argument, as a request names it."""

    experiment: str
    argument: str = ""


@dataclass(frozen=True)
class Tried(Trial):
    """A trial with its outcome."""

    outcome: Outcome = Outcome.NOT_TRIED

    @property
    def row(self) -> Experiment:
        """Its row of the table."""
        return EXPERIMENTS[self.experiment]

    @property
    def flips(self) -> bool:
        """As `Experiment.flips`."""
        return self.row.flips(self.outcome)


SMALL = 16
"""Large sizes are cut to this size, a tile of the matrix units that kernels use."""
NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5)
_LOWEST = {"float16": -65504.0, "bfloat16": -3.3895313892515355e38}
_LOWEST |= {"float32": -3.4028234663852886e38, "float64": -1.7976931348623157e308}


def _subject(
    name: str, label: str, who: str = "", stage: str = "", part: str = "", narrows: tuple[str, ...] = ()
) -> Experiment:
    return Experiment(name, OtherSubject(name), label, who, stage, part, narrows=narrows)


def _plainer_code(id_: str, setting: str, value: Any, part: str, label: str, device: str = "") -> Experiment:
    change = WithSetting(setting, value)
    return Experiment(id_, change, label, "inductor", "codegen", part, device=device, narrows=_INDUCTOR)


def _operand_rows() -> Iterator[Experiment]:
    hidden = [(number, "") for number in (-1e4, float("-inf"))] + [(low, dtype) for dtype, low in _LOWEST.items()]
    for number in NUMBERS:
        yield Experiment(f"all {number:g}", OperandValue(number), f"{number:g} throughout")
    for number, dtype in (*((number, "") for number in NUMBERS), *hidden):
        for rest in (0.0, 1.0):
            if number != rest:
                name = f"one {number:g} in {rest:g}"
                yield Experiment(name, OperandValue(number, rest, dtype), f"{rest:g} and {number:g} mixed")
    for axis in range(-4, 0):
        yield Experiment(f"all equal along {axis}", EqualAlong(axis), f"equal along axis {axis}")


SHARDING = "sharding"
"""The experiment that names the operation that DTensor shards wrongly."""
FIRST_NODE = "first_node"
DECOMPOSED, SYMBOLIC, NO_PATTERNS = "aot_eager_decomp_partition", "passes_dynamic", "pattern_matcher_off"
_AOT = "aot"
_INDUCTOR = ("inductor", "inductor_dynamic")
"""Subjects that generate code."""
_OPERATION = ("eager",)
_PASSES_ALONE = "Inductor's graph passes alone{} (a way to run of attnfuzz)"
_STEPS_OFF = "the {} `{{}}` and all later ones off"
_ROWS = (
    # Subjects, from eager to Inductor's graph passes, with the changes that narrow down the first that fails.
    _subject("eager", "eager, not compiled", "eager", "operation"),
    _subject("sdpa_math", "F.scaled_dot_product_attention under sdpa_kernel(MATH)", "", "kernel"),
    _subject("dynamo", 'backend="eager"', "dynamo", "dynamo_aot"),
    _subject("aot_eager", 'backend="aot_eager"', _AOT, "dynamo_aot"),
    Experiment(
        "memory_kept",
        WithoutAxis("recomputes"),
        "what backward reads kept in memory",
        _AOT,
        "dynamo_aot",
        "recomputation",
        narrows=("aot_eager",),
    ),
    _subject(DECOMPOSED, f'backend="{DECOMPOSED}"', _AOT, "dynamo_aot", "decompositions"),
    Experiment(
        "decomposition", StepLimit(), _STEPS_OFF.format("decomposition"), _AOT, "decomposition", narrows=(DECOMPOSED,)
    ),
    Experiment(
        "other_write",
        Edit("aot_eager", keeps_fault=True),
        "masked_fill_ in the place of each write",
        _AOT,
        "dynamo_aot",
    ),
    _subject("export", "torch.export, run as it is", _AOT, "dynamo_aot", "torch_export"),
    _subject("export_decomposed", "torch.export, after run_decompositions", _AOT, "decomposition"),
    # Compilers of fuzz/compilers that are no part of torch.
    *(Experiment(row.id, Varied(), row.words, row.who, row.stage, row.part) for row in VARIATIONS.values()),
    Experiment(FIRST_NODE, FirstNode(), "a node of {} as the first that is wrong"),
    _subject("passes", _PASSES_ALONE.format(""), "inductor", "graph_passes"),
    _subject(
        SYMBOLIC, _PASSES_ALONE.format(", symbolic sizes"), "inductor", "graph_passes", narrows=("inductor_dynamic",)
    ),
    Experiment(
        NO_PATTERNS, WithSetting("pattern_matcher", False), "the pattern matcher off", "inductor", narrows=_INDUCTOR
    ),
    Experiment("eager_replacement", ReplacementAlone(in_eager=True), "the replacement of {} in eager", "eager"),
    Experiment("exact", ReplacementAlone(in_eager=False), "the replacement of {} in float64", "inductor"),
    *_operand_rows(),
    Experiment("pass", StepLimit(), _STEPS_OFF.format("pass"), "inductor", "graph_passes"),
    # Subjects that generate code, and ways to generate plainer code.
    _subject("sharded", "DTensors on two ranks", "sharded", "sharding"),
    _subject("aot_eager_sharded", 'DTensors on two ranks, backend="aot_eager"', "sharded", "dynamo_aot"),
    _subject("inductor_sharded", 'DTensors on two ranks, backend="inductor"', "sharded", "codegen"),
    Experiment(
        SHARDING,
        StepLimit(),
        "the operation `{}` and all later ones on whole tensors",
        "sharded",
        "sharding",
        narrows=("sharded",),
    ),
    _subject("inductor", 'backend="inductor"', "inductor", "codegen"),
    _subject("inductor_dynamic", 'backend="inductor", dynamic=True', "inductor", "codegen"),
    _subject("aot_inductor", "torch.export, compiled by AOTInductor", "inductor", "codegen", "aot_inductor_package"),
    Experiment("caches_off", WithoutAxis("warm"), "its caches off", "inductor", "codegen", "caches", narrows=_INDUCTOR),
    _plainer_code("unpadded", "comprehensive_padding", False, "padding", "comprehensive_padding off", device="cuda"),
    _plainer_code("casts_emulated", "emulate_precision_casts", True, "casts", "emulate_precision_casts on"),
    _plainer_code(
        "index_propagation_off",
        "constant_and_index_propagation",
        False,
        "index_propagation",
        "constant_and_index_propagation off",
    ),
    _plainer_code("unfused", "operations_apart", True, "fusion", "each operation in a kernel of its own"),
    _plainer_code("unvectorized", "cpp.simdlen", 1, "vectorisation", "vectorisation off"),
    Experiment("lowering", StepLimit(), _STEPS_OFF.format("lowering"), "inductor", "lowering", narrows=_INDUCTOR),
    # Edits of the case or of a call. Case files hold the ids of edits of calls, such as "16", so ids never change.
    Experiment("positive_scale", Edit(), "a positive scale", mechanism="negative_scale", narrows=_OPERATION),
    Experiment("alone", Edit(), "each sequence in a call of its own"),
    Experiment(
        "contiguous", Edit(), "contiguous copies of the operands", mechanism="not_contiguous", narrows=_OPERATION
    ),
    Experiment(
        "one_dtype",
        Edit(),
        "inputs of one dtype",
        mechanism="two_dtypes",
        error="expected scalar type",
        narrows=_OPERATION,
    ),
    Experiment("offset_given", Edit(), "an offset of 0 given to as_strided"),
    Experiment("dropped", Edit(), "no {}"),
    Experiment("expanded", Edit(), "a {} that is not broadcast", mechanism="broadcast"),
    Experiment("default", Edit(), "no {}"),
    Experiment("float32", Edit(), "float32", mechanism="wrong_in", narrows=_OPERATION),
    Experiment("wide_integers", Edit(), "int64 for integers of 8 bits"),
    Experiment("1", Edit(), "no {}"),
    Experiment(str(SMALL), Edit(), f"{{}} of {SMALL}"),
    Experiment("calls_apart", Edit(), "each call made of a module of its own", mechanism="later_call"),
    Experiment("computed_before", Edit(), "the number that {} gives as an argument"),
    Experiment("constant", Edit(), "a constant for the number of {}"),
    Experiment("torch", OtherTorch(), "torch {}"),
    Experiment("called_directly", Edit(), "its operations called directly, not as {}", mechanism="region"),
    Experiment("functions_apart", Edit(), "a function of its own for each region"),
    Experiment("shorter", Edit(), "the program cut after `{}`"),
    Experiment("only_region", Edit(), "nothing but a sine in {}", mechanism="region"),
    Experiment("unchanged", Edit(), "the module left as it is, without {}", mechanism="changed"),
    Experiment("cast_over_backward", Edit(), "autocast over the backward pass too", mechanism="forward_cast"),
    Experiment("written_apart", Edit(), "each write made into a contiguous copy"),
    Experiment("unshared", Edit(), "each argument in memory of its own", mechanism="shared_memory"),
    Experiment("returned_apart", Edit(), "negated copies of what is returned"),
    Experiment("touching", Edit(), "windows without gaps", mechanism="written_through"),
    Experiment("unexpanded", Edit(), "copies of expanded tensors", mechanism="written_through"),
    Experiment("noted", Noted(), "`{}` as the last operation that began"),
    # Changes that are tried before a subject is blamed.
    Experiment("deterministic", WithSetting("deterministic_or_warn", True), "deterministic algorithms"),
    Experiment("fast_path_off", WithSetting("fast_path", False), "the fast path of attention layers off"),
    Experiment("unpoisoned", WithSetting("poison", "zero"), "zeros in memory that nothing has written to"),
)
EXPERIMENTS: dict[str, Experiment] = {row.id: row for row in _ROWS}
"""All experiments by id."""
NARROWER = {name: [row.id for row in _ROWS if name in row.narrows] for name in EXPERIMENTS}
"""By experiment, the experiments that narrow its fault down, in the order in which they are tried."""
OPERAND_ROWS = tuple(row for row in _ROWS if isinstance(row.change, (OperandValue, EqualAlong)))
"""Changes of one operand of a rewrite."""
