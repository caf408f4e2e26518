"""The errors of a value as grids to draw: by head and query row, and by query row and feature."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fuzz.error_location import BATCH, FEATURE, HEAD, KEY, QUERY, labels
from fuzz.protocol import ErrorMap
from generators.program.case import Case

_TICKS = 12
"""So many places of an axis are named at most."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One side of a grid: what it counts, its number of cells, the names of some, and the elements in a cell."""

    name: str
    cells: int
    ticks: tuple[tuple[int, str], ...]
    width: int = 1


@dataclass(frozen=True, slots=True)
class Panel:
    """Cells, row by row. `errors`: the largest error in each, as in `ErrorMap`; `wrong`: which have a wrong element."""

    rows: Axis
    columns: Axis
    errors: tuple[tuple[float, ...], ...]
    wrong: tuple[tuple[bool, ...], ...]

    @property
    def title(self) -> str:
        """What the grid tells: "by head and query row"."""
        names = [axis.name for axis in (self.rows, self.columns) if axis.name]
        return f"by {' and '.join(names)}"


def panels(case: Case, errors: ErrorMap) -> tuple[Panel, ...]:
    """The grids of a value of the case; none for a value of one element."""
    names = labels(case, errors.value, len(errors.shape))
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
    counts = errors.counts
    height, width = (math.prod(counts[axis] for axis in side) for side in (rows, columns))
    largest = [[math.nan] * width for _ in range(height)]
    wrong = [[False] * width for _ in range(height)]
    marked = set(errors.wrong)
    for number, place in enumerate(_places(counts)):
        y, x = (_flat(place, counts, side) for side in (rows, columns))
        error = errors.errors[number]
        if not error <= largest[y][x] and not math.isnan(error):
            largest[y][x] = error
        wrong[y][x] = wrong[y][x] or number in marked
    return Panel(
        _axis(errors, names, rows), _axis(errors, names, columns), tuple(map(tuple, largest)), tuple(map(tuple, wrong))
    )


def _places(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(count) for count in counts))


def _flat(place: Sequence[int], counts: Sequence[int], side: Sequence[int]) -> int:
    number = 0
    for axis in side:
        number = number * counts[axis] + place[axis]
    return number


def _axis(errors: ErrorMap, names: Sequence[str], side: tuple[int, ...]) -> Axis:
    live = [axis for axis in side if errors.shape[axis] > 1]
    counts = [errors.counts[axis] for axis in live]
    cells = math.prod(counts)
    step = next(step for step in (2**power for power in range(64)) if cells <= _TICKS * step)
    named = [(number, place) for number, place in enumerate(_places(counts)) if not number % step] if live else []
    ticks = tuple(
        (number, ", ".join(str(index * errors.block[axis]) for index, axis in zip(place, live, strict=True)))
        for number, place in named
    )
    words = [_word(names[axis], axis) for axis in live]
    return Axis(", ".join(words), cells, ticks, math.prod(errors.block[axis] for axis in live))


def _word(name: str, axis: int) -> str:
    """An axis in words; one that attention has no word for by its number, and its size as the program has it."""
    return name if name in (BATCH, HEAD, QUERY, KEY, FEATURE) or name.startswith("axis ") else f"axis {axis} ({name})"
