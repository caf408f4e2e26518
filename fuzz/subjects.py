"""The table of built-in subjects: ways to run a case. Campaigns and workers share this module.

fuzz/check/run/subject_builder.py turns a row into code. A subject is an attention function, or a compiler with or
without axes, such as symbolic sizes. Its name joins their names by "_". To add a subject of a known compiler, add a row
to `_DEFAULT` or `_ON_REQUEST`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from fuzz.compilers.interface import Compiler
from fuzz.compilers.table import COMPILERS

_NONE: Mapping[str, Collection[str]] = MappingProxyType({})
_CPU, _CUDA, _ANY = ("cpu",), ("cuda",), ("cpu", "cuda")


@dataclass(frozen=True)
class SubjectSpec:
    """A way to run a case. `==` ignores `share` and `default`."""

    # of torch.compile; "passes" for Inductor's graph passes alone (fuzz/check/run/graph_passes.py), a name of
    # fuzz/compilers/table.py, "" for no compiler, "unknown" for a user's function
    backend: str = ""
    keywords: tuple[tuple[str, Any], ...] = ()  # of torch.compile
    dynamic: bool = False  # every size is symbolic
    function: str = ""  # "package.module:function", the attention function that replaces the attention of a case
    sdpa: str = ""  # the backend of F.scaled_dot_product_attention that replaces the attention of a case
    operations: tuple[str, ...] = ()  # of ATen: forward operations of that backend
    random: bool = False  # in cases with active dropout it draws its own random numbers, not eager's
    recomputes: bool = False  # in training, most of what the backward pass reads is computed again
    warm: bool = False  # it runs what torch's caches of compiled programs have for the case
    sharded: bool = False  # on several ranks, which have a part of each input
    options: bool = False  # it takes only cases with settings, and compiles and runs under them
    public: bool = True  # users can run it, so a failure under it is a finding by itself
    devices: tuple[str, ...] = _ANY  # where it runs
    share: float = field(default=0.02, compare=False)  # of a campaign's worker time; 0: every case runs under it
    default: tuple[str, ...] = field(default=(), compare=False)  # devices where campaigns run it unless they name some

    @property
    def is_attention(self) -> bool:
        """Whether it replaces the attention of a case, and nothing else."""
        return bool(self.function or self.sdpa)

    @property
    def is_surrogate(self) -> bool:
        """Whether it runs Inductor's graph passes alone, as a cheap stand-in for subjects that compile."""
        return self.backend == "passes"

    @property
    def compiler(self) -> Compiler | None:
        """Its row of fuzz/compilers; None for torch.compile, and without a compiler."""
        return COMPILERS.get(self.backend)

    @property
    def is_exported(self) -> bool:
        """Whether torch.export makes the program, which is for inference alone."""
        return self.compiler is not None and self.compiler.takes == "program"

    @property
    def is_foreign(self) -> bool:
        """Whether its compiler is no part of torch."""
        return self.compiler is not None and self.compiler.is_foreign

    @property
    def uses_inductor(self) -> bool:
        """Whether Inductor compiles it, or its graph passes run."""
        return self.backend in ("inductor", "aot_inductor", "passes", "unknown")

    @property
    def needs_cxx(self) -> bool:
        """Whether it needs a C++ compiler on the CPU."""
        return self.backend in ("inductor", "aot_inductor") and "cpu" in self.devices


MEMORY_BUDGET = 0.1
"""The share of activations that recomputing subjects keep."""
INDUCTOR = "inductor"
"""torch.compile as users call it."""
SHARDED = "sharded"
"""DTensors on several ranks, not compiled."""
_SDPA = "_scaled_dot_product_"

