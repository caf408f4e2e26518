"""A campaign over time, drawn: SVG that reads without colours, in a browser and on paper."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triage.page.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 72
_WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400)
"""Seconds that a bin may have."""

_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "attnfuzz", "font.family": ["sans-serif"], "font.size": 9}


def draw_rates(timeline: Timeline) -> str:
    """Cases and checks per second over time, as SVG text; "" for a campaign that judged nothing."""
    if not timeline.cases:
        return ""
    seconds, unit = timeline.seconds, _choose_unit(timeline)[1]
    width = next((width for width in _WIDTHS if seconds <= _BINS * width), seconds / _BINS)
    figure, ax = _start_chart(timeline, "per second")
    for times, colour, label in ((timeline.checks, "0.6", "checks"), (timeline.cases, "0.0", "cases")):
        counts = count_per_second(times, width, seconds)
        edges = [unit * min(width * number, seconds) for number in range(len(counts) + 1)]
        ax.stairs(counts, edges, color=colour, linewidth=1.6, label=label, baseline=None)
    return _finish_chart(figure, ax, timeline)


def draw_coverage(timeline: Timeline) -> str:
    """How many distinct rewrites, and other parts of the compiler, were reached when, as SVG text; "" without any."""
    if not timeline.rewrites and not timeline.reached:
        return ""
    unit = _choose_unit(timeline)[1]
    figure, ax = _start_chart(timeline, "reached so far")
    curves = ((timeline.reached, "0.55", "--", "other parts"), (timeline.rewrites, "0.0", "-", "rewrites"))
    for curve, colour, style, label in (one for one in curves if one[0]):
        times, counts = zip((0.0, 0), *curve, (timeline.seconds, curve[-1][1]), strict=True)
        ax.step(
            [unit * at for at in times], counts, where="post", color=colour, linestyle=style, linewidth=1.6, label=label
        )
    return _finish_chart(figure, ax, timeline)


def count_per_second(times: Sequence[float], width: float, seconds: float) -> list[float]:
    """How many times per second something happened, in bins of `width` seconds; the last one may be shorter."""
    counts = [0] * max(1, -int(-seconds // width))
    for at in times:
        counts[min(int(at // width), len(counts) - 1)] += 1
    last = seconds - width * (len(counts) - 1)
    return [count / width for count in counts[:-1]] + [counts[-1] / max(last, 1.0)]


def _choose_unit(timeline: Timeline) -> tuple[str, float]:
    """The unit of the time axis, and how much of it a second is."""
    for name, seconds in (("hours", 3600), ("minutes", 60)):
        if timeline.seconds >= 3 * seconds:
            return name, 1 / seconds
    return "seconds", 1.0


def _start_chart(timeline: Timeline, label: str) -> "tuple[Figure, Axes]":
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    name, unit = _choose_unit(timeline)
    figure = Figure(figsize=(5.2, 2.5), layout="constrained")
    FigureCanvasSVG(figure)
    ax = figure.subplots()
    ax.set(xlabel=name, ylabel=label, xlim=(0, unit * max(timeline.seconds, 1.0)))
    ax.grid(color="0.9", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    return figure, ax


def _finish_chart(figure: "Figure", ax: "Axes", timeline: Timeline) -> str:
    from matplotlib import rc_context

    ax.set_ylim(bottom=0)
    if timeline.found:
        found = [_choose_unit(timeline)[1] * at for at in timeline.found]
        (marks,) = ax.plot(found, [0.02] * len(found), "^", color="#c1121f", markersize=6, label="findings")
        marks.set(transform=ax.get_xaxis_transform(), clip_on=False, zorder=5)
    figure.legend(loc="outside upper left", frameon=False, ncols=3, fontsize=8, handlelength=1.6, columnspacing=1.0)
    buffer = io.StringIO()
    with rc_context(_SETTINGS):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
