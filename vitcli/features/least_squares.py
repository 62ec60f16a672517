"""Few-shot classification in closed form: ridge regression from features to targets of -1 and 1.

The paper (section 4.1) says "regularized least-squares regression ... exact solution in closed form" and no
more. Support sets, standardisation, bias and default strength are those of the authors' evaluator
(big_vision, evaluators/fewshot_lsr.py), here in float64:

    X = [(features - mean) / (std + 1e-5), 100]       (N, E), mean and std over the N rows
    Y = 2 onehot(labels) - 1                          (N, K)
    W = (X'X + l2 I)^-1 X'Y      where N >= E         (E, K)
      = X'(XX' + l2 I)^-1 Y      where N < E
    prediction = argmax X_test W

Both forms are equal; the one with the smaller matrix is used. One eigendecomposition serves every l2:

    X'X = V diag(e) V'   =>   W = V diag(1 / (e + l2)) V'X'Y        likewise for XX'

The residual of a row when it is left out follows without a refit (Allen's PRESS):

    H = X (X'X + l2 I)^-1 X',    residual_i = (y_i - (HY)_i) / (1 - H_ii)

and those of the rows g of a group, such as the photographs of one object, when all of them are left out:

    residual_g = (I - H_gg)^-1 (Y - HY)_g

With `balance`, the squared error of row i has a weight w_i that falls with the size of its class, see
`data.balance`; the authors' evaluator has none. Row i of X and of Y is then sqrt(w_i) times the above, which
leaves all formulas as they are; its score when it is left out is divided by sqrt(w_i) again.

NumPy on purpose: with two threads on a busy machine torch's `eigh` of 769 columns took 0.3 to 12 s, NumPy's
0.1 to 0.7 s.

N rows, M others, D features, E = D + 1 columns of X, R = min(N, E), K classes, L values of l2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vitcli.data.balance import class_weights
from vitcli.errors import DataError, VitError

STD_ADDED = 1e-5
BIAS = 100.0  # so large that l2 hardly affects the weight of the bias
DEFAULT_L2 = 1024.0
SWEEP = tuple(2.0**power for power in range(-10, 20))  # l2 of the authors' older configurations
CHUNK_VALUES = 2**24  # float64 values of the largest array while rows are scored: 128 MB

Array = np.ndarray | Tensor


@dataclass(frozen=True, eq=False)
class Solution:
    """Decomposed least-squares problem: the solution for every l2.

    Attributes:
        l2: the strengths; `which` below is an index into this tuple.
        mean_D, std_D: standardisation of the features.
        inputs_NE, labels_N: X, its rows times `root_weights_N1`, and the labels of the fitted rows.
        root_weights_N1: sqrt(w_i) of each row; 1 without balance.
        groups_N: the group of each row, which is left out as a whole; each row its own without groups.
        eigenvalues_R, vectors_RR: of X'X where N >= E, else of XX'.
        projected_RK: V'X'Y, or V'Y where N < E.
    """

    l2: tuple[float, ...]
    mean_D: np.ndarray
    std_D: np.ndarray
    inputs_NE: np.ndarray
    labels_N: np.ndarray
    root_weights_N1: np.ndarray
    groups_N: np.ndarray
    eigenvalues_R: np.ndarray
    vectors_RR: np.ndarray
    projected_RK: np.ndarray

    @property
    def num_classes(self) -> int:
        return self.projected_RK.shape[1]

    @property
    def is_tall(self) -> bool:
        """Return True if N >= E and the decomposition is that of X'X."""
        return len(self.vectors_RR) == self.inputs_NE.shape[1]

    @property
    def is_scored_N(self) -> np.ndarray:
        """Which rows can be right without their group, (N,) bool: their class has a row in another one."""
        return has_others(self.labels_N, self.groups_N)

    def weights(self, which: int) -> np.ndarray:
        """Return W (E, K) for one l2, float64, the bias last."""
        damped_RK = self.projected_RK / (self.eigenvalues_R + self.l2[which])[:, None]
        solved_RK = self.vectors_RR @ damped_RK
        return solved_RK if self.is_tall else self.inputs_NE.T @ solved_RK

    def inputs(self, features_ND: Array, first_row: int = 0) -> np.ndarray:
        """Return X (N, E), float64, of other rows.

        Raises:
            DataError: a feature is not a finite number; rows are numbered from `first_row` in the message.
        """
        return _inputs(_finite(features_ND, first_row), self.mean_D, self.std_D)


