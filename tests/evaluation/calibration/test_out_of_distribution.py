"""Relative Mahalanobis distances against SciPy's, and the threshold of what is unlike."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import softmax

from vitcli.evaluation.calibration.out_of_distribution import (
    CANDIDATES,
    NUM_FOLDS,
    SHRINKAGES,
    FeatureStatistics,
    LeftOutRows,
    UnlikeScore,
    _best,
    auroc,
    folds_of_classes,
    folds_of_rows,
    left_out_classes,
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


def brute_force(
    features_ND: np.ndarray, labels_N: np.ndarray, new_MD: np.ndarray, shrinkage: float = 0.01
) -> np.ndarray:
    """The formula as it is written, covariances by NumPy, distances by SciPy, all in float64."""
    rows_ND = features_ND.astype(np.float64)
    classes, width = np.unique(labels_N), rows_ND.shape[1]
    means = {k: rows_ND[labels_N == k].mean(axis=0) for k in classes}
    residuals = np.concatenate([rows_ND[labels_N == k] - means[k] for k in classes])
    shared_DD = residuals.T @ residuals / len(residuals)
    total_DD = np.cov(rows_ND.T, bias=True)

    def inverse(matrix_DD: np.ndarray) -> np.ndarray:
        spherical_DD = np.trace(matrix_DD) / width * np.eye(width)
        return np.linalg.inv((1 - shrinkage) * matrix_DD + shrinkage * spherical_DD)

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


def test_the_distance_is_that_of_the_formula_in_two_hundred_random_cases():
    num_compared = 0
    for seed in range(200):
        features_ND, labels_N, num_classes = random_case(seed)
        statistics = statistics_of(features_ND, labels_N, num_classes=num_classes)
        if statistics is None:  # every class has one row
            assert len(np.unique(labels_N)) == len(labels_N)
            continue
        new_MD = features_ND[:5].astype(np.float64) + np.random.default_rng(seed).normal(size=(1, 1))
        shrinkage = SHRINKAGES[seed % 3]
        expected_M = brute_force(features_ND, labels_N, new_MD, shrinkage)
        exact_M = in_float64(statistics, features_ND, labels_N).distances(new_MD, shrinkage=shrinkage)
        scale = np.abs(expected_M).max() + features_ND.shape[1]
        np.testing.assert_allclose(exact_M, expected_M, rtol=0, atol=1e-9 * scale)
        found_M = statistics.distances(new_MD, shrinkage=shrinkage)
        np.testing.assert_allclose(found_M, expected_M, atol=2e-3 * scale)
        num_compared += 1
    assert num_compared > 190


@pytest.mark.parametrize("seed", [11, 13])
def test_left_out_distances_are_those_of_refits_without_the_fold(seed):
    features_ND, labels_N, num_classes = random_case(seed)
    assert (len(labels_N) > NUM_FOLDS) == (seed == 13)  # folds without a row, and folds of two
    order_N = np.argsort(labels_N, kind="stable")
    expected_N = np.full(len(labels_N), np.nan)
    for fold in range(NUM_FOLDS):
        out_N = order_N[fold::NUM_FOLDS]
        kept_N = np.setdiff1d(np.arange(len(labels_N)), out_N)
        rows_MD = features_ND[out_N].astype(np.float64)
        expected_N[out_N] = brute_force(features_ND[kept_N], labels_N[kept_N], rows_MD)

    about = {"num_classes": num_classes, "groups_N": None, "shrinkage": 0.01}
    found_N = left_out_distances(features_ND, labels_N, **about)
    np.testing.assert_allclose(found_N, expected_N, rtol=1e-4, atol=1e-3)


def test_what_lies_between_the_classes_of_other_images_is_unlike_them():
    rng = np.random.default_rng(0)
    means_KD = 6 * np.eye(8)[:4]
    labels_N = rng.integers(0, 4, 2_000)
    features_ND = means_KD[labels_N] + rng.normal(size=(2_000, 8))
    statistics = statistics_of(features_ND[:1_000], labels_N[:1_000], num_classes=4)
    distances = partial(statistics.distances, shrinkage=0.01)
    threshold, flagged = threshold_of(distances(features_ND[1_000:1_500]))
    unknown_MD = 6 * np.eye(8)[4:6][rng.integers(0, 2, 500)] + rng.normal(size=(500, 8))

    assert flagged == 0.01 and (distances(features_ND[1_500:]) > threshold).mean() < 0.03
    assert (distances(unknown_MD) > threshold).mean() > 0.95


def test_the_threshold_leaves_one_percent_above_or_as_little_as_so_few_images_can_say():
    assert threshold_of(np.arange(48.0)) is None
    assert threshold_of(np.arange(49.0)) == (48.0, pytest.approx(1 / 50))
    assert threshold_of(np.arange(99.0)[::-1]) == (98.0, 0.01)
    assert threshold_of(np.arange(999.0)) == (
        989.0,
        0.01,
    )  # 9 of 999 above it, and 10 of 1,000 with a new one


def test_as_many_whole_hundredths_lie_above_the_threshold_as_fit():
    for count in range(49, 2_500, 7):
        threshold, _ = threshold_of(np.arange(float(count)))
        assert threshold == count - max(1, (count + 1) // 100)


def test_another_score_has_to_be_better_by_more_than_the_error_of_a_mean_of_few():
    def best(*gains: float) -> int:
        return _best(np.array([[0.5] * len(gains), [0.5 + gain for gain in gains]]))

    assert best(0.1, 0.3) == 1  # 0.2 in the mean, with an error of 0.1
    assert best(0.0, 0.2) == 0  # 0.1, with an error of 0.1
    assert best(0.3) == 0  # of one fold nobody knows
    assert best(-0.1, 0.0) == 0


def test_neighbouring_classes_are_in_different_ones_of_ten_folds():
    labels_N = np.repeat([0, 1, 3, 4], 2)
    assert folds_of_classes(labels_N, num_classes=5).tolist() == [0, 1, 0, 2, 3]
    assert folds_of_classes(np.arange(23), num_classes=23).tolist() == [k % 10 for k in range(23)]
    assert folds_of_classes(np.array([0, 0, 4]), num_classes=5) is None


def test_features_that_do_not_vary_and_too_many_numbers_have_no_statistics():
    labels_N = np.array([0, 0, 1, 1])
    assert statistics_of(np.ones((4, 3)), labels_N, num_classes=2) is None
    assert (
        statistics_of(np.random.default_rng(0).normal(size=(4, 3)), labels_N, num_classes=2_000_000) is None
    )
    about = {"num_classes": 2, "groups_N": None, "shrinkage": 0.5}
    assert np.isnan(left_out_distances(np.ones((4, 3)), labels_N, **about)).all()


def clusters(num_classes: int, shots: int, width: int, spread: float | np.ndarray, seed: int = 0):
    """Features of classes around centres, and logits: how near the centre of each class is."""
    rng = np.random.default_rng(seed)
    centres_KD = rng.normal(size=(num_classes, width))
    labels_N = np.repeat(np.arange(num_classes), shots)
    features_ND = centres_KD[labels_N] + spread * rng.normal(size=(len(labels_N), width))
    return features_ND, labels_N, -((features_ND[:, None] - centres_KD) ** 2).sum(axis=2)


def rows_of(features_ND, labels_N, logits_NK, num_folds: int) -> LeftOutRows:
    every_N = np.ones(len(labels_N), dtype=bool)
    fold_N = folds_of_rows(labels_N, None, num_folds=num_folds)
    return LeftOutRows(features_ND, labels_N, fold_N, every_N, every_N, logits_NK, logits_NK)


def by_hand(rows: LeftOutRows, fold_K: np.ndarray, shrinkage: float, *, has_doubt: bool) -> list[float]:
    """AUROC of each fold of classes, pair by pair, from the formula of the distance and SciPy's softmax."""
    scored = []
    for fold in range(fold_K.max() + 1):
        is_new_N = fold_K[rows.labels_N] == fold
        fitted_N = ~is_new_N & (rows.fold_N != fold)
        both = []
        for judged_N in (~is_new_N & ~fitted_N, is_new_N):
            new_MD, logits_MK = rows.features_ND[judged_N], rows.log_p_NK[judged_N][:, fold_K != fold]
            how = (rows.features_ND[fitted_N], rows.labels_N[fitted_N], new_MD, shrinkage)
            both.append((brute_force(*how), 1 - softmax(logits_MK, axis=1).max(axis=1)))
        scored.append(both)
    known = [np.concatenate([fold[0][part] for fold in scored]) for part in (0, 1)]
    weight = known[0].std() / known[1].std() if has_doubt else 0.0
    sums = [[distances + weight * doubts for distances, doubts in fold] for fold in scored]
    return [np.mean(np.subtract.outer(unknown, known) > 0) for known, unknown in sums]


