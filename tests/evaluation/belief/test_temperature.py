"""The temperature against SciPy's minimiser, and what it leaves as it is."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from vitcli.evaluation.belief.temperature import fitted_temperature, losses, probabilities, softmax_scale


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

    np.testing.assert_allclose(probabilities(shifted_NK, temperature=1.7), np.exp(expected_NK), rtol=1e-12)
    of_labels_N = -expected_NK[np.arange(len(labels_N)), labels_N]
    np.testing.assert_allclose(losses(shifted_NK, labels_N, temperature=1.7), of_labels_N, rtol=1e-10)


def test_a_temperature_counts_only_where_rows_show_it():
    rng = np.random.default_rng(0)
    logits_NK = rng.normal(size=(2_000, 5)) * 2
    labels_N = np.array([rng.choice(5, p=row) for row in probabilities(logits_NK, temperature=1.0)])

    assert fitted_temperature(logits_NK, labels_N) == 1.0  # its labels were drawn from these probabilities
    assert fitted_temperature(3 * logits_NK, labels_N) == pytest.approx(3, rel=0.1)
    assert fitted_temperature(logits_NK / 3, labels_N) == pytest.approx(1 / 3, rel=0.1)
    right = logits_NK.argmax(axis=1)
    assert 0 < fitted_temperature(logits_NK, right) < 0.2  # all are right: finite all the same
    assert len(f"{fitted_temperature(3 * logits_NK, labels_N):g}".replace(".", "")) <= 6
