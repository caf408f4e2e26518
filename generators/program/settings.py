"""The settings that a case may have: options of `torch.compile` by their names, and switches of torch beside them."""

from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from generators.errors import add_place, require
from generators.program.case import Case, Value

_CPU, _CUDA = ("cpu",), ("cuda",)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. switches_on: what it does, in a few words; values: those to draw from, none of them the default.

    devices, versions: where it exists, versions as a specifier of torch. needs: settings without which it does nothing.
    passes: it acts in Inductor's graph passes. inference: it acts there alone. weight: how often it is drawn; those
    have more that force what otherwise takes millions of elements.
    """

    switches_on: str
    values: tuple[Value, ...] = (True,)
    devices: tuple[str, ...] = ("cpu", "cuda")
    versions: str = ""
    needs: tuple[tuple[str, Value], ...] = ()
    passes: bool = False
    inference: bool = False
    weight: float = 1.0


SETTINGS: dict[str, Setting] = {
    "cpp.threads": Setting("loops and sums in several threads", (2, 4), _CPU, weight=4.0),
    "cpp.simdlen": Setting("vectors of another width, or none (1)", (1, 256), _CPU, weight=2.0),
    "freezing": Setting("parameters as constants", passes=True, inference=True, weight=2.0),
    "poison": Setting("what compiled code allocates is filled with NaN or large numbers", ("nan", "large"), weight=4.0),
    "use_deterministic_algorithms": Setting("torch.use_deterministic_algorithms: equal results in every run"),
}
"""By name, which is that of `torch.compile(options={...})` except for `use_deterministic_algorithms`."""


def check_settings(case: Case) -> None:
    """Raises CaseError, one line, on a setting or value that is not in the table."""
    for name, value in case.settings:
        with add_place("settings", name):
            require(name in SETTINGS, f"unknown setting {name!r}: the table is in generators/program/settings.py")
            known = SETTINGS[name].values
            is_known = any(type(value) is type(one) and value == one for one in known)
            require(is_known, f"setting {name} is {value!r}, expected one of {', '.join(map(repr, known))}")


def list_available(torch: str, device: str) -> dict[str, Setting]:
    """The settings that this torch version has on a device. A version that can't be read counts as the newest."""
    try:
        version = Version(Version(torch).base_version)
    except InvalidVersion:
        version = Version("9999")
    return {
        name: one for name, one in SETTINGS.items() if device in one.devices and version in SpecifierSet(one.versions)
    }
