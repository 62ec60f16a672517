"""Reliability diagrams and ECE, against hand values, a loop and other libraries."""

import numpy as np
import pytest

from vitcli.evaluation.predictions import reliability


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