_BASES: dict[str, tuple[SubjectSpec, str]] = {
    "passes": (SubjectSpec("passes", public=False), "Inductor's graph passes, then the graph is interpreted"),
    INDUCTOR: (SubjectSpec("inductor"), "torch.compile"),
    "aot_eager": (SubjectSpec("aot_eager", public=False), "torch.compile with that backend"),
    "aot_eager_decomp_partition": (SubjectSpec("aot_eager_decomp_partition", public=False), "likewise"),
    "dynamo": (SubjectSpec("eager", public=False), "torch.compile with backend eager"),
    **{
        name: (SubjectSpec(name, devices=_CPU, share=0.0) if row.is_foreign else SubjectSpec(name), row.words)
        for name, row in COMPILERS.items()
    },
    "triton": (SubjectSpec(function="kernels.attention:attention"), "attention kernels of this repository"),
    "sdpa_math": (SubjectSpec(sdpa="MATH"), "scaled_dot_product_attention on this backend, likewise other sdpa_*"),
    "sdpa_flash": (
        SubjectSpec(sdpa="FLASH_ATTENTION", operations=(f"{_SDPA}flash_attention_for_cpu", f"{_SDPA}flash_attention")),
        "",
    ),
    "sdpa_efficient": (
        SubjectSpec(sdpa="EFFICIENT_ATTENTION", operations=(f"{_SDPA}efficient_attention",), devices=_CUDA),
        "",
    ),
    "sdpa_cudnn": (SubjectSpec(sdpa="CUDNN_ATTENTION", operations=(f"{_SDPA}cudnn_attention",), devices=_CUDA), ""),
    SHARDED: (SubjectSpec(sharded=True, devices=_CPU), "DTensors on two ranks of this machine, or on 2 x 2"),
    "eager": (SubjectSpec(), "no compiler: eager's operations, and its regions beside their plain text"),
}
"""Subjects without axes, each with a description."""

_AXES: dict[str, tuple[dict[str, Any], str]] = {
    "dynamic": ({"dynamic": True}, "all sizes are symbolic"),
    "options": ({"options": True}, "runs the cases that have settings, options of torch.compile, under these"),
    "random": ({"random": True}, "lets the compiler draw dropout"),
    "recomputing": ({"recomputes": True}, "keeps little of what the backward pass reads"),
    "warm": ({"warm": True}, "runs what the caches on disk have, as a second process does"),
    "reduce_overhead": ({"keywords": (("mode", "reduce-overhead"),)}, "a mode of torch.compile"),
    "max_autotune": ({"keywords": (("mode", "max-autotune"),)}, "a mode of torch.compile"),
    SHARDED: ({"sharded": True, "devices": _CPU}, "DTensors on two ranks of this machine, or on 2 x 2"),
}
"""Variations of a subject: the fields that each changes, and a description."""

_DEFAULT: dict[tuple[str, ...], tuple[float, tuple[str, ...]]] = {
    ("passes",): (0.0, _ANY),
    (INDUCTOR,): (0.15, _ANY),
    (INDUCTOR, "dynamic"): (0.03, _ANY),
    (INDUCTOR, "options"): (0.12, _ANY),
    ("passes", "options"): (0.03, _ANY),
    ("passes", "random"): (0.03, _ANY),
    (INDUCTOR, "random"): (0.02, _ANY),
    ("passes", "recomputing"): (0.02, _ANY),
    (INDUCTOR, "recomputing"): (0.02, _ANY),
    (INDUCTOR, "warm"): (0.02, _ANY),
    ("aot_eager",): (0.02, _ANY),
    ("triton",): (0.05, _ANY),
    ("sdpa_math",): (0.005, _ANY),
    ("sdpa_flash",): (0.005, _ANY),
    ("sdpa_efficient",): (0.005, _CUDA),
    ("sdpa_cudnn",): (0.005, _CUDA),
    (INDUCTOR, "reduce_overhead"): (0.03, _CUDA),
    (INDUCTOR, "max_autotune"): (0.03, _CUDA),
    ("export",): (0.03, _ANY),
    ("aot_inductor",): (0.03, _CPU),
}
"""The subjects of campaigns that name none, in the order in which they run: share of worker time, and devices."""

_ON_REQUEST: tuple[tuple[str, ...], ...] = (
    ("passes", "dynamic"),
    *((INDUCTOR, "dynamic", axis) for axis in ("options", "recomputing")),
    (INDUCTOR, "options", "warm"),
    *(("dynamo", *axes) for axes in ((), ("options",))),
    *(("aot_eager", axis) for axis in ("options", "recomputing")),
    *(("aot_eager_decomp_partition", *axes) for axes in ((), ("options",), ("recomputing",))),
    (SHARDED,),
    *((backend, SHARDED) for backend in (INDUCTOR, "aot_eager")),
    *((name,) for name in COMPILERS if (name,) not in _DEFAULT),
    ("eager",),
)


