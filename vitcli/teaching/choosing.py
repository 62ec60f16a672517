"""The next image to label: first the one that covers the pool best, later the one that changes most answers.

With few labels the next image is the one that adds most to the uncertainty-weighted coverage of the pool
(uncertainty herding, Bae, Oliveira and Sutherland, arXiv 2412.20644):

    coverage = sum_n U(x_n) max_l k(x_n, x_l)              l: labelled images
    k(x, z)  = exp(-|x - z|^2 / radius^2)                  of standardised features of unit length
    radius   = distance of the two closest labelled images, RADIUS at the most

U is the uncertainty of the prediction, 1 minus the difference of the two highest probabilities p. Without two
classes to compare it is 1, so that the first images are those that cover the pool.

From LABELS_PER_CLASS labels per class on it is the image whose label is expected to move the scores of the
pool most (expected model output change, Freytag, Rodner and Denzler, ECCV 2014). A label y_k moves the
scores of the closed form at x_n, by the rank-one update of Sherman and Morrison, by

    change_n = (x_n' A^-1 x) / (1 + x' A^-1 x) (y_k - scores(x)),       A = X'X + l2 I
    gain     = sum_k p_k sum_n |change_n|

Predictions are those of the closed form (`features/least_squares.py`), with the l2 of the smallest squared
error of labels left out; at ten labels leave-one-out accuracy cannot tell one l2 from another. Probabilities
are the softmax of the scores times an inverse temperature, fitted to the left-out scores of all labels
(Guo et al., arXiv 1706.04599). The only image of a class counts as a mistake there: where many classes have
one image, others are likely not to have been seen yet.

Everything is a function of the features, the seed and the labels, never of the order in which these were
given: a label that is taken back leaves no trace. NumPy's last bits depend on its number of threads.

N rows, D features, E = D + 1 inputs of the closed form, K classes with a label, C candidates, L labelled.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from vitcli.evaluation.calibration.scaling import Scaling, softmax_scale
from vitcli.features.label_errors import find_suspects
from vitcli.features.least_squares import Solution, has_others, influences, left_out_scores, solve

STRENGTHS = tuple(2.0**power for power in range(2, 14, 2))
MOST_CANDIDATES = 1000  # of the pool, which stand for it and of which one is chosen; 2,500 were not better
LABELS_PER_CLASS = 10  # on average: below, coverage is as good or better; above, expected change
RADIUS = 1.0  # of unit vectors, whose typical distance is sqrt(2)


@dataclass(frozen=True, eq=False)
class CalibratedFit:
    """What the labels say: the closed form of one l2 on the labelled rows.

    Attributes:
        rows_L: the labelled rows.
        classes_K: the classes that have a label, ascending; columns of the scores.
        scale: inverse temperature of the scores.
    """

    rows_L: np.ndarray
    classes_K: np.ndarray
    solution: Solution
    scale: float

    def probabilities(self, features_ND: np.ndarray) -> np.ndarray:
        """Return the calibrated probability of each of `classes_K`, (N, K)."""
        logits_NK = self.scale * (self.solution.inputs(features_ND) @ self.solution.weights(0))
        return Scaling().probabilities(logits_NK)


class Chooser:
    """Labels of some rows of a pool of images, and what follows from them."""

    def __init__(self, features_ND: np.ndarray, groups_N: np.ndarray | None, *, seed: int = 0) -> None:
        """Start without a label.

        Args:
            features_ND: of frozen weights, finite.
            groups_N: near copies, which are labelled together: one of a group is shown, and none of a group
                of which a row has a label. None where each row is its own group.
        """
        self._features_ND = np.asarray(features_ND, dtype=np.float32)
        num_rows = len(self._features_ND)
        self._labels_N = np.full(num_rows, -1, dtype=np.int64)
        self._fitted: CalibratedFit | None = None  # to the labels of now; None where that is to be done
        # The first row of each group, in an order that only the seed decides.
        groups_N = np.arange(num_rows) if groups_N is None else np.asarray(groups_N)
        self._group_of_row_N = np.unique(groups_N, return_inverse=True)[1]
        order_N = np.random.default_rng(seed).permutation(num_rows)
        firsts_G = np.unique(self._group_of_row_N[order_N], return_index=True)[1]
        self._order_G = order_N[np.sort(firsts_G)]
        # Directions in which an image differs from the mean one; a constant feature has none.
        mean_D, std_D = self._features_ND.mean(axis=0), self._features_ND.std(axis=0)
        self._directions_ND = (self._features_ND - mean_D) / np.where(std_D > 0, std_D, 1)
        self._directions_ND /= np.maximum(np.linalg.norm(self._directions_ND, axis=1, keepdims=True), 1e-6)

    def set_labels(self, rows: Iterable[int], label: int | None) -> None:
        """Give these rows a label, in the place of an earlier one; None takes it back."""
        self._labels_N[list(rows)] = -1 if label is None else label
        self._fitted = None

    def next_row(self, left_out: Collection[int]) -> int | None:
        """Return the row to label next; None if each group has a label or is left out.

        Args:
            left_out: rows that are not to be shown, nor others of their groups.
        """
        groups_G = self._group_of_row_N[self._order_G]
        is_labelled_G = np.isin(groups_G, self._group_of_row_N[self._labels_N >= 0])
        is_left_out_G = np.isin(groups_G, self._group_of_row_N[list(left_out)])
        candidates_C = self._order_G[~is_labelled_G & ~is_left_out_G][:MOST_CANDIDATES]
        if not len(candidates_C):
            return None
        fit, num_labelled = self._fit(), int(is_labelled_G.sum())
        chances_CK = None  # of two classes or more
        if fit is not None and len(fit.classes_K) > 1:
            chances_CK = fit.probabilities(self._features_ND[candidates_C])
        if chances_CK is not None and num_labelled >= LABELS_PER_CLASS * chances_CK.shape[1]:
            gains_C = expected_changes(fit.solution, self._features_ND[candidates_C], chances_CK)
        else:
            labelled_LD = self._directions_ND[self._order_G[is_labelled_G]]
            gains_C = herding_gains(self._directions_ND[candidates_C], labelled_LD, chances_CK)
        return int(candidates_C[gains_C.argmax()])

    def guess(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the classes that have a label, the most probable first, and their probabilities."""
        fit = self._fit()
        if fit is None:
            return np.empty(0, dtype=np.int64), np.empty(0)
        chances_K = fit.probabilities(self._features_ND[[row]])[0]
        order_K = np.argsort(-chances_K, kind="stable")
        return fit.classes_K[order_K], chances_K[order_K]

    def reasons(self, row: int, count: int = 3) -> list[int]:
        """Return labelled rows without which the best class leads least over the second, one of a group.

        The first has the largest influence; rows that speak for the second class are not returned, nor any
        where fewer than two classes have a label. A group counts as a whole.
        """
        fit = self._fit()
        if fit is None or len(fit.classes_K) < 2:
            return []
        best, second = np.searchsorted(fit.classes_K, self.guess(row)[0][:2])
        of_1K = np.zeros((1, len(fit.classes_K)))
        of_1K[0, best], of_1K[0, second] = 1, -1
        inputs_1E = fit.solution.inputs(self._features_ND[[row]])
        influence_L = influences(fit.solution, inputs_1E, of_1K)[0]
        _, firsts, group_of_row_L = np.unique(
            self._group_of_row_N[fit.rows_L], return_index=True, return_inverse=True
        )
        influence_G = np.bincount(group_of_row_L, weights=influence_L)
        top = np.argsort(-influence_G, kind="stable")[:count]
        return fit.rows_L[firsts[top[influence_G[top] > 0]]].tolist()

    def suspects(self) -> list[tuple[int, int, float]]:
        """Return the labelled rows whose label is less probable than another class, by all other groups.

        Each with that class and the probability of its label (`features/label_errors.py`), the smallest
        first; of rows of a group with the same label only the first. A label that is the only one of its
        class is not judged.
        """
        rows_L, classes_K, labels_L, groups_L, features_LD = self._labelled()
        if len(classes_K) < 2 or not has_others(labels_L, groups_L).any():
            return []
        found = find_suspects(features_LD, labels_L, num_classes=len(classes_K), groups_N=groups_L)
        suspects, seen = [], set()
        for i, other, chance, other_chance in zip(
            found.rows_N.tolist(), found.other_N, found.label_N, found.other_probability_N, strict=True
        ):
            if chance < other_chance and (groups_L[i], labels_L[i]) not in seen:
                seen.add((groups_L[i], labels_L[i]))
                suspects.append((int(rows_L[i]), int(classes_K[other]), float(chance)))
        return suspects

    def _labelled(self) -> tuple[np.ndarray, ...]:
        """Return the labelled rows (L,), their classes (K,), and label, group and features of each row."""
        rows_L = np.flatnonzero(self._labels_N >= 0)
        classes_K, labels_L = np.unique(self._labels_N[rows_L], return_inverse=True)
        return rows_L, classes_K, labels_L, self._group_of_row_N[rows_L], self._features_ND[rows_L]

    def _fit(self) -> CalibratedFit | None:
        """Return the closed form on the labels of now; None without a label."""
        if self._fitted is None and (self._labels_N >= 0).any():
            rows_L, classes_K, labels_L, groups_L, features_LD = self._labelled()
            num_classes = len(classes_K)
            solution = solve(features_LD, labels_L, num_classes=num_classes, l2=STRENGTHS, groups_N=groups_L)
            # Left-out scores at each l2: those with the smallest squared error set the temperature.
            targets_LK = 2.0 * (labels_L[:, None] == np.arange(num_classes)) - 1
            scores = [left_out_scores(solution, i) for i in range(len(STRENGTHS))]
            best = int(np.argmin([np.square(scores_LK - targets_LK).sum() for scores_LK in scores]))
            solution = replace(solution, l2=(STRENGTHS[best],))
            scale = softmax_scale(scores[best], labels_L)
            self._fitted = CalibratedFit(rows_L, classes_K, solution, scale)
        return self._fitted


