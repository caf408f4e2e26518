"""Where a value is wrong, as a picture: its errors by head and query row, and by query row and feature.

Dark cells are far off, wrong cells are outlined: it reads without colours.
"""

import io
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from fuzz.error_location import BATCH, FEATURE, HEAD, KEY, QUERY, describe_where, label_axes, name_value
from fuzz.protocol import ErrorMap, SubjectResult
from generators.errors import UserError
from generators.program.case import Case

_TICKS = 12
"""So many places of an axis are named at most."""
FILE = "where.png"

_DPI = 150
_DECADES = 12
_WIDTH = 4.8
_CELL = 0.16
_HEIGHTS = (1.3, 3.2)
"""Inches: the picture's width, a cell's height, and the least and the most of a grid's."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One side of a grid: what it counts, its number of cells, the names of some, and the elements in a cell."""

    name: str
    cells: int
    ticks: tuple[tuple[int, str], ...]
    width: int = 1


@dataclass(frozen=True, slots=True)
class Panel:
    """Arrays of [rows, columns]. `errors`: the largest in each cell, as in `ErrorMap`; `wrong`: cells to outline."""

    rows: Axis
    columns: Axis
    errors: npt.NDArray[np.float64]
    wrong: npt.NDArray[np.bool]

    @property
    def title(self) -> str:
        """What the grid tells: "by head and query row"."""
        names = [axis.name for axis in (self.rows, self.columns) if axis.name]
        return f"by {' and '.join(names)}"


def panels(case: Case, errors: ErrorMap) -> tuple[Panel, ...]:
    """The grids of a value of the case; none for a value of one element."""
    names = label_axes(case, errors.value, len(errors.shape))
    sides = [side for side in _sides(names) if any(errors.shape[axis] > 1 for axis in side)]
    if not sides:
        return ()
    pairs = list(itertools.pairwise(sides)) or [((), sides[0])]
    return tuple(_panel(errors, names, rows, columns) for rows, columns in pairs)


def _sides(names: Sequence[str]) -> list[tuple[int, ...]]:
    """The axes in three groups: what tells heads apart, rows, features."""
    rank = len(names)
    feature = names.index(FEATURE) if FEATURE in names else rank - 1
    row = next(
        (i for i, name in enumerate(names) if name in (QUERY, KEY) and i != feature), feature - 1 if feature else -1
    )
    others = tuple(axis for axis in range(rank) if axis not in (row, feature))
    return [others, (row,) if row >= 0 else (), (feature,)]


def _panel(errors: ErrorMap, names: Sequence[str], rows: tuple[int, ...], columns: tuple[int, ...]) -> Panel:
    down, across = (_axis(errors, names, side) for side in (rows, columns))
    order = (*rows, *columns, *(axis for axis in range(len(names)) if axis not in (*rows, *columns)))

    def arrange(values: npt.ArrayLike) -> npt.NDArray[Any]:
        return np.reshape(values, errors.counts).transpose(order).reshape(down.cells, across.cells, -1)

    wrong = np.isin(range(len(errors.errors)), errors.wrong)
    return Panel(down, across, np.fmax.reduce(arrange(errors.errors), axis=-1), arrange(wrong).max(axis=-1))


def _axis(errors: ErrorMap, names: Sequence[str], side: tuple[int, ...]) -> Axis:
    live = [axis for axis in side if errors.shape[axis] > 1]
    counts = [errors.counts[axis] for axis in live]
    cells = math.prod(counts)
    step = next(step for step in (2**power for power in range(64)) if cells <= _TICKS * step)
    places = [(number, np.unravel_index(number, counts)) for number in range(0, cells, step)] if live else []
    ticks = tuple(
        (number, ", ".join(str(index * errors.block[axis]) for index, axis in zip(place, live, strict=True)))
        for number, place in places
    )
    words = [_word(names[axis], axis) for axis in live]
    return Axis(", ".join(words), cells, ticks, math.prod(errors.block[axis] for axis in live))


def _word(name: str, axis: int) -> str:
    """An axis in words; one that attention has no word for by its number, and its size as the program has it."""
    return name if name in (BATCH, HEAD, QUERY, KEY, FEATURE) or name.startswith("axis ") else f"axis {axis} ({name})"


