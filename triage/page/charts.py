"""A campaign over time, drawn: SVG that reads without colours, in a browser and on paper."""

import io
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triage.page.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 72
_WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400)
_SIZE = (5.2, 2.5)
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "attnfuzz", "font.family": ["sans-serif"], "font.size": 9}


def rates(timeline: Timeline) -> str:
    """Cases and checks a second over time, as SVG text; "" for a campaign that judged nothing."""
    if not timeline.cases:
        return ""
    width = _width(timeline.seconds)
    figure, ax = _chart(timeline, "a second")
    for times, style, label in (
        (timeline.checks, "0.6", "checks, shrinking included"),
        (timeline.cases, "0.0", "cases"),
    ):
        counts = binned(times, width, timeline.seconds)
        edges = [_unit(timeline)[1] * width * number for number in range(len(counts) + 1)]
        edges[-1] = _unit(timeline)[1] * timeline.seconds
        ax.stairs(counts, edges, color=style, linewidth=1.6, label=label, baseline=None)
    ax.set_ylim(bottom=0)
    return _svg(figure, ax, timeline)


def coverage(timeline: Timeline) -> str:
    """How many different rewrites, and other things of the compiler, were reached by a time, as SVG text; "" where none was."""
    if not timeline.rewrites and not timeline.reached:
        return ""
    figure, ax = _chart(timeline, "reached so far")
    curves = ((timeline.reached, "0.55", "--", "other things"), (timeline.rewrites, "0.0", "-", "rewrites"))
    for curve, colour, style, label in (one for one in curves if one[0]):
        points = [(0.0, 0), *curve, (timeline.seconds, curve[-1][1])]
        ax.step(
            [_unit(timeline)[1] * at for at, _ in points],
            [count for _, count in points],
            where="post",
            color=colour,
            linestyle=style,
            linewidth=1.6,
            label=label,
        )
    ax.set_ylim(bottom=0)
    return _svg(figure, ax, timeline)


def binned(times: "array[float] | Sequence[float]", width: float, seconds: float) -> list[float]:
    """How many times a second something happened, for every `width` seconds; the last bin may be shorter."""
    counts = [0] * max(1, -int(-seconds // width))
    for at in times:
        counts[min(int(at // width), len(counts) - 1)] += 1
    last = seconds - width * (len(counts) - 1)
    return [count / width for count in counts[:-1]] + [counts[-1] / max(last, 1.0)]


def _width(seconds: float) -> float:
    return next((width for width in _WIDTHS if seconds <= _BINS * width), seconds / _BINS)


def _unit(timeline: Timeline) -> tuple[str, float]:
    """The unit of the time axis, and how much of it a second is."""
    for name, seconds in (("hours", 3600), ("minutes", 60)):
        if timeline.seconds >= 3 * seconds:
            return name, 1 / seconds
    return "seconds", 1.0


def _chart(timeline: Timeline, counted: str) -> "tuple[Figure, Axes]":
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasSVG(figure)
    ax = figure.subplots()
    ax.set_xlabel(f"{_unit(timeline)[0]} of the campaign")
    ax.set_ylabel(counted)
    ax.set_xlim(0, _unit(timeline)[1] * max(timeline.seconds, 1.0))
    ax.grid(color="0.9", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    return figure, ax


def _svg(figure: "Figure", ax: "Axes", timeline: Timeline) -> str:
    from matplotlib import rc_context

    if timeline.found:
        found = [_unit(timeline)[1] * at for at in timeline.found]
        ax.plot(
            found,
            [0.02] * len(found),
            "^",
            color="#c1121f",
            markersize=6,
            linestyle="none",
            clip_on=False,
            zorder=5,
            transform=ax.get_xaxis_transform(),
            label="a finding saved",
        )
    figure.legend(loc="outside upper left", frameon=False, ncols=3, fontsize=8, handlelength=1.6, columnspacing=1.0)
    buffer = io.StringIO()
    with rc_context(_SETTINGS):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
