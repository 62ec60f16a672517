"""Relative Mahalanobis distances against SciPy's, and the threshold of what is unlike."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from vitcli.evaluation.belief.familiar import (
    NUM_FOLDS,
    SHRINKAGE,
    FeatureStatistics,
    left_out_distances,
    statistics_of,
    threshold_of,
)


def random_case(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Features far from 0 and correlated, fewer rows than features in some cases, a class without rows."""
    rng = np.random.default_rng(seed)
    num_rows, width, num_classes = (int(rng.integers(low, high)) for low, high in ((4, 60), (2, 20), (2, 6)))
    labels_N = rng.integers(0, num_classes, num_rows)
    labels_N[labels_N == rng.integers(0, num_classes)] = labels_N[0]
    mixing_DD = rng.normal(size=(width, width)) * 10.0 ** rng.uniform(-1, 1)
    features_ND = (rng.normal(size=(num_rows, width)) + rng.normal(size=(6, width))[labels_N]) @ mixing_DD
    return (features_ND + rng.normal(size=width) * 3).astype(np.float32), labels_N, num_classes


def brute_force(features_ND: np.ndarray, labels_N: np.ndarray, new_MD: np.ndarray) -> np.ndarray:
    """The formula as it is written, covariances by NumPy, distances by SciPy, all in float64."""
    rows_ND = features_ND.astype(np.float64)
    classes, width = np.unique(labels_N), rows_ND.shape[1]
    means = {k: rows_ND[labels_N == k].mean(axis=0) for k in classes}
    residuals = np.concatenate([rows_ND[labels_N == k] - means[k] for k in classes])
    shared_DD = residuals.T @ residuals / len(residuals)
    total_DD = np.cov(rows_ND.T, bias=True)

    def inverse(matrix_DD: np.ndarray) -> np.ndarray:
        spherical_DD = np.trace(matrix_DD) / width * np.eye(width)
        return np.linalg.inv((1 - SHRINKAGE) * matrix_DD + SHRINKAGE * spherical_DD)

    stacked = np.stack(list(means.values()))
    to_classes = cdist(new_MD, stacked, "mahalanobis", VI=inverse(shared_DD)) ** 2
    to_all = cdist(new_MD, rows_ND.mean(axis=0)[None], "mahalanobis", VI=inverse(total_DD)) ** 2
    return to_classes.min(axis=1) - to_all[:, 0]


def in_float64(statistics: FeatureStatistics, features_ND: np.ndarray, labels_N: np.ndarray):
    """The same statistics before they are rounded to float32."""
    rows_ND = features_ND.astype(np.float64)
    means_KD = np.zeros(statistics.means_KD.shape)
    for k in np.unique(labels_N):
        means_KD[k] = rows_ND[labels_N == k].mean(axis=0)
    residuals_ND = rows_ND - means_KD[labels_N]
    return FeatureStatistics(statistics.counts_K, means_KD, residuals_ND.T @ residuals_ND / len(rows_ND))


def test_the_distance_is_that_of_the_formula_in_a_thousand_random_cases():
    num_compared = 0
    for seed in range(1_000):
        features_ND, labels_N, num_classes = random_case(seed)
        statistics = statistics_of(features_ND, labels_N, num_classes=num_classes)
        if statistics is None:  # every class has one row
            assert len(np.unique(labels_N)) == len(labels_N)
            continue
        new_MD = features_ND[:5].astype(np.float64) + np.random.default_rng(seed).normal(size=(1, 1))
        expected_M = brute_force(features_ND, labels_N, new_MD)
        exact_M = in_float64(statistics, features_ND, labels_N).distances(new_MD)
        scale = np.abs(expected_M).max() + features_ND.shape[1]
        np.testing.assert_allclose(exact_M, expected_M, rtol=0, atol=1e-9 * scale)
        np.testing.assert_allclose(statistics.distances(new_MD), expected_M, atol=2e-3 * scale)
        num_compared += 1
    assert num_compared > 950


@pytest.mark.parametrize("seed", [11, 13])
def test_left_out_distances_are_those_of_refits_without_the_fold(seed):
    features_ND, labels_N, num_classes = random_case(seed)
    assert (len(labels_N) > NUM_FOLDS) == (seed == 13)  # folds without a row, and folds of two
    order_N = np.argsort(labels_N, kind="stable")
    expected = []
    for fold in range(NUM_FOLDS):
        out_N = order_N[fold::NUM_FOLDS]
        kept_N = np.setdiff1d(np.arange(len(labels_N)), out_N)
        rows_MD = features_ND[np.sort(out_N)].astype(np.float64)
        expected += brute_force(features_ND[kept_N], labels_N[kept_N], rows_MD).tolist()

    found = left_out_distances(features_ND, labels_N, num_classes=num_classes, groups_N=None)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_what_lies_between_the_classes_of_other_images_is_unlike_them():
    rng = np.random.default_rng(0)
    means_KD = 6 * np.eye(8)[:4]
    labels_N = rng.integers(0, 4, 2_000)
    features_ND = means_KD[labels_N] + rng.normal(size=(2_000, 8))
    statistics = statistics_of(features_ND[:1_000], labels_N[:1_000], num_classes=4)
    threshold, flagged = threshold_of(statistics.distances(features_ND[1_000:1_500]))
    unknown_MD = 6 * np.eye(8)[4:6][rng.integers(0, 2, 500)] + rng.normal(size=(500, 8))

    assert flagged == 0.01 and (statistics.distances(features_ND[1_500:]) > threshold).mean() < 0.03
    assert (statistics.distances(unknown_MD) > threshold).mean() > 0.95


def test_the_threshold_leaves_one_percent_above_or_as_little_as_so_few_images_can_say():
    assert threshold_of(np.arange(48.0)) is None
    assert threshold_of(np.arange(49.0)) == (48.0, pytest.approx(1 / 50))
    assert threshold_of(np.arange(99.0)[::-1]) == (98.0, 0.01)
    assert threshold_of(np.arange(999.0)) == (
        989.0,
        0.01,
    )  # 9 of 999 above it, and 10 of 1,000 with a new one


def test_features_that_do_not_vary_and_too_many_numbers_have_no_statistics():
    labels_N = np.array([0, 0, 1, 1])
    assert statistics_of(np.ones((4, 3)), labels_N, num_classes=2) is None
    assert (
        statistics_of(np.random.default_rng(0).normal(size=(4, 3)), labels_N, num_classes=2_000_000) is None
    )
    assert len(left_out_distances(np.ones((4, 3)), labels_N, num_classes=2, groups_N=None)) == 0
