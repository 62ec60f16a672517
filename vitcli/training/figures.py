"""Figures of training: curves of a run, the scores of a sweep, and predictions of masked patches."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.output.plots import BLUE, ORANGE, STYLE

ACCURACIES = {
    "top1": "top-1",
    "top5": "top-5",
    "patch_accuracy": "of patches",
    "most_frequent_color": "majority class",
}


def training_curves(records: list[dict[str, Any]]) -> dict[str, Figure]:
    """Plot loss, learning rate and, if the run was evaluated, accuracy, from its metrics.jsonl."""
    steps = [record for record in records if "loss" in record]
    evals = [record for record in records if "eval" in record]
    at, evals_at = [record["step"] for record in steps], [record["step"] for record in evals]
    figures = {}
    with matplotlib.rc_context(STYLE):
        if steps:
            loss = _line(at, [record["loss"] for record in steps], "loss (nats)", label="training")
            if evals:
                _add(loss, evals_at, [record["eval"]["loss"] for record in evals], "held out")
            figures["loss"] = loss
            figures["learning_rate"] = _line(at, [record["lr"] for record in steps], "learning rate")
        kinds = [key for key in ACCURACIES if evals and evals[0]["eval"].get(key) is not None]
        if kinds:
            first, second = ([100 * record["eval"][key] for record in evals] for key in kinds)
            names = [ACCURACIES[key] for key in kinds]
            figures["accuracy"] = _line(evals_at, first, "accuracy (%)", names[0], marker="o")
            _add(figures["accuracy"], evals_at, second, names[1])
    return figures


def _line(steps: list[int], values: list[float], unit: str, label: str = "", marker: str = "") -> Figure:
    figure, axes = _figure()
    axes.plot(steps, values, color=BLUE, label=label, marker=marker, markersize=4)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    return figure


def _add(figure: Figure, steps: list[int], values: list[float], label: str) -> None:
    """Add a second line, and with it a legend."""
    figure.axes[0].plot(steps, values, color=ORANGE, label=label, marker="o", markersize=4)
    figure.axes[0].legend()


def _figure() -> tuple[Figure, Axes]:
    """Return a figure with one set of axes. It is not pyplot's, so it needs no display and is freed."""
    figure = Figure()
    figure.subplots_adjust(left=0.16, right=0.97, bottom=0.17, top=0.95)  # a layout engine draws it twice
    return figure, figure.add_subplot()


def masked_patch_grid(views: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Figure:
    """Draw a row per image: the image, with corrupted patches, and with the predictions for them.

    Args:
        views: (H, W, 3) uint8, all of one size; see `masked_patch.MaskedPatchModel.views`.
    """
    height, width = views[0][0].shape[:2]
    side = STYLE["figure.figsize"][0] / 3
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3 * side, len(views) * side * height / width + 0.25), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
        grid = figure.subplots(len(views), 3, squeeze=False)
        for title, axes in zip(("image", "corrupted", "predicted"), grid[0], strict=True):
            axes.set_title(title, fontsize=10)
        for row, images in zip(grid, views, strict=True):
            for axes, image in zip(row, images, strict=True):
                axes.imshow(image, interpolation="nearest")
                axes.set_axis_off()
    return figure


def selection_curve(choices: list[dict[str, Any]], *, chosen: dict[str, Any]) -> Figure | None:
    """Plot accuracy on the dev part against the one number that was chosen; None for other choices.

    Args:
        choices: values by dotted key, and "dev_top1" of each.
        chosen: the values of the best.
    """
    (*others, key) = chosen
    values = [choice[key] for choice in choices]
    scored = [choice for choice in choices if choice.get("dev_top1") is not None]
    if others or not scored or not all(type(value) in (int, float) for value in values):
        return None
    points = sorted((choice[key], 100 * choice["dev_top1"]) for choice in scored)
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure()
        axes.plot(*zip(*points, strict=True), color=BLUE, marker="o", markersize=4)
        best = dict(points)[chosen[key]]
        axes.plot([chosen[key]], [best], color=ORANGE, marker="o", markersize=8, linestyle="", label="chosen")
        if min(values) > 0 and max(values) / min(values) >= 8:
            axes.set_xscale("log")
        axes.set_xticks(sorted(values), labels=[f"{value:g}" for value in sorted(values)])
        axes.minorticks_off()
        axes.set_xlabel({"optimizer.lr": "base learning rate"}.get(key, key))
        axes.set_ylabel("top-1 on the dev part (%)")
        axes.legend()
    return figure
