"""Few-shot classification in closed form: frozen features to targets of -1 and 1 by ridge regression.

The paper (section 4.1) says "regularised least squares, solved exactly" and no more; the draw, the
standardisation, the bias and the default strength are those of the authors' evaluator (big_vision,
evaluators/fewshot_lsr.py), here in float64. One eigendecomposition serves every strength l2 there is.
NumPy on purpose: with two threads on a busy machine torch's `eigh` of 769 columns took 0.3 to 12 s, NumPy's
0.1 to 0.7 s.

N rows, D features, E columns of the problem (D, and one for the bias), R = min(N, E), K classes, L values
of l2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitcli.errors import DataError, VitError

STD_ADDED = 1e-5
BIAS = 100.0  # so large that l2 hardly holds the bias back
DEFAULT_L2 = 1024.0
CHUNK_VALUES = 2**24  # float64 numbers of the largest array held while rows are scored: 128 MB

Array = np.ndarray | Tensor


@dataclass(frozen=True, eq=False)
class Solution:
    """A least-squares problem, decomposed, and so solved for every l2.

    Attributes:
        l2: the strengths; `which` below is a place in this tuple.
        mean_D, std_D: features are standardised with these; 0 and 1 where they are taken as they are.
        bias: the constant last column, or None.
        inputs_NE, labels_N: the rows that were fitted.
        eigenvalues_R, vectors_RR: of X'X where N >= E, else of XX'.
        projected_RK: X'Y, or Y, in the basis of these vectors.
    """

    l2: tuple[float, ...]
    mean_D: np.ndarray
    std_D: np.ndarray
    bias: float | None
    inputs_NE: np.ndarray
    labels_N: np.ndarray
    eigenvalues_R: np.ndarray
    vectors_RR: np.ndarray
    projected_RK: np.ndarray

    @property
    def num_classes(self) -> int:
        return self.projected_RK.shape[1]

    @property
    def is_tall(self) -> bool:
        """Whether the decomposition is that of X'X."""
        return len(self.vectors_RR) == self.inputs_NE.shape[1]

    def weights(self, which: int) -> np.ndarray:
        """(X'X + l2 I)^-1 X'Y, (E, K) float64, the bias last; by X'(XX' + l2 I)^-1 Y where N < E."""
        damped_RK = self.projected_RK / (self.eigenvalues_R + self.l2[which])[:, None]
        solved_RK = self.vectors_RR @ damped_RK
        return solved_RK if self.is_tall else self.inputs_NE.T @ solved_RK

    def scores(self, features_ND: Array, which: int) -> np.ndarray:
        """Scores of other rows at one l2, (N, K) float64: about 1 for the class, -1 for the others."""
        return self.inputs(features_ND) @ self.weights(which)

    def inputs(self, features_ND: Array, first_row: int = 0) -> np.ndarray:
        """Features as the problem sees them, (N, E) float64.

        Raises:
            DataError: a feature is not a finite number; `first_row` is the number the first row goes by.
        """
        return _inputs(_finite(features_ND, first_row), self.mean_D, self.std_D, self.bias)


def draw_shots(
    labels_N: Array, *, num_classes: int, shots: Sequence[int], seed: int
) -> dict[int, np.ndarray]:
    """The rows the authors' evaluator fits, for each number of shots, class after class.

    One generator a seed permutes the rows of class 0, 1, ...; k shots are the first k of each. So fewer
    shots are among more, and a class with fewer images gives what it has.

    Raises:
        VitError: a number of shots is below 1.
        DataError: there is no row, or a label that no class has.
    """
    if not shots or min(shots) < 1:
        raise VitError(
            f"{min(shots, default='no')} shots leave no image to learn a class from",
            where="shots per class",
            fix="take 1 or more",
        )
    labels_N = _labels(labels_N, num_classes)
    by_class_N = np.argsort(labels_N, kind="stable")
    ends_K = np.cumsum(np.bincount(labels_N, minlength=num_classes))
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(rows) for rows in np.split(by_class_N, ends_K[:-1])]
    return {count: np.concatenate([rows[:count] for rows in drawn]) for count in shots}


