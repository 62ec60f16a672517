"""Reliability, ECE, intervals and McNemar's test, against hand values, loops and other libraries."""

import math

import numpy as np
import pytest
from scipy import stats

from vitcli.evaluation.statistics import (
    accuracy_interval,
    interval_of,
    mcnemar,
    paired_interval,
    reliability,
)


def ece_by_loop(confidences, is_right, num_bins) -> float:
    """The definition, one bin and one example after the other."""
    total = 0.0
    for number in range(num_bins):
        low, high = number / num_bins, (number + 1) / num_bins
        inside = [i for i, c in enumerate(confidences) if low < c <= high]
        if inside:
            gap = np.mean([is_right[i] for i in inside]) - np.mean([confidences[i] for i in inside])
            total += len(inside) / len(confidences) * abs(gap)
    return total


def test_four_examples_in_two_bins_by_hand():
    bins = reliability(np.array([0.6, 0.8, 0.9, 0.3]), np.array([True, False, True, False]), num_bins=2)

    assert bins.counts_M.tolist() == [1, 3]
    assert bins.accuracy_M == pytest.approx([0, 2 / 3])
    assert bins.confidence_M == pytest.approx([0.3, 2.3 / 3])
    assert bins.ece == pytest.approx(1 / 4 * 0.3 + 3 / 4 * (2.3 / 3 - 2 / 3))


def test_a_confidence_on_a_bound_belongs_to_the_bin_below_and_certainty_to_the_last():
    bins = reliability(np.array([0.5, 1.0, 0.0]), np.array([True, True, False]), num_bins=2)

    assert bins.counts_M.tolist() == [2, 1]


def test_a_network_as_often_right_as_it_says_has_no_error():
    confidences = np.repeat([0.25, 0.75], 100)
    is_right = np.concatenate([np.arange(100) < 25, np.arange(100) < 75])

    assert reliability(confidences, is_right).ece == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_bins", [1, 10, 15])
def test_ece_is_that_of_a_loop(seed, num_bins):
    rng = np.random.default_rng(seed)
    confidences, is_right = rng.beta(4, 1, 300), rng.random(300) < 0.7

    assert reliability(confidences, is_right, num_bins=num_bins).ece == pytest.approx(
        ece_by_loop(confidences, is_right, num_bins), abs=1e-12
    )


def test_ece_is_that_of_torchmetrics():
    pytest.importorskip("torchmetrics")
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    rng = torch.Generator().manual_seed(0)
    shares_NK = torch.softmax(2 * torch.randn(500, 7, generator=rng, dtype=torch.float64), dim=1)
    labels_N = torch.randint(7, (500,), generator=rng)
    confidences_N, guesses_N = shares_NK.max(dim=1)

    ours = reliability(confidences_N.numpy(), (guesses_N == labels_N).numpy()).ece
    theirs = multiclass_calibration_error(shares_NK, labels_N, num_classes=7, n_bins=15, norm="l1")
    assert ours == pytest.approx(float(theirs), abs=1e-6)


def test_the_bins_are_those_of_scikit_learn():
    pytest.importorskip("sklearn")
    from sklearn.calibration import calibration_curve

    rng = np.random.default_rng(1)
    confidences, is_right = rng.random(400), rng.random(400) < 0.5
    accuracy, confidence = calibration_curve(is_right, confidences, n_bins=15)

    bins = reliability(confidences, is_right)

    assert bins.accuracy_M[bins.counts_M > 0] == pytest.approx(accuracy)
    assert bins.confidence_M[bins.counts_M > 0] == pytest.approx(confidence)


def test_intervals_are_of_95_percent():
    # Exact: the rate at which ten misses in ten have a probability of 2.5 %.
    assert accuracy_interval(0, 10) == pytest.approx((0, 1 - 0.025**0.1))
    assert accuracy_interval(10, 10) == pytest.approx((0.025**0.1, 1))
    # Of many images the normal distribution's 1.96 deviations.
    deviation = math.sqrt(0.3 * 0.7 / 10_000)
    expected = (0.3 - 1.96 * deviation, 0.3 + 1.96 * deviation)
    assert accuracy_interval(3_000, 10_000) == pytest.approx(expected, abs=2e-4)
    deviation = math.sqrt(0.08 - 0.02**2) / 100  # of differences of -1, 0 and 1
    expected = (0.02 - 1.96 * deviation, 0.02 + 1.96 * deviation)
    assert paired_interval(300, 500, 10_000) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 5), (3, 9), (7, 7), (40, 20), (0, 0)])
def test_mcnemars_test_has_two_sides(only_a, only_b):
    """As many tosses of a fair coin that differ as much or more, either way, counted one by one."""
    n = only_a + only_b
    tails = sum(math.comb(n, k) for k in range(n + 1) if abs(n - 2 * k) >= abs(only_a - only_b))

    assert mcnemar(only_a, only_b) == pytest.approx(tails / 2**n)


@pytest.mark.parametrize(("right", "count"), [(1, 10), (7, 10), (1, 49), (48, 49), (0, 50), (50, 50)])
def test_of_fewer_than_50_images_and_at_both_ends_the_interval_is_exact(right, count):
    exact = stats.binomtest(right, count).proportion_ci(0.95, method="exact")

    is_end = right in (0, count)  # of which the tail of one side is all that there is
    low, high = accuracy_interval(right, count)
    assert low == pytest.approx(0 if right == 0 else exact.low, abs=1e-9)
    assert high == pytest.approx(1 if right == count else exact.high, abs=1e-9)
    assert is_end or low < right / count < high


@pytest.mark.parametrize(("right", "count"), [(30, 50), (3, 60), (1, 100)])
def test_from_50_images_on_the_interval_is_that_of_resampled_accuracies(right, count):
    """Which are whole numbers of images, and of which one in forty is below and one above."""
    found = accuracy_interval(right, count)

    expected = stats.binom.ppf((0.025, 0.975), count, right / count)
    assert np.array(found) * count == pytest.approx(np.round(np.array(found) * count))
    assert np.abs(np.array(found) * count - expected).max() <= 1
    assert found != pytest.approx(tuple(stats.binomtest(right, count).proportion_ci(0.95)), abs=1e-9)


def test_the_interval_of_a_fraction_is_that_of_the_nearest_number_of_images():
    for right in (29, 57, 58):  # 0.29 * 100 is 28.999999999999996
        assert interval_of(right / 100, 100) == list(accuracy_interval(right, 100))
    assert interval_of(0.296, 100) == list(accuracy_interval(30, 100))  # a mean of runs
