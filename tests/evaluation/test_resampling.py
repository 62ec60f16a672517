"""Intervals against resampling rows in a loop, and McNemar's test against scipy and hand values."""

import numpy as np
import pytest

from vitcli.evaluation.intervals import TAILS, accuracy_interval, mcnemar, paired_interval


def resampled(values_N: np.ndarray, count: int = 4_000) -> np.ndarray:
    """The bootstrap as books have it: draw rows with replacement, take the mean, many times."""
    rng = np.random.default_rng(7)
    return np.array([values_N[rng.integers(len(values_N), size=len(values_N))].mean() for _ in range(count)])


@pytest.mark.parametrize(("right", "count"), [(45, 60), (150, 300), (290, 300), (15, 1000)])
def test_an_interval_is_that_of_resampling_rows(right, count):
    by_rows = np.quantile(resampled(np.arange(count) < right), TAILS)

    step = 1.5 / count  # shares come in steps of one row
    assert accuracy_interval(right, count) == pytest.approx(tuple(by_rows), abs=step + 0.001)


@pytest.mark.parametrize(("only_a", "only_b", "count"), [(10, 25, 200), (3, 3, 50), (0, 8, 100)])
def test_a_paired_interval_is_that_of_resampling_pairs(only_a, only_b, count):
    differences = np.zeros(count)
    differences[:only_a], differences[only_a : only_a + only_b] = -1, 1
    by_rows = np.quantile(resampled(differences), TAILS)

    assert paired_interval(only_a, only_b, count) == pytest.approx(tuple(by_rows), abs=1.5 / count + 0.002)


def test_an_interval_of_many_is_the_normal_one():
    low, high = accuracy_interval(7_500, 10_000)

    half = 1.96 * (0.75 * 0.25 / 10_000) ** 0.5
    assert (low, high) == pytest.approx((0.75 - half, 0.75 + half), abs=0.0005)


def test_the_same_seed_gives_the_same_bits_and_another_one_others():
    assert accuracy_interval(800, 1_000) == accuracy_interval(800, 1_000)
    assert paired_interval(9, 20, 999) == paired_interval(9, 20, 999)
    assert accuracy_interval(12_345, 50_000, seed=1) != accuracy_interval(12_345, 50_000, seed=2)


@pytest.mark.parametrize("count", [1, 5, 20, 10_000])
def test_where_all_or_none_are_right_the_interval_is_the_exact_one(count):
    stats = pytest.importorskip("scipy.stats")
    low, high = stats.binomtest(count, count).proportion_ci(0.95, method="exact")

    assert accuracy_interval(count, count) == pytest.approx((low, high), abs=1e-12)
    assert accuracy_interval(0, count) == pytest.approx((1 - high, 1 - low), abs=1e-12)
    assert high == 1.0 and low < 1.0


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [  # scipy.stats.binomtest(right, count).proportion_ci(method="exact")
        (1, 5, 0.0051, 0.7164),  # resampling says 0 to 60 %, and no image right is not one right
        (4, 5, 0.2836, 0.9949),
        (5, 5, 0.4782, 1.0),  # 0.025 ** (1 / 5)
        (30, 49, 0.4624, 0.7480),
    ],
)
def test_few_images_have_the_exact_interval(right, count, low, high):
    assert accuracy_interval(right, count) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 1, 1.0), (0, 5, 2 / 32), (1, 4, 2 * 6 / 32), (6, 0, 2 / 64)],
)
def test_mcnemar_by_hand(only_a, only_b, p):
    assert mcnemar(only_a, only_b) == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize(
    ("only_a", "only_b"), [(12, 30), (3, 4), (400, 350), (1, 60), (2_000, 2_300), (300_000, 301_000)]
)
def test_mcnemar_is_scipys_binomial_test(only_a, only_b):
    stats = pytest.importorskip("scipy.stats")

    assert mcnemar(only_a, only_b) == pytest.approx(
        stats.binomtest(only_a, only_a + only_b, 0.5).pvalue, rel=1e-9
    )
    assert mcnemar(only_a, only_b) == mcnemar(only_b, only_a)


def test_mcnemar_of_a_thin_tail_is_small_and_not_an_error():
    assert 0 <= mcnemar(0, 50_000) < 1e-300