def png(case: Case, result: SubjectResult) -> bytes | None:
    """The picture as a PNG file; None without a map of errors, or for one element."""
    if result.map is None or not (grids := panels(case, result.map)):
        return None
    cells = np.concatenate([grid.errors.ravel() for grid in grids])
    reference = _reference(result)
    known = [error for error in (*cells, reference[1]) if 0 < error < math.inf] or [1.0]
    # Below the smallest error, so that no error but 0 is white.
    norm = LogNorm(max(min(known) / 4, max(known) * 10.0**-_DECADES), max(known), clip=True)
    heights = [min(max(_CELL * grid.rows.cells, _HEIGHTS[0]), _HEIGHTS[1]) for grid in grids]
    figure = Figure(figsize=(_WIDTH, sum(heights) + 0.5 + 0.6 * len(grids)), layout="constrained")
    axes = list(figure.subplots(len(grids), 1, squeeze=False, height_ratios=heights)[:, 0])
    images = [_draw(ax, grid, norm) for ax, grid in zip(axes, grids, strict=True)]
    _legend(figure, images[0], axes, reference, cells)
    figure.suptitle(
        f"{name_value(case, result.map.value)} {list(result.map.shape)}: error against float64", fontsize=10
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()


def save(case: Case, result: SubjectResult, directory: Path) -> str:
    """Write `where.png` and return what it shows. With nothing to draw remove an older file and return ""."""
    drawn = png(case, result)
    if drawn is None:
        (directory / FILE).unlink(missing_ok=True)
        return ""
    try:
        (directory / FILE).write_bytes(drawn)
    except OSError as error:
        raise UserError(f"{directory / FILE}: can't be written: {error.strerror}") from error
    return describe(case, result)


def describe(case: Case, result: SubjectResult) -> str:
    """What the picture shows, in a sentence, for those who can't see it; empty where there is none."""
    if result.map is None or not (grids := panels(case, result.map)):
        return ""
    told = (
        f"Error of {name_value(case, result.map.value)} against float64, {', and '.join(grid.title for grid in grids)}"
    )
    where = describe_where(case, result.where).partition(": ")[2]
    return f"{told}. Wrong: {where}." if where else f"{told}."


def _reference(result: SubjectResult) -> tuple[str, float]:
    """Whose error is marked in the legend, and how large it is: what is right is about as far off."""
    for key, who in (("peer_error", "a right kernel's"), ("eager_error", "eager's")):
        error = result.numbers.get(key, math.nan)
        if 0 < error < math.inf:
            return who, error
    return "", math.nan


def _draw(ax: Axes, grid: Panel, norm: LogNorm) -> AxesImage:
    ax.patch.set(hatch="////", edgecolor="0.6")  # shows where an error is NaN, and nothing is drawn over it
    shown = np.clip(grid.errors, norm.vmin, norm.vmax)
    image = ax.imshow(shown, cmap="Greys", norm=norm, aspect="auto", interpolation="nearest")
    y, x = np.nonzero(np.isinf(grid.errors))
    ax.plot(x, y, "x", color="white", markersize=3 if len(x) > 200 else 6, linestyle="none")
    edges = list(_edges(grid.wrong))
    # Two lines, so that the outline stands out on white and on black.
    ax.add_collection(LineCollection(edges, colors="white", linewidths=3.4, clip_on=False, zorder=3))
    ax.add_collection(LineCollection(edges, colors="#c1121f", linewidths=1.6, clip_on=False, zorder=4))
    _label(ax, grid)
    return image


def _edges(wrong: npt.NDArray[np.bool]) -> Iterator[list[tuple[float, float]]]:
    """The lines between cells that are wrong and those, or the margin, that are not."""
    framed = np.pad(wrong, 1)
    for y, x in np.argwhere(framed[1:, 1:-1] != framed[:-1, 1:-1]) - 0.5:
        yield [(x, y), (x + 1, y)]
    for y, x in np.argwhere(framed[1:-1, 1:] != framed[1:-1, :-1]) - 0.5:
        yield [(x, y), (x, y + 1)]


def _label(ax: Axes, grid: Panel) -> None:
    ax.set_title(grid.title, fontsize=9)
    ax.tick_params(labelsize=7)
    for axis, setter, name in ((grid.columns, ax.set_xticks, ax.set_xlabel), (grid.rows, ax.set_yticks, ax.set_ylabel)):
        setter([place for place, _ in axis.ticks], [text for _, text in axis.ticks])
        name(f"{axis.name} ({axis.width} to a cell)" if axis.width > 1 else axis.name, fontsize=8)


def _legend(
    figure: Figure, image: AxesImage, axes: list[Axes], reference: tuple[str, float], cells: npt.NDArray[np.float64]
) -> None:
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=14)
    bar.set_label("largest error in a cell", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    who, error = reference
    if who:
        bar.ax.axhline(error, color="#c1121f", linewidth=2)
        left, above = ("axes fraction", "data"), (-3, 4)
        mark = bar.ax.annotate(f"{who}: {error:.1g}", (0, error), above, left, "offset points", fontsize=7, rotation=90)
        mark.set(ha="right", va="bottom")
    told = ["outlined: wrong"]
    told += ["×: NaN or infinity"] * bool(np.isinf(cells).any())
    told += ["hatched: not judged"] * bool(np.isnan(cells).any())
    figure.supxlabel("; ".join(told), fontsize=8)
