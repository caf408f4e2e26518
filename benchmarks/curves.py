"""Searches kept as JSON and drawn as curves."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def write_runs(runs: Sequence[Any], path: Path) -> None:
    """Write dataclasses as a JSON list, one a line."""
    path.write_text("[" + ",\n".join(json.dumps(asdict(run)) for run in runs) + "]\n")


def read_runs(kind: type[T], path: Path) -> list[T]:
    """What `write_runs` wrote."""
    return [kind(**run) for run in json.loads(path.read_text())]


def blank(panels: int, inches: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure with so many panels side by side, and the axes of each panel. `inches`: width and height."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, panels, figsize=inches, layout="constrained", squeeze=False)
    return figure, list(axes[0])


def save(figure: Any, path: Path, x: str, y: list[str]) -> None:
    """Label the panels, each with its own `y`, and write the figure to `path`."""
    for axis, label in zip(figure.axes, y, strict=True):
        axis.set_xlabel(x)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, color="0.9")
        axis.legend()
    figure.savefig(path, dpi=110)
