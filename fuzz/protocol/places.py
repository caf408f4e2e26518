"""Places in the source of torch."""

from dataclasses import dataclass

from generators.records import Word


class LocatedBy(Word):
    """How a place was found."""

    RAISED = "raised", "the innermost line of the compiler that raises"
    LEFT_OUT = "left_out", "the case passes with this function left out"
    REPLACEMENT = "replacement", "the replacement; the case passes without it"
    PATTERN = "pattern", "the pattern that it replaces"
    CHECK = "check", "the check that accepts the match"
    KERNEL = "kernel", "an operation of ATen, whose kernel is no Python code"


@dataclass(frozen=True)
class Place:
    """A line of torch, or a function of ATen."""

    file: str
    """Relative to the torch package. "" for a function of ATen, and a bare name for a file outside of torch."""
    line: int
    function: str
    found: LocatedBy


def make_permalink(file: str, line: int, torch: str) -> str:
    """The address of a file of the torch package in the tag of a release, and of a line if it is not 0; "" for other
    versions."""
    release = torch.partition("+")[0]
    if not all(part.isdecimal() for part in release.split(".")):
        return ""
    # Headers of ATen are copied into the package.
    path = f"aten/src/{file.removeprefix('include/')}" if file.startswith("include/ATen/") else f"torch/{file}"
    return f"https://github.com/pytorch/pytorch/blob/v{release}/{path}{f'#L{line}' if line else ''}"
