"""Several labels per image: average precision of each class, and the threshold from which it is given.

Letters: N rows, K classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from vitcli.data.split import Split
from vitcli.data.task import Task
from vitcli.evaluation.intervals import SEED
from vitcli.evaluation.metrics import metrics_of
from vitcli.evaluation.predictions import Predictions
from vitcli.evaluation.regression import target_of
from vitcli.weights.io import damaged_metadata

KEY = "several_labels"  # of the metadata of weights
EVEN = 0.5  # the threshold of a class that no dev image has


@dataclass(frozen=True)
class Multilabel:
    """What is stored with weights that give several labels per image.

    Attributes:
        thresholds: of each class the probability from which it is given.
        chosen_on: the images that they were chosen on; None if all are EVEN.
        fingerprint: of these images, see `Split.fingerprint`.
    """

    thresholds: tuple[float, ...]
    chosen_on: str | None = None
    fingerprint: str | None = None

    def as_metadata(self) -> dict[str, Any]:
        """Return what the metadata of weights keep."""
        return {KEY: {**asdict(self), "thresholds": list(self.thresholds)}}


def multilabel_of(metadata: Mapping[str, Any], num_classes: int) -> Multilabel | None:
    """Return the thresholds of weights with this metadata; None if they give one label per image.

    Raises:
        WeightsError: the stored ones are not probabilities, or of another number of classes.
    """
    stored = metadata.get(KEY)
    if stored is None:
        return None
    match stored:
        case {"thresholds": list(values)} if len(values) == num_classes:
            if all(isinstance(x, int | float) and 0 <= x <= 1 for x in values):
                about = (stored.get(key) for key in ("chosen_on", "fingerprint"))
                chosen_on, fingerprint = (value if isinstance(value, str) else None for value in about)
                return Multilabel(tuple(map(float, values)), chosen_on, fingerprint)
    raise damaged_metadata(KEY, "the stored thresholds of the classes are damaged")


def task_of(metadata: Mapping[str, Any], num_classes: int) -> Task:
    """Return what weights with this metadata predict."""
    if target_of(metadata):
        return Task.NUMBER
    return Task.MULTILABEL if multilabel_of(metadata, num_classes) else Task.ONE_CLASS


@dataclass(frozen=True)
class MultilabelMetrics:
    """Metrics of a split whose images have several labels.

    Attributes:
        mean_ap: mean over the classes with images of their average precision; None if there are none, or too
            many logits to keep.
        top1, top5, loss: as of `Metrics`, where any label of an image is right.
    """

    mean_ap: float | None
    top1: float
    top5: float
    loss: float
    num_examples: int


def multilabel_metrics(predictions: Predictions) -> MultilabelMetrics:
    """Return the metrics of the predictions of a split."""
    totals = metrics_of(predictions.ranks_N, predictions.losses_N)
    return MultilabelMetrics(
        mean_ap=None
        if predictions.logits_NK is None
        else mean_average_precision(predictions.logits_NK, multi_hot(predictions)),
        top1=totals.top1,
        top5=totals.top5,
        loss=totals.loss,
        num_examples=totals.num_examples,
    )


def multi_hot(predictions: Predictions) -> np.ndarray:
    """Return which classes each row has, (N, K) bool."""
    hot_NK1: np.ndarray = np.zeros((len(predictions), predictions.all_logits_NK.shape[1] + 1), dtype=bool)
    np.put_along_axis(hot_NK1, predictions.labels, True, axis=1)  # -1, which pads, is the last column
    return hot_NK1[:, :-1]


def probabilities_of(logits_NK: np.ndarray) -> np.ndarray:
    """Return the sigmoids of float32 logits, in float64."""
    return torch.from_numpy(logits_NK).double().sigmoid().numpy()


def average_precisions(scores_NK: np.ndarray, hot_NK: np.ndarray) -> np.ndarray:
    """Return the average precision of each class, (K,); NaN where no row has it.

        AP = sum_n (R_n - R_(n-1)) P_n

    over the distinct scores from the highest down, P_n and R_n precision and recall of all rows that score at
    least as high. No interpolation: the definition of scikit-learn.
    """
    return np.array([_average_precision(*columns) for columns in zip(scores_NK.T, hot_NK.T, strict=True)])


def _average_precision(scores_N: np.ndarray, hot_N: np.ndarray) -> float:
    if not hot_N.any():
        return math.nan
    hits_T, counts_T, _ = _at_distinct_scores(scores_N, hot_N)
    return float((np.diff(hits_T, prepend=0) * (hits_T / counts_T)).sum() / hits_T[-1])


def _at_distinct_scores(scores_N: np.ndarray, hot_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each distinct score, the highest first, behind the hits and rows that score at least as high."""
    order_N = np.argsort(-scores_N, kind="stable")
    sorted_N, hits_N = scores_N[order_N], np.cumsum(hot_N[order_N])
    is_last_N = np.append(sorted_N[1:] != sorted_N[:-1], True)
    return hits_N[is_last_N], np.flatnonzero(is_last_N) + 1, sorted_N[is_last_N]


