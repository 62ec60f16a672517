"""Evaluation of masked patch prediction (paper, section 4.6): metrics of a split, and images to draw."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vitcli.data.loader import Batch
from vitcli.data.sampler import derive_seed
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.errors import WeightsError
from vitcli.evaluation import metrics
from vitcli.evaluation.inference import EvalSettings, balanced_batches, by_row, forward_batches
from vitcli.models import masked_patch


def evaluate_patches(
    model: masked_patch.MaskedPatchModel,
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
) -> tuple[metrics.PatchMetrics, list[str]]:
    """Return the metrics of masked patch prediction, and the places of this process's undecodable images.

    The corruption of a row depends on the row alone.
    """
    colors_K = torch.zeros(masked_patch.NUM_COLORS, dtype=torch.int64)  # their frequencies

    def columns_of(batch: Batch, prediction: masked_patch.Prediction) -> dict[str, Tensor]:
        values = {"losses": masked_patch.example_losses(prediction).cpu().double()}
        if not prediction.targets.is_floating_point():
            values["right"] = masked_patch.num_right(prediction).cpu()
            colors_K.add_(masked_patch.color_counts(prediction).cpu())
        return values

    # One pass, and its totals; there are no colours where pixels are predicted.
    batches = balanced_batches(model, split, preprocessing, settings)
    outputs = _predictions_of(model, batches, preprocessing, settings)
    columns, seen_N, skipped = by_row(outputs, columns_of, split, settings)
    settings.runtime.sum_over_processes(colors_K)
    num_colors, num_examples = int(colors_K.sum()), int(seen_N.sum())
    return metrics.PatchMetrics(
        patch_accuracy=int(columns["right"].sum()) / num_colors if num_colors else None,
        most_frequent_color=int(colors_K.max()) / num_colors if num_colors else None,
        loss=float(columns["losses"].sum()) / num_examples,
        num_examples=num_examples,
    ), skipped


def _predictions_of(
    model: masked_patch.MaskedPatchModel,
    batches: Iterator[Batch],
    preprocessing: Preprocessing,
    settings: EvalSettings,
) -> Iterator[tuple[Batch, masked_patch.Prediction]]:
    def network(rows_B: Tensor, images_BCHW: Tensor) -> masked_patch.Prediction:
        seeds = (derive_seed(0, "patches", row) for row in rows_B.tolist())
        return model(images_BCHW, model.draw_alone(seeds))

    outputs = forward_batches(model, network, batches, preprocessing, settings.device, settings.precision)
    for batch, prediction in outputs:
        prediction = prediction.of_first(len(batch.rows_B))
        if not torch.isfinite(prediction.outputs).all():
            raise WeightsError(
                "the model's predictions are not finite numbers, so no metric can be computed",
                where=f"row {int(batch.rows_B[0])} and after of the split",
                fix="lower --lr, or set optimizer.clip, in a new --out",
            )
        yield batch, prediction


def patch_views(
    model: masked_patch.MaskedPatchModel,
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    num_images: int,
) -> list[tuple]:
    """Return the first images of a split, corrupted and as predicted; see `MaskedPatchModel.views`."""
    few = split.part(0, min(num_images, len(split)), name=split.name)
    settings = replace(settings, batch_size=num_images, on_bad_image="skip")
    batches = settings.batches(few, preprocessing, all_rows=True)
    views = []
    for batch, prediction in _predictions_of(model, batches, preprocessing, settings):
        images_BCHW = batch.images_BCHW.to(settings.device)
        images_BCHW = to_model_range(images_BCHW, mean=preprocessing.mean, std=preprocessing.std)
        views += model.views(images_BCHW, prediction)
    return views
