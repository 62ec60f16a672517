"""What stored numbers say of the very rows that they were chosen on: each half by the other's."""

from dataclasses import replace

import numpy as np
import pytest

from vitcli.data.dataset import DataSet
from vitcli.data.split import Grouping
from vitcli.evaluation.calibration.out_of_distribution import UnlikeScore, statistics_of
from vitcli.evaluation.calibration.prediction_sets import (
    LEVELS,
    SHOWN,
    coverage_and_size,
    sets_at,
    threshold_at,
)
from vitcli.evaluation.calibration.results import calibrated, fitted, results_of
from vitcli.evaluation.calibration.scaling import Scaling
from vitcli.evaluation.calibration.stored import Calibration
from vitcli.evaluation.intervals import SEED
from vitcli.evaluation.predictions import Predictions

NUM_ROWS = 60


@pytest.fixture(scope="module")
def predictions() -> Predictions:
    """Of rows of which one in three is missing, by a network that is often wrong and always confident."""
    rng = np.random.default_rng(0)
    labels_N = rng.integers(0, 3, NUM_ROWS)
    logits_NK = 4 * rng.normal(size=(NUM_ROWS, 3))
    log_p_NK = logits_NK - np.log(np.exp(logits_NK).sum(axis=1, keepdims=True))
    order_NK = np.argsort(-log_p_NK, axis=1)
    return Predictions(
        rows_N=np.flatnonzero(np.arange(90) % 3),
        labels=labels_N,
        ranks_N=(order_NK == labels_N[:, None]).argmax(axis=1),
        losses_N=-log_p_NK[np.arange(NUM_ROWS), labels_N],
        classes_NT=order_NK,
        probabilities_NT=np.take_along_axis(np.exp(log_p_NK), order_NK, axis=1),
        scores_NK=log_p_NK,
    )


def split_of(groups_N: np.ndarray | None):
    grouping = groups_N if groups_N is None else Grouping("object", lambda: groups_N)
    return replace(DataSet("demo").open("test[:90]"), grouping=grouping)


def stored_by(predictions: Predictions, fingerprint: str) -> Calibration:
    return Calibration(*fitted(predictions.scores_NK, predictions.labels), (), NUM_ROWS, "dev", fingerprint)


@pytest.mark.parametrize("size_of_groups", [1, 9])
def test_each_half_of_the_rows_or_groups_is_judged_by_the_numbers_of_the_other(predictions, size_of_groups):
    groups_N = 4 * (np.arange(90) // size_of_groups) + 1
    split = split_of(None if size_of_groups == 1 else groups_N)
    stored = stored_by(predictions, "these")
    found = results_of(predictions, stored, split, fingerprint="these")

    names, of_row_N = np.unique(groups_N[predictions.rows_N], return_inverse=True)
    is_first_N = (np.random.default_rng(SEED).permutation(len(names)) % 2 == 0)[of_row_N]
    losses_N, confidences_N = np.empty(NUM_ROWS), np.empty(NUM_ROWS)
    is_in_NK = {level: np.zeros((NUM_ROWS, 3), dtype=bool) for level in LEVELS}
    for half_N in (is_first_N, ~is_first_N):
        scaling, sets = fitted(predictions.scores_NK[~half_N], predictions.labels[~half_N])
        p_NK = scaling.probabilities(predictions.scores_NK[half_N])
        losses_N[half_N] = -np.log(p_NK[np.arange(len(p_NK)), predictions.labels[half_N]])
        confidences_N[half_N] = p_NK.max(axis=1)
        for level in LEVELS:
            is_in_NK[level][half_N] = sets_at(p_NK, sets[level])
    of_itself = results_of(predictions, stored, split, fingerprint="others")
    for level in LEVELS:
        coverage, size = coverage_and_size(is_in_NK[level], predictions.labels)
        assert found["prediction_sets"][str(level)] == {"coverage": coverage, "mean_size": size}
    assert found["prediction_sets"] != of_itself["prediction_sets"]
    assert found["nll_at_temperature"] == pytest.approx(losses_N.mean())
    # Expected calibration error, in 15 bins.
    is_right_N, bin_N = predictions.ranks_N == 0, np.ceil(15 * confidences_N) - 1
    gaps = [abs((confidences_N - is_right_N)[bin_N == number].sum()) for number in range(15)]
    assert found["ece_at_temperature"] == pytest.approx(sum(gaps) / NUM_ROWS)
    assert found["temperature"] == stored.scaling.temperature > 1.5 and found["calibrated_on"] == "dev"


def test_rows_of_one_group_are_judged_by_what_is_stored(predictions):
    stored = stored_by(predictions, "these")
    one_group = split_of(np.full(90, 7))

    assert results_of(predictions, stored, one_group, fingerprint="these") == results_of(
        predictions, stored, one_group, fingerprint="others"
    )
    p_NK = stored.scaling.probabilities(predictions.scores_NK)
    least = threshold_at(p_NK[np.arange(NUM_ROWS), predictions.labels], 90)
    assert stored.sets[90] == least


def test_an_image_just_as_far_as_the_threshold_is_like_the_training_images():
    rng = np.random.default_rng(0)
    features_ND, logits_NK = rng.normal(size=(40, 5)), 2 * rng.normal(size=(40, 3))
    statistics, unlike = statistics_of(features_ND, np.arange(40) % 3, num_classes=3), UnlikeScore(0.1, 3.0)
    probabilities_NK = Scaling(0.5).probabilities(logits_NK)
    scores_N = statistics.distances(features_ND, shrinkage=0.1) + 3.0 * (1 - probabilities_NK.max(axis=1))
    median = float(np.sort(scores_N)[20])
    sets = {90: None, SHOWN: 0.2, 99: 0.9}
    stored = Calibration(Scaling(0.5), sets, (), 40, "dev", None, median, 0.01, unlike, statistics)

    found = calibrated(logits_NK, features_ND, stored)

    assert found.is_like_N.tolist() == (scores_N <= median).tolist() and found.is_like_N.sum() == 21
    assert np.array_equal(found.probabilities_NK, probabilities_NK)
    assert np.array_equal(found.is_in_NK, sets_at(probabilities_NK, 0.2))
    assert calibrated(logits_NK, None, stored).is_like_N is None
