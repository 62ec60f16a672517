"""Thresholds: by hand, against a search over sorted rows, and what must hold of any of them."""

import numpy as np
import pytest

from vitcli.evaluation.calibration import selective
from vitcli.evaluation.calibration.scaling import Scaling
from vitcli.evaluation.calibration.selective import (
    LEAST,
    SHOWN,
    TRIED,
    OperatingPoint,
    operating_points,
    points_at,
    recommended,
    results_of,
    table_rows,
)


def test_four_images_by_hand():
    probabilities_N, is_right_N = np.array([0.9, 0.55, 0.8, 0.3]), np.array([True, False, True, True])

    points = points_at([0.0, 0.3, 0.31, 0.55, 0.8, 0.95], probabilities_N, is_right_N)

    counts = [(point.answered, point.right) for point in points]
    assert counts == [(4, 3), (4, 3), (3, 2), (3, 2), (2, 2), (0, 0)]  # what equals a threshold is answered


def test_the_lowest_threshold_that_is_right_enough_is_recommended_by_hand():
    # 120 images of 2 classes: 100 right at 0.9, 3 wrong at 0.7, 1 wrong at 0.95, 16 right at 0.6.
    probabilities_N = np.repeat([0.9, 0.7, 0.95, 0.6], [100, 3, 1, 16])
    logits_NK = np.log(np.stack([probabilities_N, 1 - probabilities_N], axis=1))
    labels_N = np.repeat([0, 1, 1, 0], [100, 3, 1, 16])

    points = operating_points(Scaling().probabilities(logits_NK), labels_N)

    best = recommended(points)  # 101 answered, 100 right: 99.0 %; with the three at 0.7 it is 96.2 %
    assert best == OperatingPoint(0.71, 101, 100)
    assert [point.threshold for point in points] == sorted({*SHOWN, 0.71})
    assert points[0] == OperatingPoint(0.0, 120, 116) and points[-1] == OperatingPoint(0.99, 0, 0)
    result = results_of(
        {"thresholds": [p.as_json() for p in points], "num_images": 120, "fingerprint": "abc"}
    )
    assert result["recommended"] == {"threshold": 0.71, "answered": 101, "right": 100}
    assert result["advice"] == (
        "at --threshold 0.71: 84.2% answered, 99.0% of these right (95 %: 94.6 to 100.0; 120 dev images)"
    )
    # At a temperature of 2 the odds have a square root: sqrt(0.7 / 0.3) to 1 is 0.604, 0.9 becomes 0.75.
    assert recommended(operating_points(Scaling(2.0).probabilities(logits_NK), labels_N)).threshold == 0.61


@pytest.mark.parametrize("seed", range(8))
def test_any_rows_give_the_points_of_a_search_over_sorted_rows(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 400))
    logits_NK = rng.normal(size=(count, 3)) * rng.choice([1, 3, 30])
    labels_N = np.where(rng.random(count) < 0.7, logits_NK.argmax(axis=1), rng.integers(0, 3, count))

    points = operating_points(Scaling(1.5).probabilities(logits_NK), labels_N)

    # A second implementation: rows from the most to the least confident, wrong ones counted on the way.
    p_NK = np.exp(logits_NK / 1.5 - (logits_NK / 1.5).max(axis=1, keepdims=True))
    p_N = 1 / p_NK.sum(axis=1)
    down_N = np.argsort(-p_N)
    num_wrong_N = np.cumsum(labels_N[down_N] != logits_NK.argmax(axis=1)[down_N])
    reached = []
    for threshold in TRIED:
        answered = int(np.count_nonzero(np.sort(p_N)[::-1] >= threshold))
        right = answered - int(num_wrong_N[answered - 1]) if answered else 0
        if threshold in SHOWN:
            assert OperatingPoint(threshold, answered, right) in points
        if answered >= LEAST:
            reached.append((right / answered, threshold, answered))
    best = recommended(points)
    if not reached:
        assert best is None and count < LEAST
    elif good := [each for each in reached if each[0] >= 0.99]:
        assert (best.threshold, best.answered) == min(each[1:] for each in good)
    else:
        assert best.accuracy == max(reached)[0]

    # A higher threshold answers no more images, has no more mistakes, and 0 answers all.
    answered, wrong = [point.answered for point in points], [p.answered - p.right for p in points]
    assert answered == sorted(answered, reverse=True) and wrong == sorted(wrong, reverse=True)
    assert (points[0].threshold, points[0].answered) == (0.0, count)


@pytest.mark.parametrize(
    ("points", "num_images", "advice"),
    [
        ([(0.0, 29, 29)], 29, "none recommended: that takes 30 images to try it on, and there are 29"),
        ([(0.0, 30, 30)], 30, "none needed for images like the training ones: 100.0% right ("),
        (
            [(0.0, 60, 60), (0.5, 60, 60)],
            60,
            "none needed for images like the training ones: 100.0% right (95 %: 94.0 to 100.0; 60 ",
        ),
        ([(0.0, 60, 40), (0.9, 50, 45)], 60, "at --threshold 0.9: 83.3% answered, 90.0% of these right ("),
        ([(0.0, 60, 40), (0.9, 29, 29)], 60, "none recommended: 66.7% right ("),
    ],
)
def test_what_is_missed_or_not_needed_is_said(points, num_images, advice):
    stored = [OperatingPoint(*point).as_json() for point in points]
    result = results_of({"thresholds": stored, "num_images": num_images, "fingerprint": None})

    assert result["advice"].startswith(advice)
    is_missed = result["advice"].endswith("left-out training images); 99% is not reached")
    assert is_missed == (points[-1][1] in (29, 50) and num_images == 60)
    assert (result["recommended"] is None) == (num_images < selective.LEAST)


def test_below_the_goal_the_most_accurate_threshold_is_recommended_and_of_equals_the_lowest():
    points = [OperatingPoint(*each) for each in ((0.0, 90, 60), (0.4, 60, 54), (0.6, 50, 45), (0.7, 40, 35))]

    assert recommended(points) == points[1] == recommended(points[::-1])
    assert recommended([*points, OperatingPoint(0.9, 29, 29)]) == points[1]
    assert recommended([]) is None


def test_the_lowest_of_all_thresholds_that_reach_99_of_100_is_recommended():
    good = [OperatingPoint(0.8, 100, 99), OperatingPoint(0.9, 50, 50)]

    assert recommended([OperatingPoint(0.5, 1_000, 989), *good]) == good[0]
    assert recommended(good[::-1]) == good[0]


def test_a_table_has_each_number_of_answered_images_once():
    given = ((0.0, 80, 60), (0.5, 80, 60), (0.6, 40, 39), (0.7, 40, 39), (0.8, 0, 0))
    points = [OperatingPoint(*each).as_json() for each in given]

    rows = table_rows({"points": points, "num_images": 80})
    assert [row[:3] for row in rows] == [("0", "100.0%", "75.0%"), ("0.6", "50.0%", "97.5%")]
    assert all(" to " in interval for *_, interval in rows)


def test_the_accuracy_is_of_the_answered_images():
    counts = ((1, 1), (1, 0), (3, 2), (0, 0))
    assert [OperatingPoint(0.5, *each).accuracy for each in counts] == [1, 0, pytest.approx(2 / 3), 0]
