"""Figures of a study (paper, Figures 3, 4, 5 and 8), in the style of `output.plots`.

Networks differ in colour and marker, so that neither is needed alone; a legend beside the axes names them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from vitcli.experiments import study_grid
from vitcli.output import plots
from vitcli.output.plots import COLORS, STYLE, percent_limits, printable
from vitcli.output.text import compute_unit

COLOURS, MARKERS = COLORS[:6], "os^DvPX<>hp"  # 6 and 11 have no common factor: 66 networks differ
BLACK, GREY = "#222222", "#777777"
DASHES = {"ViT": "-", "hybrid": "-.", "ResNet": "--"}
RING = {"marker": "o", "ms": 12, "mfc": "none", "mec": BLACK, "mew": 1.0}
PARETO = {"color": BLACK, "lw": 1.2, "ls": ":"}
SMALL = 8  # points
MOST_ROWS = 24  # of the legend
WIDTH, LEGEND_WIDTH, HEIGHT = 6.0, 1.4, 4.8  # inches: of a panel, of the legend
COMMANDS = {"pretrain": "pre-training", "finetune": "fine-tuning"}
Points = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Panel:
    """One panel of a compute figure; all by the names of the points.

    Attributes:
        accuracy: a fraction for each point.
        stds: standard deviations of some points.
        front: points on the Pareto front, in its order.
    """

    accuracy: Mapping[str, float]
    stds: Mapping[str, float | None]
    front: Sequence[str]


def draw(folder: Path, result: dict[str, Any]) -> None:
    """Write the figure of a result with at least one finished run, as PNG and SVG."""
    figure = _figure(result)
    for ending in plots.ENDINGS:
        plots.save(folder / f"{result['command'].removeprefix('study ')}.{ending}", figure)


def _figure(result: dict[str, Any]) -> Figure:
    points = [point for point in result["points"] if point["mean"] is not None]
    kind, score, note = COMMANDS[result["trained_by"]], result["score"], _note(points, result)
    if result["command"] == "study data-size":
        return data_size_figure(points, images=f"{kind} images", score=score["name"], note=note)
    stds = {point["name"]: point["std"] for point in points}
    panels = {score["name"]: Panel({p["name"]: p["mean"] for p in points}, stds, result["pareto"])}
    # Beside the mean over several data sets the first of them, as in the paper's Figure 5.
    if len(score["datasets"]) > 1:
        first = score["datasets"][0]
        on_first = [point | {"mean": point["means"][first]} for point in points]
        accuracy = {point["name"]: point["mean"] for point in on_first}
        panels[f"{score['kind']} on {first}"] = Panel(accuracy, {}, study_grid.pareto(on_first))
    joined_by = "families" if result["has_named_families"] else "model"
    return compute_figure(points, panels, cost=f"{kind} compute", note=note, joined_by=joined_by)


def _note(points: Points, result: Mapping[str, Any]) -> str:
    """Return the line below the figure: runs per point, and the settings that all runs share."""
    counts = sorted({point["n"] for point in points})
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    parts = [f"mean ± standard deviation of {runs} runs" if counts[-1] > 1 else "one run per point"]
    steps, sizes = ({point[key] for point in points} for key in ("steps", "num_examples"))
    parts += [f"{steps.pop():,} steps each"] if len(steps) == 1 else []
    parts += [f"{sizes.pop():,} training images"] if len(sizes) == 1 else []
    unfinished = result["num_cells"] - result["num_finished"]
    parts += [f"{unfinished} of {result['num_cells']} runs are missing"] if unfinished else []
    return " · ".join(parts)


def data_size_figure(points: Points, *, images: str, score: str, note: str) -> Figure:
    """Draw accuracy by the number of training images, a line for each network (paper, Figure 4).

    Args:
        points: of `study_grid.points`, each with a mean.
        images: the x axis, such as "pre-training images".
        score: the accuracy: "5-shot accuracy on imagenet".
    """
    # A line for each network, with error bars where a point has several runs.
    labels = labels_of(points)
    lines = {label: [p for p in points if labels[p["name"]] == label] for label in labels.values()}
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = _empty(note)
        handles = []
        for number, (label, line) in enumerate(lines.items()):
            line.sort(key=lambda point: point["num_examples"])
            look = _look(number) | {"ls": DASHES.get(line[0]["families"][0], "-"), "ms": 5}
            sizes, means = [point["num_examples"] for point in line], [100 * point["mean"] for point in line]
            handles += axes.plot(sizes, means, label=label, **look)
            if any(point["std"] is not None for point in line):
                bars = [100 * (point["std"] or 0.0) for point in line]
                axes.errorbar(sizes, means, yerr=bars, color=look["color"], ls="none", capsize=3)
        axes.set_ylim(percent_limits(axes.dataLim.intervaly))
        axes.set_title(f"{score} by data size", fontsize=10)
        axes.set(xscale="log", xlabel=f"{images} (log scale)", ylabel="accuracy (%)")
        sizes = sorted({point["num_examples"] for point in points})
        axes.set_xticks(sizes, [short_count(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        # In the order of the lines at their right ends.
        _legend(figure, sorted(handles, key=lambda handle: handle.get_ydata()[-1], reverse=True))
    return figure


def compute_figure(
    points: Points, panels: Mapping[str, Panel], *, cost: str, note: str, joined_by: str
) -> Figure:
    """Draw accuracy by compute, with the Pareto front (paper, Figures 5 and 8).

    Args:
        points: of `study_grid.points`, each with a mean and exaflops.
        panels: by title.
        cost: the x axis, such as "pre-training compute".
        joined_by: "families" or "model": lines join the points of each.
    """
    labels = labels_of(points)
    families = dict.fromkeys(family for point in points for family in point["families"])
    families = dict(zip(families, cycle(COLOURS), strict=False)) if len(families) > 1 else {}
    looks = _looks(points, labels, families)
    unit, scale = compute_unit(max(point["exaflops"] for point in points))
    with matplotlib.rc_context(STYLE):
        figure, all_axes = _empty(note, len(panels))
        # Lines first, then the front with a ring around each of its points, then the points.
        for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
            places = {p["name"]: (scale * p["exaflops"], 100 * panel.accuracy[p["name"]]) for p in points}
            _draw_lines(axes, points, places, joined_by, families)
            front = list(zip(*(places[name] for name in panel.front), strict=True))
            axes.plot(*front, zorder=1, **PARETO)
            axes.plot(*front, ls="none", zorder=2, **RING)
            for point in points:
                (x, y), std = places[point["name"]], panel.stds.get(point["name"])
                bar = None if std is None else [100 * std]
                axes.errorbar([x], [y], yerr=bar, capsize=3, zorder=3, **looks[labels[point["name"]]])
            axes.set_title(title, fontsize=10)
            axes.set(xscale="log", xlabel=f"{cost} ({unit}, log scale)")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.margins(0.1)
            axes.set_ylim(percent_limits(axes.dataLim.intervaly))
        all_axes[0].set_ylabel("accuracy (%)")
        # The legend lists the families by colour, the front, and every network.
        handles = [Line2D([], [], color=colour, lw=4, label=name) for name, colour in families.items()]
        handles.append(Line2D([], [], label="Pareto front", **PARETO, **RING))
        handles += [Line2D([], [], ls="none", label=label, **look) for label, look in looks.items()]
        _legend(figure, handles)
    return figure


def labels_of(points: Points) -> dict[str, str]:
    """Return the label of each point: its network, with the duration where the network has several."""
    labels = {}
    for point in points:
        same = [other for other in points if other["model"] == point["model"]]
        label = point["model"]
        if len({(other["asked_epochs"], other["asked_steps"]) for other in same}) > 1:
            steps, epochs = point["asked_steps"], point["asked_epochs"]
            label += f", {epochs:g} epochs" if epochs else f", {short_count(steps)} steps"
        labels[point["name"]] = printable(label, len(label)).replace("$", r"\$")
    return labels


def short_count(count: int) -> str:
    """Format 48000 as 48k, 303000000 as 303M."""
    for unit, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.4g}{suffix}"
    return str(count)


def _look(number: int) -> dict[str, str]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def _looks(
    points: Points, labels: Mapping[str, str], families: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return colour and marker of each label: of several families, a colour for each family.

    A network of several families, such as the base of a scaling study, is a black star.
    """
    looks, num_of_family = {}, dict.fromkeys(families, 0)
    for point in points:
        label, (family, *more) = labels[point["name"]], point["families"]
        if label in looks:
            continue
        if not families:
            looks[label] = _look(len(looks))
        elif more:
            looks[label] = {"color": BLACK, "marker": "*", "ms": 9}
        else:
            looks[label] = _look(num_of_family[family]) | {"color": families[family]}
            num_of_family[family] += 1
    return looks


def _empty(note: str, num_panels: int = 1) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(WIDTH * num_panels + LEGEND_WIDTH, HEIGHT), layout="constrained")
    figure.supxlabel(note, fontsize=SMALL, color=GREY)
    all_axes = figure.subplots(1, num_panels, squeeze=False)[0]
    for axes in all_axes:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))
        axes.set_axisbelow(True)
    return figure, all_axes


def _draw_lines(
    axes: Axes,
    points: Points,
    places: Mapping[str, tuple[float, float]],
    joined_by: str,
    families: Mapping[str, str],
) -> None:
    """Join the points of each family or network, in its colour where it has one."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        names = point["families"] if joined_by == "families" else [point["model"]]
        for name in names:
            groups.setdefault(name, []).append(places[point["name"]])
    for name, group in groups.items():
        if len(group) > 1:
            colour = families.get(name, GREY)
            axes.plot(*zip(*sorted(group), strict=True), color=colour, lw=1.0, alpha=0.6, zorder=1)


def _legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    ncols = -(-len(handles) // MOST_ROWS)
    figure.legend(handles=handles, loc="outside right center", fontsize=SMALL, labelspacing=0.6, ncols=ncols)