UNEQUAL = np.geomspace(0.02, 4, 6)  # deviations within classes


@pytest.mark.parametrize(("num_classes", "shots"), [(3, 9), (12, 8)])
def test_the_score_is_the_one_that_tells_left_out_classes_best_by_more_than_a_standard_error(
    num_classes, shots
):
    picked = set()
    for seed, spread in ((0, 0.3), (1, UNEQUAL), (2, 1.0), (3, UNEQUAL)):
        case = clusters(num_classes, shots, 6, spread, seed)
        if seed > 1:  # doubts that say nothing
            case = (*case[:2], np.random.default_rng(seed).normal(size=case[2].shape))
        fold_K = folds_of_classes(case[1], num_classes=num_classes)
        rows = rows_of(*case, num_folds=int(fold_K.max()) + 1)
        aurocs = {
            candidate: by_hand(rows, fold_K, candidate[0], has_doubt=candidate[1]) for candidate in CANDIDATES
        }
        best = max(CANDIDATES, key=lambda candidate: round(np.mean(aurocs[candidate]), 6))
        gains = np.subtract(aurocs[best], aurocs[CANDIDATES[0]])
        if np.mean(gains) <= np.std(gains, ddof=1) / np.sqrt(len(gains)):
            best = CANDIDATES[0]

        found = left_out_classes(rows, fold_K)
        assert (found.shrinkage, bool(found.doubt_weight)) == best
        assert found.auroc == pytest.approx(np.mean(aurocs[best]), abs=2e-3)
        picked.add(best)
    assert num_classes == 3 or all(len(set(choices)) == 2 for choices in zip(*picked, strict=True))


