"""Figures of training: curves of a run, the scores of a sweep, and predictions of masked patches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.evaluation.intervals import accuracy_interval
from vitcli.output.plots import BLUE, ORANGE, STYLE, percent_limits
from vitcli.output.scores import top5_is_informative

ACCURACIES = {
    "top1": "top-1",
    "top5": "top-5",
    "patch_accuracy": "of patches",
    "most_frequent_color": "majority class",
}
OF_IMAGES = ("top1", "top5")  # accuracies over the images of the evaluation
FEW_POINTS = 3  # fewer are not a curve
MOST_POINTS = 1_000  # of the curve of the learning rate


def training_curves(
    records: list[dict[str, Any]], *, num_steps: int, num_classes: int, lr_at: Callable[[int], float]
) -> dict[str, Figure]:
    """Plot loss, learning rate and, if the run was evaluated, accuracy.

    Args:
        records: of metrics.jsonl; not every step has one.
        num_classes: top-5 is drawn where it says anything.
        lr_at: the learning rate of an update counted from 0. It is plotted as planned, at every step.
    """
    steps = [record for record in records if "loss" in record]
    evals = [record for record in records if "eval" in record]
    evals_at = [record["step"] for record in evals]
    figures = {}
    with matplotlib.rc_context(STYLE):
        if steps:
            at, losses = [record["step"] for record in steps], [record["loss"] for record in steps]
            is_regression = bool(evals) and "mae" in evals[0]["eval"]
            loss, axes = _by_step("squared error" if is_regression else "loss (nats)", num_steps)
            _plot(axes, at, losses, BLUE, "training")
            if evals:
                _plot(axes, evals_at, [record["eval"]["loss"] for record in evals], ORANGE, "held out")
                axes.legend()
            rate, axes = _by_step("learning rate", num_steps)
            # All updates, or of a long run as many as make a smooth curve.
            updates = sorted({*range(0, num_steps, max(1, num_steps // MOST_POINTS)), num_steps - 1})
            _plot(axes, [update + 1 for update in updates], list(map(lr_at, updates)), BLUE)
            figures |= {"loss": loss, "learning_rate": rate}
        kinds = [key for key in ACCURACIES if evals and evals[0]["eval"].get(key) is not None]
        if not top5_is_informative(num_classes):
            kinds = [key for key in kinds if key != "top5"]
        if kinds:
            figures["accuracy"] = _accuracies(
                [(record["step"], record["eval"]) for record in evals], kinds, num_steps
            )
    return figures


def _accuracies(
    evals: Sequence[tuple[int, Mapping[str, Any]]], kinds: Sequence[str], num_steps: int
) -> Figure:
    """Plot accuracies by step, with the 95 % interval of the last ones, on an axis of a sensible span."""
    figure, axes = _by_step("accuracy (%)", num_steps)
    at, bounds = [step for step, _ in evals], []
    for key, colour in zip(kinds, (BLUE, ORANGE), strict=False):
        values = [100 * scores[key] for _, scores in evals]
        _plot(axes, at, values, colour, ACCURACIES[key], marker="o")
        bounds += values
        if key in OF_IMAGES:
            count = evals[-1][1]["num_examples"]
            interval = accuracy_interval(round(evals[-1][1][key] * count), count)
            bounds += [100 * bound for bound in interval]
            _error_bar(axes, at[-1], values[-1], bounds[-2:], colour)
    axes.set_ylim(percent_limits(bounds))
    axes.legend()
    return figure


def _by_step(unit: str, num_steps: int) -> tuple[Figure, Axes]:
    """Return a figure with an axis of all steps of a run, whichever of them have a value."""
    figure, axes = _figure()
    axes.set(xlabel="step", ylabel=unit, xlim=(0, 1.03 * num_steps))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    # Small numbers have their power of ten above the axis, not in the room of its label.
    axes.ticklabel_format(axis="y", scilimits=(-2, 4), useMathText=True)
    return figure, axes


def _plot(
    axes: Axes, at: Sequence[float], values: Sequence[float], colour: str, label: str = "", marker: str = ""
) -> None:
    """Plot a curve; fewer than three values are points, since nothing is known between them."""
    marker, line = ("o", "") if len(at) < FEW_POINTS else (marker, "-")
    axes.plot(at, values, color=colour, label=label, markersize=4, marker=marker, linestyle=line)


def _error_bar(axes: Axes, x: float, y: float, interval: Sequence[float], colour: str) -> None:
    low, high = interval
    # A mean of runs, or rounding, can lie a hair outside.
    bars = [[max(0.0, y - low)], [max(0.0, high - y)]]
    axes.errorbar([x], [y], bars, color=colour, capsize=3, linewidth=1, fmt="none")


def _figure() -> tuple[Figure, Axes]:
    """Return a figure with one set of axes. It is not pyplot's, so it needs no display and is freed."""
    figure = Figure()
    figure.subplots_adjust(left=0.16, right=0.97, bottom=0.17, top=0.91)  # a layout engine draws it twice
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
    """Plot accuracy on the dev split against the one number that was chosen; None for other choices.

    Args:
        choices: values by dotted key, and of each "dev_top1" and its "dev_interval", if known.
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
        at, accuracies = zip(*points, strict=True)
        _plot(axes, at, accuracies, BLUE, marker="o")
        best, bounds = dict(points)[chosen[key]], [*accuracies]
        for choice in scored:
            if interval := choice.get("dev_interval"):
                bounds += [100 * bound for bound in interval]
                _error_bar(axes, choice[key], 100 * choice["dev_top1"], bounds[-2:], BLUE)
        axes.plot([chosen[key]], [best], color=ORANGE, marker="o", markersize=8, linestyle="", label="chosen")
        if min(values) > 0 and max(values) / min(values) >= 8:
            axes.set_xscale("log")
        axes.set_xticks(sorted(values), labels=[f"{value:g}" for value in sorted(values)])
        axes.minorticks_off()
        axes.set_xlabel({"optimizer.lr": "base learning rate"}.get(key, key))
        axes.set(ylabel="top-1 on the dev split (%)", ylim=percent_limits(bounds))
        axes.legend(
            loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0
        )  # above: the bars fill the axes
    return figure
