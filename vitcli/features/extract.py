"""Feature extraction for `vit fewshot` and `vit embed`: a network without training, its features on disk.

B batch, N rows, M labels of a row, O outputs (features, then logits), P processes.
"""

import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitcli.data.aliases import local_copy
from vitcli.data.image_cache import ImageCache
from vitcli.data.loader import Batch
from vitcli.data.sources import layouts
from vitcli.data.split import Split
from vitcli.data.transforms import as_data_keys
from vitcli.errors import DataError, Stopped
from vitcli.evaluation.inference import EvalSettings, outputs_of, report_progress
from vitcli.evaluation.setup import LoadedNetwork, RunSettings, eval_settings, load_network
from vitcli.features.feature_store import FeatureStore, open_cached
from vitcli.models import features
from vitcli.models.blocks import LayerLayout, read_layers
from vitcli.models.pos_embed import method_for
from vitcli.recipe import Recipe
from vitcli.weights.io import Weights, digest_of

REVISION = 3  # raise it when features change that have the same key


@dataclass(frozen=True, eq=False)
class FeatureExtractor:
    """A network with everything that features depend on, except the images.

    Attributes:
        recipe: with the preprocessing that is used.
        shown_notes: notes about the cache, so that each is shown once.
        layout: what is read of each layer, in place of eval.layer; None for that one.
        images: keeps decoded images for other networks of the command.
    """

    recipe: Recipe
    network: LoadedNetwork
    shown_notes: set[str] = field(default_factory=set)
    layout: LayerLayout | None = None
    images: ImageCache | None = None

    @cached_property
    def weights_digest(self) -> str:
        return digest_of(self.network.weights.state)

    def outputs(self, *, with_logits: bool) -> Callable[[Tensor], Tensor]:
        """Return the function of images to outputs (B, O)."""
        if self.layout is not None:
            assert not with_logits, "layers are read without logits"
            return partial(read_layers, self.network.model, layout=self.layout)
        layer = self.recipe.eval.layer
        return partial(features.outputs, self.network.model, layer=layer, with_logits=with_logits)

    def about(self, split: Split, *, with_logits: bool) -> dict[str, Any]:
        """Return everything the features of a split depend on, as JSON: the key of the cache."""
        recipe, dataset = self.recipe, self.recipe.data.dataset
        copy, layout = local_copy(dataset) if dataset else None, self.layout
        return {
            "revision": REVISION,
            "weights": self.weights_digest,
            "architecture": self.network.arch.as_dict(),
            "posemb_resample": method_for(self.network.arch, recipe.model.posemb_resample),
            "preprocessing": self.network.preprocessing.as_dict(),
            "layer": recipe.eval.layer if layout is None else [layout.layers, layout.parts],
            "logits": with_logits,
            "precision": self.network.settings.precision,
            "device": self.network.settings.device.type,
            "data": split.fingerprint,
            "files": layouts.state_of(copy) if copy else None,
            "split": split.name.removeprefix(str(dataset)),
            "num_examples": len(split),
        }


@dataclass(frozen=True)
class ExtractedFeatures:
    """Features of rows of a split, on disk.

    Attributes:
        store: open, on the first process; None on the others.
        num_cached: rows that were in the store before.
        num_computed: rows that were computed.
        skipped: places of undecodable images, which have no features.
    """

    store: FeatureStore | None
    num_cached: int
    num_computed: int
    skipped: list[str]


def open_extractor(
    weights: Weights, recipe: Recipe, run: RunSettings, settings: EvalSettings | None = None
) -> FeatureExtractor:
    """Join the run's processes, unless it has `settings`, and load the network onto the device."""
    network = load_network(weights, recipe, settings or eval_settings(recipe, run), needs_head=False)
    features.check_layer(network.model, recipe.eval.layer)
    # With the preprocessing that is used, so that the same recipe repeats it.
    data = recipe.data.model_copy(update=as_data_keys(network.preprocessing))
    return FeatureExtractor(recipe.model_copy(update={"data": data}), network)


def extract(
    extractor: FeatureExtractor,
    split: Split,
    rows_N: np.ndarray,
    open_store: Callable[[dict[str, Any], int], FeatureStore],
    *,
    with_logits: bool,
) -> ExtractedFeatures:
    """Compute the features of rows of a split that the store does not have yet.

    Args:
        open_store: opens the store for a key and a number of rows; called on the first process.
    """
    settings = extractor.network.settings
    runtime, opened = settings.runtime, []

    def missing_rows() -> tuple[np.ndarray, list[str]]:
        opened.append(open_store(extractor.about(split, with_logits=with_logits), len(split)))
        return rows_N[~opened[0].has(rows_N)], opened[0].notes

    # The first process opens the store, and all learn which rows are missing.
    missing_N, notes = runtime.on_main(missing_rows)
    for note in sorted(set(notes) - extractor.shown_notes):
        settings.progress.note(note)
    extractor.shown_notes.update(notes)
    store, skipped = opened[0] if opened else None, []

    # All processes compute these.
    if len(missing_N):
        try:
            skipped = fill_store(store, missing_N, extractor, split, with_logits=with_logits)
        except BaseException as error:
            if store is not None:
                store.close()  # or its file stays locked for as long as the error is kept
            if not isinstance(error, KeyboardInterrupt):
                raise
            rest = "; the same command computes only the rest" if store and store.is_kept else ""
            raise Stopped(signal.SIGINT, f"stopped while computing features of {split.name}{rest}") from None
        skipped = sorted(runtime.union(set(skipped)))
    num_computed = len(missing_N) - len(skipped)
    return ExtractedFeatures(store, len(rows_N) - len(missing_N), num_computed, skipped)


