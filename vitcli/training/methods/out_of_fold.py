"""Out-of-fold outputs: what the networks of folds say of images that they have not seen.

They calibrate the network of all images, which has seen them. A run that is scored on a fold writes a file of
logits and distances into its folder, before the summary that marks it as finished: of all images of the fold,
or of a random part, as large in every fold, so that all folds have MOST_KEPT. The last run pools the files.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from vitcli.errors import DataError, VitError
from vitcli.evaluation.calibration import out_of_distribution
from vitcli.evaluation.calibration.out_of_distribution import FeatureStatistics, UnlikeScore
from vitcli.evaluation.metrics import Metrics
from vitcli.evaluation.predictions import Predictions
from vitcli.output.atomic import replace_file
from vitcli.output.run_folder import OUT_OF_FOLD
from vitcli.training.methods.outputs import MOST_KEPT, Outputs
from vitcli.weights.files import CHECKSUM, checksum_of, read_stored, write_safetensors

MOST_LOGITS = 2**24  # of all folds: 64 MiB, 768 images of 21,843 classes
MOST_BYTES = 2**27  # of a file: none that was written has more
SEED = 0  # of the part of each fold
DIGITS = 6  # of what is stored: fewer than sums agree in on other numbers of threads
OF_FOLDS = UnlikeScore(doubt_weight=1.0)  # distances of all folds are of one score, chosen by none of them


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """What networks say of images that they were not fitted to, nor to another one of the same group.

    Attributes:
        logits_MK: float32.
        distances_M: by the statistics of the images that the network was fitted to; None without them.
    """

    logits_MK: np.ndarray
    labels_M: np.ndarray
    distances_M: np.ndarray | None


class FoldModels(Protocol):
    """The models of folds, each of which predicts the images that it was trained without."""

    def scores(self) -> tuple[Metrics, list[str], Predictions]:
        """Return metrics, the names of undecodable images, and predictions of all images."""

    def outputs(self) -> tuple[OutOfFold, str]:
        """Return their outputs for a sample of the images, and its name; on the first process only."""


def write(folder: Path, train: Outputs, fold: Outputs, *, num_images: int) -> None:
    """Write what a network says of the fold that it is scored on.

    Args:
        train: outputs for the images that it was fitted to.
        num_images: of all folds together.
    """
    num_rows, num_classes = fold.logits_NK.shape
    most_rows = min(MOST_KEPT, MOST_LOGITS // num_classes)  # of all folds
    count = min(num_rows, -(-num_rows * most_rows // num_images))
    rows_M = np.sort(np.random.default_rng(SEED).permutation(num_rows)[:count])
    left_out = left_out_of(train, fold, rows_M)
    arrays = {"logits": left_out.logits_MK, "labels": left_out.labels_M}
    if left_out.distances_M is not None:
        arrays["distances"] = left_out.distances_M
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    metadata = {CHECKSUM: checksum_of(tensors, "{}")}
    replace_file(folder / OUT_OF_FOLD, lambda file: write_safetensors(file, tensors, metadata))


def pooled(folders: Sequence[Path], *, num_classes: int) -> OutOfFold:
    """Return what the networks of all folds say, in the order of the folds.

    Raises:
        DataError: a file is missing or damaged.
    """
    parts = [_read(folder, num_classes) for folder in folders]
    distances = [part.distances_M for part in parts]
    has_all = all(distances_M is not None for distances_M in distances)
    return OutOfFold(
        np.concatenate([part.logits_MK for part in parts]),
        np.concatenate([part.labels_M for part in parts]),
        np.concatenate(distances) if has_all else None,
    )


def _read(folder: Path, num_classes: int) -> OutOfFold:
    try:
        if (folder / OUT_OF_FOLD).stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        tensors = read_stored(folder / OUT_OF_FOLD).tensors
        logits_MK, labels_M = tensors["logits"].numpy(), tensors["labels"].numpy()
        distances_M = tensors["distances"].numpy() if "distances" in tensors else None
        check(OutOfFold(logits_MK, labels_M, distances_M), num_classes)
    except (VitError, OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{OUT_OF_FOLD} is missing or damaged: {error}"[:160],
            where=str(folder / OUT_OF_FOLD),
            fix=f"delete {folder}, and run the same command again",
        ) from error
    return OutOfFold(logits_MK, labels_M, distances_M)


def check(out_of_fold: OutOfFold, num_classes: int) -> None:
    """Raise ValueError for arrays that no run of `num_classes` classes has written."""
    logits_MK, labels_M = out_of_fold.logits_MK, out_of_fold.labels_M
    count = len(labels_M)
    if logits_MK.dtype != np.float32 or logits_MK.shape != (count, num_classes):
        raise ValueError(f"its logits are not of {num_classes} classes")
    if labels_M.dtype != np.int64 or not ((labels_M >= 0) & (labels_M < num_classes)).all():
        raise ValueError(f"its labels are not of {num_classes} classes")
    distances_M = np.zeros(count) if out_of_fold.distances_M is None else out_of_fold.distances_M
    if distances_M.dtype != np.float64 or distances_M.shape != (count,):
        raise ValueError(f"its distances are not those of {count} images")
    if not (np.isfinite(logits_MK).all() and np.isfinite(distances_M).all()):
        raise ValueError("a number is not finite")


def left_out_of(train: Outputs, held_out: Outputs, rows_M: np.ndarray) -> OutOfFold:
    """Return what a network that was fitted to others says of some of the held-out rows.

    Distances are rounded up to DIGITS digits, so that no number of threads changes them.
    """
    num_classes = held_out.logits_NK.shape[1]
    distances_M, statistics = None, statistics_of_rows(train, num_classes)
    if statistics is not None:
        distances_N = statistics.distances(held_out.features_ND, shrinkage=OF_FOLDS.shrinkage)
        distances_M = np.array([-rounded_down(-value) for value in distances_N[rows_M]], dtype=np.float64)
    return OutOfFold(held_out.logits_NK[rows_M], held_out.labels_N[rows_M], distances_M)


def statistics_of_rows(train: Outputs, num_classes: int) -> FeatureStatistics | None:
    if not len(train.labels_N):
        return None
    return out_of_distribution.statistics_of(train.features_ND, train.labels_N, num_classes=num_classes)


def rounded_down(value: float) -> float:
    """Return the largest number of DIGITS digits that is not above the value."""
    if value == 0:
        return 0.0
    scale = 10.0 ** (DIGITS - 1 - math.floor(math.log10(abs(value))))
    return float(f"{math.floor(value * scale) / scale:.{DIGITS + 2}g}")
