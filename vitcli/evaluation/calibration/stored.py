"""The calibration of a classifier, as the metadata of weights keep it, and as it is read back.

The numbers are in the metadata and not in a file of their own: so whatever copies, links or exports the
weights takes them along, their checksum covers them, and timm, which refuses a tensor that it does not know,
reads the weights as before. The statistics of the features have a key of their own, which config.json leaves
out: people read that file.
"""

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vitcli.evaluation.calibration.out_of_distribution import (
    LEAST,
    MOST_NUMBERS,
    SHRINKAGES,
    FeatureStatistics,
    UnlikeScore,
)
from vitcli.evaluation.calibration.prediction_sets import LEVELS
from vitcli.evaluation.calibration.scaling import Scaling
from vitcli.evaluation.calibration.selective import OperatingPoint
from vitcli.weights.io import FEATURE_STATISTICS, damaged_metadata

KEY = "belief"  # of the metadata of weights


@dataclass(frozen=True, eq=False)
class Calibration:
    """What is stored with the weights of a classifier.

    Attributes:
        scaling: of its logits.
        sets: by the coverage promised in percent the least probability of a class in a prediction set; None
            where the images were too few to promise it: the set has all classes.
        thresholds: of the highest probability, and what each does with these images, see `selective`.
        num_images: that these were chosen on.
        chosen_on: their name.
        fingerprint: of these images, see `Split.fingerprint`; None for rows left out of the training images.
        distance: the score above which an image is unlike the training images; None without statistics.
        unlike: that score, and the evidence for it; None without statistics.
        flagged: the fraction of images like the training ones that lies above it.
        statistics: of the features of the training images.
    """

    scaling: Scaling
    sets: dict[int, float | None]
    thresholds: tuple[OperatingPoint, ...]
    num_images: int
    chosen_on: str
    fingerprint: str | None = None
    distance: float | None = None
    flagged: float | None = None
    unlike: UnlikeScore | None = None
    statistics: FeatureStatistics | None = None

    def facts(self) -> dict[str, Any]:
        """Return all but the statistics, as JSON."""
        return {
            **self.scaling.as_json(),
            "sets": {str(level): self.sets[level] for level in LEVELS},
            "thresholds": [point.as_json() for point in self.thresholds],
            "num_images": self.num_images,
            "chosen_on": self.chosen_on,
            "fingerprint": self.fingerprint,
            "distance": self.distance,
            "flagged": self.flagged,
            "unlike": None if self.unlike is None else asdict(self.unlike),
        }

    def as_metadata(self) -> dict[str, Any]:
        """Return what the metadata of weights keep."""
        stored = {KEY: self.facts()}
        return stored if self.statistics is None else stored | {FEATURE_STATISTICS: _packed(self.statistics)}


def calibration_of(metadata: Mapping[str, Any], num_classes: int) -> Calibration | None:
    """Return what is stored with weights of this metadata; None if nothing is.

    Raises:
        WeightsError: the numbers are damaged, or of another number of classes.
    """
    stored = metadata.get(KEY)
    if stored is None:
        return None
    try:
        return _read(stored, metadata.get(FEATURE_STATISTICS), num_classes)
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise damaged_metadata(KEY, f"the stored calibration is damaged: {error}") from error


def why_unchecked(metadata: Mapping[str, Any], stored: Calibration | None) -> str | None:
    """Return why a classifier of `vit finetune` does not say what is unlike its training images.

    None if it does, and of weights from elsewhere.
    """
    if metadata.get("trained_by") != "finetune" or (stored and stored.statistics):
        return None
    needed = f"not checked: that takes {LEAST} held-out images"
    if stored is None:
        return f"{needed} besides a test split (a run by folds holds out all)"
    if stored.num_images >= LEAST:
        return "not checked: the statistics that this takes are not stored with these weights"
    # Without a fingerprint every training image has been left out.
    more = " (a run by folds holds out all)" if stored.fingerprint else ""
    return f"{needed}, and the run has {stored.num_images}{more}"


