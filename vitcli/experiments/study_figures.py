"""Pictures of a study (paper, figures 3, 4, 5 and 8), in the look of `figures`: read without any text.

Colour, marker and name each tell the same, so none of them is needed alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox

from vitcli.experiments import study_grid
from vitcli.output import plots
from vitcli.output.plots import COLORS, STYLE

LOOKS = tuple(zip(COLORS[:6], "os^DvP", strict=True))
BLACK, GREY = "#222222", "#777777"
DASHES = {"ViT": "-", "hybrid": "-.", "ResNet": "--"}
MOST_NAMED_LINES = 8  # beyond it a legend
RING = {"marker": "o", "ms": 12, "mfc": "none", "mec": BLACK, "mew": 1.0}
SMALL = 8  # points
# Where a name may stand beside its point, the best first: offset in points, and which side of it is there.
AROUND = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
PLACES = [
    (reach * x, reach * y, ("center", "left", "right")[x], ("center", "bottom", "top")[y])
    for reach in (8, 16, 26, 38)
    for x, y in AROUND
]
NUM_NEAR = len(AROUND)
THIN = {"arrowstyle": "-", "color": GREY, "lw": 0.6, "shrinkA": 0, "shrinkB": 5}
Points = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Panel:
    """One panel of a compute figure; everything by the names of the points.

    Attributes:
        accuracy: shares, one for each point.
        stds: of some of them.
        front: those on the Pareto front, in its order.
    """

    accuracy: Mapping[str, float]
    stds: Mapping[str, float | None]
    front: Sequence[str]


def data_size_figure(points: Points, *, images: str, score: str, note: str) -> Figure:
    """Accuracy by the number of training images, a line for each network (paper, Figure 4).

    Args:
        points: of `study.points`, each with a mean.
        images: what is counted, such as "pre-training images".
        score: what the accuracy is: "5-shot accuracy on imagenet".
        note: a line below the picture.
    """
    labels = labels_of(points)
    looks = _looks(labels[point["name"]] for point in points)
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = _empty(note)
        ends = {}
        for label, (colour, marker) in looks.items():
            line = [point for point in points if labels[point["name"]] == label]
            line.sort(key=lambda point: point["num_examples"])
            sizes, means = ([point[key] for point in line] for key in ("num_examples", "mean"))
            dash = DASHES.get(line[0]["families"][0], "-")
            axes.plot(sizes, _percent(means), color=colour, marker=marker, markersize=5, ls=dash, label=label)
            if any(point["std"] is not None for point in line):
                bars = _percent([point["std"] or 0.0 for point in line])
                axes.errorbar(sizes, _percent(means), yerr=bars, color=colour, ls="none", capsize=3)
            ends[label] = (sizes[-1], 100 * means[-1])
        axes.set_title(f"{score} by data size", fontsize=10)
        axes.set(xscale="log", xlabel=f"{images}, log scale", ylabel="accuracy in %")
        sizes = sorted({point["num_examples"] for point in points})
        axes.set_xticks(sizes, [short_count(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        _name_lines(figure, axes, ends)
    return figure


def compute_figure(
    points: Points, panels: Mapping[str, Panel], *, cost: str, note: str, is_joined: bool
) -> Figure:
    """Accuracy by compute, with the Pareto front (paper, figures 5 and 8).

    Args:
        points: of `study.points`, each with a mean and exaflops.
        panels: what each panel shows, by its title.
        cost: what costs, such as "pre-training compute".
        note: a line below the picture.
        is_joined: whether a line joins the points of a family; else it joins those of a network.
    """
    is_by_family = len({family for point in points for family in point["families"]}) > 1
    kind = "families" if is_by_family else "model"
    looks = _looks(name for point in points for name in _several(point[kind]))
    with matplotlib.rc_context(STYLE):
        figure, all_axes = _empty(note, len(panels))
        for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
            places = {
                point["name"]: (point["exaflops"], 100 * panel.accuracy[point["name"]]) for point in points
            }
            _join(axes, points, places, looks, "families" if is_joined else "model")
            _draw_front(axes, [places[name] for name in panel.front])
            for point in points:
                mine = _several(point[kind])
                colour, marker = looks[mine[0]] if len(mine) == 1 else (BLACK, "*")  # of several families
                _mark(axes, places[point["name"]], panel.stds.get(point["name"]), colour, marker)
            axes.set_title(title, fontsize=10)
            axes.set(xscale="log", xlabel=f"{cost} in exaFLOPs, log scale")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.margins(0.1, 0.12)
        all_axes[0].set_ylabel("accuracy in %")
        _legend(all_axes[0], looks if is_by_family else {})
        labels = labels_of(points)
        for axes, panel in zip(all_axes, panels.values(), strict=True):
            places = [(point["exaflops"], 100 * panel.accuracy[point["name"]]) for point in points]
            _name_points(figure, axes, [labels[point["name"]] for point in points], places)
    return figure


def labels_of(points: Points) -> dict[str, str]:
    """What each point is called in a picture: the network, and its duration where that has several."""
    labels = {}
    for point in points:
        same = [other for other in points if other["model"] == point["model"]]
        label = point["model"]
        if len({(other["asked_epochs"], other["asked_steps"]) for other in same}) > 1:
            steps, epochs = point["asked_steps"], point["asked_epochs"]
            label += f", {epochs:g} epochs" if epochs else f", {short_count(steps)} steps"
        labels[point["name"]] = "".join(c if c.isprintable() else "?" for c in label).replace("$", r"\$")
    return labels


def short_count(count: int) -> str:
    """48000 as 48k, 303000000 as 303M."""
    for unit, word in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.4g}{word}"
    return str(count)


def _several(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _percent(shares: Iterable[float]) -> list[float]:
    return [100 * share for share in shares]


def _looks(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each, again from the first where there are more than colours."""
    return {name: LOOKS[number % len(LOOKS)] for number, name in enumerate(dict.fromkeys(names))}


