"""The pass over a split that leaves features on disk: any rows of it, in constant memory, by any number of
processes, of which the first writes.

N rows, B batch, P processes, M labels a row, O outputs (features, then logits).
"""

from collections.abc import Callable
from contextlib import closing

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.data.loader import Batch, eval_batches
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.distributed.runtime import Runtime
from vitcli.errors import DataError
from vitcli.evaluation.forward import outputs_of, watched
from vitcli.features.feature_store import FeatureStore
from vitcli.output.progress import Console


def fill(
    store: FeatureStore | None,
    rows_N: np.ndarray,
    model: nn.Module,
    network: Callable[[Tensor], Tensor],
    split: Split,
    preprocessing: Preprocessing,
    *,
    num_logits: int,
    runtime: Runtime,
    batch_size: int,
    on_bad_image: str,
    num_threads: int,
    precision: str,
    console: Console,
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
    batches = eval_batches(
        split.rows(rows_N),
        preprocessing,
        batch_size=batch_size,
        rank=runtime.rank,
        world_size=runtime.world_size,
        on_bad_image=on_bad_image,
        num_threads=num_threads,
    )
    passed = outputs_of(model, network, batches, preprocessing, device=runtime.device, precision=precision)
    passed = watched(passed, console, "features", total=len(rows_N), at_once=runtime.world_size)
    num_labels, width, skipped = labels_a_row(split), 0, []
    num_rounds = -(-len(rows_N) // (batch_size * runtime.world_size))
    with closing(passed):
        for _ in range(num_rounds):
            with runtime.own_errors():
                batch, outputs_BO = next(passed, (None, torch.zeros(0, width)))
            width = width or max(runtime.concatenated([outputs_BO.shape[1]]))
            skipped += batch.skipped if batch else ()
            numbers_BI = _numbers(batch, rows_N, batch_size=batch_size, num_labels=num_labels)
            padded_BO = torch.zeros(batch_size, width)
            padded_BO[: len(outputs_BO)] = outputs_BO
            numbers_PBI, outputs_PBO = runtime.gather(numbers_BI), runtime.gather(padded_BO)
            if store is not None:
                with runtime.own_errors():
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
