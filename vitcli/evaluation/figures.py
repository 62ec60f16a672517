"""Pictures of one evaluation, in the look of `figures`: calibration, confusion, mistakes, resolutions."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.evaluation.statistics import Reliability
from vitcli.output.plots import BLUE, ORANGE, STYLE

MOST_CLASSES = 30  # of a confusion matrix whose names can still be read
MISTAKES_PER_ROW = 5
FEW = 10  # examples of a bin whose accuracy says little
PALE = "#b9d4e6"


def reliability_diagram(found: Reliability, *, title: str) -> Figure:
    """Accuracy against confidence, bin by bin, and below it how many examples each bin has.

    Bins of a few examples are pale: what they show is mostly chance.
    """
    width = 100 * found.edges_M1[1]
    middles_M = 100 * found.edges_M1[:-1] + width / 2
    accuracy_M, confidence_M = 100 * found.accuracy_M, 100 * found.confidence_M
    is_sure_M = found.counts_M >= FEW
    is_pale_M = (found.counts_M > 0) & ~is_sure_M
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.4, 5.2), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.bar(
            middles_M[is_sure_M], accuracy_M[is_sure_M], width=0.92 * width, color=BLUE, label="accuracy"
        )
        if is_pale_M.any():
            label = f"of fewer than {FEW} examples"
            upper.bar(
                middles_M[is_pale_M], accuracy_M[is_pale_M], width=0.92 * width, color=PALE, label=label
            )
        upper.plot(
            confidence_M[is_sure_M], accuracy_M[is_sure_M], "o", color=ORANGE, markersize=4, clip_on=False,
            label="accuracy at mean confidence",
        )  # fmt: skip
        upper.plot(
            [0, 100], [0, 100], color="#444444", linestyle="--", linewidth=1.0, label="right as often as said"
        )
        upper.set(ylabel="right, in %", ylim=(0, 100), xlim=(0, 100))
        upper.set_title(title, fontsize=10)
        figure.legend(loc="outside lower center", fontsize=8, ncols=2)
        lower.bar(middles_M, found.counts_M, width=0.92 * width, color="#999999")
        lower.set(xlabel="confidence in %: probability of the predicted class", ylabel="examples")
        lower.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=3))
        for axes in (upper, lower):
            axes.set_axisbelow(True)
    return figure


def confusion_matrix(
    labels_P: np.ndarray, guesses_P: np.ndarray, counts_P: np.ndarray, class_names: Sequence[str]
) -> Figure:
    """Share of each class's examples by what they were taken for; of many classes those most confused.

    Args:
        labels_P, guesses_P, counts_P: the P pairs that occur, see `predictions.confusion`.
    """
    shown = _most_confused(labels_P, guesses_P, counts_P, len(class_names))
    place = {number: at for at, number in enumerate(shown)}
    totals_K = np.bincount(labels_P, weights=counts_P, minlength=len(class_names))
    shares = np.zeros((len(shown), len(shown)))
    for label, guess, count in zip(labels_P.tolist(), guesses_P.tolist(), counts_P.tolist(), strict=True):
        if label in place and guess in place:
            shares[place[label], place[guess]] = 100 * count / totals_K[label]
    names = [_short(class_names[number], 24) for number in shown]
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        side = 2.6 + 0.2 * len(shown)
        figure = Figure(figsize=(side + 0.9, side), layout="constrained")
        axes = figure.add_subplot()
        # The root of the share: mistakes are a few per cent each, and should be seen beside the diagonal.
        picture = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=100))
        axes.set_xticks(range(len(shown)), names, rotation=90, fontsize=7)
        axes.set_yticks(range(len(shown)), names, fontsize=7)
        axes.set(xlabel="predicted", ylabel="label")
        if len(shown) < len(class_names):
            axes.set_title(f"the {len(shown)} most confused of {len(class_names)} classes", fontsize=10)
        if len(shown) <= 12:
            _write_shares(axes, shares)
        bar = figure.colorbar(picture, ax=axes, ticks=[0, 1, 5, 20, 50, 100], shrink=0.7)
        bar.set_label("of the label's examples, in %", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    return figure


def mistakes_grid(pictures: Sequence[tuple[np.ndarray, str, str, float]]) -> Figure:
    """Wrong predictions, the surest first.

    Args:
        pictures: (H, W, 3) uint8, the label's name, the predicted class's and its probability.
    """
    across = min(MISTAKES_PER_ROW, len(pictures))
    down = -(-len(pictures) // across)
    height, width = pictures[0][0].shape[:2]
    size = (1.75 * across, (1.75 * height / width + 0.36) * down)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        figure.get_layout_engine().set(h_pad=0.02, hspace=0.01)
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, (picture, label, guess, share) in zip(grid.flat, pictures, strict=False):
            axes.imshow(picture, interpolation="nearest" if max(picture.shape) < 100 else "antialiased")
            said = f"said: {_short(guess, 20)}, {share:.0%}"
            axes.set_title(f"{said}\nlabel: {_short(label, 24)}", fontsize=7, loc="left", pad=3)
    return figure


def resolution_curve(
    sides: Sequence[int], top1: Sequence[float], top5: Sequence[float], *, trained_side: int
) -> Figure:
    """Accuracy by the side of the pictures in pixels; `trained_side` is the one the weights were made for."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        axes.plot(sides, 100 * np.array(top5), color=ORANGE, marker="o", markersize=4, label="top-5")
        axes.plot(sides, 100 * np.array(top1), color=BLUE, marker="o", markersize=4, label="top-1")
        axes.axvline(trained_side, color="#888888", linewidth=1.0, linestyle=":", label="the weights' own")
        axes.set(xlabel="height and width in pixels", ylabel="accuracy in %")
        axes.set_xticks(sides)
        axes.tick_params(axis="x", labelrotation=45 if len(sides) > 9 else 0)
        axes.legend()
    return figure


def _most_confused(
    labels_P: np.ndarray, guesses_P: np.ndarray, counts_P: np.ndarray, num_classes: int
) -> list[int]:
    """All classes if they are few; else those of the most frequent confusions, in their order."""
    if num_classes <= MOST_CLASSES:
        return list(range(num_classes))
    is_wrong_P = labels_P != guesses_P
    by_count = np.argsort(-counts_P[is_wrong_P], kind="stable")
    chosen: dict[int, None] = {}
    for at in by_count:
        pair = (int(labels_P[is_wrong_P][at]), int(guesses_P[is_wrong_P][at]))
        if len(chosen.keys() | set(pair)) > MOST_CLASSES:
            break
        chosen |= dict.fromkeys(pair)
    return sorted(chosen) or list(range(MOST_CLASSES))


def _write_shares(axes, shares: np.ndarray) -> None:
    for (row, column), share in np.ndenumerate(shares):
        if share:
            colour = "white" if share > 30 else "black"
            axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=7, color=colour)


def _short(name: str, length: int) -> str:
    """A class name that fits: without its WordNet id, underscores as spaces, cut off."""
    head, _, rest = name.partition("_")
    is_id = len(head) == 9 and head[0] == "n" and head[1:].isdigit()
    name = (rest if is_id and rest else name).replace("_", " ")
    name = "".join(c if c.isprintable() else "?" for c in name).replace("$", r"\$")
    return name if len(name) <= length else name[: length - 1] + "…"