def _empty(note: str, num_panels: int = 1) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(6.4 * num_panels, 4.8), layout="constrained")
    figure.supxlabel(note, fontsize=SMALL, color=GREY)
    all_axes = figure.subplots(1, num_panels, squeeze=False)[0]
    for axes in all_axes:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))
        axes.set_axisbelow(True)
    return figure, all_axes


def _mark(axes: Axes, place: tuple[float, float], std: float | None, colour: str, marker: str) -> None:
    bar = None if std is None else [100 * std]
    size = 9 if marker == "*" else 6
    axes.errorbar(
        *([at] for at in place), yerr=bar, color=colour, marker=marker, ms=size, capsize=3, zorder=3
    )


def _draw_front(axes: Axes, places: Sequence[tuple[float, float]]) -> None:
    """A line through the points of the front, and a ring around each."""
    x, y = zip(*places, strict=True)
    axes.plot(x, y, color=BLACK, lw=1.2, ls=":", zorder=1)
    axes.plot(x, y, ls="none", zorder=2, **RING)


def _join(axes: Axes, points: Points, places, looks: Mapping[str, tuple[str, str]], kind: str) -> None:
    for name in dict.fromkeys(name for point in points for name in _several(point[kind])):
        mine = sorted(places[point["name"]] for point in points if name in _several(point[kind]))
        if len(mine) > 1:
            colour = looks[name][0] if name in looks else GREY
            axes.plot(*zip(*mine, strict=True), color=colour, lw=1.0, alpha=0.6, zorder=1)


def _legend(axes: Axes, looks: Mapping[str, tuple[str, str]]) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, ls="none", ms=6, label=name)
        for name, (colour, marker) in looks.items()
    ]
    handles.append(Line2D([], [], color=BLACK, lw=1.2, ls=":", label="Pareto front", **RING))
    axes.legend(handles=handles, loc="lower right", fontsize=SMALL, labelspacing=0.8)


def _name_lines(figure: Figure, axes: Axes, ends: Mapping[str, tuple[float, float]]) -> None:
    """Each line's name behind its last point, moved apart where they would touch; a legend for many."""
    if len(ends) > MOST_NAMED_LINES:
        axes.legend(fontsize=SMALL, loc="center left", bbox_to_anchor=(1.0, 0.5))
        return
    figure.draw_without_rendering()  # from here on the places of points on the paper are known
    points_per_pixel, lowest = 72 / figure.dpi, -np.inf
    for label, (x, y) in sorted(ends.items(), key=lambda end: end[1][1]):
        height = axes.transData.transform((x, y))[1] * points_per_pixel
        lowest = max(height, lowest + 1.3 * SMALL)
        text = dict(
            xytext=(9, lowest - height), textcoords="offset points", va="center", annotation_clip=False
        )
        axes.annotate(label, (x, y), fontsize=SMALL + 1, **text)


