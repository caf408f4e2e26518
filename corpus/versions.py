"""Versions of torch, such as "2.13.0", and of the packages of other compilers, such as "openvino 2026.4.1"."""

import re
from collections.abc import Iterable, Mapping

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from generators.program.settings import read_version

TORCH = "torch"
_SPECIFIER = re.compile(r"([A-Za-z][\w.-]*)?(.*)", re.DOTALL)


def spell_version(package: str, version: str) -> str:
    """A version as ledgers and case files record it: torch is not named."""
    return version if package == TORCH else f"{package} {version}"


def split_version(text: str) -> tuple[str, str]:
    """The package and the version that a text of `spell_version` names."""
    package, _, version = text.rpartition(" ")
    return package or TORCH, version


def sort_versions(versions: Iterable[str]) -> list[str]:
    """Texts of `spell_version`, each once, torch's first, then by package, oldest first. Names that are no versions
    come last."""

    def rank(text: str) -> tuple[bool, str, Version, str]:
        package, version = split_version(text)
        return package != TORCH, package, read_version(version), text

    return sorted({*versions}, key=rank)


def spell_versions(versions: Iterable[str]) -> str:
    """Texts of `spell_version` in words: "torch 2.13.0, 2.14.1, openvino 2026.4.1"."""
    pairs = [split_version(text) for text in versions]
    packages = dict.fromkeys(package for package, _ in pairs)
    return ", ".join(f"{name} {', '.join(told for package, told in pairs if package == name)}" for name in packages)


def split_specifier(text: str) -> tuple[str, SpecifierSet]:
    """The package and the versions of ">=2.11,<2.15", which is of torch, or "openvino>=2025.4".

    Raises `InvalidSpecifier`, a `ValueError`.
    """
    found = _SPECIFIER.fullmatch(text)
    assert found is not None
    if found[1] and not found[2]:  # "newer" would be a package in any version
        raise InvalidSpecifier(text)
    return found[1] or TORCH, SpecifierSet(found[2])


def holds_for(specifier: str, versions: Mapping[str, str]) -> bool:
    """Whether a specifier contains one of these versions by package. Nightlies and builds such as 2.13.0+cpu count."""
    package, wanted = split_specifier(specifier)
    if not specifier:
        return True
    return package in versions and wanted.contains(read_version(versions[package]), prereleases=True)