def draw_shots(
    labels_N: Array,
    *,
    num_classes: int,
    shots: Sequence[int],
    seed: int,
    groups_N: np.ndarray | None = None,
) -> dict[int, np.ndarray]:
    """Draw the support sets of the authors' evaluator: rows by number of shots, class after class.

    One generator for each seed permutes the rows of class 0, 1, ...; k shots are the first k of each. So
    fewer shots are a subset of more, and a class with fewer images than shots gives all.

    Args:
        groups_N: of each row. Of a class then whole groups are drawn, in the order of their first rows: as
            many as k rows have place for, one at the least.

    Raises:
        VitError: a number of shots is below 1.
        DataError: no rows, or a label outside the classes.
    """
    if not shots or min(shots) < 1:
        raise VitError(
            f"{min(shots, default='no')} shots are too few to fit a class",
            where="shots per class",
            fix="take 1 or more",
        )
    labels_N = _labels(labels_N, num_classes)
    by_class_N = np.argsort(labels_N, kind="stable")
    ends_K = np.cumsum(np.bincount(labels_N, minlength=num_classes))
    rng = np.random.default_rng(seed)
    permuted = [rng.permutation(rows) for rows in np.split(by_class_N, ends_K[:-1])]
    if groups_N is None:
        return {count: np.concatenate([rows[:count] for rows in permuted]) for count in shots}
    return {
        count: np.concatenate([_whole_groups(rows, groups_N[rows], count) for rows in permuted])
        for count in shots
    }


