"""Intervals and McNemar's test, against hand values, loops and other libraries."""

import math

import numpy as np
import pytest
from scipy import stats

from vitcli.evaluation.intervals import (
    accuracy_interval,
    interval_of,
    mcnemar,
    paired_interval,
)


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


@pytest.mark.parametrize(
    ("right", "count"),
    [(1, 10), (7, 10), (20, 45), (1, 49), (48, 49), (0, 50), (50, 50), (202, 203), (9, 90), (49_991, 50_000)],
)
def test_of_few_images_right_or_wrong_ones_the_interval_is_exact(right, count):
    exact = stats.binomtest(right, count).proportion_ci(0.95, method="exact")

    is_end = right in (0, count)  # of which the tail of one side is all that there is
    low, high = accuracy_interval(right, count)
    assert low == pytest.approx(0 if right == 0 else exact.low, abs=1e-9)
    assert high == pytest.approx(1 if right == count else exact.high, abs=1e-9)
    assert is_end or low < right / count < high


@pytest.mark.parametrize(("right", "count"), [(30, 50), (10, 60), (90, 100)])
def test_from_50_images_and_10_of_each_on_the_interval_is_that_of_resampled_accuracies(right, count):
    """Which are whole numbers of images, and of which one in forty is below and one above."""
    found = accuracy_interval(right, count)

    expected = stats.binom.ppf((0.025, 0.975), count, right / count)
    assert np.array(found) * count == pytest.approx(np.round(np.array(found) * count))
    assert np.abs(np.array(found) * count - expected).max() <= 1
    assert found != pytest.approx(tuple(stats.binomtest(right, count).proportion_ci(0.95)), abs=1e-9)


def test_the_first_mistakes_do_not_narrow_the_interval_from_below():
    lowest = [accuracy_interval(203 - wrong, 203)[0] for wrong in range(10)]
    assert lowest == sorted(lowest, reverse=True)


def test_the_interval_of_a_fraction_is_that_of_the_nearest_number_of_images():
    for right in (29, 57, 58):  # 0.29 * 100 is 28.999999999999996
        assert interval_of(right / 100, 100) == list(accuracy_interval(right, 100))
    assert interval_of(0.296, 100) == list(accuracy_interval(30, 100))  # a mean of runs
