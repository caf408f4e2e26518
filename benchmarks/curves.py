"""Curves of what searches reach, drawn alike. Needs matplotlib when something is drawn, not before."""

from pathlib import Path
from typing import Any


def blank(panels: int, inches: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure with so many panels side by side, of this size in all: the figure, and the axes of each panel."""
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
