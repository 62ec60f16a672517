"""What is stored is what is read back, and damage of any kind is refused in three lines."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest

from vitcli.errors import WeightsError
from vitcli.evaluation.calibration.out_of_distribution import UnlikeScore, statistics_of
from vitcli.evaluation.calibration.results import calibrated
from vitcli.evaluation.calibration.scaling import Scaling
from vitcli.evaluation.calibration.selective import OperatingPoint
from vitcli.evaluation.calibration.stored import KEY, Calibration, calibration_of, why_unchecked
from vitcli.weights.io import FEATURE_STATISTICS

SETS = {90: 0.7, 95: 0.2, 99: None}
POINTS = (OperatingPoint(0.0, 90, 80), OperatingPoint(0.8, 60, 60))


@pytest.fixture
def stored() -> Calibration:
    rng = np.random.default_rng(0)
    labels_N = np.arange(90) % 3
    features_ND = rng.normal(size=(90, 5)) + labels_N[:, None]
    statistics = statistics_of(features_ND, labels_N, num_classes=3)
    score = UnlikeScore(0.1, 2.5, 0.81, None)
    return Calibration(
        Scaling(1.25), SETS, POINTS, 90, "data, dev part", "abc", -1.5, 0.0109, score, statistics
    )


def test_where_new_classes_are_not_checked_the_reason_is_said(stored):
    ours = {"trained_by": "finetune"}
    few = replace(stored, num_images=48, statistics=None)
    needed = "not checked: that takes 49 held-out images"

    assert why_unchecked(ours, stored) is None
    assert why_unchecked({}, None) is why_unchecked({"trained_by": "pretrain"}, None) is None
    assert why_unchecked(ours, None) == f"{needed} besides a test split (a run by folds holds out all)"
    assert why_unchecked(ours, few) == f"{needed}, and the run has 48 (a run by folds holds out all)"
    of_folds = replace(few, fingerprint=None)  # which have left out every image already
    assert why_unchecked(ours, of_folds) == f"{needed}, and the run has 48"
    assert "are not stored" in why_unchecked(ours, replace(few, num_images=49))


def as_read(stored: Calibration) -> dict:
    return json.loads(json.dumps(stored.as_metadata()))


def test_the_same_numbers_are_read_back_bit_for_bit(stored):
    read = calibration_of(as_read(stored), 3)
    new_ND = np.random.default_rng(1).normal(size=(7, 5))

    assert read.facts() == stored.facts() and read.as_metadata() == stored.as_metadata()
    p_NK = np.full((7, 3), 1 / 3)
    scores = [each.unlike.of(each.statistics, new_ND, p_NK) for each in (read, stored)]
    np.testing.assert_array_equal(*scores)
    assert read.unlike == stored.unlike and stored.facts()["unlike"]["doubt_weight"] == 2.5
    assert calibration_of({}, 3) is None and calibration_of({FEATURE_STATISTICS: {}}, 3) is None


def test_without_statistics_nothing_is_known_of_what_is_unlike(stored):
    metadata = as_read(stored)
    del metadata[FEATURE_STATISTICS]
    read = calibration_of(metadata, 3)

    assert read.statistics is None and read.scaling == Scaling(1.25)
    without_score = as_read(stored)
    del without_score[KEY]["unlike"]
    assert calibration_of(without_score, 3).statistics is None
    assert calibrated(np.zeros((2, 3)), np.zeros((2, 5)), read).is_like_N is None
    with pytest.raises(WeightsError, match="of 5 features, and the network has 4"):
        calibrated(np.zeros((2, 3)), np.zeros((2, 4)), stored)


def test_an_image_at_the_distance_is_still_like_the_training_images(stored):
    features_ND, logits_NK = np.random.default_rng(2).normal(size=(3, 5)), np.zeros((3, 3))
    scores_N = stored.unlike.of(stored.statistics, features_ND, np.full((3, 3), 1 / 3))
    middle = replace(stored, distance=float(np.median(scores_N)))

    found = calibrated(logits_NK, features_ND, middle).is_like_N
    assert found.tolist() == (scores_N <= np.median(scores_N)).tolist() and found.sum() == 2


DAMAGES = {
    "no object": lambda m: m.update({KEY: 3}),
    "a list": lambda m: m.update({KEY: [1, 2]}),
    "no temperature": lambda m: m[KEY].pop("temperature"),
    "temperature of 0": lambda m: m[KEY].update(temperature=0),
    "negative temperature": lambda m: m[KEY].update(temperature=-1.0),
    "temperature NaN": lambda m: m[KEY].update(temperature=float("nan")),
    "temperature true": lambda m: m[KEY].update(temperature=True),
    "a text as temperature": lambda m: m[KEY].update(temperature="1"),
    "a set above 1": lambda m: m[KEY]["sets"].update({"95": 1.5}),
    "a set NaN": lambda m: m[KEY]["sets"].update({"95": float("nan")}),
    "a level is missing": lambda m: m[KEY]["sets"].pop("99"),
    "sets are a list": lambda m: m[KEY].update(sets=[0.1, 0.2, 0.3]),
    "no thresholds": lambda m: m[KEY].pop("thresholds"),
    "thresholds are a number": lambda m: m[KEY].update(thresholds=0.8),
    "a threshold above 1": lambda m: m[KEY]["thresholds"][0].update(threshold=1.5),
    "more right than answered": lambda m: m[KEY]["thresholds"][0].update(right=91),
    "one more right than answered": lambda m: m[KEY]["thresholds"][0].update(answered=7, right=8),
    "a part of an image": lambda m: m[KEY]["thresholds"][0].update(right=7.5),
    "no images": lambda m: m[KEY].update(num_images=None),
    "a fingerprint that is a number": lambda m: m[KEY].update(fingerprint=7),
    "infinite distance": lambda m: m[KEY].update(distance=float("inf")),
    "a score without shrinkage": lambda m: m[KEY]["unlike"].pop("shrinkage"),
    "a shrinkage above 1": lambda m: m[KEY]["unlike"].update(shrinkage=1.5),
    "no shrinkage at all": lambda m: m[KEY]["unlike"].update(shrinkage=0.0),
    "a negative weight": lambda m: m[KEY]["unlike"].update(doubt_weight=-1.0),
    "an infinite weight": lambda m: m[KEY]["unlike"].update(doubt_weight=float("inf")),
    "an AUROC above 1": lambda m: m[KEY]["unlike"].update(auroc=1.1),
    "other classes": lambda m: m[FEATURE_STATISTICS]["counts"].append(4),
    "negative counts": lambda m: m[FEATURE_STATISTICS].update(counts=[-1, 2, 3]),
    "no rows": lambda m: m[FEATURE_STATISTICS].update(counts=[0, 0, 0]),
    "an absurd width": lambda m: m[FEATURE_STATISTICS].update(num_features=10**12),
    "another width": lambda m: m[FEATURE_STATISTICS].update(num_features=6),
    "statistics are a text": lambda m: m.update({FEATURE_STATISTICS: "abc"}),
    "no base64": lambda m: m[FEATURE_STATISTICS].update(means="ä!"),
    "a short array": lambda m: m[FEATURE_STATISTICS].update(covariance="AAAA"),
    "NaN in an array": lambda m: m[FEATURE_STATISTICS].update(means="AADAfwAA" * 10),
    "a number as array": lambda m: m[FEATURE_STATISTICS].update(means=7),
    "no covariance": lambda m: m[FEATURE_STATISTICS].update(covariance="A" * 80),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_numbers_are_refused(stored, damage):
    metadata = copy.deepcopy(as_read(stored))
    DAMAGES[damage](metadata)

    with pytest.raises(WeightsError, match="the stored calibration is damaged") as refused:
        calibration_of(metadata, 3)
    assert refused.value.where and refused.value.fix


def test_statistics_without_a_threshold_say_nothing_of_what_is_unlike(stored):
    metadata = as_read(stored)
    metadata[KEY].update(distance=None, flagged=None)
    read = calibration_of(metadata, 3)

    assert read.statistics is None
    assert calibrated(np.zeros((2, 3)), np.zeros((2, 5)), read).is_like_N is None
