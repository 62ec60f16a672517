"""The promise of prediction sets, by brute force over every order of the images."""

from fractions import Fraction
from itertools import permutations
from math import ceil

import numpy as np
import pytest

from vitcli.evaluation.calibration.prediction_sets import (
    LEAST,
    LEVELS,
    SHOWN,
    coverage_and_size,
    sets_at,
    threshold_at,
)


def test_of_all_orders_of_the_images_the_promised_fraction_is_covered_and_no_more_than_one_image_above():
    # The last image of an order is the new one; the threshold comes from the others. 5,040 + 720 orders.
    for values in ([0.02, 0.1, 0.3, 0.35, 0.5, 0.8, 0.99], [0.0, 0.0, 0.2, 0.2, 0.2, 1.0]):
        for level in (10, 40, 50, 67, 75, 80, 85):
            covered = []
            for *others, new in permutations(values):
                threshold = threshold_at(np.array(others), level)
                covered.append(threshold is None or new >= threshold)
            fraction = Fraction(sum(covered), len(covered))
            assert fraction >= Fraction(level, 100)
            if len(set(values)) == len(values) and threshold is not None:
                assert fraction < Fraction(level, 100) + Fraction(1, len(values))


@pytest.mark.parametrize("level", LEVELS)
def test_the_threshold_is_the_papers_quantile_of_one_minus_the_probability(level):
    rng = np.random.default_rng(level)
    for num_rows in range(1, 1_100, 7):
        scores_N = rng.random(num_rows)
        rank = ceil(Fraction(num_rows + 1) * level / 100)  # ceil((n + 1)(1 - alpha)) in exact arithmetic
        expected = None if rank > num_rows else np.sort(scores_N)[rank - 1]
        found = threshold_at(1 - scores_N, level)
        assert (found is None) == (expected is None)
        assert found is None or found == pytest.approx(1 - expected, rel=1e-12)
    counts = {90: 9, 95: 19, 99: 99}
    assert threshold_at(np.full(counts[level], 0.5), level) == 0.5
    assert threshold_at(np.full(counts[level] - 1, 0.5), level) is None


def test_a_set_has_the_likeliest_class_and_all_above_the_threshold():
    probabilities_NK = np.array([[0.5, 0.3, 0.2], [0.34, 0.33, 0.33], [0.05, 0.9, 0.05]])

    assert sets_at(probabilities_NK, 0.33).tolist() == [[1, 0, 0], [1, 1, 1], [0, 1, 0]]
    assert sets_at(probabilities_NK, 0.95).sum(axis=1).tolist() == [1, 1, 1]
    assert sets_at(probabilities_NK, None).all() and sets_at(probabilities_NK, 0.0).all()
    assert coverage_and_size(sets_at(probabilities_NK, 0.33), np.array([0, 2, 0])) == (2 / 3, 5 / 3)


def test_coverage_of_random_networks_is_what_is_promised():
    # A poor network and a good one, 400 draws each of 200 images to choose by and 200 others.
    for skill in (0.3, 3.0):
        covered = {level: [] for level in LEVELS}
        rng = np.random.default_rng(int(10 * skill))
        for _ in range(400):
            labels_N = rng.integers(0, 6, 400)
            logits_NK = rng.normal(size=(400, 6))
            logits_NK[np.arange(400), labels_N] += skill
            p_NK = np.exp(logits_NK) / np.exp(logits_NK).sum(axis=1, keepdims=True)
            for level in LEVELS:
                threshold = threshold_at(p_NK[np.arange(200), labels_N[:200]], level)
                covered[level].append((p_NK[200:][np.arange(200), labels_N[200:]] >= threshold).mean())
        for level in LEVELS:
            rank = 201 * (100 - level) // 100
            assert np.mean(covered[level]) == pytest.approx(1 - rank / 201, abs=0.004)


def test_the_sets_that_are_shown_leave_out_classes_from_so_many_images_on():
    assert SHOWN in LEVELS
    assert threshold_at(np.ones(LEAST), SHOWN) == 1.0 and threshold_at(np.ones(LEAST - 1), SHOWN) is None
