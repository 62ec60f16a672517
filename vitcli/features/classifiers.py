"""Further classifiers of frozen features: nearest neighbours, nearest mean, logistic regression.

Their hyper-parameters are chosen on the fitted rows alone, by leaving some of them out: whole groups, where
there are any. `groups_N` is the group of each fitted row, None without groups.

N fitted rows, T rows to classify, D features, K classes.
"""

import importlib.util
import warnings
from collections.abc import Sequence

import numpy as np

from vitcli.data.parts.group_assignment import GroupCounts, held_out_rows
from vitcli.errors import VitError, pip_install
from vitcli.features.least_squares import STD_ADDED, has_others, parts

NEIGHBOURS = (1, 3, 5, 10, 20)
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # scikit-learn's C, the inverse of the regularisation
DEFAULT_STRENGTH = 1.0  # scikit-learn's default, where nothing can be left out
HELD_OUT = 0.25  # of each class


def nearest_neighbours(
    fitted_ND: np.ndarray, labels_N: np.ndarray, tests_TD, *, num_classes: int, groups_N: np.ndarray | None
) -> tuple[np.ndarray, int]:
    """Classify by the vote of the nearest rows by cosine similarity.

    Returns:
        Classes (T,), and the number of neighbours: that of NEIGHBOURS with the best leave-one-out accuracy,
        the smaller of equals. Equal votes are decided by the larger sum of similarities.
    """
    unit_ND = _unit(fitted_ND)
    counts = [count for count in NEIGHBOURS if count < len(unit_ND)] or [1]
    chosen = counts[0]
    if len(counts) > 1 and has_others(labels_N, groups_N).any():
        groups_N = np.arange(len(labels_N)) if groups_N is None else groups_N
        left_out = _votes(unit_ND, labels_N, unit_ND, counts, num_classes=num_classes, left_out_N=groups_N)
        num_correct = [(left_out[count] == labels_N).sum() for count in counts]
        chosen = counts[int(np.argmax(num_correct))]
    votes = _votes(unit_ND, labels_N, tests_TD, [chosen], num_classes=num_classes, left_out_N=None)
    return votes[chosen], chosen


def nearest_mean(
    fitted_ND: np.ndarray, labels_N: np.ndarray, tests_TD, *, num_classes: int, groups_N: np.ndarray | None
) -> tuple[np.ndarray, None]:
    """Classify by the cosine similarity with the mean unit feature of each class: classes (T,), and None."""
    sums_KD = np.zeros((num_classes, fitted_ND.shape[1]))
    np.add.at(sums_KD, labels_N, _unit(fitted_ND))
    means_KD = _unit(sums_KD)
    is_empty_K = np.bincount(labels_N, minlength=num_classes) == 0
    predicted = []
    for rows in parts(len(tests_TD), max(num_classes, fitted_ND.shape[1])):
        cosine_TK = _unit(tests_TD[rows]) @ means_KD.T
        cosine_TK[:, is_empty_K] = -np.inf
        predicted.append(cosine_TK.argmax(axis=1))
    return np.concatenate(predicted), None


def logistic(
    fitted_ND: np.ndarray, labels_N: np.ndarray, tests_TD, *, num_classes: int, groups_N: np.ndarray | None
) -> tuple[np.ndarray, float]:
    """Classify by multinomial logistic regression on standardised features.

    Returns:
        Classes (T,), and C: that of STRENGTHS with the highest likelihood of held-out rows, a quarter of each
        class (accuracy would be equal for many), or 1 with one row or group per class. The fit then uses all
        rows.

    Raises:
        VitError: scikit-learn is not installed.
    """
    check_installed("logistic")
    fitted_ND = np.asarray(fitted_ND, dtype=np.float64)
    mean_D, std_D = fitted_ND.mean(axis=0), fitted_ND.std(axis=0) + STD_ADDED
    fitted_ND = (fitted_ND - mean_D) / std_D
    if len(np.unique(labels_N)) == 1:
        return np.full(len(tests_TD), labels_N[0]), DEFAULT_STRENGTH
    chosen, held_N = DEFAULT_STRENGTH, _held_out(labels_N, groups_N)
    if held_N.any():
        fits = (_fitted(fitted_ND[~held_N], labels_N[~held_N], strength) for strength in STRENGTHS)
        likelihoods = [_log_likelihood(fit, fitted_ND[held_N], labels_N[held_N]) for fit in fits]
        chosen = STRENGTHS[int(np.argmax(likelihoods))]
    fit = _fitted(fitted_ND, labels_N, chosen)
    pieces = parts(len(tests_TD), max(num_classes, fitted_ND.shape[1]))
    return np.concatenate([fit.predict((tests_TD[rows] - mean_D) / std_D) for rows in pieces]), chosen


