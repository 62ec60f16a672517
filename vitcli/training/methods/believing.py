"""What may be believed of a finished classifier: its numbers, by images that it was not fitted to.

Temperature and prediction sets are chosen on the logits of these images, the distance of an image that is
unlike the training ones on their features. They are the images to choose by within the run, if there are
LEAST; else those that it is scored on, unless that is a test split; else the validation split. A delivered
probe is fitted on the images to choose by too. Its own left-out logits are known in closed form, so all
training images serve. So they do for any other network of a run with folds, by what the networks of the
folds say of them, see `out_of_fold`.

M rows to calibrate by, N training rows, D features, K classes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.data.loader import Batch
from vitcli.data.parts.cuts import random_subset
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.distributed import fsdp
from vitcli.evaluation import inference
from vitcli.evaluation.belief import familiar, selective
from vitcli.evaluation.belief.familiar import FeatureStatistics
from vitcli.evaluation.belief.prediction_sets import LEAST
from vitcli.evaluation.belief.results import fitted
from vitcli.evaluation.belief.stored import Belief
from vitcli.evaluation.inference import EvalSettings
from vitcli.models import features
from vitcli.models.build import last_layers
from vitcli.training.methods.probe_head import closed_form_head

MOST_ROWS = 5_000  # images of each pass, a random sample that no seed changes: more change little
DIGITS = 6  # of what is stored: fewer than sums agree in on other numbers of threads


@dataclass(frozen=True, eq=False)
class Outputs:
    """Outputs of a network for the rows of a split whose outputs are all finite numbers, and their groups."""

    features_ND: np.ndarray
    logits_NK: np.ndarray
    labels_N: np.ndarray
    groups_N: np.ndarray | None


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


class OutputPasses:
    """The passes of a finished network over samples of splits, each made once.

    Attributes:
        skipped: this process's undecodable images.
    """

    def __init__(
        self, model: nn.Module, preprocessing: Preprocessing, settings: EvalSettings, *, num_classes: int
    ):
        # The run has refused or counted those of its own.
        self._how = model, preprocessing, replace(settings, on_bad_image="skip")
        self.num_classes, self.runtime = num_classes, settings.runtime
        self.skipped: set[str] = set()
        self._known: dict[int, tuple[Split, Outputs]] = {}

    def of(self, split: Split) -> Outputs:
        """Return the outputs for a split, equal on all processes."""
        if id(split) not in self._known:
            most_rows = min(MOST_ROWS, inference.MOST_SCORES // self.num_classes)
            sample = random_subset(split, most_rows, seed=0) if len(split) > most_rows else split
            model, *how = self._how
            outputs, places = _outputs_of(model, sample, *how, num_classes=self.num_classes)
            self._known[id(split)] = split, outputs
            self.skipped |= set(places)
        return self._known[id(split)][1]


def believe(
    passes: OutputPasses,
    train: Split,
    split: Split,
    *,
    probe: dict[str, str] | None = None,
    folds: Callable[[], tuple[OutOfFold, str]] | None = None,
) -> Belief | str:
    """Return what is stored with the weights, or why it is not.

    The first process computes, so that all have the same bits.

    Args:
        split: images that the network was not fitted to.
        probe: of a delivered probe, fitted on both splits: "loss" and "balance" of `closed_form_head`.
        folds: of a network that was fitted to all images, reads what those of the folds say of them, and
            names these images; `split` is not looked at then.
    """
    of_train, on_main = passes.of(train), passes.runtime.on_main
    if folds is not None:
        return on_main(lambda: of_folds(of_train, *folds()))
    of_split = passes.of(split)
    if probe is not None:
        return on_main(lambda: of_probe(of_train, of_split, **probe))
    return on_main(lambda: of_network(of_train, of_split, split))


def of_network(train: Outputs, held_out: Outputs, split: Split) -> Belief | str:
    """Return what the held-out rows of `split` show of a network that was fitted on others."""
    statistics, distances_M = _distances(train, held_out)
    about = (split.name, split.fingerprint)
    return _belief(held_out.logits_NK, held_out.labels_N, statistics, distances_M, *about)


def of_folds(train: Outputs, out_of_fold: OutOfFold, chosen_on: str) -> Belief | str:
    """Return what the networks of folds show of one that was fitted, as they were, to all images."""
    distances_M = out_of_fold.distances_M
    statistics = None if distances_M is None else _statistics_of(train)
    distances_M = np.zeros(0) if distances_M is None else distances_M
    return _belief(out_of_fold.logits_MK, out_of_fold.labels_M, statistics, distances_M, chosen_on, None)


def left_out_of(train: Outputs, held_out: Outputs, rows_M: np.ndarray) -> OutOfFold:
    """Return what a network that was fitted to others says of some of the held-out rows.

    Distances are rounded up to DIGITS digits, so that no number of threads changes them.
    """
    statistics, distances_N = _distances(train, held_out)
    rounded = [-_rounded_down(-distance) for distance in distances_N[rows_M]] if statistics else None
    distances_M = None if rounded is None else np.array(rounded, dtype=np.float64)
    return OutOfFold(held_out.logits_NK[rows_M], held_out.labels_N[rows_M], distances_M)


def _distances(train: Outputs, held_out: Outputs) -> tuple[FeatureStatistics | None, np.ndarray]:
    statistics = _statistics_of(train)
    return statistics, np.zeros(0) if statistics is None else statistics.distances(held_out.features_ND)


def _statistics_of(train: Outputs) -> FeatureStatistics | None:
    if not len(train.labels_N):
        return None
    num_classes = train.logits_NK.shape[1]
    return familiar.statistics_of(train.features_ND, train.labels_N, num_classes=num_classes)


def of_probe(train: Outputs, choice: Outputs, *, loss: str, balance: str) -> Belief | str:
    """Return what the rows of both splits show of the closed form on them, each left out with its group."""
    features_ND = np.concatenate([train.features_ND, choice.features_ND])
    labels_N = np.append(train.labels_N, choice.labels_N)
    groups_N = None if train.groups_N is None else np.append(train.groups_N, choice.groups_N)
    about = {"num_classes": train.logits_NK.shape[1], "groups_N": groups_N}
    head = closed_form_head(torch.from_numpy(features_ND), labels_N, loss=loss, balance=balance, **about)
    if head.left_out is None:
        return f"no class has two {'images' if groups_N is None else 'groups'}"
    statistics = familiar.statistics_of(features_ND, labels_N, num_classes=about["num_classes"])
    distances_M = familiar.left_out_distances(features_ND, labels_N, **about)
    chosen_on = "training images, each left out in turn"
    chosen_on += "" if groups_N is None else " with its group"
    return _belief(*head.left_out, statistics, distances_M, chosen_on, None)


def _belief(
    logits_MK: np.ndarray,
    labels_M: np.ndarray,
    statistics: FeatureStatistics | None,
    distances_M: np.ndarray,
    chosen_on: str,
    fingerprint: str | None,
) -> Belief | str:
    if len(labels_M) < LEAST:
        return f"they take {LEAST} images that were not trained on, and there are {len(labels_M)}"
    temperature, sets = fitted(logits_MK, labels_M)
    points = selective.operating_points(logits_MK, labels_M, temperature=temperature)
    # Rounded so that no set gets smaller, and no image like those is flagged.
    sets = {level: None if least is None else _rounded_down(least) for level, least in sets.items()}
    chosen = None if statistics is None else familiar.threshold_of(distances_M)
    distance, flagged = (-_rounded_down(-chosen[0]), chosen[1]) if chosen else (None, None)
    kept = statistics if chosen else None
    about = (points, len(labels_M), chosen_on, fingerprint)
    return Belief(temperature, sets, *about, distance, flagged, kept)


def _rounded_down(value: float) -> float:
    """Return the largest number of DIGITS digits that is not above the value."""
    if value == 0:
        return 0.0
    scale = 10.0 ** (DIGITS - 1 - math.floor(math.log10(abs(value))))
    return float(f"{math.floor(value * scale) / scale:.{DIGITS + 2}g}")


def _outputs_of(
    model: nn.Module, split: Split, preprocessing: Preprocessing, settings: EvalSettings, *, num_classes: int
) -> tuple[Outputs, list[str]]:
    """Return the outputs of the decodable rows, equal on all processes; also undecodable images of this one.

    Rows with an output that is not finite are left out.
    """
    width = last_layers(model)[0].weight.shape[1]
    columns = {
        "outputs": torch.zeros(len(split), width + num_classes),
        "labels": torch.zeros(len(split), dtype=torch.int64),
    }

    def columns_of(batch: Batch, outputs_BO: Tensor) -> dict[str, Tensor]:
        return {"outputs": outputs_BO, "labels": batch.labels_B}

    batches = inference.balanced_batches(model, split, preprocessing, settings)
    both = partial(features.outputs, model, layer="pre_logits", with_logits=True)
    network = fsdp.gathered_for(model, both)
    how = (preprocessing, settings.device, settings.precision)
    outputs = inference.outputs_of(model, batches, *how, network=network, may_overflow=True)
    seen_N, skipped = inference.fill_by_row(columns, outputs, columns_of, split, settings)
    kept_N = seen_N & columns["outputs"].isfinite().all(dim=1) & (columns["labels"] >= 0)
    outputs_NO, labels_N = columns["outputs"][kept_N].numpy(), columns["labels"][kept_N].numpy()
    groups_N = None if split.groups_N is None else split.groups_N[kept_N.numpy()]
    return Outputs(outputs_NO[:, :width], outputs_NO[:, width:], labels_N, groups_N), skipped
