"""The line of torch at fault, as a person found it at the source."""

from dataclasses import dataclass
from typing import Annotated, Literal

from generators.records import Rule, matches

_File = Annotated[
    str, matches(r"\w[\w/]*\.(?:py|h|cpp|cu)", 'is no file below the torch package, such as "_inductor/ir.py"')
]
_Release = Annotated[str, matches(r"\d+\.\d+\.\d+", 'is not a release of torch such as "2.15.0"')]


@dataclass(frozen=True, slots=True)
class FaultyLine:
    """A line that has to change, and how that is known."""

    file: _File
    """Relative to the torch package. C++ is named by its copy there, such as `include/ATen/...`."""
    line: Annotated[int, Rule(lambda line: line > 0, "is no number of a line")]
    function: str
    """Qualified within the file."""
    torch: _Release
    shown_by: Literal["repair", "patch", "reading"]
    """`patch`: `triage.verify_fix` holds."""

    @property
    def evidence(self) -> str:
        """How the line is known, for people."""
        known = {"repair": "shown by a run with it repaired", "patch": "shown by a verified fix.patch"}
        return known.get(self.shown_by, "read in torch's source")
