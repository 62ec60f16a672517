"""Figures of an evaluation: calibration, confusion matrix, mistakes, accuracy by resolution."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.evaluation.intervals import interval_of
from vitcli.evaluation.predictions import Reliability
from vitcli.output.plots import BLUE, GREEN, ORANGE, STYLE, percent_limits, printable
from vitcli.output.summaries import LEAST_CALIBRATED

MOST_CLASSES = 30  # of a confusion matrix with legible names
MISTAKES_PER_ROW = 5
FEW = 10  # a bin of fewer examples is pale: its accuracy is mostly chance
PALE = "#b9d4e6"


def reliability_diagram(
    reliability: Reliability, *, title: str, calibrated: Reliability | None = None
) -> Figure | None:
    """Plot accuracy against confidence in each bin, and below it the number of examples per bin.

    None of fewer examples than LEAST_CALIBRATED.

    Args:
        calibrated: the same predictions after calibration, drawn as a line of the bins with enough examples.
    """
    if reliability.counts_M.sum() < LEAST_CALIBRATED:
        return None
    width = 100 * reliability.edges_M1[1]
    middles_M = 100 * reliability.edges_M1[:-1] + width / 2
    accuracy_M, confidence_M = 100 * reliability.accuracy_M, 100 * reliability.confidence_M
    many_M = reliability.counts_M >= FEW
    few_M = (reliability.counts_M > 0) & ~many_M
    with matplotlib.rc_context(STYLE):
        # Above: a bar per bin against the diagonal. Fixed margins: an automatic layout lets the bars
        # collapse where an artist has no extent, as the points have where all bins have few examples.
        figure = Figure(figsize=(4.4, 5.2))
        figure.subplots_adjust(left=0.15, right=0.96, top=0.91, bottom=0.21, hspace=0.1)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for bins_M, colour, label in (
            (many_M, BLUE, "accuracy"),
            (few_M, PALE, f"fewer than {FEW} examples"),
        ):
            if bins_M.any():
                upper.bar(middles_M[bins_M], accuracy_M[bins_M], 0.92 * width, color=colour, label=label)
        if many_M.any():
            points = {
                "color": ORANGE,
                "markersize": 4,
                "clip_on": False,
                "label": "accuracy at mean confidence",
            }
            upper.plot(confidence_M[many_M], accuracy_M[many_M], "o", **points)
        if calibrated is not None and (kept_M := calibrated.counts_M >= FEW).any():
            values = 100 * calibrated.confidence_M[kept_M], 100 * calibrated.accuracy_M[kept_M]
            look = {"color": GREEN, "markersize": 4, "linewidth": 1.0, "clip_on": False}
            upper.plot(*values, "s-", label="calibrated", **look)
        upper.plot([0, 100], [0, 100], "--", color="#444444", linewidth=1.0, label="perfect calibration")
        upper.set(ylabel="accuracy (%)", ylim=(0, 100), xlim=(0, 100))
        upper.set_title(title, fontsize=10)
        figure.legend(loc="lower center", fontsize=8, ncols=2)
        # Below: the number of examples behind each bar.
        lower.bar(middles_M, reliability.counts_M, 0.92 * width, color="#999999")
        lower.set(xlabel="confidence (%)", ylabel="examples")
        lower.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=3, min_n_ticks=1))
        for axes in (upper, lower):
            axes.set_axisbelow(True)
        figure.align_ylabels()
    return figure


def predicted_numbers(targets_N: np.ndarray, values_N: np.ndarray, *, name: str) -> Figure:
    """Plot predicted against true numbers, with the diagonal on which both are equal."""
    low, high = (float(bound([targets_N, values_N])) for bound in (np.min, np.max))
    margin = 0.03 * (high - low) or 1.0
    bounds = (low - margin, high + margin)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.4, 4.4), layout="constrained")
        axes = figure.subplots()
        axes.plot(bounds, bounds, "--", color="#444444", linewidth=1.0)
        axes.plot(targets_N, values_N, "o", color=BLUE, markersize=3, alpha=0.6, markeredgewidth=0)
        axes.set(xlabel=f"{name}, true", ylabel=f"{name}, predicted", xlim=bounds, ylim=bounds)
    return figure


def confusion_matrix(
    labels_P: np.ndarray, predicted_P: np.ndarray, counts_P: np.ndarray, class_names: Sequence[str]
) -> Figure:
    """Plot the percentage of each class's examples by predicted class; of many classes, the most confused.

    Args:
        labels_P, predicted_P, counts_P: the P pairs that occur, see `predictions.confusion`.
    """
    # Percentages of the S classes shown, by row of the label.
    shown = _most_confused(labels_P, predicted_P, counts_P, len(class_names))
    index_of = {number: index for index, number in enumerate(shown)}
    totals_K = np.bincount(labels_P, weights=counts_P, minlength=len(class_names))
    percent_SS = np.zeros((len(shown), len(shown)))
    for label, predicted, count in zip(labels_P, predicted_P, counts_P, strict=True):
        if label in index_of and predicted in index_of:
            percent_SS[index_of[label], index_of[predicted]] = 100 * count / totals_K[label]

    # The matrix, with its numbers where there is room for them.
    names = [_short(class_names[number], 24) for number in shown]
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        side = 2.6 + 0.2 * len(shown)
        figure = Figure(figsize=(side + 0.9, side), layout="constrained")
        axes = figure.add_subplot()
        # A square-root scale: mistakes of a few per cent each stay visible beside the diagonal.
        image = axes.imshow(percent_SS, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=100))
        axes.set_xticks(range(len(shown)), names, rotation=90, fontsize=7, parse_math=False)
        axes.set_yticks(range(len(shown)), names, fontsize=7, parse_math=False)
        axes.set(xlabel="predicted", ylabel="label")
        if len(shown) < len(class_names):
            axes.set_title(f"{len(shown)} most confused of {len(class_names)} classes", fontsize=10)
        if len(shown) <= 12:
            for row, column in np.argwhere(percent_SS):
                percent = percent_SS[row, column]
                colour = "white" if percent > 30 else "black"
                axes.text(column, row, f"{percent:.0f}", ha="center", va="center", fontsize=7, color=colour)
        bar = figure.colorbar(image, ax=axes, ticks=[0, 1, 5, 20, 50, 100], shrink=0.7)
        bar.set_label("examples of the label (%)", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    return figure


def mistakes_grid(images: Sequence[np.ndarray], mistakes: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw wrong predictions with the names of their files, the most confident first.

    Args:
        images: (H, W, 3) uint8, one for each mistake.
        mistakes: see `mistakes.describe`.
    """
    across = min(MISTAKES_PER_ROW, len(mistakes))
    down = -(-len(mistakes) // across)
    height, width = images[0].shape[:2]
    size = (1.75 * across, (1.75 * height / width + 0.48) * down)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size)
        figure.set_layout_engine("constrained", h_pad=0.02, hspace=0.01)
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, image_HWC, mistake in zip(grid.flat, images, mistakes, strict=False):
            axes.imshow(image_HWC, interpolation="nearest" if max(image_HWC.shape) < 100 else "antialiased")
            predicted, label = _short(mistake["predicted"], 15), _short(mistake["label"], 24)
            title = f"predicted: {predicted}, {mistake['probability']:.0%}\nlabel: {label}"
            axes.set_title(title, fontsize=7, loc="left", pad=3, parse_math=False)
            # The name of the file, below the image: its end distinguishes it, so the start is cut.
            place = Path(mistake["place"]).name
            place = printable(place if len(place) <= 30 else f"…{place[-29:]}", 30)
            style = {"fontsize": 6, "color": "#666666", "va": "top", "parse_math": False}
            axes.text(0, -0.03, place, transform=axes.transAxes, **style)
    return figure


