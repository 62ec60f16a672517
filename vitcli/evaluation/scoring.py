"""One pass over a split to the predictions of every row: the same ones on any number of processes.

Each row's numbers follow from its logits alone and are put in their place in arrays for the whole split; what
is then computed from these arrays, on whichever process, is the same to the last bit.
Letters: N rows, B batch, K classes.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.data.loader import Batch
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.distributed.runtime import Runtime
from vitcli.evaluation import predictions
from vitcli.evaluation.forward import fill_by_row, logits_of
from vitcli.evaluation.predictions import Predictions
from vitcli.output.progress import Console


def predictions_of(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    *,
    num_classes: int,
    project: Callable[[Tensor], Tensor] | None,
    runtime: Runtime,
    batch_size: int,
    on_bad_image: str,
    num_threads: int,
    precision: str,
    console: Console,
) -> tuple[Predictions, list[str]]:
    """Predictions of every row, and the places of the images that could not be decoded and do not count.

    Args:
        num_classes: of the logits that count: the model's, or the projected ones.
        project: logits_BK to the logits that count; None for all of them as they are.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none at all could be.
        WeightsError: a logit is not a finite number.
    """
    columns = predictions.empty_columns(len(split), num_classes)
    if not split.has_several_labels:
        columns["labels"] = torch.zeros(len(split), dtype=torch.int64)

    def numbers(batch: Batch, logits_BK: Tensor) -> dict[str, Tensor]:
        logits_BK = logits_BK if project is None else project(logits_BK)
        labels = {} if split.has_several_labels else {"labels": batch.labels_B}
        return predictions.columns_of(logits_BK, batch.labels_B) | labels

    seen_N, skipped = fill_by_row(
        columns,
        model,
        split,
        preprocessing,
        passed=lambda batches: logits_of(
            model, batches, preprocessing, device=runtime.device, precision=precision
        ),
        numbers=numbers,
        runtime=runtime,
        batch_size=batch_size,
        on_bad_image=on_bad_image,
        num_threads=num_threads,
        console=console,
    )
    rows_N = np.flatnonzero(seen_N.numpy())
    counted = {name: values_N.numpy()[rows_N] for name, values_N in columns.items()}
    if split.has_several_labels:
        counted["labels"] = split.read_labels()[rows_N]
    return Predictions(rows_N=rows_N, **counted), skipped