def solve(
    features_ND: Array,
    labels_N: Array,
    *,
    num_classes: int,
    l2: Sequence[float],
    standardise: bool = True,
    bias: float | None = BIAS,
) -> Solution:
    """Least squares from features to 1 for the label and -1 for every other class, with l2 on all weights.

    Computed in float64 from any float dtype. The evaluator standardises with the mean and the population
    standard deviation + 1e-5 of these rows and appends the constant `bias`, which l2 holds back too. The
    paper's bare formula is `standardise=False, bias=None`. A class without a row has -1 everywhere.

    Raises:
        VitError: an l2 is not a positive number, or so small that float64 cannot tell it from none. Without
            l2 the problem has no one solution where rows or features repeat, and none is made up here.
        DataError: there is no row, a label that no class has, or a feature that is not a finite number.
    """
    labels_N = _labels(labels_N, num_classes)
    features_ND = _finite(features_ND)
    mean_D, std_D = np.zeros(features_ND.shape[1]), np.ones(features_ND.shape[1])
    if standardise:
        # Relative to a row, so that a constant feature has its value for mean and becomes exactly 0; a
        # rounding error over 1e-5 would be a column with a weight.
        mean_D = features_ND[0] + (features_ND - features_ND[0]).mean(axis=0)
        std_D = np.sqrt(np.square(features_ND - mean_D).mean(axis=0)) + STD_ADDED
    inputs_NE = _inputs(features_ND, mean_D, std_D, bias)
    is_tall = inputs_NE.shape[0] >= inputs_NE.shape[1]
    square_RR = inputs_NE.T @ inputs_NE if is_tall else inputs_NE @ inputs_NE.T
    eigenvalues_R, vectors_RR = np.linalg.eigh(square_RR)
    _check_l2(l2, eigenvalues_R)
    if is_tall:
        vectors_RR[~inputs_NE.any(axis=0)] = 0  # a constant feature; not 1e-17, a test row may be far off
        projected_RK = vectors_RR.T @ _times_targets(inputs_NE, labels_N, num_classes)
    else:
        projected_RK = _times_targets(vectors_RR, labels_N, num_classes)
    decomposed = (inputs_NE, labels_N, eigenvalues_R, vectors_RR, projected_RK)
    return Solution(tuple(map(float, l2)), mean_D, std_D, bias, *decomposed)


def accuracies(
    solution: Solution, features_ND: Array, labels_N: Array, which: Sequence[int] | None = None
) -> np.ndarray:
    """Share of rows whose label has the highest score, at each l2 or those of `which`, (L,) float64.

    Among equal scores the lower class number counts. Memory does not grow with the rows, which are taken
    from `features_ND` a part at a time, so that it may be a memory map.

    Raises:
        DataError: there is no row, a label that no class has, or a feature that is not a finite number.
    """
    labels_N = _labels(labels_N, solution.num_classes)
    assert len(features_ND) == len(labels_N), "one label for each row"
    which = range(len(solution.l2)) if which is None else which
    weights_EM = np.concatenate([solution.weights(place) for place in which], axis=1)  # M = L * K
    hits_L = np.zeros(len(which), dtype=np.int64)
    for rows in parts(len(labels_N), max(weights_EM.shape)):
        scores_NM = solution.inputs(features_ND[rows], rows.start) @ weights_EM
        best_NL = scores_NM.reshape(-1, len(which), solution.num_classes).argmax(axis=2)
        hits_L += (best_NL == labels_N[rows, None]).sum(axis=0)
    return hits_L / len(labels_N)


