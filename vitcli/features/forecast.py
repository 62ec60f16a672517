"""How many images more: a learning curve of frozen features, and what more training images would bring.

Nested draws of the training images are scored as `vit fewshot` scores its own, but with l2 chosen for each
draw by leave-one-out: at a fixed l2 accuracy hardly rises where there are about as many rows as columns,
and that shelf is not a power law. A curve with a floor is fitted to the mean error at each number n:

    error(n) = floor + a (n / N)^-b                                  N all training images

An inverse power law is the usual form of learning curves (arXiv 1712.00409, 2103.10948). The floor and b are
a grid, a is integrated out, and every prediction is a mixture over that grid, weighted by the fit. Covariance
of the mean errors e_i of m_i draws of n_i images, and of the error at a later n:

    cov(e_i, e_j) = s^2 / max(n_i, n_j, N)                           the N images are a sample themselves
                    + (error(N) / 20)^2 exp(-log(n_i / n_j)^2 / 2)   no curve is exactly a power law
                    + [i = j] s^2 / n_i ((1 - n_i / N) / m_i + 3/10)

where s^2 / n is the variance of the error of one draw, estimated from the draws: n of N rows without
replacement scatter less than n of all images, by 1 - n / N. The first term is that of a mean over all draws
from one sample of N (the first term of Hoeffding's decomposition).

Intervals are of the accuracy on the same test images, which have an interval of their own.

J numbers of images, G points of the grid, P predictions, V random values, K classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from vitcli.errors import DataError
from vitcli.features.draws import Draws, DrawScore
from vitcli.features.least_squares import draw_shots
from vitcli.output import text
from vitcli.output.plots import BLUE, ORANGE, STYLE, percent_limits

FIGURE = "forecast.png"
MOST_ROWS = 20_000  # training rows of a curve
NUM_DRAWS = 10  # of each number of images below N
SMALLEST_PART = 1 / 6  # of the N images; a power law of much smaller draws says little about more images
LEAST_PER_CLASS = 4  # images, in the mean over classes: fewer give no three sizes
TIMES = (2, 5, 10)  # as many images are predicted
LEVEL = 0.8
LEAST_TESTED = 50  # images, to say how near the best accuracy of these features is
NEAR_FLOOR = 0.02  # gain in accuracy by ten times the images: a smaller one is near the floor
LEAST_ACCURACY = 0.5  # with all images: below it errors fall faster later on, which no power law foretells

MISFIT = 0.05  # of the error at N: standard deviation of the curve from a power law
OWN_VARIANCE = 0.3  # of one draw's variance: what neither the sample nor the fit explains, such as its l2
# Of b a priori: its median, and the deviation of log b; 1 is the rate of a linear classifier.
RATE, RATE_SPREAD = 1.0, 0.6
RATES = np.geomspace(0.1, 3.0, 40)
FLOORS = np.linspace(0.0, 1.0, 61)  # in units of the smallest mean error
NUM_VALUES = 20_000  # drawn from the mixture for its quantiles


@dataclass(frozen=True)
class CurvePoint:
    """Mean error of the draws of one number of images.

    Attributes:
        images: rows of a draw, of all classes.
        errors: of each draw, from 0 to 1.
    """

    images: int
    errors: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.errors))


def curve_draws(
    labels_N: np.ndarray, *, num_classes: int, rows_N: np.ndarray, groups_N: np.ndarray | None = None
) -> Draws:
    """Draw nested parts of some training rows, {seed: {images: rows}}; all of them are the only draw of N.

    Each class gives the same part of its rows, one at least, in the order of `least_squares.draw_shots`: k
    images of each where classes have equal sizes, and otherwise the proportions of the data.

    Args:
        labels_N: of all training rows.
        rows_N: the rows that may be drawn; all classes occur among them.
        groups_N: of all training rows; a draw has whole groups but for the last one of a class.

    Raises:
        DataError: too few rows, see `check_enough`.
    """
    check_enough(len(rows_N), num_classes)
    labels, groups = labels_N[rows_N], None if groups_N is None else groups_N[rows_N]
    most = int(np.bincount(labels, minlength=num_classes).max())
    num_sizes = 1 + math.floor(2 * math.log2(1 / SMALLEST_PART))
    parts = [2 ** (-i / 2) for i in reversed(range(num_sizes))]
    draws: Draws = {}
    for seed in range(NUM_DRAWS):
        order = draw_shots(labels, num_classes=num_classes, shots=[most], seed=seed, groups_N=groups)[most]
        by_class = [order[labels[order] == label] for label in range(num_classes)]
        of_parts = [
            np.concatenate([rows[: max(1, round(part * len(rows)))] for rows in by_class]) for part in parts
        ]
        by_size = {len(drawn): rows_N[drawn] for drawn in of_parts}
        if seed:
            by_size.pop(len(rows_N))
        draws[seed] = by_size
    return draws


def check_enough(num_images: int, num_classes: int) -> None:
    """Refuse a forecast from fewer than LEAST_PER_CLASS images in the mean over classes.

    Raises:
        DataError: there are fewer.
    """
    if num_images < LEAST_PER_CLASS * num_classes:
        count = text.count_of(num_images, "training image")
        raise DataError(
            f"{count} of {num_classes} classes are too few for a forecast",
            where="--forecast (fewshot.forecast)",
            fix=f"it needs {LEAST_PER_CLASS} images per class on average",
        )


def sample_rows(labels_N: np.ndarray, *, num_classes: int) -> np.ndarray:
    """Return all rows, or MOST_ROWS of them in the proportions of the classes, in ascending order."""
    if len(labels_N) <= MOST_ROWS:
        return np.arange(len(labels_N))
    counts_K = np.bincount(labels_N, minlength=num_classes)
    order = draw_shots(labels_N, num_classes=num_classes, shots=[int(counts_K.max())], seed=0)
    order = next(iter(order.values()))
    takes_K = np.maximum(1, counts_K * MOST_ROWS // len(labels_N))
    return np.sort(np.concatenate([order[labels_N[order] == k][: takes_K[k]] for k in range(num_classes)]))


def curve_points(scores: Mapping[int, Sequence[DrawScore]]) -> list[CurvePoint]:
    """Return the points of a curve from the scores of its draws, by number of images."""
    return [
        CurvePoint(images, tuple(1 - score.top1 for score in of_size))
        for images, of_size in sorted(scores.items())
    ]


def forecast(points: Sequence[CurvePoint], *, num_tests: int, times: Sequence[int] = TIMES) -> dict[str, Any]:
    """Fit the curve and return what `times` as many images would bring, as the object of --json.

    Args:
        points: by number of images; the last is that of all training images.
        num_tests: images that the errors are of.

    Returns:
        points: images, mean accuracy, std (None for one draw) and draws of each size.
        predictions: images, accuracy (median), low and high of the interval, by "2", "5", "10".
        floor: median error that no number of images goes below, low and high.
        near_floor: True if ten times the images bring less than NEAR_FLOOR, by the median.
        too_early: True if the accuracy with all images is below LEAST_ACCURACY.
    """
    fit = _fit(points, num_tests, times)
    tails = ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2)
    # Quantiles of the mixture, from random values that are the same in each call.
    rng = np.random.default_rng(0)
    which_V = rng.choice(len(fit.weights_G), NUM_VALUES, p=fit.weights_G)
    noise_VP = rng.standard_normal((NUM_VALUES, len(times)))
    errors_VP = (fit.means_GP[which_V] + fit.stds_GP[which_V] * noise_VP).clip(0, 1)
    quantiles_3P = np.quantile(1 - errors_VP, tails, axis=0)
    all_images = points[-1].images
    predictions = {
        str(number): {"images": number * all_images, "accuracy": middle, "low": low, "high": high}
        for number, (low, middle, high) in zip(times, quantiles_3P.T.tolist(), strict=True)
    }
    low, middle, high = np.quantile(fit.floors_G[which_V], tails).tolist()
    gain = predictions[str(max(times))]["accuracy"] - (1 - points[-1].mean)
    return {
        "level": LEVEL,
        "num_test_examples": num_tests,
        "points": [
            {
                "images": point.images,
                "accuracy": 1 - point.mean,
                "std": float(np.std(point.errors, ddof=1)) if len(point.errors) > 1 else None,
                "draws": len(point.errors),
            }
            for point in points
        ],
        "predictions": predictions,
        "floor": {"error": middle, "low": low, "high": high},
        "near_floor": gain < NEAR_FLOOR,
        "too_early": 1 - points[-1].mean < LEAST_ACCURACY,
    }


@dataclass(frozen=True, eq=False)
class _Fit:
    """The mixture over the grid: weights, floors, and mean and deviation of each predicted error."""

    weights_G: np.ndarray
    floors_G: np.ndarray
    means_GP: np.ndarray
    stds_GP: np.ndarray


def _fit(points: Sequence[CurvePoint], num_tests: int, times: Sequence[int]) -> _Fit:
    """Weigh every floor and rate of the grid by how well the curve fits, with `a` integrated out.

    For one floor and b the errors are Gaussian with a linear mean in a:

        e - floor = a x + noise,   x = (n / N)^-b      a = x'C e / x'C x,   C the inverse covariance
    """
    errors_J, num_points = np.array([point.mean for point in points]), len(points)
    parts = np.array([point.images / points[-1].images for point in points] + list(times))
    cov = _covariance(points, parts, num_tests)
    inverse_JJ = np.linalg.inv(cov[:num_points, :num_points])
    # What deviations of the points say about later ones (conditional Gaussian).
    carry_PJ = cov[num_points:, :num_points] @ inverse_JJ
    rest_P = np.diag(cov[num_points:, num_points:] - carry_PJ @ cov[:num_points, num_points:])

    logs, floors, means, variances = [], [], [], []
    for rate in RATES:
        x_J, x_P = parts[:num_points] ** -rate, parts[num_points:] ** -rate
        precision = x_J @ inverse_JJ @ x_J
        log_prior = -0.5 * (math.log(rate / RATE) / RATE_SPREAD) ** 2
        for floor in FLOORS * errors_J.min():
            scale = max(0.0, x_J @ inverse_JJ @ (errors_J - floor) / precision)
            rest_J = errors_J - floor - scale * x_J
            logs.append(log_prior - 0.5 * (rest_J @ inverse_JJ @ rest_J + math.log(precision)))
            floors.append(floor)
            means.append(floor + scale * x_P + carry_PJ @ rest_J)
            variances.append(rest_P + (x_P - carry_PJ @ x_J) ** 2 / precision)
    weights_G = np.exp(np.array(logs) - max(logs))
    stds_GP = np.sqrt(np.array(variances).clip(0))
    return _Fit(weights_G / weights_G.sum(), np.array(floors), np.array(means), stds_GP)


def _covariance(points: Sequence[CurvePoint], parts: np.ndarray, num_tests: int) -> np.ndarray:
    """Return the covariance of the mean errors and of the predicted ones, see the top of the file.

    Args:
        parts: n / N of the points, then of the predictions.
    """
    # s^2 / N, pooled over the sizes; a tenth of an image's worth keeps it above 0.
    at = parts[: len(points)]
    scatter = [
        np.var(point.errors, ddof=1) * part / (1 - part)
        for point, part in zip(points, at, strict=True)
        if len(point.errors) > 1
    ]
    of_sample = max(float(np.mean(scatter)) if scatter else 0.0, (0.1 / num_tests) ** 2)
    larger = np.maximum(np.maximum.outer(parts, parts), 1.0)
    misfit = MISFIT * max(points[-1].mean, 1 / num_tests)
    distances = np.log(parts)[:, None] - np.log(parts)
    cov = of_sample / larger + misfit**2 * np.exp(-(distances**2) / 2)

    # Each point and prediction alone: its draws, what nothing explains, and the rounding to whole images.
    num_draws = np.array([len(point.errors) for point in points] + [1] * (len(parts) - len(points)))
    missing = np.clip(1 - parts, 0, None) / num_draws
    own = of_sample / parts * (missing + OWN_VARIANCE) + 1 / (12 * num_tests**2)
    return cov + np.diag(own)


def as_pairs(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of the forecast for a terminal."""
    now, predictions = result["points"][-1], result["predictions"]
    words = {"2": "twice"} | {times: f"{times} times" for times in predictions if times != "2"}
    lines = [f"{now['accuracy']:.1%} with all {now['images']:,} training images"]
    lines += [
        f"{words[times]} the images ({one['images']:,}): {text.interval_text((one['low'], one['high']))} %"
        for times, one in predictions.items()
    ]
    floor = result["floor"]
    interval = text.interval_text((floor["low"], floor["high"]))
    near = (
        "you are near the floor: other weights or fine-tuning bring more than images do"
        if result["near_floor"]
        else "more images help"
    )
    if result["num_test_examples"] < LEAST_TESTED:
        lines.append(f"{result['num_test_examples']} test images are too few to tell how near the floor is")
    else:
        lines += [near, f"these features keep an error of {interval} % with any number of images"]
    of_level = f"intervals hold {LEVEL:.0%}, for the same {result['num_test_examples']:,} test images"
    too_early = "under half are right: too early for a curve, and these intervals are mostly too low"
    lines.append(too_early if result["too_early"] else of_level)
    return [("forecast" if number == 0 else "", line) for number, line in enumerate(lines)]


