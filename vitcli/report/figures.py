"""Pictures of a report, in the look of `figures`, as SVG that takes its ink from the page around it."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from vitcli.output.plots import COLOURS, STYLE

MOST_LINES = len(COLOURS)  # of one picture
MOST_TICKS = 8
MOST_POINTS = 240  # of one line: as many as can be seen
Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """A line of a picture: `strands` of one colour, such as the seeds of a run; `marked` points have a ring.

    Attributes:
        errors: for each point of the one strand, its standard deviation; or none.
    """

    name: str
    colour: str
    strands: tuple[tuple[Point, ...], ...]
    marked: tuple[Point, ...] = ()
    errors: tuple[float, ...] = ()


def curves(
    lines: Sequence[Curve], *, x: str, y: str, is_log: bool = False, has_points: bool = False
) -> Figure:
    """Lines over one another; the page names them beside it, where names of any length have room."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.8, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for line in lines:
            for strand in line.strands:
                at, values = zip(*strand, strict=True) if strand else ((), ())
                dot = "o" if has_points or len(strand) < 3 else ""
                axes.plot(at, values, color=line.colour, marker=dot, markersize=4, alpha=0.9)
                if line.errors:
                    axes.errorbar(
                        at, values, line.errors, color=line.colour, fmt="none", capsize=3, linewidth=1
                    )
            for at, value in line.marked:
                axes.plot(
                    [at], [value], "o", markersize=9, fillstyle="none", color=line.colour, markeredgewidth=1.4
                )
        axes.set(xlabel=x, ylabel=y)
        if is_log:
            axes.set_xscale("log")
        if has_points:
            ticks = sorted({at for line in lines for strand in line.strands for at, _ in strand})
            axes.set_xticks(ticks[:: -(-len(ticks) // MOST_TICKS)])
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    return figure


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """At most so many points, among them the lowest and highest of each stretch: no spike is lost."""
    if len(points) <= most:
        return tuple(points)
    stretches = np.array_split(np.arange(1, len(points) - 1), (most - 2) // 2)
    values = [value for _, value in points]
    kept = {0, len(points) - 1}
    for stretch in stretches:
        kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return tuple(points[at] for at in sorted(kept))
