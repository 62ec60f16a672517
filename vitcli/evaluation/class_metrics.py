"""Metrics of each class against all others, and their means: precision, recall, F1, AUROC, AUPR.

For a class c with P images of N:

    precision = right / predicted as c      recall = right / P      F1 = their harmonic mean
    AUROC = fraction of pairs of an image of c and another one in which c has the higher score for the first
            (a tie counts half)
    AUPR  = mean over the images of c of the precision at their score (average precision)

Macro means weigh all classes the same, weighted ones by their images. Only classes that occur among the
labels count: another one has no recall. Precision is 0 for a class that is never predicted, and AUROC and
AUPR do not exist where all images are of one class. All equal scikit-learn's, which is not needed.

Letters: N rows, K classes, C classes that occur.
"""

from dataclasses import dataclass

import numpy as np

COLUMNS_AT_ONCE = 64  # of the scores that are copied and sorted: 13 MB for 50,000 rows


@dataclass(frozen=True, eq=False)
class ClassScores:
    """Metrics of the classes that occur among the labels, in class order.

    Attributes:
        classes_C, counts_C: their numbers, and how many rows have each.
        precision_C, recall_C, f1_C: of the predicted classes.
        auroc_C, aupr_C: of the scores; NaN where no other class occurs; None without scores.
    """

    classes_C: np.ndarray
    counts_C: np.ndarray
    precision_C: np.ndarray
    recall_C: np.ndarray
    f1_C: np.ndarray
    auroc_C: np.ndarray | None
    aupr_C: np.ndarray | None

    def means(self) -> dict[str, float | None]:
        """Return the means over the classes by their keys in a result; None where one does not exist."""
        weights_C = self.counts_C / self.counts_C.sum()
        return {
            "balanced_accuracy": _mean(self.recall_C),
            "precision_macro": _mean(self.precision_C),
            "recall_macro": _mean(self.recall_C),
            "f1_macro": _mean(self.f1_C),
            "precision_weighted": float(self.precision_C @ weights_C),
            "recall_weighted": float(self.recall_C @ weights_C),
            "f1_weighted": float(self.f1_C @ weights_C),
            "auroc_macro": _mean(self.auroc_C),
            "aupr_macro": _mean(self.aupr_C),
        }

    def of_class(self, index: int) -> dict[str, float | None]:
        """Return the metrics of the class at an index into `classes_C`, besides its recall."""
        values = {
            "precision": self.precision_C,
            "f1": self.f1_C,
            "auroc": self.auroc_C,
            "aupr": self.aupr_C,
        }
        return {name: None if column is None else _number(column[index]) for name, column in values.items()}


def class_scores(labels_N: np.ndarray, predicted_N: np.ndarray, scores_NK: np.ndarray | None) -> ClassScores:
    """Return the metrics of each class that occurs among the labels.

    Args:
        labels_N, predicted_N: numbers of classes.
        scores_NK: one for each class, of any order-preserving scale, such as log-probabilities.
    """
    classes_C, counts_C = np.unique(labels_N, return_counts=True)
    num_classes = int(max(labels_N.max(), predicted_N.max())) + 1
    right_C = np.bincount(labels_N[labels_N == predicted_N], minlength=num_classes)[classes_C]
    predicted_C = np.bincount(predicted_N, minlength=num_classes)[classes_C]
    auroc_C = aupr_C = None
    if scores_NK is not None:
        auroc_C, aupr_C = _of_scores(labels_N, scores_NK, classes_C)
    return ClassScores(
        classes_C=classes_C,
        counts_C=counts_C,
        precision_C=right_C / np.maximum(predicted_C, 1),
        recall_C=right_C / counts_C,
        f1_C=2 * right_C / (predicted_C + counts_C),
        auroc_C=auroc_C,
        aupr_C=aupr_C,
    )


def one_against_rest(scores_N: np.ndarray, is_positive_N: np.ndarray) -> tuple[float, float]:
    """Return AUROC and average precision of one class; NaN if all rows are of it, or none is.

    Only the positives are looked up among all sorted scores: few of them, where there are many classes.
    """
    num_rows, num_positives = len(scores_N), int(is_positive_N.sum())
    if num_positives in (0, num_rows):
        return np.nan, np.nan
    all_N, positives_P = np.sort(scores_N), np.sort(scores_N[is_positive_N])
    # For each positive: the rows, and the positives, with a lower score and with a score up to its own.
    below_P, upto_P = (np.searchsorted(all_N, positives_P, side) for side in ("left", "right"))
    own_below_P, own_upto_P = (np.searchsorted(positives_P, positives_P, side) for side in ("left", "right"))
    lower_P = below_P - own_below_P
    equal_P = upto_P - own_upto_P - lower_P
    num_pairs = num_positives * (num_rows - num_positives)
    precision_P = (num_positives - own_below_P) / (num_rows - below_P)
    return float((lower_P + 0.5 * equal_P).sum() / num_pairs), float(precision_P.mean())


def _of_scores(
    labels_N: np.ndarray, scores_NK: np.ndarray, classes_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return AUROC and AUPR of each class (C,)."""
    both_C2 = np.empty((len(classes_C), 2))
    for first in range(0, len(classes_C), COLUMNS_AT_ONCE):
        some_C = classes_C[first : first + COLUMNS_AT_ONCE]
        scores_CN = np.ascontiguousarray(scores_NK[:, some_C].T)
        for index, (label, scores_N) in enumerate(zip(some_C, scores_CN, strict=True)):
            both_C2[first + index] = one_against_rest(scores_N, labels_N == label)
    return both_C2[:, 0], both_C2[:, 1]


def _mean(values_C: np.ndarray | None) -> float | None:
    return None if values_C is None else _number(values_C.mean())


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