def figure(result: dict[str, Any]) -> Figure:
    """Plot the measured accuracies, the predicted ones with their intervals, and the floor."""
    points, predictions = result["points"], list(result["predictions"].values())
    with matplotlib.rc_context(STYLE):
        plot = Figure(layout="constrained")
        axes = plot.add_subplot()
        at = [point["images"] for point in points]
        measured = [100 * point["accuracy"] for point in points]
        spread = [100 * (point["std"] or 0.0) for point in points]
        axes.errorbar(
            at, measured, yerr=spread, color=BLUE, marker="o", markersize=4, capsize=2, label="measured"
        )

        ahead = [at[-1], *(one["images"] for one in predictions)]
        bounds = {
            key: [measured[-1], *(100 * one[key] for one in predictions)]
            for key in ("low", "accuracy", "high")
        }
        axes.fill_between(ahead, bounds["low"], bounds["high"], color=ORANGE, alpha=0.2, linewidth=0)
        label = f"predicted, {result['level']:.0%} interval"
        axes.plot(
            ahead, bounds["accuracy"], color=ORANGE, marker="o", markersize=4, linestyle="--", label=label
        )
        ceiling = 100 * (1 - result["floor"]["error"])
        axes.axhline(ceiling, color="#888888", linewidth=1, linestyle=":", label="any number of images")

        axes.set_xscale("log")
        axes.set_xticks([at[0], at[-1], *ahead[1:]])  # and at no other numbers
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.minorticks_off()
        axes.set_xlabel("training images")
        axes.set_ylabel("top-1 accuracy (%)")
        lowest = min(value - std for value, std in zip(measured, spread, strict=True))
        axes.set_ylim(percent_limits([lowest, *bounds["low"], *bounds["high"], ceiling]))
        axes.legend(loc="lower right", fontsize=8)
    return plot
