"""The built-in ways to run a case, in one table that campaigns and workers share. It imports no torch.

fuzz/check/subject_builder.py turns a row into code. To add a subject, add a row.
"""

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class SubjectSpec:
    """One way to run a case.

    backend: of torch.compile; "passes" for Inductor's graph passes alone (fuzz/check/graph_passes.py), "export" and
    "aot_inductor" for programs of torch.export, "" for no compiler, "unknown" for a user's function.
    mode: of torch.compile. dynamic: every size is symbolic.
    function: the attention function, "package.module:function", that replaces the attention of a case.
    sdpa: the backend of F.scaled_dot_product_attention that replaces it.
    random: in cases with active dropout it draws its own random numbers, not eager's.
    options: it is compiled and run under the settings of a case, and only runs cases that have some.
    recomputes: in training, most of what the backward pass reads is computed again.
    public: users can run it, so a failure under it is a finding by itself. devices: where it runs.
    share: its part of a campaign's worker time; 0 for a subject that every case runs under.
    default: the devices where campaigns run it unless they name subjects. Comparisons of rows ignore share and default.
    """

    backend: str = ""
    mode: str = ""
    dynamic: bool = False
    function: str = ""
    sdpa: str = ""
    random: bool = False
    recomputes: bool = False
    options: bool = False
    public: bool = True
    devices: tuple[str, ...] = ("cpu", "cuda")
    share: float = field(default=0.02, compare=False)
    default: tuple[str, ...] = field(default=("cpu", "cuda"), compare=False)

    @property
    def is_attention(self) -> bool:
        """Whether it replaces only the attention of a case, as its contract describes it."""
        return bool(self.function or self.sdpa)

    @property
    def is_proxy(self) -> bool:
        """Whether it is the cheap substitute for subjects that take about twenty times as long."""
        return self.backend == "passes"

    @property
    def is_exported(self) -> bool:
        """Whether torch.export makes the program, which is for inference alone."""
        return self.backend in ("export", "aot_inductor")

    @property
    def uses_inductor(self) -> bool:
        """Whether Inductor compiles it, or its graph passes run."""
        return self.backend in ("inductor", "aot_inductor", "passes", "unknown")

    @property
    def needs_cxx(self) -> bool:
        """Whether it needs a C++ compiler on the CPU."""
        return self.backend in ("inductor", "aot_inductor") and "cpu" in self.devices


MEMORY_BUDGET = 0.1
"""Of the memory for activations, from 0 (all is computed again) to 1, for subjects that recompute."""
INDUCTOR = "inductor"
"""torch.compile as users call it."""

_CUDA = ("cuda",)

SUBJECTS: dict[str, SubjectSpec] = {
    "passes": SubjectSpec("passes", public=False, share=0.0),
    "inductor": SubjectSpec("inductor", share=0.15),
    "inductor_dynamic": SubjectSpec("inductor", dynamic=True, share=0.03),
    "inductor_options": SubjectSpec("inductor", options=True, share=0.12),
    "inductor_dynamic_options": SubjectSpec("inductor", dynamic=True, options=True, default=()),
    "passes_options": SubjectSpec("passes", options=True, public=False, share=0.03),
    "passes_random": SubjectSpec("passes", random=True, public=False, share=0.03),
    "inductor_random": SubjectSpec("inductor", random=True),
    "passes_recomputing": SubjectSpec("passes", recomputes=True, public=False),
    "inductor_recomputing": SubjectSpec("inductor", recomputes=True),
    "aot_eager": SubjectSpec("aot_eager", public=False),
    "triton": SubjectSpec(function="kernels.attention:attention", share=0.05),
    "sdpa_math": SubjectSpec(sdpa="MATH", share=0.005),
    "sdpa_flash": SubjectSpec(sdpa="FLASH_ATTENTION", share=0.005),
    "sdpa_efficient": SubjectSpec(sdpa="EFFICIENT_ATTENTION", devices=_CUDA, share=0.005),
    "sdpa_cudnn": SubjectSpec(sdpa="CUDNN_ATTENTION", devices=_CUDA, share=0.005),
    "inductor_reduce_overhead": SubjectSpec("inductor", mode="reduce-overhead", share=0.03, default=_CUDA),
    "inductor_max_autotune": SubjectSpec("inductor", mode="max-autotune", share=0.03, default=_CUDA),
    "export": SubjectSpec("export", share=0.03),
    "aot_inductor": SubjectSpec("aot_inductor", share=0.03, default=("cpu",)),
    "passes_dynamic": SubjectSpec("passes", dynamic=True, public=False, default=()),
    "dynamo": SubjectSpec("eager", public=False, default=()),
    "dynamo_options": SubjectSpec("eager", options=True, public=False, default=()),
    "aot_eager_decomp_partition": SubjectSpec("aot_eager_decomp_partition", public=False, default=()),
    "aot_eager_recomputing": SubjectSpec("aot_eager", recomputes=True, public=False, default=()),
    "aot_eager_options": SubjectSpec("aot_eager", options=True, public=False, default=()),
    "aot_eager_decomp_partition_recomputing": SubjectSpec(
        "aot_eager_decomp_partition", recomputes=True, public=False, default=()
    ),
    "aot_eager_decomp_partition_options": SubjectSpec(
        "aot_eager_decomp_partition", options=True, public=False, default=()
    ),
    "inductor_dynamic_recomputing": SubjectSpec("inductor", dynamic=True, recomputes=True, default=()),
    "eager": SubjectSpec(default=()),
}
"""By name, in the order in which they run. `eager` tests the oracle: it must agree with itself."""


def is_user_function(subject: str) -> bool:
    """Whether it is a function of the user's, `package.module:function`."""
    return ":" in subject


def get_spec(subject: str) -> SubjectSpec:
    """The row of a built-in subject. Nothing is known of a user's function: it may use Inductor."""
    return SubjectSpec("unknown") if is_user_function(subject) else SUBJECTS.get(subject, SubjectSpec(public=False))


def compiler_of(subject: str) -> str:
    """Whose bugs a subject shows, by the name of a subject: those with the same compiler or kernels share its bugs."""
    spec = get_spec(subject)
    if is_user_function(subject) or spec.sdpa:
        return subject
    return INDUCTOR if spec.uses_inductor else subject


def without_options(subject: str) -> str:
    """The subject that does the same without settings; the subject itself where it has no options."""
    return (find_variant(subject, options=False) or subject) if get_spec(subject).options else subject


def find_variant(subject: str, **changes: Any) -> str | None:
    """The subject whose row differs from that of `subject` in exactly these fields; None if there is none."""
    wanted = replace(SUBJECTS[subject], **changes)
    return next((name for name, spec in SUBJECTS.items() if spec == wanted), None)