def _whole_groups(rows: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of the first whole groups, `count` at most, or of the first group alone."""
    firsts, sizes = np.unique(groups, return_index=True, return_counts=True)[1:]
    order = np.argsort(firsts)
    num_groups = max(1, np.searchsorted(np.cumsum(sizes[order]), count, side="right"))
    return np.concatenate([rows[groups == groups[first]] for first in firsts[order][:num_groups]])


def solve(
    features_ND: Array,
    labels_N: Array,
    *,
    num_classes: int,
    l2: Sequence[float],
    groups_N: np.ndarray | None,
    balance: str = "none",
) -> Solution:
    """Solve the least-squares problem in float64 from features of any float dtype.

    A class without a row gets the score -1 everywhere.

    Args:
        groups_N: of each row, see `Solution`; None without groups.
        balance: "full" gives all classes the same weight in the squared error, "sqrt" the root of their
            sizes; the weights of all rows have the mean 1, so that l2 keeps its scale.

    Raises:
        VitError: an l2 is not positive, or lost in rounding errors: without l2 the solution is not unique
            where rows or features repeat.
        DataError: no rows, a label outside the classes, or a feature that is not a finite number.
    """
    labels_N = _labels(labels_N, num_classes)
    features_ND = _finite(features_ND)
    # Mean and population deviation of each feature, as differences from the first row: a constant feature
    # then becomes exactly 0. A rounding error, divided by 1e-5, would be a column with a weight.
    mean_D = features_ND[0] + (features_ND - features_ND[0]).mean(axis=0)
    std_D = np.sqrt(np.square(features_ND - mean_D).mean(axis=0)) + STD_ADDED
    inputs_NE = _inputs(features_ND, mean_D, std_D)
    # Each row times the root of its weight in the squared error.
    counts_K = np.bincount(labels_N, minlength=num_classes)
    root_weights_N1 = np.sqrt(class_weights(counts_K, balance))[labels_N, None]
    inputs_NE *= root_weights_N1

    # The smaller of X'X and XX' is decomposed.
    is_tall = inputs_NE.shape[0] >= inputs_NE.shape[1]
    square_RR = inputs_NE.T @ inputs_NE if is_tall else inputs_NE @ inputs_NE.T
    eigenvalues_R, vectors_RR = np.linalg.eigh(square_RR)
    _check_l2(l2, eigenvalues_R)

    # V'X'Y where N >= E, else V'Y; the roots of the weights in Y go to its left factor.
    left_NR = inputs_NE if is_tall else vectors_RR
    left_NR = left_NR if balance == "none" else left_NR * root_weights_N1
    projected_RK = _times_targets(left_NR, labels_N, num_classes)
    if is_tall:
        vectors_RR[~inputs_NE.any(axis=0)] = 0  # exactly 0 for a constant feature, whatever a test row has
        projected_RK = vectors_RR.T @ projected_RK
    groups_N = np.arange(len(labels_N)) if groups_N is None else groups_N
    return Solution(
        l2=tuple(map(float, l2)),
        mean_D=mean_D,
        std_D=std_D,
        inputs_NE=inputs_NE,
        labels_N=labels_N,
        root_weights_N1=root_weights_N1,
        groups_N=groups_N,
        eigenvalues_R=eigenvalues_R,
        vectors_RR=vectors_RR,
        projected_RK=projected_RK,
    )


def accuracies(solution: Solution, features_ND: Array, labels_N: Array) -> np.ndarray:
    """Return the top-1 accuracy (L,), float64, at each l2.

    Among equal scores the lower class counts. Rows are read from `features_ND` in parts, so that it may be a
    memory map.

    Raises:
        DataError: no rows, a label outside the classes, or a feature that is not a finite number.
    """
    labels_N = _labels(labels_N, solution.num_classes)
    assert len(features_ND) == len(labels_N), "one label for each row"
    num_l2 = len(solution.l2)
    weights_EM = np.concatenate([solution.weights(i) for i in range(num_l2)], axis=1)  # M = L * K
    hits_L = np.zeros(num_l2, dtype=np.int64)
    for rows in parts(len(labels_N), max(weights_EM.shape)):
        scores_NM = solution.inputs(features_ND[rows], rows.start) @ weights_EM
        best_NL = scores_NM.reshape(-1, num_l2, solution.num_classes).argmax(axis=2)
        hits_L += (best_NL == labels_N[rows, None]).sum(axis=0)
    return hits_L / len(labels_N)


def left_out_scores(solution: Solution, which: int = 0) -> np.ndarray:
    """Return the scores of each fitted row by the weights of all rows of other groups, (N, K), at one l2."""
    scores_NK = np.empty((len(solution.labels_N), solution.num_classes))
    for rows, scores_M1K in _left_out(replace(solution, l2=(solution.l2[which],))):
        scores_NK[rows] = scores_M1K[:, 0]
    return scores_NK


def left_out_hits(solution: Solution) -> np.ndarray:
    """Return whether each row is right when its group is left out, at each l2: (N, L) bool.

    A row whose class has no row in another group is predicted wrong.
    """
    hits_NL = np.zeros((len(solution.labels_N), len(solution.l2)), dtype=bool)
    for rows, scores_MLK in _left_out(solution):
        hits_NL[rows] = scores_MLK.argmax(axis=2) == solution.labels_N[rows, None]
    return hits_NL & solution.is_scored_N[:, None]


def left_out_accuracies(solution: Solution) -> np.ndarray:
    """Return the accuracy of rows left out at each l2, (L,) float64; a class of one group is not counted.

    Each row counts with its weight: with balance "full" this is the mean of the accuracies per class.

    Raises:
        VitError: every class has a single row or group.
    """
    if not solution.is_scored_N.any():
        raise VitError(
            "with one image or group per class, l2 cannot be chosen by leaving one out",
            where="leave-one-out choice of l2",
            fix=f"give l2 (the authors' evaluator has {DEFAULT_L2:g}), or take 2 shots or more",
        )
    weights_N = np.where(solution.is_scored_N, solution.root_weights_N1[:, 0] ** 2, 0.0)
    return weights_N @ left_out_hits(solution) / weights_N.sum()


def choose_l2(solution: Solution) -> int:
    """Return the index of the l2 with the best accuracy of rows left out; the largest of equals.

    Test rows are not used. The "leave-self-out" of the authors' older evaluators is different: it ranks the
    l2 by test accuracy on the other data sets.

    Raises:
        VitError: every class has a single row or group.
    """
    accuracy_L = left_out_accuracies(solution).round(12)  # sums of weights have rounding errors
    return max(range(len(accuracy_L)), key=lambda i: (accuracy_L[i], solution.l2[i]))


def at_best_l2(solution: Solution) -> Solution:
    """Return the solution of one l2: that which `choose_l2` takes, or the only one."""
    which = choose_l2(solution) if len(solution.l2) > 1 else 0
    return replace(solution, l2=(solution.l2[which],))


def as_layer(
    solution: Solution, weights_EK: np.ndarray, *, scale: float, offset: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (D, K) and bias (K,) of the layer whose logits are scale * scores + offset.

    Args:
        weights_EK: W of the closed form, which reads standardised features; the layer reads features.
    """
    weight_DK = scale * weights_EK[:-1] / solution.std_D[:, None]
    moved_K = (solution.mean_D[:, None] * weight_DK).sum(axis=0)
    return weight_DK, scale * BIAS * weights_EK[-1] + offset - moved_K


def in_float32(weight_DK: np.ndarray, bias_K: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return the weight (K, D) and the bias (K,) of a layer as torch has them."""
    weight_KD = np.ascontiguousarray(weight_DK.T, dtype=np.float32)
    return torch.from_numpy(weight_KD), torch.from_numpy(bias_K.astype(np.float32))


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
        solution = solve(features_ND[rest], labels_N[rest], num_classes=num_classes, l2=l2, groups_N=groups)
        (accuracy,) = accuracies(at_best_l2(solution), features_ND[held], labels_N[held])
        num_right += round(accuracy * len(held))
    return num_right / len(labels_N)


def influences(solution: Solution, inputs_ME: np.ndarray, of_MK: np.ndarray) -> np.ndarray:
    """Return how much each training row adds to combinations of scores, (M, N) float64; of a group its part.

    The scores of an image x are x W with W = A^-1 X'Y and A = X'X + l2 I. Without training row i the matrix
    is W - A^-1 x_i (y_i - score_i), where score_i is what the others predict for row i (rank-one update of
    A^-1, Sherman and Morrison). So the influence of the row, the scores of x less those without it, is

        influence_i = (x' A^-1 x_i) (y_i - score_i)             x' A^-1 X' = x' X' G where N < E

    Where score_i is without the whole group of the row, the influences of the rows of a group add up to that
    of the group: the scores of x less those without all of them (the same update by several rows, Woodbury).

    Args:
        solution: of one l2.
        inputs_ME: `solution.inputs` of M images to score.
        of_MK: factors of the scores for each of them: 1 for a class and -1 for another one give their margin.
    """
    (l2,) = solution.l2
    # x' A^-1 x_i, both forms from the same decomposition.
    basis_ER = solution.vectors_RR if solution.is_tall else solution.inputs_NE.T @ solution.vectors_RR
    left_MR = inputs_ME @ basis_ER
    right_NR = solution.inputs_NE @ solution.vectors_RR if solution.is_tall else solution.vectors_RR
    kernel_MN = (left_MR / (solution.eigenvalues_R + l2)) @ right_NR.T
    # y_i - score_i: a row and its target have the root of the row's weight.
    targets_NK = 2.0 * (solution.labels_N[:, None] == np.arange(solution.num_classes)) - 1
    residuals_NK = (targets_NK - left_out_scores(solution)) * solution.root_weights_N1
    return kernel_MN * (of_MK @ residuals_NK.T)


def has_others(labels_N: np.ndarray, groups_N: np.ndarray | None) -> np.ndarray:
    """Return whether the class of each row has a row in another group, (N,) bool."""
    groups_N = np.arange(len(labels_N)) if groups_N is None else groups_N
    pairs = np.unique(np.stack([labels_N, groups_N]), axis=1)
    return np.bincount(pairs[0], minlength=labels_N.max() + 1)[labels_N] > 1


def _left_out(solution: Solution) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield fitted rows (M,) and their scores (M, L, K) by the weights of the other groups, without a refit.

        where N >= E:  score_g = y_g - (I - H_gg)^-1 (Y - HY)_g
        where N < E:   score_g = y_g - G_gg^-1 (GY)_g,  G = (XX' + l2 I)^-1

    The second form is the first with I - H = l2 G, without its cancellation. Mean, standard deviation and
    the weights of classes remain those of all rows.
    """
    damping_RL = 1 / (solution.eigenvalues_R[:, None] + np.array(solution.l2))
    damped_RLK = damping_RL[:, :, None] * solution.projected_RK[:, None]
    width = max(len(solution.l2) * solution.num_classes, len(solution.vectors_RR))
    for rows_GM in _groups_of_equal_size(solution.groups_N, width):
        rows = rows_GM.ravel()
        # (HY)_g or (GY)_g of each group; the residuals of its rows at each l2.
        if solution.is_tall:
            basis_NR = solution.inputs_NE[rows] @ solution.vectors_RR
        else:
            basis_NR = solution.vectors_RR[rows]
        product_NM = basis_NR @ damped_RLK.reshape(len(damped_RLK), -1)
        product_NLK = product_NM.reshape(-1, *damped_RLK.shape[1:])
        targets_N1K = 2.0 * (solution.labels_N[rows, None, None] == np.arange(solution.num_classes)) - 1
        root_N11 = solution.root_weights_N1[rows, :, None]
        right_NLK = root_N11 * targets_N1K - product_NLK if solution.is_tall else product_NLK
        basis_GMR = basis_NR.reshape(*rows_GM.shape, -1)
        for i, damping_R in enumerate(damping_RL.T):
            right_GMK = right_NLK[:, i].reshape(*rows_GM.shape, -1)
            solved_GMK = _solved(basis_GMR, damping_R, right_GMK, is_tall=solution.is_tall)
            right_NLK[:, i] = solved_GMK.reshape(len(rows), -1)
        yield rows, targets_N1K - right_NLK / root_N11


def _solved(
    basis_GMR: np.ndarray, damping_R: np.ndarray, right_GMK: np.ndarray, *, is_tall: bool
) -> np.ndarray:
    """Return (I - H_gg)^-1 right of each group where N >= E, else G_gg^-1 right.

    H_gg or G_gg is basis diag(damping) basis'. Of more rows than columns the smaller matrix is solved:

        (I - B D B')^-1 = I + B (D^-1 - B'B)^-1 B'                  (Woodbury)
    """
    num_rows, num_columns = basis_GMR.shape[1:]
    if num_rows == 1:
        diagonal_G11 = (np.square(basis_GMR[:, 0]) @ damping_R)[:, None, None]
        return right_GMK / (1 - diagonal_G11 if is_tall else diagonal_G11)
    if is_tall and num_rows > num_columns:
        inner_GRR = np.diag(1 / damping_R) - basis_GMR.mT @ basis_GMR
        return right_GMK + basis_GMR @ np.linalg.solve(inner_GRR, basis_GMR.mT @ right_GMK)
    kernel_GMM = (basis_GMR * damping_R) @ basis_GMR.mT
    return np.linalg.solve(np.eye(num_rows) - kernel_GMM if is_tall else kernel_GMM, right_GMK)


def _groups_of_equal_size(groups_N: np.ndarray, width: int) -> Iterator[np.ndarray]:
    """Yield the rows of some groups with as many rows each, (G, M), every group once.

    A part has at most CHUNK_VALUES values of `width` a row and of the matrices of its groups, or one group.
    """
    _, group_of_row_N, sizes_G = np.unique(groups_N, return_inverse=True, return_counts=True)
    by_group_N = np.argsort(group_of_row_N, kind="stable")
    starts_G = np.cumsum(sizes_G) - sizes_G
    for size in np.unique(sizes_G):
        firsts = starts_G[sizes_G == size]
        for part in parts(len(firsts), size * max(width, size)):
            yield by_group_N[firsts[part, None] + np.arange(size)]


def _inputs(features_ND: np.ndarray, mean_D: np.ndarray, std_D: np.ndarray) -> np.ndarray:
    num_rows, width = features_ND.shape
    inputs_NE = np.empty((num_rows, width + 1))
    np.subtract(features_ND, mean_D, out=inputs_NE[:, :width])
    inputs_NE[:, :width] /= std_D
    inputs_NE[:, width] = BIAS
    return inputs_NE


def _times_targets(values_NR: np.ndarray, labels_N: np.ndarray, num_classes: int) -> np.ndarray:
    """Return values'Y (R, K): as Y = 2 onehot - 1, twice the sum of each class minus the sum of all."""
    order_N = np.argsort(labels_N, kind="stable")
    classes, starts = np.unique(labels_N[order_N], return_index=True)
    sums_KR = np.zeros((num_classes, values_NR.shape[1]))
    sums_KR[classes] = np.add.reduceat(values_NR[order_N], starts, axis=0)
    return 2 * sums_KR.T - values_NR.sum(axis=0)[:, None]


def parts(count: int, width: int) -> Iterator[slice]:
    """Return consecutive slices of `count` rows of `width` values, each of at most CHUNK_VALUES values."""
    size = max(1, CHUNK_VALUES // width)
    return (slice(first, min(first + size, count)) for first in range(0, count, size))


def _finite(features_ND: Array, first_row: int = 0) -> np.ndarray:
    if isinstance(features_ND, Tensor):  # NumPy has no bfloat16
        features_ND = features_ND.detach().to("cpu", torch.float64).numpy()
    features_ND = np.asarray(features_ND, dtype=np.float64)
    bad_N = ~np.isfinite(features_ND).all(axis=1)
    if bad_N.any():
        raise DataError(
            f"{bad_N.sum()} of {len(bad_N)} rows of features hold a value that is not a finite number",
            where=f"row {first_row + int(bad_N.argmax())} of the features, and after",
            fix="compute the features in fp32, or use other weights",
        )
    return features_ND


def _labels(labels_N: Array, num_classes: int) -> np.ndarray:
    labels_N = np.asarray(labels_N, dtype=np.int64)
    if not len(labels_N):
        raise DataError("there are no rows of features", where="labels", fix="take a split with images")
    bad_N = (labels_N < 0) | (labels_N >= num_classes)
    if bad_N.any():
        row = int(bad_N.argmax())
        raise DataError(
            f"label {labels_N[row]} is not one of the {num_classes} classes",
            where=f"row {row} of the labels",
            fix=f"labels are 0 to {num_classes - 1}; take the training and the test split of one data set",
        )
    return labels_N


def _check_l2(l2: Sequence[float], eigenvalues_R: np.ndarray) -> None:
    rounding = np.finfo(np.float64).eps * eigenvalues_R[-1] * len(eigenvalues_R)  # as in NumPy's matrix_rank
    for value in l2:
        if not 0 < value < np.inf:
            raise VitError(f"l2 of {value} is not a positive number", where="l2", fix="take l2 above 0")
        if value + eigenvalues_R[0] <= rounding:
            raise VitError(
                f"l2 of {value:g} is lost in the rounding errors of this problem, about {rounding:.0e}",
                where="l2",
                fix=f"take a larger one (the authors' evaluator has {DEFAULT_L2:g})",
            )