def _compute(base: str, *axes: str) -> SubjectSpec:
    changes: dict[str, Any] = {name: value for axis in axes for name, value in _AXES[axis][0].items()}
    row = _BASES[base][0]
    share, default = _DEFAULT.get((base, *axes), (row.share, row.default))
    return replace(row, **changes, share=share, default=default)


SUBJECTS = {"_".join(parts): _compute(*parts) for parts in (*_DEFAULT, *_ON_REQUEST)}
"""By name."""


def describe_subjects() -> str:
    """The subjects in words, for --help."""
    groups: dict[tuple[str, ...], list[str]] = {_ANY: [], _CPU: [], _CUDA: [], (): []}
    for name in SUBJECTS:
        groups[SUBJECTS[name].default].append(name)
    everywhere, on_cpu, on_cuda, named = (", ".join(names) for names in groups.values())
    bases = "; ".join(f"{name}: {words}" for name, (_, words) in _BASES.items() if words)
    axes = "; ".join(f"_{name}: {words}" for name, (_, words) in _AXES.items())
    return (
        f"By default {everywhere}; on the CPU also {on_cpu}; on CUDA also {on_cuda}. Others run only if named: {named},"
        " and package.module:function, a function of yours that compiles a module or computes attention"
        f" (docs/kernels.md). {bases}. {axes}."
    )


def find_backend(operation: str) -> str:
    """The subject that selects the backend of an operation of ATen, forward or backward; "" for other operations."""
    name = operation.removeprefix("aten.").removesuffix("_backward")
    return next((subject for subject, spec in SUBJECTS.items() if name in spec.operations), "")


def is_user_function(subject: str) -> bool:
    """Whether it is a function of the user's, `package.module:function`."""
    return ":" in subject


def is_attention(subject: str) -> bool:
    """Whether the subject may be an attention function: of a function of the user's a worker alone knows
    (`Hello.attention`)."""
    return is_user_function(subject) or get_spec(subject).is_attention


def get_spec(subject: str) -> SubjectSpec:
    """The row of a subject. A user's function may use Inductor, for all we know."""
    return SubjectSpec("unknown") if is_user_function(subject) else SUBJECTS.get(subject, SubjectSpec(public=False))


def find_abilities(subjects: Collection[str], told: Mapping[str, Collection[str]] = _NONE) -> frozenset[str] | None:
    """The abilities that all of these compilers have; None if some subject is none, but takes any program.

    told: `Hello.abilities`, of functions of the user's
    """
    rows = {name: get_spec(name).compiler for name in subjects if get_spec(name).is_foreign}
    promised = [row.capabilities.abilities for row in rows.values() if row is not None]
    promised += [frozenset(told[name]) for name in subjects if name in told]
    return frozenset.intersection(*promised) if promised and len(promised) == len(subjects) else None


def compiler_of(subject: str) -> str:
    """The subject that is blamed for a failure: "sharded" for all with several ranks, "inductor" for others that use
    Inductor, else the subject itself."""
    spec = get_spec(subject)
    if is_user_function(subject) or spec.sdpa:
        return subject
    return SHARDED if spec.sharded else INDUCTOR if spec.uses_inductor else subject


def list_packages(subject: str) -> tuple[str, ...]:
    """The packages of its compiler that are no part of torch, the runtime first."""
    compiler = get_spec(subject).compiler
    return tuple(package.name for package in compiler.packages) if compiler else ()


def without_options(subject: str) -> str:
    """The same subject without settings; the subject itself if it has no options."""
    return (find_variant(subject, options=False) or subject) if get_spec(subject).options else subject


def find_variant(subject: str, **changes: Any) -> str | None:
    """The subject whose row differs from the row of `subject` in exactly these fields, or None."""
    wanted = replace(get_spec(subject), **changes)
    return next((name for name, spec in SUBJECTS.items() if spec == wanted), None)
