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
    "most_frequent_color": "one guess",
}


def training_curves(records: list[dict[str, Any]]) -> dict[str, Figure]:
    """Pictures of a run from its metrics.jsonl: loss, learning rate and, where it was evaluated, accuracy."""
    steps = [record for record in records if "loss" in record]
    evals = [(record["step"], record["eval"]) for record in records if "eval" in record]
    figures = {}
    with matplotlib.rc_context(STYLE):
        if steps:
            at = [record["step"] for record in steps]
            loss = _line(at, [record["loss"] for record in steps], "loss in nats", label="training")
            if evals:
                _add(loss, [step for step, _ in evals], [scores["loss"] for _, scores in evals], "held out")
                loss.axes[0].legend()
            figures["loss"] = loss
            figures["learning_rate"] = _line(at, [record["lr"] for record in steps], "learning rate")
        if evals and any(evals[0][1].get(key) is not None for key in ACCURACIES):
            at = [step for step, _ in evals]
            kinds = {key: name for key, name in ACCURACIES.items() if evals[0][1].get(key) is not None}
            first, second = ([100 * scores[key] for _, scores in evals] for key in kinds)
            names = list(kinds.values())
            accuracy = _line(at, first, "accuracy in %", names[0], marker="o")
            _add(accuracy, at, second, names[1])
            accuracy.axes[0].legend()
            figures["accuracy"] = accuracy
    return figures


def masked_patch_grid(views: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Figure:
    """A row for each picture: itself, with its corrupted patches, and with what was predicted of these.

    Args:
        views: (H, W, 3) uint8, all of one size; see `masked_patch.MaskedPatchModel.views`.
    """
    height, width = views[0][0].shape[:2]
    side = STYLE["figure.figsize"][0] / 3
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3 * side, len(views) * side * height / width + 0.25), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
        grid = figure.subplots(len(views), 3, squeeze=False)
        for title, axes in zip(("picture", "corrupted", "predicted"), grid[0], strict=True):
            axes.set_title(title, fontsize=10)
        for row, pictures in zip(grid, views, strict=True):
            for axes, picture in zip(row, pictures, strict=True):
                axes.imshow(picture, interpolation="nearest")
                axes.set_axis_off()
    return figure


def _line(steps: list[int], values: list[float], unit: str, label: str = "", marker: str = "") -> Figure:
    figure, axes = _figure()
    axes.plot(steps, values, color=BLUE, label=label, marker=marker, markersize=4)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    return figure


def _figure() -> tuple[Figure, Axes]:
    """One set of axes. Not pyplot's: nothing keeps it alive, and no display is asked for."""
    figure = Figure()
    figure.subplots_adjust(left=0.16, right=0.97, bottom=0.17, top=0.95)  # a layout engine draws it twice
    return figure, figure.add_subplot()


def _add(figure: Figure, steps: list[int], values: list[float], label: str) -> None:
    figure.axes[0].plot(steps, values, color=ORANGE, label=label, marker="o", markersize=4)


def selection_curve(choices: list[dict[str, Any]], *, chosen: dict[str, Any]) -> Figure | None:
    """Accuracy on the dev part against the one number that was chosen; None where it was something else.

    Args:
        choices: values by dotted key, and "dev_top1" of each.
        chosen: the values of the best.
    """
    (*others, key) = chosen
    values = [choice[key] for choice in choices]
    told = [choice for choice in choices if choice.get("dev_top1") is not None]
    if others or not told or not all(type(value) in (int, float) for value in values):
        return None
    points = sorted((choice[key], 100 * choice["dev_top1"]) for choice in told)
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
        axes.set_ylabel("top-1 of the dev part in %")
        axes.legend()
    return figure
