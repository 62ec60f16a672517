"""Numbers predicted from images: the scale of outputs, the pass over a split, errors, their file.

The network's one output is the number less the mean of those it was trained on, divided by their standard
deviation; both are stored with its weights. Letters: N rows, B batch, R bootstrap resamples.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from vitcli.data.loader import Batch
from vitcli.data.split import LARGEST_NUMBER, Split
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation import inference
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.intervals import SEED, TAILS
from vitcli.weights.io import damaged_metadata

KEY = "target"  # of the metadata of weights
RESAMPLES, MOST_DRAWS = 2_000, 100_000_000  # of a bootstrap; of many rows there are fewer resamples
FEWEST_RESAMPLES, ROWS_AT_A_TIME = 200, 2_000_000


@dataclass(frozen=True)
class RegressionTarget:
    """What a network predicts: a number of this name, from outputs in standard deviations from the mean."""

    name: str
    mean: float
    std: float

    def standardised(self, numbers: Tensor) -> Tensor:
        return (numbers - self.mean) / self.std

    def numbers_of(self, outputs: Tensor) -> Tensor:
        """Return the predicted numbers, float64."""
        return outputs.double() * self.std + self.mean

    def as_metadata(self) -> dict[str, Any]:
        """Return what the metadata of weights keep."""
        return {KEY: asdict(self)}


def target_of(metadata: Mapping[str, Any]) -> RegressionTarget | None:
    """Return what weights with this metadata predict; None if they do not predict one.

    Raises:
        WeightsError: the stored scale is not a scale.
    """
    stored = metadata.get(KEY)
    if stored is None:
        return None
    match stored:
        case {"name": str(name), "mean": int() | float() as mean, "std": int() | float() as std}:
            if abs(mean) <= LARGEST_NUMBER and 0 < std <= LARGEST_NUMBER:
                return RegressionTarget(name, float(mean), float(std))
    raise damaged_metadata(KEY, "the stored scale of the predicted number is damaged")


@dataclass(frozen=True)
class RegressionMetrics:
    """Errors of predicted numbers.

    Attributes:
        mae, rmse: mean absolute error, root of the mean squared error, in the unit of the numbers.
        r2: fraction of their variance that is explained; None where all are equal.
        loss: mean squared error of the standardised numbers.
        num_examples: images counted, each once.
    """

    mae: float
    rmse: float
    r2: float | None
    loss: float
    num_examples: int


@dataclass(frozen=True)
class NumberPredictions:
    """Numbers predicted for the decoded rows of a split, in row order: `values_N` for `targets_N`."""

    target: RegressionTarget
    rows_N: np.ndarray
    targets_N: np.ndarray
    values_N: np.ndarray

    def __len__(self) -> int:
        return len(self.rows_N)

    def columns(self) -> dict[str, Any]:
        """Return what a file has of each row."""
        return {"target": self.targets_N, "prediction": self.values_N}


def predict_numbers(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    target: RegressionTarget,
    is_mirrored: bool = False,
) -> tuple[NumberPredictions, list[str]]:
    """Return the predictions of a split, and the places of this process's undecodable images.

    Args:
        is_mirrored: the mean of the numbers of each image and its mirror image.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none can.
        WeightsError: an output is not a finite number.
    """

    def columns_of(batch: Batch, outputs_B1: Tensor) -> dict[str, Tensor]:
        return {"values": target.numbers_of(outputs_B1[:, 0])}

    batches = inference.balanced_batches(model, split, preprocessing, settings)
    network = inference.mirrored(model, inference.mean_number) if is_mirrored else None
    outputs = inference.outputs_of(
        model, batches, preprocessing, settings.device, settings.precision, network=network
    )
    columns, seen_N, skipped = inference.by_row(outputs, columns_of, split, settings)
    rows_N = np.flatnonzero(seen_N.numpy())
    targets_N = split.read_labels()[rows_N]  # in float64, unlike those of a batch
    return NumberPredictions(target, rows_N, targets_N, columns["values"].numpy()[rows_N]), skipped


def metrics_of(predictions: NumberPredictions) -> RegressionMetrics:
    """Return the errors of predictions; sums are exact before they are rounded.

    R2 = 1 - sum (y - f)^2 / sum (y - mean y)^2
    """
    targets_N, count = predictions.targets_N, len(predictions)
    errors_N = predictions.values_N - targets_N
    squared = math.fsum((errors_N**2).tolist())
    deviation = math.fsum(((targets_N - math.fsum(targets_N.tolist()) / count) ** 2).tolist())
    return RegressionMetrics(
        mae=math.fsum(np.abs(errors_N).tolist()) / count,
        rmse=math.sqrt(squared / count),
        r2=1 - squared / deviation if deviation else None,
        loss=squared / count / predictions.target.std**2,
        num_examples=count,
    )


def intervals_of(predictions: NumberPredictions, *, seed: int = SEED) -> dict[str, list[float]]:
    """Return 95 % percentile bootstrap intervals of MAE, RMSE and R2 over the images.

    Resamples of equal targets, which have no R2, are left out of its interval.
    """
    count = len(predictions)
    y_N = predictions.targets_N - predictions.targets_N.mean()
    errors_N = predictions.values_N - predictions.targets_N
    terms_N4 = np.stack([np.abs(errors_N), errors_N**2, y_N, y_N**2], axis=1)
    num_resamples = int(np.clip(MOST_DRAWS // count, FEWEST_RESAMPLES, RESAMPLES))
    rng, means_R4 = np.random.default_rng(seed), np.empty((num_resamples, 4))
    for resample in range(num_resamples):
        means_R4[resample] = terms_N4[rng.integers(count, size=count)].mean(axis=0)
    variances_R = means_R4[:, 3] - means_R4[:, 2] ** 2
    has_r2_R = variances_R > 1e-12 * max(float(y_N @ y_N) / count, np.finfo(float).tiny)
    scores = {"mae": means_R4[:, 0], "rmse": np.sqrt(means_R4[:, 1])}
    if has_r2_R.any():
        scores["r2"] = 1 - means_R4[has_r2_R, 1] / variances_R[has_r2_R]
    return {name: np.quantile(values_R, TAILS).tolist() for name, values_R in scores.items()}


def details_of(predictions: NumberPredictions) -> dict[str, Any]:
    """Return what was predicted, the error of always its mean in training, and intervals of the errors."""
    target = predictions.target
    of_mean = float(np.abs(predictions.targets_N - target.mean).mean())
    return {**target.as_metadata(), "mae_of_mean": of_mean, "intervals": intervals_of(predictions)}
