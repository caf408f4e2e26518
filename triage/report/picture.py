"""Where a value is wrong, as a picture: its errors by head and query row, and by query row and feature.

Dark cells are far off, wrong cells have a dot: it reads without colours.
"""

import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from corpus.files import replace_file
from fuzz.error_location import BATCH, FEATURE, HEAD, KEY, QUERY, describe_where, label_axes, name_value
from fuzz.protocol import ErrorMap, SubjectResult
from generators.program.case import Case

FILE = "where.png"
_DECADES = 12
"""So many powers of ten are told apart."""
_WIDTH, _HEIGHT = 4.8, 2.8
"""Inches, of a grid."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a grid: what it counts, and along each axis of the value that it has, the cells and the elements in
    one."""

    name: str
    counts: tuple[int, ...]
    blocks: tuple[int, ...]

    @property
    def cells(self) -> int:
        """The number of cells."""
        return math.prod(self.counts)

    def label(self, place: float, _tick: float = 0.0) -> str:
        """The first element of the cell there, "1, 2"; "" where there is no cell."""
        if not 0 <= round(place) < self.cells:
            return ""
        places = zip(np.unravel_index(round(place), self.counts), self.blocks, strict=True)
        return ", ".join(str(int(index) * block) for index, block in places)


@dataclass(frozen=True, slots=True)
class Panel:
    """Arrays of [rows, columns]. `errors`: the largest in each cell, as in `ErrorMap`; `wrong`: cells to mark."""

    rows: Side
    columns: Side
    errors: npt.NDArray[np.float64]
    wrong: npt.NDArray[np.bool]

    @property
    def title(self) -> str:
        """What the grid tells: "by head and query row"."""
        return f"by {' and '.join(filter(None, (self.rows.name, self.columns.name)))}"


def panels(case: Case, errors: ErrorMap | None) -> list[Panel]:
    """The grids of a value of the case; none without a map, and for a value of one element."""
    if errors is None:
        return []
    names = label_axes(case, errors.value, len(errors.shape))
    sides = [side for side in _group_axes(names) if any(errors.shape[axis] > 1 for axis in side)]
    pairs = list(itertools.pairwise(sides)) or [((), side) for side in sides]
    return [_make_panel(errors, names, rows, columns) for rows, columns in pairs]


def _group_axes(names: Sequence[str]) -> list[tuple[int, ...]]:
    """The axes in three groups: what tells heads apart, rows, features."""
    rank = len(names)
    feature = names.index(FEATURE) if FEATURE in names else rank - 1
    rows = (axis for axis, name in enumerate(names) if name in (QUERY, KEY) and axis != feature)
    row = next(rows, feature - 1 if feature else -1)
    others = tuple(axis for axis in range(rank) if axis not in (row, feature))
    return [others, (row,) if row >= 0 else (), (feature,)]


def _make_panel(errors: ErrorMap, names: Sequence[str], rows: tuple[int, ...], columns: tuple[int, ...]) -> Panel:
    down, across = (_make_side(errors, names, side) for side in (rows, columns))
    order = (*rows, *columns, *(axis for axis in range(len(names)) if axis not in (*rows, *columns)))

    def arrange(values: npt.ArrayLike) -> npt.NDArray[Any]:
        return np.reshape(values, errors.counts).transpose(order).reshape(down.cells, across.cells, -1)

    wrong = np.isin(range(len(errors.errors)), errors.wrong)
    return Panel(down, across, np.fmax.reduce(arrange(errors.errors), axis=-1), arrange(wrong).max(axis=-1))


def _make_side(errors: ErrorMap, names: Sequence[str], axes: tuple[int, ...]) -> Side:
    live = [axis for axis in axes if errors.shape[axis] > 1]
    words = (_name_axis(names[axis], axis) for axis in live)
    return Side(", ".join(words), tuple(errors.counts[a] for a in live), tuple(errors.block[a] for a in live))