def mean_average_precision(scores_NK: np.ndarray, hot_NK: np.ndarray) -> float | None:
    """Return the mean over the classes that some row has; None if there are none."""
    of_classes = average_precisions(scores_NK, hot_NK)
    known = of_classes[~np.isnan(of_classes)]
    return float(known.mean()) if len(known) else None


def best_thresholds(probabilities_NK: np.ndarray, hot_NK: np.ndarray) -> np.ndarray:
    """Return, for each class, the threshold of the highest F1, (K,); EVEN where no row has the class.

    Between two scores it is the middle, so that a row of neither side lies on it; of equally good ones the
    highest.
    """
    columns = zip(probabilities_NK.T, hot_NK.T, strict=True)
    return np.array([_best_threshold(*column) for column in columns])


def _best_threshold(probabilities_N: np.ndarray, hot_N: np.ndarray) -> float:
    if not hot_N.any():
        return EVEN
    hits_T, counts_T, scores_T = _at_distinct_scores(probabilities_N, hot_N)
    f1_T = 2 * hits_T / (counts_T + hits_T[-1])
    best = int(np.argmax(f1_T))
    above, below = float(scores_T[best]), float(scores_T[best + 1]) if best + 1 < len(scores_T) else 0.0
    middle = (above + below) / 2
    return middle if middle > below else above


def f1_scores(given_NK: np.ndarray, hot_NK: np.ndarray) -> np.ndarray:
    """Return the F1 of each class, (K,); NaN where no row has it."""
    hits_K, sums_K = (given_NK & hot_NK).sum(axis=0), given_NK.sum(axis=0) + hot_NK.sum(axis=0)
    return np.where(hot_NK.any(axis=0), 2 * hits_K / np.maximum(sums_K, 1), math.nan)


def given_at(probabilities_NK: np.ndarray, thresholds: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the classes that each row is given, (N, K) bool."""
    return probabilities_NK >= np.asarray(thresholds)


def given_by_other_half(probabilities_NK: np.ndarray, hot_NK: np.ndarray, *, seed: int = SEED) -> np.ndarray:
    """Return the classes that each row is given by thresholds chosen on the other half of the rows, (N, K).

    An F1 on the rows that thresholds were chosen on would be too high.
    """
    is_first_N = np.random.default_rng(seed).permutation(len(hot_NK)) % 2 == 0
    given_NK = np.zeros_like(hot_NK)
    for half_N in (is_first_N, ~is_first_N):
        thresholds = best_thresholds(probabilities_NK[~half_N], hot_NK[~half_N])
        given_NK[half_N] = given_at(probabilities_NK[half_N], thresholds)
    return given_NK


def choose(predictions: Predictions, split: Split) -> Multilabel:
    """Return the thresholds that are best on the predictions of a split."""
    thresholds = best_thresholds(probabilities_of(predictions.all_logits_NK), multi_hot(predictions))
    return Multilabel(tuple(thresholds.tolist()), split.name, split.fingerprint)


def results_of(
    predictions: Predictions, stored: Multilabel | None, class_names: Sequence[str], *, fingerprint: str
) -> dict[str, Any]:
    """Return the keys of a result about several labels.

    Args:
        stored: the thresholds of the weights; None for weights without any.
        fingerprint: of the split. If the thresholds were chosen on it, F1 is by halves.
    """
    hot_NK, logits_NK = multi_hot(predictions), predictions.all_logits_NK
    counts_K, of_classes = hot_NK.sum(axis=0), average_precisions(logits_NK, hot_NK)
    classes = np.flatnonzero(counts_K).tolist()
    per_label = {
        class_names[k]: {"num_examples": int(counts_K[k]), "ap": float(of_classes[k])} for k in classes
    }
    result = {"mean_ap": mean_average_precision(logits_NK, hot_NK), "per_label": per_label}
    if stored is None:
        return result
    probabilities_NK = probabilities_of(logits_NK)
    given_NK = given_at(probabilities_NK, stored.thresholds)
    if stored.fingerprint == fingerprint:
        given_NK = given_by_other_half(probabilities_NK, hot_NK)
    f1_K = f1_scores(given_NK, hot_NK)
    for k in classes:
        per_label[class_names[k]] |= {"f1": float(f1_K[k]), "threshold": stored.thresholds[k]}
    f1 = float(np.nanmean(f1_K)) if len(per_label) else None
    return {**result, "f1_at_thresholds": f1, "thresholds_chosen_on": stored.chosen_on}
