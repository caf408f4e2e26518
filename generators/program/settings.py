"""The settings of cases: options of `torch.compile` by their names, and switches of torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from generators.errors import add_place, require
from generators.program.case import Case, SettingValue

_CPU, _CUDA, _OFF = ("cpu",), ("cuda",), (False,)
_Needs = tuple[tuple[str, SettingValue], ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting."""

    effect: str  # what the drawn value does, in a few words
    values: tuple[SettingValue, ...] = (True,)  # to draw from, without the default
    devices: tuple[str, ...] = ("cpu", "cuda")
    versions: str = ""  # of torch that have it, a specifier
    needs: _Needs = ()  # the settings that it has no effect without
    single: tuple[str, ...] = ()  # dimensions set to 1 in half of its cases: small cases show no effect otherwise
    in_graph_passes: bool = False  # it acts in Inductor's graph passes
    inference: bool = False  # it acts only in inference
    training: bool = False  # it acts only in training
    weight: float = 1.0
    """How often it is drawn, relative to other settings. Higher for settings that force code which otherwise needs
    millions of elements, and for settings that promise equal bits."""


_ROWS = ("B", "H", "S")  # sums are split into parts only if there is a single row
_FROZEN: _Needs = (("freezing", True),)
_CPP_PRODUCTS: _Needs = (*_FROZEN, ("max_autotune_gemm", True))
SETTINGS: dict[str, Setting] = {
    # Kernels that are chosen by measuring.
    "max_autotune": Setting("everything below is measured", weight=0.5),
    "max_autotune_gemm": Setting("products: templates against libraries", weight=0.5),
    "max_autotune_pointwise": Setting("pointwise kernels: block sizes", devices=_CUDA),
    "triton.multi_kernel": Setting("persistent and looping reductions, measured", (1, 2, 3), _CUDA),
    # Products.
    "cpp.gemm_max_k_slices": Setting(
        "products summed in parts", (2, 0), _CPU, needs=(*_CPP_PRODUCTS, ("cpp.threads", 4)), inference=True
    ),
    "epilogue_fusion": Setting("nothing fused into templates", _OFF, _CPU, needs=_CPP_PRODUCTS, inference=True),
    "b2b_gemm_pass": Setting("two products in one kernel", devices=_CUDA, in_graph_passes=True),
    "force_shape_pad": Setting("products padded, whatever it costs", devices=_CUDA, in_graph_passes=True, weight=2.0),
    # Reductions.
    "split_reductions": Setting("reductions in one part", _OFF, _CUDA),
    "triton.persistent_reductions": Setting("short reductions as loops", _OFF, _CUDA, weight=2.0),
    "triton.cooperative_reductions": Setting("reductions by several blocks", devices=_CUDA),
    "triton.force_cooperative_reductions": Setting("all reductions by several blocks", devices=_CUDA, weight=4.0),
    "triton.nested_reduction": Setting(
        "a reduction within another", devices=_CUDA, versions=">=2.12,<2.15", weight=2.0
    ),
    "triton.mix_order_reduction": Setting("reductions along two axes apart", _OFF, _CUDA),
    # Loops.
    "cpp.threads": Setting("loops and sums in several threads", (2, 4), _CPU, single=_ROWS, weight=4.0),
    "cpp.min_chunk_size": Setting(
        "threads for few elements", (1, 64), _CPU, needs=(("cpp.threads", 4),), single=_ROWS, weight=4.0
    ),
    "cpp.simdlen": Setting("vectors of another width, or none (1)", (1, 256), _CPU, weight=2.0),
    # Fusion.
    "combo_kernels": Setting("independent kernels in one", devices=_CUDA, weight=2.0),
    # Memory and order.
    "memory_planning": Setting("one allocation for all intermediates", weight=2.0),
    "disable_padding_cpu": Setting("strides padded on the CPU too", _OFF, _CPU),
    "reorder_for_locality": Setting("operations in the order of the program", _OFF, in_graph_passes=True),
    # Graph and wrapper.
    "freezing": Setting("parameters as constants", in_graph_passes=True, inference=True, weight=2.0),
    "cpp_wrapper": Setting("a wrapper in C++"),
    # Numbers.
    "emulate_precision_casts": Setting("all casts to low precision"),
    "numerics": Setting("eager's numbers", ("strict", "strict_pointwise", "strict_reduction"), versions=">=2.15"),
    "deterministic": Setting("nothing chosen by measuring", weight=2.0),
    "batch_invariant": Setting("a row's numbers whatever the batch", devices=_CUDA, versions=">=2.12"),
    # Around the compiled program.
    "poison": Setting("memory of compiled code is filled with NaN or large numbers", ("nan", "large"), weight=4.0),
    "compiled_as": Setting(
        "another way to call torch.compile", ("in_place", "method", "parts", "twice"), in_graph_passes=True, weight=4.0
    ),
    "compiled_autograd": Setting("the backward pass compiled too", in_graph_passes=True, training=True, weight=4.0),
    "use_deterministic_algorithms": Setting("equal results in every run", weight=4.0),
}
"""By name: of `torch.compile(options={...})`, or of `SWITCHES`."""

SWITCHES = frozenset({"poison", "compiled_as", "compiled_autograd", "use_deterministic_algorithms"})
"""Settings around the compiled program, which are no options of `torch.compile`."""


def describe_settings(settings: Mapping[str, SettingValue], *, as_config: bool = False) -> str:
    """Options of torch.compile, then switches: "options={'freezing': True}, poison='nan'".

    as_config: the options as values of torch._inductor.config, "torch._inductor.config.freezing=True".
    """
    options = {name: value for name, value in settings.items() if name not in SWITCHES}
    words = [f"{options=}"] if options else []
    if as_config:
        words = [f"torch._inductor.config.{name}={value!r}" for name, value in options.items()]
    switches = {name: value for name, value in settings.items() if name in SWITCHES}
    told = ("compiled twice" if value == "twice" else f"{name}={value!r}" for name, value in switches.items())
    return ", ".join([*words, *told])


def check_settings(case: Case) -> None:
    """Raises CaseError on a setting or value that is not in the table."""
    for name, value in case.settings:
        with add_place("settings", name):
            require(name in SETTINGS, f"unknown setting {name!r}: the table is in generators/program/settings.py")
            known = SETTINGS[name].values
            is_known = any(type(value) is type(other) and value == other for other in known)
            require(is_known, f"setting {name} is {value!r}, expected one of {', '.join(map(repr, known))}")


def list_available(torch: str, device: str) -> dict[str, Setting]:
    """The settings of a torch version on a device."""
    version = Version(read_version(torch).base_version)
    return {
        name: setting
        for name, setting in SETTINGS.items()
        if device in setting.devices and version in SpecifierSet(setting.versions)
    }


def read_version(torch: str) -> Version:
    """A version of torch. An unreadable version counts as the newest."""
    try:
        return Version(torch)
    except InvalidVersion:
        return Version("9999")