def test_a_column_of_a_left_out_class_is_not_read():
    features_ND, labels_N, logits_NK = clusters(6, 5, 4, 0.5)
    fold_K = folds_of_classes(labels_N, num_classes=6)
    other_NK = logits_NK.copy()
    other_NK[np.arange(len(labels_N)), labels_N] += 100.0  # of an unknown row only the label's column differs
    rows = rows_of(features_ND, labels_N, logits_NK, num_folds=6)
    assert left_out_classes(replace(rows, of_unknown_NK=other_NK), fold_K) == left_out_classes(rows, fold_K)
    assert left_out_classes(replace(rows, log_p_NK=other_NK), fold_K).auroc_of_doubt > 0.9


def test_classes_in_order_are_in_different_folds_and_two_are_too_few():
    labels_N = np.repeat([0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12], 2)  # none of class 3
    fold_K = folds_of_classes(labels_N, num_classes=13)
    assert fold_K[[0, 1, 2, 4, 11, 12]].tolist() == [0, 1, 2, 3, 0, 1] and fold_K.max() == 9
    assert folds_of_classes(np.array([0, 1, 1, 0]), num_classes=2) is None
    few = left_out_classes(rows_of(*clusters(2, 5, 4, 0.5), num_folds=2), None)
    assert few == UnlikeScore(SHRINKAGES[0], 1.0, None, None)


def test_doubt_gets_the_deviation_of_the_distance_and_no_weight_where_none_varies():
    features_ND, labels_N, logits_NK = clusters(3, 20, 4, 0.5)
    statistics = statistics_of(features_ND, labels_N, num_classes=3)
    p_NK = softmax(logits_NK, axis=1)
    distances_N = statistics.distances(features_ND, shrinkage=0.1)
    doubts_N = 1 - p_NK.max(axis=1)
    score = UnlikeScore(0.1, 1.0).weighted(distances_N, doubts_N)

    assert score.doubt_weight == pytest.approx(distances_N.std() / doubts_N.std(), rel=1e-5)
    np.testing.assert_allclose(
        score.of(statistics, features_ND, p_NK), distances_N + score.doubt_weight * doubts_N
    )
    assert UnlikeScore(0.1, 1.0).weighted(distances_N, np.zeros(60)).doubt_weight == 0
    assert UnlikeScore(0.1, 0.0).weighted(distances_N, doubts_N).doubt_weight == 0


def test_few_images_of_many_classes_are_told_from_others_where_an_unshrunk_distance_is_blind():
    """As many rows as 1.5 times the columns: the smallest eigenvalues of the covariance are far too small."""
    features_ND, labels_N, _ = clusters(75, 4, 120, 2.0, seed=3)
    rng = np.random.default_rng(4)
    known_MD = clusters(75, 4, 120, 0.0, seed=3)[0] + 2.0 * rng.normal(size=(300, 120))
    unknown_MD = rng.normal(size=(300, 120)) * np.hypot(1, 2.0)
    statistics = statistics_of(features_ND, labels_N, num_classes=75)
    of = {
        s: auroc(*(statistics.distances(rows, shrinkage=s) for rows in (known_MD, unknown_MD)))
        for s in SHRINKAGES
    }
    assert of[0.5] > 0.8 and of[0.01] < 0.7


def test_statistics_of_more_than_16_megabytes_are_not_kept():
    def has_some(width: int) -> bool:
        features_ND = np.random.default_rng(0).normal(size=(6, width)).astype(np.float32)
        return statistics_of(features_ND, np.arange(6) % 2, num_classes=num_classes) is not None

    # 8 features have a triangle of 36: 499,995 means of 8 leave room for it, and no more
    num_classes = (4_000_000 - 36) // 8
    assert has_some(8)
    num_classes += 1
    assert not has_some(8)