def _name_points(
    figure: Figure, axes: Axes, labels: Sequence[str], places: Sequence[tuple[float, float]]
) -> None:
    """Each point's name where it covers least of the points, of other names and of the lines."""
    figure.draw_without_rendering()  # from here on the places of points on the paper are known
    half = 5 * figure.dpi / 72
    marks = [axes.transData.transform(place) for place in places]
    taken = [Bbox([mark - half, mark + half]) for mark in marks] + list(_beads(axes, half / 3))
    taken += [axes.get_legend().get_window_extent()] if axes.get_legend() else []
    for label, place in zip(labels, places, strict=True):
        costs, boxes = [], []
        for at in PLACES:
            text = _name(axes, label, place, *at)
            boxes.append(text.get_window_extent())
            text.remove()
            outside = boxes[-1].width * boxes[-1].height - _common(boxes[-1], axes.bbox)
            costs.append(10 * outside + sum(_common(boxes[-1], other) for other in taken))
            if costs[-1] <= 0:
                break
        best = int(np.argmin(costs))
        taken.append(boxes[best])
        _name(axes, label, place, *PLACES[best], line=THIN if best >= NUM_NEAR else None)


def _name(axes: Axes, label: str, place: tuple[float, float], dx, dy, ha, va, line=None) -> Text:
    """A name beside its point; from afar with a thin line to it."""
    at = dict(xytext=(dx, dy), textcoords="offset points", ha=ha, va=va)
    text = axes.annotate(label, place, fontsize=SMALL, zorder=4, arrowprops=line, **at)
    text.set_in_layout(False)
    return text


def _beads(axes: Axes, half: float) -> Iterable[Bbox]:
    """Small boxes along the lines of a picture."""
    for line in axes.get_lines():
        places = axes.transData.transform(line.get_xydata())
        if line.get_linestyle() in ("None", "none", ""):
            continue
        for start, end in pairwise(places):
            for share in np.linspace(0, 1, max(2, int(np.hypot(*(end - start)) / (2 * half)))):
                middle = start + share * (end - start)
                yield Bbox([middle - half, middle + half])


def _common(one: Bbox, other: Bbox) -> float:
    shared = Bbox.intersection(one, other)
    return shared.width * shared.height if shared else 0.0


COMMANDS = {"pretrain": "pre-training", "finetune": "fine-tuning"}


def draw(folder: Path, result: dict[str, Any]) -> None:
    """Write the picture of a result with at least one finished run, as PNG and SVG."""
    figure = _figure(result)
    for ending in plots.ENDINGS:
        plots.save(folder / f"{result['command'].removeprefix('study ')}.{ending}", figure)


def _figure(result: dict[str, Any]) -> Figure:
    points = [point for point in result["points"] if point["mean"] is not None]
    kind, score = COMMANDS[result["trained_by"]], result["score"]
    if result["command"] == "study data-size":
        images, note = f"{kind} images", _note(points, result)
        return data_size_figure(points, images=images, score=score["name"], note=note)
    stds = {point["name"]: point["std"] for point in points}
    panels = {score["name"]: Panel({p["name"]: p["mean"] for p in points}, stds, result["pareto"])}
    if len(score["datasets"]) > 1:  # beside their mean the first, as the paper's Figure 5 has it
        first = score["datasets"][0]
        ones = [point | {"mean": point["means"][first]} for point in points]
        accuracy = {point["name"]: point["mean"] for point in ones}
        panels[f"{score['kind']} on {first}"] = Panel(accuracy, {}, study_grid.pareto(ones))
    cost, is_joined = f"{kind} compute", result["has_named_families"]
    return compute_figure(points, panels, cost=cost, note=_note(points, result), is_joined=is_joined)


def _note(points: list[dict[str, Any]], result: dict[str, Any]) -> str:
    """What the points and bars are, and what all runs share."""
    runs = sorted({point["n"] for point in points})
    several = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    told = [f"mean ± standard deviation of {several} runs" if runs[-1] > 1 else "one run for each point"]
    steps, sizes = ({point[key] for point in points} for key in ("steps", "num_examples"))
    told += [f"{steps.pop():,} steps each"] if len(steps) == 1 else []
    told += [f"{sizes.pop():,} training images"] if len(sizes) == 1 else []
    unfinished = result["num_cells"] - result["num_finished"]
    told += [f"{unfinished} of {result['num_cells']} runs are missing"] if unfinished else []
    return " · ".join(told)
