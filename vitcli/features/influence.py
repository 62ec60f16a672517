"""What each training image contributes to an answer: the exact influence in the closed form of `vit fewshot`.

The scores of an image x are x W with W = A^-1 X'Y and A = X'X + l2 I, see `least_squares`. Without training
row i the matrix is W - A^-1 x_i (y_i - score_i), where score_i is what the others predict for row i (rank-one
update of A^-1, Sherman and Morrison). So the influence of the row, the scores of x less those without it, is

    influence_i = (x' A^-1 x_i) (y_i - score_i)                 x' A^-1 X' = x' X' G where N < E

Where score_i is without the whole group of the row, the influences of the rows of a group add up to that of
the group: the scores of x less those without all of them (the same update by several rows, Woodbury).

No refit is needed. As in `least_squares.left_out_scores` the standardisation and the weights of classes
remain those of all rows.

M answered images, N training rows, E columns, R = min(N, E), K classes.
"""

import numpy as np

from vitcli.features.least_squares import Solution, left_out_scores


def influences(solution: Solution, inputs_ME: np.ndarray, of_MK: np.ndarray) -> np.ndarray:
    """Return how much each training row adds to combinations of scores, (M, N) float64; of a group its part.

    Args:
        solution: of one l2.
        inputs_ME: `solution.inputs` of the answered images.
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
