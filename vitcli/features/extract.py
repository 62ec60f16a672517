"""A network that is only looked through: its pixels, its machine, and its features kept on disk.

Shared by fewshot and embed; no command of its own.
"""

import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.data import layouts
from vitcli.data.aliases import local_copy
from vitcli.data.loader import Batch
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import DataError, Stopped
from vitcli.evaluation.inference import EvalSettings, outputs_of, report_progress
from vitcli.evaluation.setup import RunSettings, eval_settings, preprocessing_for
from vitcli.features.feature_store import FeatureStore, digest_of
from vitcli.models import features
from vitcli.models.architecture import Architecture
from vitcli.recipe import Recipe
from vitcli.recipe.request import RecipeRequest
from vitcli.weights.io import Weights
from vitcli.weights.load import load_for_inference

REVISION = 2  # of what features are: raise it when the same key would give other numbers


@dataclass(frozen=True, eq=False)
class FeatureExtractor:
    """Everything that features depend on, but for the images.

    Attributes:
        resolved: the recipe, with the preprocessing that is really used.
        preprocessing_from: who says so.
        said: notes that the console has had; that a cache cannot be written is said once.
    """

    recipe: Recipe
    weights: Weights
    arch: Architecture
    model: nn.Module
    preprocessing: Preprocessing
    preprocessing_from: str
    settings: EvalSettings
    said: set[str] = field(default_factory=set)

    @cached_property
    def weights_digest(self) -> str:
        return digest_of(self.weights.state)

    def about(self, split: Split, *, with_logits: bool) -> dict[str, Any]:
        """What the features of a split are of, as JSON: where any of it is another, so are they."""
        wanted = self.recipe
        return {
            "revision": REVISION,
            "weights": self.weights_digest,
            "architecture": self.arch.as_dict(),
            "posemb_resample": wanted.model.posemb_resample,
            "preprocessing": self.preprocessing.as_dict(),
            "layer": wanted.eval.layer,
            "logits": with_logits,
            "precision": self.settings.precision,
            "device": self.settings.device.type,
            "data": split.fingerprint,
            "files": _state_of_files(wanted.data.dataset),
            "split": split.name.removeprefix(str(wanted.data.dataset)),
            "num_examples": len(split),
        }


@dataclass(frozen=True)
class ExtractedFeatures:
    """Rows of a split whose features are on disk.

    Attributes:
        store: open, of the first process; None of the others.
        num_cached: rows that were there before.
        num_computed: rows that were not.
        skipped: places of images that could not be decoded, which are no rows.
    """

    store: FeatureStore | None
    num_cached: int
    num_computed: int
    skipped: list[str]


def open_extractor(
    weights: Weights,
    recipe: Recipe,
    request: RecipeRequest,
    run: RunSettings,
) -> FeatureExtractor:
    """Join the run's processes and put the network on the device, in fp32 unless another is named."""
    settings = eval_settings(recipe, run)
    preprocessing, origin = preprocessing_for(weights, recipe, request)
    model, arch = load_for_inference(
        weights,
        preprocessing.image_size,
        recipe.model.posemb_resample,
        settings.device,
        settings.progress,
        needs_head=False,
    )
    features.check_layer(model, recipe.eval.layer)
    return FeatureExtractor(
        recipe=_with_preprocessing(recipe, preprocessing),
        weights=weights,
        arch=arch,
        model=model,
        preprocessing=preprocessing,
        preprocessing_from=origin,
        settings=settings,
    )


def extract(
    frozen: FeatureExtractor,
    split: Split,
    rows_N: np.ndarray,
    open_store: Callable[[dict[str, Any], int], FeatureStore],
    *,
    with_logits: bool,
) -> ExtractedFeatures:
    """Features of these rows of a split into the store that the first process opens, where not there."""
    runtime, opened = frozen.settings.runtime, []

    def look() -> tuple[np.ndarray, list[str]]:
        opened.append(open_store(frozen.about(split, with_logits=with_logits), len(split)))
        return rows_N[~opened[0].has(rows_N)], opened[0].notes

    missing_N, notes = runtime.on_main(look)
    for note in sorted(set(notes) - frozen.said):
        frozen.settings.progress.note(note)
    frozen.said.update(notes)
    store, skipped = opened[0] if opened else None, []
    if len(missing_N):
        layer = frozen.recipe.eval.layer
        network = partial(features.outputs, frozen.model, layer=layer, with_logits=with_logits)
        try:
            skipped = fill_store(
                store,
                missing_N,
                frozen.model,
                network,
                split,
                frozen.preprocessing,
                frozen.settings,
                num_logits=frozen.arch.num_classes if with_logits else 0,
            )
        except KeyboardInterrupt:
            rest = "; the same command computes only the rest" if store and store.is_kept else ""
            raise Stopped(signal.SIGINT, f"stopped while looking at {split.name}{rest}") from None
        skipped = sorted(runtime.union(set(skipped)))
    num_computed = len(missing_N) - len(skipped)
    return ExtractedFeatures(store, len(rows_N) - len(missing_N), num_computed, skipped)


