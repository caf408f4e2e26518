"""A root cause, as attribution tells it."""

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class RootCause:
    """Where a fault is: `who` is at fault ("inductor", "eager", "aot", or the attention function), at which `stage`, in which
    `part` ("_sfdp_pattern_5", "relu", "aten.bmm"; "" if open), by which `mechanism`, a short stable phrase; `evidence` is
    sentences, one for each control experiment."""

    who: str
    stage: str
    part: str
    mechanism: str
    evidence: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """Where it is, in a few words: "inductor, joint_graph_passes: _sfdp_pattern_5"."""
        return f"{self.who}, {self.stage}{f': {self.part}' if self.part else ''}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {**asdict(self), "evidence": list(self.evidence)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The cause that `to_dict` wrote. Raises KeyError or TypeError for anything else."""
        return cls(data["who"], data["stage"], data["part"], data["mechanism"], tuple(data["evidence"]))