def left_out_scores(solution: Solution, rows: slice = slice(None)) -> np.ndarray:
    """Scores each fitted row would get from the weights of all the others, (N, L, K), with no refit.

    With H = X(X'X + l2 I)^-1 X', the residual y - Hy of a row over 1 - H_ii is its residual when it is left
    out (Allen's PRESS). Where N < E both are l2 times what (XX' + l2 I)^-1 gives, which does not cancel.
    The mean and the standard deviation stay those of all rows.
    """
    basis_NR = solution.vectors_RR[rows]
    if solution.is_tall:
        basis_NR = solution.inputs_NE[rows] @ solution.vectors_RR
    damping_RL = 1 / (solution.eigenvalues_R[:, None] + np.array(solution.l2))
    damped_RLK = damping_RL[:, :, None] * solution.projected_RK[:, None]
    found_NM = basis_NR @ damped_RLK.reshape(len(damped_RLK), -1)
    found_NLK = found_NM.reshape(-1, *damped_RLK.shape[1:])
    diagonal_NL = np.square(basis_NR) @ damping_RL
    targets_N1K = 2.0 * (solution.labels_N[rows, None, None] == np.arange(solution.num_classes)) - 1
    if solution.is_tall:
        return targets_N1K - (targets_N1K - found_NLK) / (1 - diagonal_NL)[:, :, None]
    return targets_N1K - found_NLK / diagonal_NL[:, :, None]


def left_out_accuracies(solution: Solution) -> np.ndarray:
    """Accuracy of `left_out_scores` at each l2, (L,) float64, over the rows whose class has another row.

    A row that is alone in its class cannot be right: without it the class has -1 everywhere.

    Raises:
        VitError: every row is alone in its class.
    """
    counts_K = np.bincount(solution.labels_N, minlength=solution.num_classes)
    counted_N = counts_K[solution.labels_N] > 1
    if not counted_N.any():
        raise VitError(
            "with one image of each class, none can be left out to choose l2 by",
            where="choice of l2 by leaving one out",
            fix=f"give l2 (the authors' evaluator has {DEFAULT_L2:g}), or take 2 shots or more",
        )
    hits_L = np.zeros(len(solution.l2), dtype=np.int64)
    for rows in parts(len(counted_N), len(solution.l2) * solution.num_classes):
        best_NL = left_out_scores(solution, rows).argmax(axis=2)
        hits_L += ((best_NL == solution.labels_N[rows, None]) & counted_N[rows, None]).sum(axis=0)
    return hits_L / counted_N.sum()


def choose_l2(solution: Solution) -> int:
    """Place in `solution.l2` with the best `left_out_accuracies`; among equals the largest l2.

    No test row has a say. The older evaluators' "leave-self-out" is another thing: it ranks the l2 by test
    accuracy on the other data sets.

    Raises:
        VitError: every row is alone in its class.
    """
    found_L = left_out_accuracies(solution)
    return max(range(len(found_L)), key=lambda place: (found_L[place], solution.l2[place]))


def _inputs(features_ND: np.ndarray, mean_D: np.ndarray, std_D: np.ndarray, bias: float | None) -> np.ndarray:
    count, width = features_ND.shape
    inputs_NE = np.empty((count, width + (bias is not None)))
    np.subtract(features_ND, mean_D, out=inputs_NE[:, :width])
    inputs_NE[:, :width] /= std_D
    if bias is not None:
        inputs_NE[:, width] = bias
    return inputs_NE


def _times_targets(values_NR: np.ndarray, labels_N: np.ndarray, num_classes: int) -> np.ndarray:
    """values'Y, (R, K): Y is 2 onehot - 1, so twice the sums of each class less the sum of all."""
    order_N = np.argsort(labels_N, kind="stable")
    classes, starts = np.unique(labels_N[order_N], return_index=True)
    sums_KR = np.zeros((num_classes, values_NR.shape[1]))
    sums_KR[classes] = np.add.reduceat(values_NR[order_N], starts, axis=0)
    return 2 * sums_KR.T - values_NR.sum(axis=0)[:, None]


def parts(count: int, width: int) -> Iterator[slice]:
    """Consecutive slices of `count` rows, none of more than CHUNK_VALUES numbers at `width` a row."""
    size = max(1, CHUNK_VALUES // width)
    return (slice(first, min(first + size, count)) for first in range(0, count, size))


def _finite(features_ND: Array, first_row: int = 0) -> np.ndarray:
    if isinstance(features_ND, Tensor):  # NumPy does not know bfloat16
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
        raise DataError("there is no row of features", where="labels", fix="take a split with images")
    bad_N = (labels_N < 0) | (labels_N >= num_classes)
    if bad_N.any():
        row = int(bad_N.argmax())
        raise DataError(
            f"label {labels_N[row]} is none of the {num_classes} classes",
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