def herding_gains(
    candidates_CD: np.ndarray, labelled_LD: np.ndarray, chances_CK: np.ndarray | None
) -> np.ndarray:
    """Return how much each candidate would add to the uncertainty-weighted coverage of all candidates, (C,).

        gain_c = sum_n U(x_n) max(0, k(x_n, x_c) - max_l k(x_n, x_l))

    Args:
        candidates_CD, labelled_LD: float32 of unit length; no row of either may be labelled.
        chances_CK: probabilities of the candidates; None where all are as uncertain.
    """
    uncertainty_C = np.ones(len(candidates_CD), dtype=np.float32)
    if chances_CK is not None:
        second_C, best_C = np.sort(chances_CK, axis=1)[:, -2:].T
        uncertainty_C = (1 - (best_C - second_C)).astype(np.float32)
    radius, nearest_C = RADIUS, np.full(len(candidates_CD), np.inf, dtype=np.float32)
    if len(labelled_LD):
        nearest_C = (2 - 2 * candidates_CD @ labelled_LD.T).min(axis=1)
    if len(labelled_LD) > 1:
        cosines_LL = labelled_LD @ labelled_LD.T
        np.fill_diagonal(cosines_LL, -1)
        radius = min(RADIUS, float(np.sqrt(max(2 - 2 * cosines_LL.max(), 1e-6))))
    # Kernels in place: the matrix is the largest array of a click.
    kernel_CC = candidates_CD @ candidates_CD.T
    kernel_CC -= 1
    kernel_CC *= 2 / radius**2
    np.exp(kernel_CC, out=kernel_CC)
    kernel_CC -= np.exp(-nearest_C / radius**2)
    np.maximum(kernel_CC, 0, out=kernel_CC)
    return kernel_CC @ uncertainty_C