def _with_preprocessing(recipe: Recipe, preprocessing: Preprocessing) -> Recipe:
    """The recipe that says what is really done to the pixels, so that feeding it back repeats it."""
    has_crop = preprocessing.resize == "short_side" or (
        preprocessing.resize == "square" and preprocessing.crop_fraction != 1
    )
    height, width = preprocessing.image_size
    used = {
        "image_size": height if height == width else (height, width),
        "eval_resize": preprocessing.resize,
        "eval_crop_fraction": preprocessing.crop_fraction if has_crop else None,
        "interpolation": preprocessing.interpolation,
        "antialias": preprocessing.antialias,
        "mean": preprocessing.mean,
        "std": preprocessing.std,
    }
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=used)})


def _state_of_files(dataset: str | None) -> str | None:
    """Changes when a file of a local data set does; None for one that is not local."""
    copy = local_copy(dataset) if dataset else None
    return layouts.state_of(copy) if copy else None


def fill_store(
    store: FeatureStore | None,
    rows_N: np.ndarray,
    model: nn.Module,
    network: Callable[[Tensor], Tensor],
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    num_logits: int,
) -> list[str]:
    """Compute `rows_N` of a split into a store; the places of images that could not be decoded.

    Every process computes every P-th batch. All of them hand over theirs at once, and the first one writes
    them before it computes its next.

    Args:
        store: of the first process; the others have None.
        network: a use of the bare `model`, images to (B, O).
        num_logits: how many of the outputs, the last ones, are logits.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error".
        WeightsError: an output is not a finite number.
        MachineError: the first process cannot write.
    """
    runtime, batch_size = settings.runtime, settings.batch_size
    batches = settings.batches(split.rows(rows_N), preprocessing)
    passed = outputs_of(
        model, network, batches, preprocessing, device=settings.device, precision=settings.precision
    )
    passed = report_progress(
        passed, settings.progress, "features", total=len(rows_N), num_processes=runtime.world_size
    )
    num_labels, width, skipped = labels_a_row(split), 0, []
    num_rounds = -(-len(rows_N) // (batch_size * runtime.world_size))
    with closing(passed):
        for _ in range(num_rounds):
            with runtime.local_errors():
                batch, outputs_BO = next(passed, (None, torch.zeros(0, width)))
            width = width or max(runtime.concatenated([outputs_BO.shape[1]]))
            skipped += batch.skipped if batch else ()
            numbers_BI = _numbers(batch, rows_N, batch_size=batch_size, num_labels=num_labels)
            padded_BO = torch.zeros(batch_size, width)
            padded_BO[: len(outputs_BO)] = outputs_BO
            numbers_PBI, outputs_PBO = runtime.gather(numbers_BI), runtime.gather(padded_BO)
            if store is not None:
                with runtime.local_errors():
                    _keep(store, numbers_PBI.flatten(0, 1), outputs_PBO.flatten(0, 1), num_logits)
        next(passed, None)  # the last batch is told as done when another is asked for
    if store is not None:
        store.sync()
    return skipped


def labels_a_row(split: Split) -> int:
    """Labels of the row that has most.

    Raises:
        DataError: rows have several, and are too many to look at.
    """
    if not split.has_several_labels:
        return 1
    if split.is_large:
        raise DataError(
            f"the rows of {split.name} have several labels each, and are too many to be looked at first",
            where=split.name,
            fix="name a column of one label with data.label_column",
        )
    return split.read_labels().shape[1]


def _numbers(batch: Batch | None, rows_N: np.ndarray, *, batch_size: int, num_labels: int) -> Tensor:
    """(batch_size, 1 + M): of each image its row of the split and its labels; -1 where there is no image."""
    numbers_BI = torch.full((batch_size, 1 + num_labels), -1, dtype=torch.int64)
    if batch is not None and len(batch.rows_B):
        count = len(batch.rows_B)
        labels_BM = batch.labels_B.reshape(count, -1)
        numbers_BI[:count, 0] = torch.from_numpy(rows_N[batch.rows_B.numpy()])
        numbers_BI[:count, 1 : 1 + labels_BM.shape[1]] = labels_BM
    return numbers_BI


def _keep(store: FeatureStore, numbers_NI: Tensor, outputs_NO: Tensor, num_logits: int) -> None:
    is_row_N = numbers_NI[:, 0] >= 0
    if is_row_N.any():
        numbers_NI, outputs_NO = numbers_NI[is_row_N].numpy(), outputs_NO[is_row_N].numpy()
        store.append(numbers_NI[:, 0], numbers_NI[:, 1:], outputs_NO, num_logits=num_logits)