BY_NAME = {"knn": nearest_neighbours, "ncm": nearest_mean, "logistic": logistic}


def check_installed(classifier: str) -> None:
    """Refuse logistic regression without scikit-learn, before anything is computed."""
    if classifier == "logistic" and importlib.util.find_spec("sklearn") is None:
        raise VitError(
            "logistic regression needs scikit-learn, which is not installed",
            where="--classifier logistic",
            fix=f"{pip_install('vitcli[fewshot]')}; the other classifiers need no further package",
        )


def _votes(
    unit_ND: np.ndarray,
    labels_N: np.ndarray,
    tests_TD,
    counts: Sequence[int],
    *,
    num_classes: int,
    left_out_N: np.ndarray | None,
) -> dict[int, np.ndarray]:
    """Return the classes (T,) by number of neighbours, for all numbers in one pass over the tests.

    Args:
        left_out_N: groups of the fitted rows, which are then the tests too, each without its group.
    """
    predicted: dict[int, list[np.ndarray]] = {count: [] for count in counts}
    most = max(counts)
    for rows in parts(len(tests_TD), max(len(unit_ND), num_classes, unit_ND.shape[1])):
        cosine_TN = _unit(tests_TD[rows]) @ unit_ND.T
        each_T = np.arange(len(cosine_TN))
        if left_out_N is not None:
            cosine_TN[left_out_N[rows, None] == left_out_N] = -np.inf
        # The sort is stable: of equally near rows the earlier comes first, whatever the size of the part.
        nearest_TC = np.argsort(-cosine_TN, axis=1, kind="stable")[:, :most]
        votes_TK = np.zeros((len(cosine_TN), num_classes))
        for i in range(most):
            neighbour_T = nearest_TC[:, i]
            # A vote weighs more than all cosines together, which decide between equal votes.
            vote_T = 2 * most + 1 + cosine_TN[each_T, neighbour_T]
            votes_TK[each_T, labels_N[neighbour_T]] += vote_T.clip(0)  # of a row that is left out none
            if i + 1 in predicted:
                predicted[i + 1].append(votes_TK.argmax(axis=1))
    return {count: np.concatenate(classes) for count, classes in predicted.items()}


def _held_out(labels_N: np.ndarray, groups_N: np.ndarray | None) -> np.ndarray:
    """Hold out HELD_OUT of the rows of each class (N,), whole groups, so that no class loses all."""
    if not has_others(labels_N, groups_N).any():
        return np.zeros(len(labels_N), dtype=bool)
    order_N = np.arange(len(labels_N))
    groups_N = order_N if groups_N is None else np.unique(groups_N, return_inverse=True)[1]
    counts = GroupCounts(groups_N, labels_N, order_N=order_N)
    none_G = np.zeros(counts.num_groups, dtype=bool)
    return held_out_rows(counts, HELD_OUT, last_G=none_G, every_class=True)


def _fitted(fitted_ND: np.ndarray, labels_N: np.ndarray, strength: float):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():  # of the weakest regularisation, which is not chosen then
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, max_iter=1000).fit(fitted_ND, labels_N)


def _log_likelihood(fit, rows_ND: np.ndarray, labels_N: np.ndarray) -> float:
    """Return the mean log-likelihood of rows; `_held_out` guarantees that all their classes were fitted."""
    columns_N = np.searchsorted(fit.classes_, labels_N)
    return float(fit.predict_log_proba(rows_ND)[np.arange(len(labels_N)), columns_N].mean())


def _unit(rows_ND) -> np.ndarray:
    rows_ND = np.asarray(rows_ND, dtype=np.float64)
    return rows_ND / np.maximum(np.linalg.norm(rows_ND, axis=1, keepdims=True), 1e-12)
