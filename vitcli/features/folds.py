"""Accuracy of frozen features over folds: the closed form of `least_squares`, fitted without each fold."""

import numpy as np

from vitcli.features.draws import SWEEP
from vitcli.features.least_squares import DEFAULT_L2, Array, accuracies, has_others, solve_at_best_l2


def fold_accuracy(
    features_ND: Array,
    labels_N: Array,
    folds_N: np.ndarray,
    *,
    num_classes: int,
    groups_N: np.ndarray | None,
) -> float:
    """Return the fraction of rows that are predicted right by a solution fitted to the other folds.

    l2 is chosen within these by leaving rows out, or whole groups; where that cannot be, it is the default.

    Args:
        folds_N: of each row; no fold has all rows.
        groups_N: of each row; None for groups of one row.
    """
    labels_N = np.asarray(labels_N)
    num_right = 0
    for fold in np.unique(folds_N):
        rest, held = np.flatnonzero(folds_N != fold), np.flatnonzero(folds_N == fold)
        groups = None if groups_N is None else groups_N[rest]
        l2 = SWEEP if has_others(labels_N[rest], groups).any() else (DEFAULT_L2,)
        solution = solve_at_best_l2(
            features_ND[rest], labels_N[rest], num_classes=num_classes, l2=l2, groups_N=groups
        )
        (accuracy,) = accuracies(solution, features_ND[held], labels_N[held])
        num_right += round(accuracy * len(held))
    return num_right / len(labels_N)
