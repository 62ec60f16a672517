"""Classifiers of frozen features beside least squares: nearest neighbours, nearest mean, logistic regression.

What each has to choose, it chooses on the fitted rows alone, by leaving some of them out.

N fitted rows, T rows to classify, D features, K classes.
"""

import importlib.util
import warnings
from collections.abc import Sequence

import numpy as np

from vitcli.errors import VitError
from vitcli.features.least_squares import STD_ADDED, parts

NEIGHBOURS = (1, 3, 5, 10, 20)
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # scikit-learn's C, the inverse of the regularisation
USUAL_STRENGTH = 1.0  # scikit-learn's own, where nothing can be left out
HELD_OUT = 4  # one of so many rows of each class


def nearest_neighbours(
    known_ND: np.ndarray, labels_N: np.ndarray, tests_TD, *, num_classes: int
) -> tuple[np.ndarray, int]:
    """Classes by the vote of the nearest rows by cosine, (T,), and how many neighbours vote.

    The number is that of NEIGHBOURS with most rows right when each is left out, the smaller of equals. A draw
    of votes goes to the class with the nearer ones.
    """
    unit_ND = _unit(known_ND)
    counts = [count for count in NEIGHBOURS if count < len(unit_ND)] or [1]
    chosen = counts[0]
    if len(counts) > 1 and np.bincount(labels_N).max() > 1:
        left_out = _votes(unit_ND, labels_N, unit_ND, counts, num_classes=num_classes, leave_self_out=True)
        right = [(left_out[count] == labels_N).sum() for count in counts]
        chosen = counts[int(np.argmax(right))]
    votes = _votes(unit_ND, labels_N, tests_TD, [chosen], num_classes=num_classes, leave_self_out=False)
    return votes[chosen], chosen


def nearest_mean(
    known_ND: np.ndarray, labels_N: np.ndarray, tests_TD, *, num_classes: int
) -> tuple[np.ndarray, None]:
    """Classes whose mean of unit features is nearest by cosine, (T,); there is nothing to choose."""
    sums_KD = np.zeros((num_classes, known_ND.shape[1]))
    np.add.at(sums_KD, labels_N, _unit(known_ND))
    means_KD = _unit(sums_KD)
    is_empty_K = np.bincount(labels_N, minlength=num_classes) == 0
    found = []
    for rows in parts(len(tests_TD), max(num_classes, known_ND.shape[1])):
        near_TK = _unit(tests_TD[rows]) @ means_KD.T
        near_TK[:, is_empty_K] = -np.inf
        found.append(near_TK.argmax(axis=1))
    return np.concatenate(found), None


def logistic(
    known_ND: np.ndarray, labels_N: np.ndarray, tests_TD, *, num_classes: int
) -> tuple[np.ndarray, float]:
    """Classes by multinomial logistic regression on standardised features, (T,), and its C.

    C is the one of STRENGTHS that gives a quarter of each class's rows, held out, the highest likelihood:
    accuracy alone would be equal for many. The fit is then of all rows. With one row a class C is 1.

    Raises:
        VitError: scikit-learn is not installed.
    """
    check_installed("logistic")
    known_ND = np.asarray(known_ND, dtype=np.float64)
    mean_D, std_D = known_ND.mean(axis=0), known_ND.std(axis=0) + STD_ADDED
    known_ND = (known_ND - mean_D) / std_D
    if len(np.unique(labels_N)) == 1:
        return np.full(len(tests_TD), labels_N[0]), USUAL_STRENGTH
    chosen, held_N = USUAL_STRENGTH, _held_out(labels_N)
    if held_N.any():
        fits = (_fitted(known_ND[~held_N], labels_N[~held_N], strength) for strength in STRENGTHS)
        likely = [_log_likelihood(fit, known_ND[held_N], labels_N[held_N]) for fit in fits]
        chosen = STRENGTHS[int(np.argmax(likely))]
    fit = _fitted(known_ND, labels_N, chosen)
    pieces = parts(len(tests_TD), max(num_classes, known_ND.shape[1]))
    return np.concatenate([fit.predict((tests_TD[rows] - mean_D) / std_D) for rows in pieces]), chosen


def check_installed(classifier: str) -> None:
    """Refuse logistic regression where scikit-learn is not there, before anything is computed."""
    if classifier == "logistic" and importlib.util.find_spec("sklearn") is None:
        raise VitError(
            "logistic regression needs scikit-learn, which is not installed",
            where="--classifier logistic",
            fix="pip install 'vitcli[fewshot]'; the other classifiers need nothing more",
        )


def _votes(
    unit_ND: np.ndarray,
    labels_N: np.ndarray,
    tests_TD,
    counts: Sequence[int],
    *,
    num_classes: int,
    leave_self_out: bool,
) -> dict[int, np.ndarray]:
    """By number of neighbours, the classes they vote for; all numbers in one pass over the tests."""
    found: dict[int, list[np.ndarray]] = {count: [] for count in counts}
    most = max(counts)
    for rows in parts(len(tests_TD), max(len(unit_ND), num_classes, unit_ND.shape[1])):
        near_TN = _unit(tests_TD[rows]) @ unit_ND.T
        each_T = np.arange(len(near_TN))
        if leave_self_out:
            near_TN[each_T, rows.start + each_T] = -np.inf
        # A stable order, so that of equally near rows the earlier counts, whatever the size of the part.
        nearest_TC = np.argsort(-near_TN, axis=1, kind="stable")[:, :most]
        votes_TK = np.zeros((len(near_TN), num_classes))
        for place in range(most):
            neighbour_T = nearest_TC[:, place]
            # A vote outweighs all the nearness there can be, which decides between equal votes.
            votes_TK[each_T, labels_N[neighbour_T]] += 2 * most + 1 + near_TN[each_T, neighbour_T]
            if place + 1 in found:
                found[place + 1].append(votes_TK.argmax(axis=1))
    return {count: np.concatenate(parts) for count, parts in found.items()}


def _held_out(labels_N: np.ndarray) -> np.ndarray:
    """Every HELD_OUT-th row of each class, from its second on, so that no class loses all; (N,) bool."""
    seen: dict[int, int] = {}
    held_N = np.zeros(len(labels_N), dtype=bool)
    for place, label in enumerate(labels_N.tolist()):
        held_N[place] = seen.get(label, 0) % HELD_OUT == 1
        seen[label] = seen.get(label, 0) + 1
    return held_N


def _fitted(known_ND: np.ndarray, labels_N: np.ndarray, strength: float):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of the weakest, which then is not chosen
        return LogisticRegression(C=strength, max_iter=1000).fit(known_ND, labels_N)


def _log_likelihood(fit, rows_ND: np.ndarray, labels_N: np.ndarray) -> float:
    """Mean over rows whose classes were all fitted, which `_held_out` sees to."""
    columns_N = np.searchsorted(fit.classes_, labels_N)
    return float(fit.predict_log_proba(rows_ND)[np.arange(len(labels_N)), columns_N].mean())


def _unit(rows_ND) -> np.ndarray:
    rows_ND = np.asarray(rows_ND, dtype=np.float64)
    return rows_ND / np.maximum(np.linalg.norm(rows_ND, axis=1, keepdims=True), 1e-12)
