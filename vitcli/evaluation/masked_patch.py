"""The pass over a split for masked patch prediction (paper, section 4.6)."""

from collections.abc import Iterator

import torch
from torch import Tensor

from vitcli.data.loader import Batch, eval_batches
from vitcli.data.sampler import derive_seed
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.distributed.runtime import Runtime
from vitcli.errors import WeightsError
from vitcli.evaluation import metrics
from vitcli.evaluation.inference import fill_by_row, passes
from vitcli.models import masked_patch
from vitcli.output.progress import Progress


def evaluate_patches(
    model: masked_patch.MaskedPatchModel,
    split: Split,
    preprocessing: Preprocessing,
    *,
    runtime: Runtime,
    batch_size: int,
    on_bad_image: str,
    num_threads: int,
    precision: str = "fp32",
    progress: Progress,
) -> tuple[metrics.PatchMetrics, list[str]]:
    """Scores of masked patch prediction; each row's corruption is a function of the row alone."""
    columns = {
        "losses": torch.zeros(len(split), dtype=torch.float64),
        "right": torch.zeros(len(split), dtype=torch.int64),
    }
    colors_K = torch.zeros(masked_patch.NUM_COLORS, dtype=torch.int64)

    def numbers(batch: Batch, prediction: masked_patch.Prediction) -> dict[str, Tensor]:
        found = {"losses": masked_patch.example_losses(prediction).double().cpu()}
        if not prediction.targets.is_floating_point():
            found["right"] = masked_patch.num_right(prediction).cpu()
            colors_K.add_(masked_patch.color_counts(prediction).cpu())
        return found

    seen_N, skipped = fill_by_row(
        columns,
        model,
        split,
        preprocessing,
        passed=lambda batches: _predictions_of(
            model, batches, preprocessing, device=runtime.device, precision=precision
        ),
        numbers=numbers,
        runtime=runtime,
        batch_size=batch_size,
        on_bad_image=on_bad_image,
        num_threads=num_threads,
        progress=progress,
    )
    runtime.sum_over_processes(colors_K)
    num_colors, num_examples = int(colors_K.sum()), int(seen_N.sum())  # no colors where pixels are predicted
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
    *,
    device: torch.device,
    precision: str,
) -> Iterator[tuple[Batch, masked_patch.Prediction]]:
    def network(rows_B: Tensor, images_BCHW: Tensor) -> masked_patch.Prediction:
        seeds = (derive_seed(0, "patches", row) for row in rows_B.tolist())
        return model(images_BCHW, model.draw_alone(seeds))

    passed = passes(model, network, batches, preprocessing, device=device, precision=precision)
    for batch, prediction in passed:
        prediction = prediction.of_first(len(batch.rows_B))
        if not torch.isfinite(prediction.outputs).all():
            raise WeightsError(
                "the model's predictions are not finite numbers, so no score can be told",
                where=f"row {int(batch.rows_B[0])} and after of the split",
                fix="lower --lr, or set optimizer.clip, in a new --out",
            )
        yield batch, prediction


def patch_views(
    model: masked_patch.MaskedPatchModel,
    split: Split,
    preprocessing: Preprocessing,
    *,
    num_images: int,
    device: torch.device,
) -> list[tuple]:
    """The first pictures of a split: themselves, corrupted, as predicted; see `MaskedPatchModel.views`."""
    few = split.part(0, min(num_images, len(split)), name=split.name)
    batches = eval_batches(
        few, preprocessing, batch_size=num_images, rank=0, world_size=1, on_bad_image="skip", num_threads=1
    )
    views = []
    for batch, prediction in _predictions_of(model, batches, preprocessing, device=device, precision="fp32"):
        images_BCHW = to_model_range(
            batch.images_BCHW.to(device), mean=preprocessing.mean, std=preprocessing.std
        )
        views += model.views(images_BCHW, prediction)
    return views
