"""What stored numbers say of the predictions of a split (`vit evaluate`), and of images (`vit predict`).

Letters: N rows, K classes, D features.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from vitcli.data.split import Split
from vitcli.evaluation.calibration.prediction_sets import (
    LEVELS,
    SHOWN,
    coverage_and_size,
    sets_at,
    threshold_at,
)
from vitcli.evaluation.calibration.scaling import Scaling, fitted_scaling
from vitcli.evaluation.calibration.stored import KEY, Calibration
from vitcli.evaluation.intervals import SEED
from vitcli.evaluation.predictions import Predictions, reliability
from vitcli.weights.io import damaged_metadata


@dataclass(frozen=True, eq=False)
class CalibratedOutputs:
    """Calibrated outputs for some images.

    Attributes:
        probabilities_NK: float64.
        is_in_NK: the prediction set of SHOWN percent of each image; None if it has all classes.
        is_like_N: whether an image is like the training images; None where that is not known.
    """

    probabilities_NK: np.ndarray
    is_in_NK: np.ndarray
    is_like_N: np.ndarray | None


def calibrated(
    logits_NK: np.ndarray, features_ND: np.ndarray | None, stored: Calibration
) -> CalibratedOutputs:
    """Return the calibrated outputs for images with these logits and features.

    Raises:
        WeightsError: the stored statistics are of another number of features.
    """
    probabilities_NK = stored.scaling.probabilities(logits_NK)
    is_like_N = None
    if stored.statistics and stored.unlike and features_ND is not None:
        width = len(stored.statistics.covariance_DD)
        if features_ND.shape[1] != width:
            other = (
                f"the stored statistics are of {width} features, and the network has {features_ND.shape[1]}"
            )
            raise damaged_metadata(KEY, other)
        is_like_N = stored.unlike.of(stored.statistics, features_ND, probabilities_NK) <= stored.distance
    return CalibratedOutputs(probabilities_NK, sets_at(probabilities_NK, stored.sets[SHOWN]), is_like_N)


def results_of(
    predictions: Predictions, stored: Calibration | None, split: Split, *, fingerprint: str
) -> dict[str, Any]:
    """Return the keys of a result: how good calibrated probabilities and prediction sets are.

    {} of weights without any, of several labels, and of more logits than are kept.

    Args:
        fingerprint: of the split, before its labels were renumbered. On the very images that the numbers were
            chosen on, each half of the rows, of whole groups, is judged by numbers of the other half.
    """
    if stored is None or predictions.scores_NK is None:
        return {}
    log_p_NK, labels_N = predictions.scores_NK, predictions.labels
    halves = [(np.ones(len(labels_N), dtype=bool), stored.scaling, stored.sets)]
    is_same = stored.fingerprint == fingerprint
    if is_same and (is_first_N := _first_half(predictions.rows_N, split)) is not None:
        halves = [
            (half_N, *fitted(log_p_NK[~half_N], labels_N[~half_N])) for half_N in (is_first_N, ~is_first_N)
        ]
    calibrated_NK, losses_N = np.empty(log_p_NK.shape), np.empty(len(labels_N))
    is_in_NK = {level: np.empty(log_p_NK.shape, dtype=bool) for level in LEVELS}
    for rows_N, scaling, sets in halves:
        calibrated_NK[rows_N] = scaling.probabilities(log_p_NK[rows_N])
        losses_N[rows_N] = scaling.losses(log_p_NK[rows_N], labels_N[rows_N])
        for level in LEVELS:
            is_in_NK[level][rows_N] = sets_at(calibrated_NK[rows_N], sets[level])
    of_levels = {level: coverage_and_size(is_in_NK[level], labels_N) for level in LEVELS}
    bins = reliability(calibrated_NK.max(axis=1), calibrated_NK.argmax(axis=1) == labels_N)
    coverage, size = of_levels[SHOWN]
    return {
        **stored.scaling.as_json(),
        "ece_at_temperature": bins.ece,
        "nll_at_temperature": float(losses_N.mean()),
        "reliability_at_temperature": bins.as_json(),
        "coverage": coverage,
        "mean_set_size": size,
        "prediction_sets": {
            str(level): {"coverage": coverage, "mean_size": size}
            for level, (coverage, size) in of_levels.items()
        },
        "calibrated_on": stored.chosen_on,
    }


def _first_half(rows_N: np.ndarray, split: Split) -> np.ndarray | None:
    """Return which rows are in the first of two random halves, (N,) bool; None of a single image or group."""
    names_N = rows_N if split.groups_N is None else split.groups_N[rows_N]
    groups, group_of_row_N = np.unique(names_N, return_inverse=True)
    is_first_G = np.random.default_rng(SEED).permutation(len(groups)) % 2 == 0
    return is_first_G[group_of_row_N] if len(groups) > 1 else None


def fitted(log_p_NK: np.ndarray, labels_N: np.ndarray) -> tuple[Scaling, dict[int, float | None]]:
    """Return the scaling and thresholds of prediction sets by rows that the weights were not fitted to."""
    scaling = fitted_scaling(log_p_NK, labels_N)
    of_labels_N = scaling.probabilities(log_p_NK)[np.arange(len(labels_N)), labels_N]
    return scaling, {level: threshold_at(of_labels_N, level) for level in LEVELS}
