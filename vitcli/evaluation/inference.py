"""The one pass without gradients over a split: every row exactly once, the same on any number of processes.

The batches of a pass are fixed by the split and the batch size; process r of P takes every P-th one. Each
row's numbers are then put in their place in one array for the whole split, and whatever is summed is summed
in row order. So not only the counts but every bit of the loss is that of one process.
Letters: N rows, B batch, K classes.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.data.loader import Batch, eval_batches
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.distributed import fsdp
from vitcli.distributed.runtime import Runtime, autocast, unwrap
from vitcli.errors import DataError, WeightsError
from vitcli.evaluation import metrics, predictions
from vitcli.evaluation.predictions import Predictions
from vitcli.models.build import features as model_features
from vitcli.output.progress import Progress

# A CPU's matrix product of 1 to 3 rows adds up in another order (measured with MKL 2024.2), and several
# threads part 5 or 6 rows so that one gets so few: of multiples of 4 no result depends on the batch size.
MULTIPLE = 4


def my_batches(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    *,
    runtime: Runtime,
    batch_size: int,
    on_bad_image: str,
    num_threads: int,
) -> Iterator[Batch]:
    """This process's batches, and for a sharded model empty ones while other processes still have some.

    Its weights are put together by all processes, so that all must compute equally often.
    """
    batches = eval_batches(
        split,
        preprocessing,
        batch_size=batch_size,
        rank=runtime.rank,
        world_size=runtime.world_size,
        on_bad_image=on_bad_image,
        num_threads=num_threads,
    )
    if not fsdp.is_sharded(model):
        yield from batches
        return
    none = torch.empty(0, dtype=torch.int64)
    nothing = Batch(torch.empty(0, 3, *preprocessing.image_size, dtype=torch.uint8), none, none, ())
    while True:
        with runtime.local_errors():
            mine = next(batches, None)
        if not runtime.any(mine is not None):
            return
        yield nothing if mine is None else mine


def fill_by_row(
    columns: dict[str, Tensor],
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    *,
    passed: Callable[[Iterator[Batch]], Iterator[tuple[Batch, Any]]],
    numbers: Callable[[Batch, Any], dict[str, Tensor]],
    runtime: Runtime,
    batch_size: int,
    on_bad_image: str,
    num_threads: int,
    progress: Progress,
) -> tuple[Tensor, list[str]]:
    """Put the numbers of every row in their place in columns for the whole split, alike on all processes.

    Args:
        columns: by name, (N, ...) zeros; filled in place.
        passed: batches to batches with what the network says of each.
        numbers: such a pair to the numbers of its rows, by column.

    Returns:
        (N,) bool, which rows were seen; and the places of the images that this process could not decode.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none at all could be.
    """
    seen_N = torch.zeros(len(split), dtype=torch.int64)
    skipped: list[str] = []
    batches = my_batches(
        model,
        split,
        preprocessing,
        runtime=runtime,
        batch_size=batch_size,
        on_bad_image=on_bad_image,
        num_threads=num_threads,
    )
    told = report_progress(
        passed(batches), progress, "evaluate", total=len(split), at_once=runtime.world_size
    )
    with runtime.local_errors():
        for batch, made in told:
            for name, values_B in numbers(batch, made).items():
                columns[name][batch.rows_B] = values_B
            seen_N[batch.rows_B] += 1
            skipped += batch.skipped
    for values_N in (*columns.values(), seen_N):
        runtime.sum_over_processes(values_N)
    _check_all_seen(seen_N, skipped, split, runtime=runtime)
    return seen_N.bool(), skipped


def logits_of(
    model: nn.Module,
    batches: Iterator[Batch],
    preprocessing: Preprocessing,
    *,
    device: torch.device,
    precision: str,
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch with its logits_BK, float32 on the CPU; the model is left in the mode it came in."""
    bare = unwrap(model)  # with several processes one may have fewer batches than another
    return outputs_of(bare, bare, batches, preprocessing, device=device, precision=precision)


