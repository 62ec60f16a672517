"""The figure of `vit bench infer`: speed and largest batch by resolution (paper, Figure 12)."""

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from vitcli.output.plots import COLORS, STYLE

MARKERS = "osD^vP*X"


def by_resolution(rows: Sequence[dict[str, Any]], *, device: str) -> Figure | None:
    """Plot images per second, and the largest batch if measured; None for fewer than two resolutions."""
    squares = [row for row in rows if isinstance(row["resolution"], int)]
    if len({row["resolution"] for row in squares}) < 2:
        return None
    panels = {"images_per_s": "images per second"}
    if any(row.get("largest_batch") for row in squares):
        panels["largest_batch"] = "largest batch"
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
        each = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (key, label) in zip(each, panels.items(), strict=True):
            _panel(axes, squares, key, label)
        names = len({row["model"] for row in squares})
        figure.legend(*each[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(names, 4))
        figure.suptitle(device, fontsize=10)
    return figure


def _panel(axes: Axes, rows: Sequence[dict[str, Any]], key: str, label: str) -> None:
    """Plot one number by resolution, both axes logarithmic: a line for each network."""
    for number, name in enumerate(dict.fromkeys(row["model"] for row in rows)):
        points = [(row["resolution"], row[key]) for row in rows if row["model"] == name and row.get(key)]
        if points:
            style = {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}
            axes.plot(*zip(*sorted(points), strict=True), label=name, markersize=4, **style)
    sides = sorted({row["resolution"] for row in rows})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sides))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda side, _: f"{side:g}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_xlabel("image size (px)")
    axes.set_ylabel(label)
