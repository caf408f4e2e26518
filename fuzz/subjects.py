"""The built-in ways to run a case, in one table that campaigns and workers share. It imports no torch.

fuzz/check/subject_builder.py turns a row into code. To add a subject, add a row.
"""

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Spec:
    """One way to run a case.

    backend: that of torch.compile ("passes": only Inductor's graph passes, see fuzz/check/graph_passes.py), "" to run
    the module or function as it is, "unknown" for a user's function; mode: that of torch.compile;
    dynamic: every size is symbolic;
    function: the attention function, "package.module:function", in the place of the case's own attention;
    sdpa: the backend of F.scaled_dot_product_attention in its place; twin: a function that must give the same bits;
    random: for cases with active dropout, with random numbers of its own instead of eager's; tf32: TF32 is allowed;
    public: users can run it, so that what it shows is a finding by itself; devices: where it runs;
    share: its part of a campaign's worker time, 0 where every case meets it;
    default: whether a campaign that was given no subjects runs it. The last two do not count in comparisons.
    """

    backend: str = ""
    mode: str = ""
    dynamic: bool = False
    function: str = ""
    sdpa: str = ""
    twin: str = ""
    random: bool = False
    tf32: bool = False
    public: bool = True
    devices: tuple[str, ...] = ("cpu", "cuda")
    share: float = field(default=0.02, compare=False)
    default: bool = field(default=True, compare=False)

    @property
    def is_attention(self) -> bool:
        """Whether it computes the attention of cases with a contract and leaves the rest of them alone."""
        return bool(self.function or self.sdpa)

    @property
    def is_eager(self) -> bool:
        """Whether it is what all others are compared with."""
        return not (self.backend or self.is_attention)

    @property
    def is_proxy(self) -> bool:
        """Whether it stands in for subjects that cost about twenty times as much."""
        return self.backend == "passes"

    @property
    def uses_inductor(self) -> bool:
        """Whether Inductor compiles it, or its graph passes run."""
        return self.backend in ("inductor", "passes", "unknown")

    @property
    def needs_cxx(self) -> bool:
        """Whether it needs a C++ compiler on the CPU."""
        return self.backend == "inductor" and "cpu" in self.devices


INDUCTOR = "inductor"
"""torch.compile as users call it."""

_TRITON = "kernels.attention:attention"
_CUDA = ("cuda",)

SUBJECTS: dict[str, Spec] = {
    "passes": Spec("passes", public=False, share=0.0),
    "inductor": Spec("inductor", share=0.15),
    "inductor_dynamic": Spec("inductor", dynamic=True, share=0.03),
    "passes_random": Spec("passes", random=True, public=False, share=0.03),
    "inductor_random": Spec("inductor", random=True),
    "inductor_tf32": Spec("inductor", tf32=True, devices=_CUDA, share=0.03),
    "inductor_tf32_random": Spec("inductor", tf32=True, random=True, devices=_CUDA),
    "aot_eager": Spec("aot_eager", public=False),
    "triton": Spec(function=_TRITON, share=0.05),
    "triton_compiled": Spec("inductor", function=_TRITON, share=0.01),
    "sdpa_math": Spec(sdpa="MATH", twin="kernels.reference:math_attention", share=0.005),
    "sdpa_flash": Spec(sdpa="FLASH_ATTENTION", share=0.005),
    "sdpa_efficient": Spec(sdpa="EFFICIENT_ATTENTION", devices=_CUDA, share=0.005),
    "sdpa_cudnn": Spec(sdpa="CUDNN_ATTENTION", devices=_CUDA, share=0.005),
    "inductor_reduce_overhead": Spec("inductor", mode="reduce-overhead", default=False),
    "inductor_max_autotune": Spec("inductor", mode="max-autotune", default=False),
    "passes_dynamic": Spec("passes", dynamic=True, public=False, default=False),
    "aot_eager_decomp_partition": Spec("aot_eager_decomp_partition", public=False, default=False),
    "eager": Spec(default=False),
}
"""By name, in the order in which they are due. `eager` checks the checker: it must agree with itself."""


def is_user_function(subject: str) -> bool:
    """Whether it is a function of the user's, `package.module:function`."""
    return ":" in subject


def get_spec(subject: str) -> Spec:
    """The row of a built-in subject. Nothing is known of a user's function: it may use Inductor."""
    return Spec("unknown") if is_user_function(subject) else SUBJECTS.get(subject, Spec(public=False))


def compiler_of(subject: str) -> str:
    """Who has the bugs that a subject shows: subjects that share the compiler, or the kernels, share its bugs."""
    spec = get_spec(subject)
    if is_user_function(subject) or spec.sdpa:
        return subject
    if spec.function:
        return next(name for name, other in SUBJECTS.items() if other.function == spec.function)
    return INDUCTOR if spec.uses_inductor else subject


def find_variant(subject: str, **changes: Any) -> str | None:
    """The subject that differs from a built-in one in these fields of its row alone; None without one."""
    wanted = replace(SUBJECTS[subject], **changes)
    return next((name for name, spec in SUBJECTS.items() if spec == wanted), None)


def find_proxy(*, random: bool) -> str:
    """The cheap subject that a case meets first; `random`: for what draws random numbers of its own."""
    return next(name for name, spec in SUBJECTS.items() if spec.is_proxy and spec.random == random)