def outputs_of(
    model: nn.Module,
    network: Callable[[Tensor], Tensor],
    batches: Iterator[Batch],
    preprocessing: Preprocessing,
    *,
    device: torch.device,
    precision: str,
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch with what `network`, a use of the bare `model`, says of its images."""
    passed = passes(
        model,
        lambda rows_B, images_BCHW: network(images_BCHW),
        batches,
        preprocessing,
        device=device,
        precision=precision,
    )
    for batch, outputs in passed:
        outputs = outputs[: len(batch.rows_B)].float().cpu()
        check_finite(outputs, batch, so="no accuracy can be told", precision=precision)
        yield batch, outputs


def check_finite(outputs: Tensor, batch: Batch, *, so: str, precision: str) -> None:
    """Refuse outputs of a batch that are no finite numbers; `so` is what follows from that."""
    if not torch.isfinite(outputs).all():
        raise WeightsError(
            f"the model's outputs are not finite numbers, so {so}",
            where=f"row {int(batch.rows_B[0])} and after of the split",
            fix="use other weights; vit looks at stored weights when it loads them, so these overflow"
            if precision == "fp32"
            else "use --precision fp32, or other weights",
        )


def passes(
    model: nn.Module,
    network: Callable[[Tensor, Tensor], Any],
    batches: Iterator[Batch],
    preprocessing: Preprocessing,
    *,
    device: torch.device,
    precision: str,
    multiple: int = MULTIPLE,
) -> Iterator[tuple[Batch, Any]]:
    """Each batch with what `network` makes of its rows_B and its images_BCHW in the model's range.

    Without gradients; the model is left in the mode it came in. A batch is filled up with blank images to a
    `multiple`, above 0, and they stand at the end of what the network makes of it.
    """
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            rows_B, images_BCHW = _filled_up(batch, multiple)
            images_BCHW = images_BCHW.to(device, non_blocking=True)
            images_BCHW = to_model_range(images_BCHW, mean=preprocessing.mean, std=preprocessing.std)
            with torch.no_grad(), autocast(device, precision):
                made = network(rows_B, images_BCHW)
            yield batch, made
    finally:
        model.train(was_training)


def _filled_up(batch: Batch, multiple: int) -> tuple[Tensor, Tensor]:
    count = len(batch.rows_B)
    size = max(1, -(-count // multiple)) * multiple
    if count == size:
        return batch.rows_B, batch.images_BCHW
    shape = (size, *batch.images_BCHW.shape[1:])
    # In the memory format of a full batch: a convolution of another one differs in its last bits.
    images_BCHW = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last).zero_()
    images_BCHW[:count] = batch.images_BCHW
    return torch.cat([batch.rows_B, batch.rows_B.new_zeros(size - count)]), images_BCHW


def report_progress(
    passed: Iterator[tuple[Batch, Tensor]], progress: Progress, title: str, *, total: int, at_once: int
) -> Iterator[tuple[Batch, Tensor]]:
    """The same batches, with a progress line; `at_once` processes do as much each."""
    began_at, done = time.perf_counter(), 0
    progress.begin(title, total)
    try:
        for batch, logits_BK in passed:
            yield batch, logits_BK
            done = min(done + (len(batch.rows_B) + len(batch.skipped)) * at_once, total)
            progress.update(done, f"{done / (time.perf_counter() - began_at):.0f} img/s")
    finally:
        progress.end()


def _check_all_seen(seen_N: Tensor, skipped: list[str], split: Split, *, runtime: Runtime) -> None:
    """Hold a pass to its promise: each row was seen once by all processes together, or skipped by one.

    `seen_N` is already summed over the processes, `skipped` are this one's own.

    Raises:
        DataError: no image at all could be decoded.
    """
    num_skipped = int(runtime.sum_over_processes(torch.tensor(len(skipped))))
    assert int(seen_N.max()) <= 1 and int(seen_N.sum()) + num_skipped == len(split), (
        "a row was not counted once"
    )
    if not seen_N.any():
        raise nothing_decoded(split)


def nothing_decoded(split: Split) -> DataError:
    """For a split that was looked at whole, and had nothing to see."""
    return DataError(f"no image of {split.name} can be decoded", where=split.name, fix="look at its files")


def evaluate(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    *,
    runtime: Runtime,
    batch_size: int,
    on_bad_image: str,
    num_threads: int,
    precision: str = "fp32",
    progress: Progress,
) -> tuple[metrics.Metrics, list[str]]:
    """Scores of a split, and the places of the images that could not be decoded and do not count.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none at all could be.
        WeightsError: a logit is not a finite number, so that no percentage means anything.
    """
    columns = {
        "ranks": torch.zeros(len(split), dtype=torch.int64),
        "losses": torch.zeros(len(split), dtype=torch.float64),
    }
    seen_N, skipped = fill_by_row(
        columns,
        model,
        split,
        preprocessing,
        passed=lambda batches: logits_of(
            model, batches, preprocessing, device=runtime.device, precision=precision
        ),
        numbers=lambda batch, logits_BK: {
            "ranks": metrics.label_ranks(logits_BK, batch.labels_B),
            "losses": metrics.example_losses(logits_BK, batch.labels_B),
        },
        runtime=runtime,
        batch_size=batch_size,
        on_bad_image=on_bad_image,
        num_threads=num_threads,
        progress=progress,
    )
    return metrics.metrics_of(columns["ranks"][seen_N], columns["losses"][seen_N]), skipped


def features(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    *,
    runtime: Runtime,
    batch_size: int,
    num_threads: int,
    precision: str = "fp32",
    progress: Progress,
) -> tuple[Tensor, Tensor]:
    """(N, D) float32 features of every row, as `model.features` gives them, and (N,) int64 labels.

    Raises:
        DataError: an image cannot be decoded.
    """
    bare = unwrap(model)
    bare = getattr(bare, "vit", bare)  # of a network that predicts patches
    batches = my_batches(
        model,
        split,
        preprocessing,
        runtime=runtime,
        batch_size=batch_size,
        on_bad_image="error",
        num_threads=num_threads,
    )
    network = fsdp.gathered_for(unwrap(model), partial(model_features, bare))
    passed = outputs_of(bare, network, batches, preprocessing, device=runtime.device, precision=precision)
    features_ND, labels_N = torch.zeros(0, 0), torch.zeros(len(split), dtype=torch.int64)
    with runtime.local_errors():
        for batch, features_BD in report_progress(
            passed, progress, "features", total=len(split), at_once=runtime.world_size
        ):
            if not features_ND.numel():
                features_ND = torch.zeros(len(split), features_BD.shape[1])
            features_ND[batch.rows_B] = features_BD
            labels_N[batch.rows_B] = batch.labels_B
    width = max(runtime.concatenated([features_ND.shape[1]]))
    if features_ND.shape[1] < width:  # a process without a batch of its own
        features_ND = torch.zeros(len(split), width)
    return runtime.sum_over_processes(features_ND), runtime.sum_over_processes(labels_N)


def top_predictions(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    *,
    runtime: Runtime,
    topk: int,
    batch_size: int,
    on_bad_image: str,
    num_threads: int,
    precision: str,
    progress: Progress,
) -> tuple[dict[int, list[tuple[int, float]]], list[str]]:
    """By row the `topk` likeliest classes and their probabilities, and the places that were not decodable."""
    found, skipped = {}, []
    batches = eval_batches(
        split,
        preprocessing,
        batch_size=batch_size,
        rank=0,
        world_size=1,
        on_bad_image=on_bad_image,
        num_threads=num_threads,
    )
    passed = logits_of(model, batches, preprocessing, device=runtime.device, precision=precision)
    for batch, logits_BK in report_progress(passed, progress, "predict", total=len(split), at_once=1):
        shares, classes = torch.softmax(logits_BK, dim=-1).topk(topk)
        for row, its_classes, its_shares in zip(
            batch.rows_B.tolist(), classes.tolist(), shares.tolist(), strict=True
        ):
            found[row] = list(zip(its_classes, its_shares, strict=True))
        skipped += batch.skipped
    return found, skipped


def predict_split(
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
    progress: Progress,
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
        progress=progress,
    )
    rows_N = np.flatnonzero(seen_N.numpy())
    counted = {name: values_N.numpy()[rows_N] for name, values_N in columns.items()}
    if split.has_several_labels:
        counted["labels"] = split.read_labels()[rows_N]
    return Predictions(rows_N=rows_N, **counted), skipped