def _name_axis(name: str, axis: int) -> str:
    """An axis in words; one that attention has no word for by its number, and its size as the program has it."""
    return name if name in (BATCH, HEAD, QUERY, KEY, FEATURE) or name.startswith("axis ") else f"axis {axis} ({name})"


def png(case: Case, result: SubjectResult) -> bytes | None:
    """The picture as a PNG file; None without a map of errors, or for one element."""
    grids = panels(case, result.map)
    if result.map is None or not grids:
        return None
    cells = np.concatenate([grid.errors.ravel() for grid in grids])
    known = [error for error in cells if 0 < error < math.inf] or [1.0]
    # Below the smallest error, so that no error but 0 is white.
    norm = LogNorm(max(min(known) / 4, max(known) * 10.0**-_DECADES), max(known), clip=True)
    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(grids) + 0.5), layout="constrained")
    axes = list(figure.subplots(len(grids), 1, squeeze=False)[:, 0])
    for ax, grid in zip(axes, grids, strict=True):
        _draw(ax, grid, norm)
    figure.colorbar(axes[0].images[0], ax=axes, label="largest error in a cell")
    what = f"{name_value(case, result.map.value)} {list(result.map.shape)}"
    figure.suptitle(f"{what}: error against float64", fontsize=10)
    figure.supxlabel("; ".join(_list_marks(result, cells)), fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def save(case: Case, result: SubjectResult, directory: Path) -> str:
    """Write `where.png` and return what it shows. With nothing to draw remove an older file and return ""."""
    drawn = png(case, result)
    if drawn is None:
        (directory / FILE).unlink(missing_ok=True)
        return ""
    replace_file(directory / FILE, drawn)
    return describe(case, result)


def describe(case: Case, result: SubjectResult) -> str:
    """What the picture shows, in a sentence, for those who can't see it; empty where there is none."""
    grids = panels(case, result.map)
    if result.map is None or not grids:
        return ""
    titles = ", and ".join(grid.title for grid in grids)
    where = describe_where(case, result.where).partition(": ")[2]
    told = f"Error of {name_value(case, result.map.value)} against float64, {titles}."
    return f"{told} Wrong: {where}." if where else told


def _draw(ax: Axes, grid: Panel, norm: LogNorm) -> None:
    ax.patch.set(hatch="////", edgecolor="0.6")  # shows where an error is NaN, and nothing is drawn over it
    shown = np.clip(grid.errors, norm.vmin, norm.vmax)
    ax.imshow(shown, cmap="Greys", norm=norm, aspect="auto", interpolation="nearest")
    is_infinite = np.isinf(grid.errors)
    for cells, mark in ((grid.wrong & ~is_infinite, "o"), (is_infinite, "x")):
        y, x = np.nonzero(cells)
        ax.plot(x, y, mark, color="#c1121f", markersize=2 if len(x) > 200 else 4, linestyle="none")
    ax.set_title(grid.title, fontsize=9)
    ax.tick_params(labelsize=7)
    ax.set_xlabel(grid.columns.name, fontsize=8)
    ax.set_ylabel(grid.rows.name, fontsize=8)
    for axis, side in ((ax.xaxis, grid.columns), (ax.yaxis, grid.rows)):
        axis.set_major_locator(MaxNLocator(integer=True))
        axis.set_major_formatter(side.label)


def _list_marks(result: SubjectResult, cells: npt.NDArray[np.float64]) -> list[str]:
    """What marks mean, and how far off something right is."""
    marks = ["dots: wrong"]
    marks += ["×: NaN or infinity"] * bool(np.isinf(cells).any())
    marks += ["hatched: not judged"] * bool(np.isnan(cells).any())
    for key, who in (("peer_error", "a right kernel"), ("eager_error", "eager")):
        if 0 < result.numbers.get(key, 0.0) < math.inf:
            return [*marks, f"{who} is off by {result.numbers[key]:.1g}"]
    return marks
