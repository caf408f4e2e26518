"""The rewrites that a compiler applied in one version and not in another: an upgrade loses fusions without an error."""

from collections.abc import Collection, Mapping

from fuzz.protocol import Verdict


def has_rewrites(verdict: Verdict) -> bool:
    """Whether the subject compiled and ran the whole program, so that its rewrites are known."""
    return not verdict.is_logged and verdict not in (Verdict.SKIPPED, Verdict.REJECTED)


def find_changed(applied: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """The rewrites that some versions applied and others did not, each with the labels of those that did.

    applied: the names of rewrites by the label of the version
    """
    found = {
        name: tuple(label for label in applied if name in applied[label]) for name in set().union(*applied.values())
    }
    return {name: labels for name, labels in sorted(found.items()) if len(labels) < len(applied)}


def describe_changed(applied: Mapping[str, Collection[str]]) -> list[str]:
    """As `find_changed`, in lines: ["in 2.13.0, not in 2.15.0: _sfdp_pattern_1_inference"]."""
    changed, sides = find_changed(applied), dict[tuple[str, ...], list[str]]()
    for name, labels in changed.items():
        sides.setdefault(labels, []).append(name)
    return [
        f"in {', '.join(labels)}, not in {', '.join(one for one in applied if one not in labels)}: {', '.join(names)}"
        for labels, names in sides.items()
    ]
