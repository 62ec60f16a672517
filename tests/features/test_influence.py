"""Influence of a training image on an answer, against refits without that image."""

import numpy as np
import pytest

from vitcli.data.balance import class_weights
from vitcli.features.least_squares import influences, solve


def scores_of_a_refit(inputs_NE, labels_N, root_N1, inputs_ME, l2, num_classes):
    """Solve the normal equations of the rows again: no decomposition, no update."""
    targets_NK = root_N1 * (2.0 * (labels_N[:, None] == np.arange(num_classes)) - 1)
    left_EE = inputs_NE.T @ inputs_NE + l2 * np.eye(inputs_NE.shape[1])
    return inputs_ME @ np.linalg.solve(left_EE, inputs_NE.T @ targets_NK)


@pytest.mark.parametrize("balance", ["none", "full"])
@pytest.mark.parametrize("has_groups", [False, True])
def test_each_influence_is_the_difference_of_two_fits_and_those_of_a_group_add_up_to_its_own(
    balance, has_groups
):
    rng, num_pairs = np.random.default_rng(0), 0
    for _ in range(40):
        num_rows, num_features, num_classes = rng.integers(8, 24), rng.integers(3, 30), rng.integers(2, 5)
        labels_N = np.r_[np.arange(num_classes), rng.integers(0, num_classes, num_rows - num_classes)]
        features_ND = rng.standard_normal((num_rows, num_features)) + labels_N[:, None]
        l2 = float(10 ** rng.uniform(-1, 3))
        groups_N = rng.integers(0, num_rows // 2, num_rows) if has_groups else np.arange(num_rows)
        about = {"l2": [l2], "groups_N": groups_N if has_groups else None, "balance": balance}
        solution = solve(features_ND, labels_N, num_classes=num_classes, **about)
        inputs_ME = solution.inputs(rng.standard_normal((3, num_features)))
        of_MK = rng.standard_normal((3, num_classes))

        influences_MN = influences(solution, inputs_ME, of_MK)

        roots_N1 = np.sqrt(class_weights(np.bincount(labels_N, minlength=num_classes), balance))[
            labels_N, None
        ]
        refit = (solution.inputs_NE, labels_N, roots_N1)
        about = (inputs_ME, l2, num_classes)
        with_all_M = (scores_of_a_refit(*refit, *about) * of_MK).sum(axis=1)
        for group in np.unique(groups_N):
            rows = np.flatnonzero(groups_N == group)
            without = [np.delete(values, rows, axis=0) for values in refit]
            without_M = (scores_of_a_refit(*without, *about) * of_MK).sum(axis=1)
            scale = np.abs(with_all_M).max() + 1
            of_group_M = influences_MN[:, rows].sum(axis=1)
            np.testing.assert_allclose(of_group_M, with_all_M - without_M, atol=1e-9 * scale)
            num_pairs += 3
    assert num_pairs >= 700
