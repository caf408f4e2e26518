"""The built-in subjects by name: what campaign and workers both need to know of them. How each runs is its own file's
matter, in fuzz/check/subjects."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """What sort of subject one is.

    public: users can run it, so what it shows is a finding by itself; attention: it computes the attention of cases
    that have a contract and leaves the rest of them alone; cxx: it needs a C++ compiler on CPU; inductor: Inductor
    compiles it, or may; random: it is for cases that draw random numbers, and draws its own; devices: where it runs; share:
    its part of the worker time of a campaign that chose no subjects, 0 when every case meets it.
    """

    public: bool = True
    attention: bool = False
    cxx: bool = False
    inductor: bool = False
    random: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")
    share: float = 0.0


#: The subjects a campaign can compare with eager. Inductor's code generation finds other bugs than its graph passes, at
#: twenty times the price.
BUILT_IN = {
    "passes": Kind(public=False, inductor=True),
    "inductor": Kind(cxx=True, inductor=True, share=0.15),
    "inductor_dynamic": Kind(cxx=True, inductor=True, share=0.03),
    "passes_random": Kind(public=False, inductor=True, random=True, share=0.03),
    "inductor_random": Kind(cxx=True, inductor=True, random=True, share=0.02),
    "inductor_tf32": Kind(inductor=True, devices=("cuda",), share=0.03),
    "inductor_tf32_random": Kind(inductor=True, random=True, devices=("cuda",), share=0.02),
    "aot_eager": Kind(public=False, share=0.02),
    "triton": Kind(attention=True, share=0.05),
    "triton_compiled": Kind(attention=True, cxx=True, inductor=True, share=0.01),
    "sdpa_math": Kind(attention=True, share=0.005),
    "sdpa_flash": Kind(attention=True, share=0.005),
    "sdpa_efficient": Kind(attention=True, devices=("cuda",), share=0.005),
    "sdpa_cudnn": Kind(attention=True, devices=("cuda",), share=0.005),
}


def is_named(subject: str) -> bool:
    """Whether it is a function of the user's, `package.module:function`."""
    return ":" in subject


def kind(subject: str) -> Kind:
    """The kind of a built-in subject, or of a function of the user's: whether that one is an attention function is only
    known once it is imported. Whatever is neither is there to check the checker."""
    return Kind(inductor=True) if is_named(subject) else BUILT_IN.get(subject, Kind(public=False))
