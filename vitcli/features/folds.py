"""Accuracy of frozen features over folds: the closed form of `least_squares`, fitted without each fold."""

import numpy as np

from vitcli.features.least_squares import DEFAULT_L2, Array, accuracies, solve


def fold_accuracy(features_ND: Array, labels_N: Array, folds_N: np.ndarray, *, num_classes: int) -> float:
    """Return the fraction of rows that are predicted right by a solution fitted to the other folds.

    Args:
        folds_N: of each row; no fold has all rows.
    """
    labels_N = np.asarray(labels_N)
    num_right = 0
    for fold in np.unique(folds_N):
        is_held_N = folds_N == fold
        solution = solve(
            features_ND[~is_held_N], labels_N[~is_held_N], num_classes=num_classes, l2=[DEFAULT_L2]
        )
        accuracy_1 = accuracies(solution, features_ND[is_held_N], labels_N[is_held_N])
        num_right += round(accuracy_1[0] * is_held_N.sum())
    return num_right / len(labels_N)