def _read(stored: Mapping[str, Any], packed: Mapping[str, Any] | None, num_classes: int) -> Calibration:
    sets = {level: _number_or_none(stored["sets"], str(level), least=0, most=1) for level in LEVELS}
    distance = _number_or_none(stored, "distance", least=-math.inf, most=math.inf)
    flagged = _number_or_none(stored, "flagged", least=0, most=1)
    unlike = _unlike_score(stored.get("unlike"))
    num_images, chosen_on, fingerprint = (
        stored.get(key) for key in ("num_images", "chosen_on", "fingerprint")
    )
    if type(num_images) is not int or not isinstance(chosen_on, str):
        raise ValueError("it does not say by which images")
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise ValueError("the fingerprint is not text")
    # Statistics are left out by formats without a place for them; then nothing is known of distances.
    is_known = distance is not None and unlike is not None
    statistics = _unpacked(packed, num_classes) if packed is not None and is_known else None
    thresholds = tuple(_operating_point(point, num_images) for point in stored["thresholds"])
    about = (thresholds, num_images, chosen_on, fingerprint)
    return Calibration(Scaling.of_json(stored), sets, *about, distance, flagged, unlike, statistics)


def _unlike_score(stored: Mapping[str, Any] | None) -> UnlikeScore | None:
    if stored is None:
        return None
    shrinkage = _number(stored, "shrinkage", least=min(SHRINKAGES), most=1)
    weight = _number(stored, "doubt_weight", least=0, most=math.inf)
    aurocs = (_number_or_none(stored, key, least=0, most=1) for key in ("auroc", "auroc_of_doubt"))
    return UnlikeScore(shrinkage, weight, *aurocs)


def _operating_point(stored: Mapping[str, Any], num_images: int) -> OperatingPoint:
    threshold = _number(stored, "threshold", least=0, most=1)
    answered, right = stored["answered"], stored["right"]
    if not (type(answered) is type(right) is int and 0 <= right <= answered <= num_images):
        raise ValueError(f"{right!r:.40} right of {answered!r:.40} answered of {num_images} images")
    return OperatingPoint(threshold, answered, right)


def _number_or_none(stored: Mapping[str, Any], key: str, *, least: float, most: float) -> float | None:
    return None if stored[key] is None else _number(stored, key, least=least, most=most)


def _number(stored: Mapping[str, Any], key: str, *, least: float, most: float) -> float:
    value = stored[key]
    if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{key} is {value!r:.40}")
    return float(value)


def _packed(statistics: FeatureStatistics) -> dict[str, Any]:
    """Return JSON with the arrays in base64: little-endian float32, of the covariance the lower triangle."""
    triangle_P = statistics.covariance_DD[np.tril_indices(len(statistics.covariance_DD))]
    return {
        "counts": statistics.counts_K.tolist(),
        "num_features": len(statistics.covariance_DD),
        "means": _as_base64(statistics.means_KD),
        "covariance": _as_base64(triangle_P),
    }


def _as_base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode()


def _unpacked(packed: Mapping[str, Any], num_classes: int) -> FeatureStatistics:
    counts, width = packed["counts"], packed["num_features"]
    are_counts = isinstance(counts, list) and all(
        type(count) is int and 0 <= count < 2**53 for count in counts
    )
    if not are_counts or len(counts) != num_classes or not sum(counts):
        raise ValueError(f"its statistics are not of {num_classes} classes")
    if type(width) is not int or not 0 < width <= MOST_NUMBERS:
        raise ValueError(f"num_features is {width!r:.40}")
    size = width * (width + 1) // 2
    if num_classes * width + size > MOST_NUMBERS:
        raise ValueError(f"num_features is {width}")
    means_KD = _of_base64(packed["means"], num_classes * width).reshape(num_classes, width)
    covariance_DD = np.zeros((width, width), dtype=np.float32)
    covariance_DD[np.tril_indices(width)] = _of_base64(packed["covariance"], size)
    covariance_DD += np.tril(covariance_DD, -1).T
    if not np.trace(covariance_DD.astype(np.float64)) > 0:
        raise ValueError("the covariance is that of no features")
    return FeatureStatistics(np.array(counts, dtype=np.int64), means_KD, covariance_DD)


def _of_base64(text: Any, count: int) -> np.ndarray:
    if not isinstance(text, str):
        raise ValueError("an array is not text")
    values = base64.b64decode(text, validate=True)
    if len(values) != 4 * count:
        raise ValueError(f"an array has {len(values)} bytes and not {4 * count}")
    array = np.frombuffer(values, dtype="<f4").astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError("an array holds a number that is not finite")
    return array