def resolution_curve(
    sides: Sequence[int],
    top1: Sequence[float],
    top5: Sequence[float] | None,
    *,
    trained_side: int,
    num_examples: int,
) -> Figure:
    """Plot accuracy against image size in pixels, with 95 % intervals.

    Args:
        top5: None where it says nothing, of five classes or fewer.
        trained_side: the size the weights were made for.
        num_examples: images behind each accuracy.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        bounds = []
        curves = [(top5, ORANGE, "top-5")] if top5 else []
        for values, colour, label in (*curves, (top1, BLUE, "top-1")):
            intervals = [interval_of(value, num_examples) for value in values]
            # From an accuracy down and up to the ends of its interval, none of which is negative.
            bars = 100 * np.abs(np.array(intervals) - np.array(values)[:, None]).T
            look: Any = dict(color=colour, marker="o", markersize=4, capsize=3, elinewidth=1.0, label=label)
            axes.errorbar(sides, 100 * np.array(values), bars, **look)
            bounds += [100 * bound for interval in intervals for bound in interval]
        axes.set_ylim(percent_limits(bounds))
        axes.axvline(trained_side, color="#888888", linewidth=1.0, linestyle=":", label="training resolution")
        axes.set(xlabel="image size (pixels)", ylabel="accuracy (%)")
        axes.set_xticks(sides)
        axes.tick_params(axis="x", labelrotation=45 if len(sides) > 9 else 0)
        axes.legend()
    return figure


def _most_confused(
    labels_P: np.ndarray, predicted_P: np.ndarray, counts_P: np.ndarray, num_classes: int
) -> list[int]:
    """Return all classes if they are few, else those of the most frequent confusions, in class order."""
    if num_classes <= MOST_CLASSES:
        return list(range(num_classes))
    wrong = np.flatnonzero(labels_P != predicted_P)
    chosen: set[int] = set()
    for index in wrong[np.argsort(-counts_P[wrong], kind="stable")]:
        pair = {int(labels_P[index]), int(predicted_P[index])}
        if len(chosen | pair) > MOST_CLASSES:
            break
        chosen |= pair
    return sorted(chosen) or list(range(MOST_CLASSES))


def _short(name: str, length: int) -> str:
    """Shorten a class name for a figure: no WordNet id, cut at `length`; all else is as in tables."""
    return printable(re.sub(r"^n\d{8}_(?=.)", "", name), length)