def features_of_rows(
    extractor: FeatureExtractor,
    split: Split,
    rows_N: np.ndarray,
    open_store: Callable[[dict[str, Any], int], FeatureStore] = open_cached,
) -> tuple[np.ndarray, np.ndarray, ExtractedFeatures]:
    """Return those of the rows that can be decoded, their features (N, D), and what else `extract` tells.

    Of a process alone; without a row the features are of no width either.
    """
    computed = extract(extractor, split, rows_N, open_store, with_logits=False)
    with closing(computed.store):
        rows_N = rows_N[computed.store.has(rows_N)]
        features_ND = computed.store.read(rows_N)["features"] if len(rows_N) else np.zeros((0, 0))
        return rows_N, features_ND, computed


def fill_store(
    store: FeatureStore | None,
    rows_N: np.ndarray,
    extractor: FeatureExtractor,
    split: Split,
    *,
    with_logits: bool,
) -> list[str]:
    """Compute rows of a split into a store, and return the places of this process's undecodable images.

    Process r of P computes every P-th batch. After each round of P batches all are gathered, and the first
    process writes them before it computes its next batch.

    Args:
        store: on the first process; None on the others.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error".
        WeightsError: an output is not a finite number.
        MachineError: the first process cannot write.
    """
    network = extractor.network
    model, preprocessing, settings = network.model, network.preprocessing, network.settings
    runtime, batch_size = settings.runtime, settings.batch_size
    read = extractor.outputs(with_logits=with_logits)
    num_logits = extractor.network.arch.num_classes if with_logits else 0
    images = split.rows(rows_N)
    if extractor.images:
        images = extractor.images.attach(images, visits=1, preprocessing=preprocessing)
    batches = settings.batches(images, preprocessing)
    outputs = outputs_of(model, batches, preprocessing, settings.device, settings.precision, network=read)
    outputs = report_progress(outputs, settings, "features", len(rows_N))
    num_labels, width, skipped = labels_per_row(split), 0, []
    num_rounds = -(-len(rows_N) // (batch_size * runtime.world_size))
    with closing(outputs):
        for _ in range(num_rounds):
            # A process without a batch in the last (maybe the only) round takes part with an empty one.
            with runtime.local_errors():
                batch, outputs_BO = next(outputs, (None, torch.zeros(0, width)))
            width = width or max(runtime.concatenated([outputs_BO.shape[1]]))
            skipped += batch.skipped if batch else ()
            # Batches are padded to one size to be gathered.
            numbers_BI = _row_numbers(batch, rows_N, batch_size=batch_size, num_labels=num_labels)
            padded_BO = torch.zeros(batch_size, width)
            if batch:
                padded_BO[: len(outputs_BO)] = outputs_BO
            numbers_NI = runtime.gather(numbers_BI).flatten(0, 1)
            outputs_NO = runtime.gather(padded_BO).flatten(0, 1)
            is_row_N = numbers_NI[:, 0] >= 0
            if store is not None and is_row_N.any():
                with runtime.local_errors():
                    numbers, values = numbers_NI[is_row_N].numpy(), outputs_NO[is_row_N].numpy()
                    store.append(numbers[:, 0], numbers[:, 1:], values, num_logits=num_logits)
        next(outputs, None)  # progress counts a batch when the next one is requested
    return skipped


def labels_per_row(split: Split) -> int:
    """Return the largest number of labels of a row.

    Raises:
        DataError: rows have several labels, and are too many to read all.
    """
    if not split.is_multilabel:
        return 1
    if split.is_large:
        raise DataError(
            f"the rows of {split.name} have several labels each, and are too many to read their labels first",
            where=split.name,
            fix="name a column of one label with data.label_column",
        )
    return split.read_labels().shape[1]


def _row_numbers(batch: Batch | None, rows_N: np.ndarray, *, batch_size: int, num_labels: int) -> Tensor:
    """Return row and labels of each image (batch_size, 1 + M), -1 where there is none."""
    numbers_BI = torch.full((batch_size, 1 + num_labels), -1, dtype=torch.int64)
    if batch is not None and len(batch.rows_B):
        num_rows = len(batch.rows_B)
        labels_BM = batch.labels_B.reshape(num_rows, -1)
        numbers_BI[:num_rows, 0] = torch.from_numpy(rows_N[batch.rows_B.numpy()])
        numbers_BI[:num_rows, 1 : 1 + labels_BM.shape[1]] = labels_BM
    return numbers_BI
