"""The temperature against SciPy's minimiser, and what it leaves as it is."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from vitcli.evaluation.calibration.scaling import Scaling, fitted_scaling, softmax_scale


def random_case(seed: int, *, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels that they predict better than chance."""
    rng = np.random.default_rng(seed)
    num_rows, num_classes = int(rng.integers(30, 400)), int(rng.integers(2, 12))
    labels_N = rng.integers(0, num_classes, num_rows)
    logits_NK = rng.normal(size=(num_rows, num_classes))
    logits_NK[np.arange(num_rows), labels_N] += 1
    return scale * logits_NK, labels_N


@pytest.mark.parametrize("seed", range(20))
def test_no_factor_has_a_smaller_cross_entropy_of_smoothed_labels(seed):
    logits_NK, labels_N = random_case(seed, scale=10.0 ** np.random.default_rng(seed).uniform(-1, 1))
    num_rows, num_classes = logits_NK.shape
    targets_NK = (1 - 1 / (num_rows + 2)) * np.eye(num_classes)[labels_N] + 1 / (num_rows + 2) / num_classes

    def loss(log_scale: float) -> float:
        return -(targets_NK * log_softmax(np.exp(log_scale) * logits_NK, axis=1)).sum()

    best = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
    assert softmax_scale(logits_NK, labels_N) == pytest.approx(np.exp(best.x), rel=1e-6)


def test_losses_and_probabilities_are_those_of_scipy_whatever_is_added_to_a_row():
    logits_NK, labels_N = random_case(3)
    expected_NK = log_softmax(logits_NK / 1.7, axis=1)
    shifted_NK = (logits_NK + 100).astype(np.float64)

    np.testing.assert_allclose(Scaling(1.7).probabilities(shifted_NK), np.exp(expected_NK), rtol=1e-12)
    of_labels_N = -expected_NK[np.arange(len(labels_N)), labels_N]
    np.testing.assert_allclose(Scaling(1.7).losses(shifted_NK, labels_N), of_labels_N, rtol=1e-10)


def test_logits_of_torch_are_scaled_as_those_of_numpy_and_no_scaling_changes_none():
    logits_NK, _ = random_case(4)

    scaled = Scaling(1.7).scaled(torch.from_numpy(logits_NK))
    np.testing.assert_array_equal(scaled, Scaling(1.7).scaled(logits_NK))
    np.testing.assert_array_equal(Scaling().scaled(logits_NK), logits_NK)
    assert Scaling.of_json({**Scaling(1.7).as_json(), "another": 3}) == Scaling(1.7)


def test_a_temperature_counts_only_where_rows_show_it():
    rng = np.random.default_rng(0)
    logits_NK = rng.normal(size=(2_000, 5)) * 2
    labels_N = np.array([rng.choice(5, p=row) for row in Scaling().probabilities(logits_NK)])

    assert fitted_scaling(logits_NK, labels_N).temperature == 1.0  # drawn from these probabilities
    assert fitted_scaling(3 * logits_NK, labels_N).temperature == pytest.approx(3, rel=0.1)
    assert fitted_scaling(logits_NK / 3, labels_N).temperature == pytest.approx(1 / 3, rel=0.1)
    right = logits_NK.argmax(axis=1)
    assert 0 < fitted_scaling(logits_NK, right).temperature < 0.2  # all are right: finite all the same
    found = fitted_scaling(3 * logits_NK, labels_N).temperature
    assert found == pytest.approx(1 / softmax_scale(3 * logits_NK, labels_N), rel=1e-5)  # six digits of it
    assert found == float(f"{found:.6g}")


def test_a_few_confident_mistakes_among_right_answers_change_nothing():
    # 136 images, each answered with 98 %: three mistakes are what that promises, a fourth is chance.
    logits_NK = np.tile([np.log(0.98), np.log(0.01), np.log(0.01)], (136, 1))
    for num_wrong, is_one in ((0, False), (1, True), (3, True), (6, True), (30, False)):
        labels_N = (np.arange(136) < num_wrong).astype(int)
        found = fitted_scaling(logits_NK, labels_N).temperature
        assert (found == 1.0) == is_one, (num_wrong, found)
        # By hand: each slope is the log-odds times the probability of the class that was not the label.
        wrong, right = 0.98 * np.log(98), -0.02 * np.log(98)
        total = num_wrong * wrong + (136 - num_wrong) * right
        squares = num_wrong * wrong**2 + (136 - num_wrong) * right**2
        assert is_one == (abs(total) <= 2.58 * np.sqrt(squares))
    logits_NK[0] = [0, 40, 0]  # a mistake so confident that it outweighs all others together
    assert fitted_scaling(logits_NK, np.zeros(136, dtype=int)).temperature == 1.0


def test_probabilities_that_are_right_are_left_alone_in_99_of_100_samples():
    rng, num_changed = np.random.default_rng(1), 0
    for _ in range(400):
        logits_NK = 2 * rng.normal(size=(200, 5))
        likely_NK = Scaling().probabilities(logits_NK).cumsum(axis=1)
        labels_N = (rng.random((200, 1)) > likely_NK).sum(axis=1).clip(max=4)
        num_changed += fitted_scaling(logits_NK, labels_N).temperature != 1
    assert num_changed <= 12  # 4 expected, 12 or more in 1 of 2,000 repetitions


def test_logits_of_another_unit_have_the_same_probabilities():
    logits_NK, labels_N = random_case(5)
    scale = softmax_scale(logits_NK, labels_N)

    assert softmax_scale(logits_NK / 200, labels_N) == pytest.approx(200 * scale, rel=1e-6)
    assert softmax_scale(logits_NK * 200, labels_N) == pytest.approx(scale / 200, rel=1e-6)


def test_ten_right_answers_are_no_reason_to_be_less_sure():
    logits_NK = np.tile([7.0, 0.0], (10, 1))  # of 99.9 %; the smoothed labels of ten rows ask for 96 %

    assert fitted_scaling(logits_NK, np.zeros(10, dtype=int)).temperature == 1.0