def expected_changes(solution: Solution, features_CD: np.ndarray, chances_CK: np.ndarray) -> np.ndarray:
    """Return how much the label of each candidate is expected to move the scores of all candidates, (C,).

    Args:
        solution: of one l2; its rows are without balance.
        chances_CK: probabilities of the candidates.
    """
    (l2,) = solution.l2
    # x_n' A^-1 x_c of all pairs.
    inputs_CE = solution.inputs(features_CD)
    square_EE = solution.inputs_NE.T @ solution.inputs_NE
    square_EE[np.diag_indices_from(square_EE)] += l2
    solved_EC = np.linalg.solve(square_EE, inputs_CE.T).astype(np.float32)
    changes_CC = inputs_CE.astype(np.float32) @ solved_EC
    own_C = changes_CC.diagonal().copy()
    # |y_k - s|^2 for each class: of the K squares (s + 1)^2 that of class k is (s - 1)^2 in its place.
    scores_CK = inputs_CE @ solution.weights(0)
    squares_CK = np.square(scores_CK + 1).sum(axis=1, keepdims=True) - 4 * scores_CK
    residual_C = (chances_CK * np.sqrt(np.maximum(squares_CK, 0))).sum(axis=1)
    return np.abs(changes_CC, out=changes_CC).sum(axis=0) / (1 + own_C) * residual_C
