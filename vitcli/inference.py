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

import torch
from torch import Tensor, nn

from vitcli import metrics, sharding
from vitcli.console import Console
from vitcli.errors import DataError, WeightsError
from vitcli.loader import Batch, eval_batches
from vitcli.model import features as model_features
from vitcli.runtime import Runtime, autocast, unwrap
from vitcli.split import Split
from vitcli.transforms import Preprocessing, to_model_range

# Of fewer rows than 4, a CPU's matrix product adds up in another order (measured with MKL 2024.2), and a loss
# would depend on the batch size in its last bits.
LEAST_AT_ONCE = 4


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
    console: Console,
) -> tuple[metrics.Scores, list[str]]:
    """Scores of a split, and the places of the images that could not be decoded and do not count.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none at all could be.
        WeightsError: a logit is not a finite number, so that no percentage means anything.
    """
    ranks_N = torch.zeros(len(split), dtype=torch.int64)
    losses_N = torch.zeros(len(split), dtype=torch.float64)
    seen_N = torch.zeros(len(split), dtype=torch.int64)
    skipped: list[str] = []
    batches = eval_batches(
        split,
        preprocessing,
        batch_size=batch_size,
        rank=runtime.rank,
        world_size=runtime.world_size,
        on_bad_image=on_bad_image,
        num_threads=num_threads,
    )
    batches = in_step(batches, model, preprocessing, runtime)
    passed = logits_of(
        model, batches, preprocessing, device=runtime.device, precision=precision, least=LEAST_AT_ONCE
    )
    passed = watched(passed, console, "evaluate", total=len(split), at_once=runtime.world_size)
    with runtime.own_errors():
        for batch, logits_BK in passed:
            ranks_N[batch.rows_B] = metrics.label_ranks(logits_BK, batch.labels_B)
            losses_N[batch.rows_B] = metrics.example_losses(logits_BK, batch.labels_B)
            seen_N[batch.rows_B] += 1
            skipped += batch.skipped
    for values_N in (ranks_N, losses_N, seen_N):
        runtime.sum_over_processes(values_N)
    check_all_seen(seen_N, skipped, split, runtime=runtime)
    counted_N = seen_N.bool()
    return metrics.scores(ranks_N[counted_N], losses_N[counted_N]), skipped


def check_all_seen(seen_N: Tensor, skipped: list[str], split: Split, *, runtime: Runtime) -> None:
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
        raise DataError(f"no image of {split.name} can be decoded", where=split.name, fix="look at its files")


def features(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    *,
    runtime: Runtime,
    batch_size: int,
    num_threads: int,
    precision: str = "fp32",
    console: Console,
) -> tuple[Tensor, Tensor]:
    """(N, D) float32 features of every row, as `model.features` gives them, and (N,) int64 labels.

    Raises:
        DataError: an image cannot be decoded.
    """
    bare = unwrap(model)
    bare = getattr(bare, "vit", bare)  # of a network that predicts patches
    batches = eval_batches(
        split,
        preprocessing,
        batch_size=batch_size,
        rank=runtime.rank,
        world_size=runtime.world_size,
        on_bad_image="error",
        num_threads=num_threads,
    )
    batches = in_step(batches, model, preprocessing, runtime)
    network = sharding.gathered_for(unwrap(model), partial(model_features, bare))
    passed = outputs_of(bare, network, batches, preprocessing, device=runtime.device, precision=precision)
    features_ND, labels_N = torch.zeros(0, 0), torch.zeros(len(split), dtype=torch.int64)
    with runtime.own_errors():
        for batch, features_BD in watched(
            passed, console, "features", total=len(split), at_once=runtime.world_size
        ):
            if not features_ND.numel():
                features_ND = torch.zeros(len(split), features_BD.shape[1])
            features_ND[batch.rows_B] = features_BD
            labels_N[batch.rows_B] = batch.labels_B
    width = max(runtime.concatenated([features_ND.shape[1]]))
    if features_ND.shape[1] < width:  # a process without a batch of its own
        features_ND = torch.zeros(len(split), width)
    return runtime.sum_over_processes(features_ND), runtime.sum_over_processes(labels_N)


def likeliest(
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
    console: Console,
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
    for batch, logits_BK in watched(passed, console, "predict", total=len(split), at_once=1):
        shares, classes = torch.softmax(logits_BK, dim=-1).topk(topk)
        for row, its_classes, its_shares in zip(
            batch.rows_B.tolist(), classes.tolist(), shares.tolist(), strict=True
        ):
            found[row] = list(zip(its_classes, its_shares, strict=True))
        skipped += batch.skipped
    return found, skipped


def logits_of(
    model: nn.Module,
    batches: Iterator[Batch],
    preprocessing: Preprocessing,
    *,
    device: torch.device,
    precision: str,
    least: int = 1,
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch with its logits_BK, float32 on the CPU; the model is left in the mode it came in."""
    bare = unwrap(model)  # with several processes one may have fewer batches than another
    return outputs_of(bare, bare, batches, preprocessing, device=device, precision=precision, least=least)


def outputs_of(
    model: nn.Module,
    network: Callable[[Tensor], Tensor],
    batches: Iterator[Batch],
    preprocessing: Preprocessing,
    *,
    device: torch.device,
    precision: str,
    least: int = 1,
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch with what `network`, a use of the bare `model`, says of its images."""
    passed = passes(
        model,
        lambda rows_B, images_BCHW: network(images_BCHW),
        batches,
        preprocessing,
        device=device,
        precision=precision,
        least=least,
    )
    for batch, outputs in passed:
        outputs = outputs[: len(batch.rows_B)].float().cpu()
        if not torch.isfinite(outputs).all():
            raise WeightsError(
                "the model's outputs are not finite numbers, so no accuracy can be told",
                where=f"row {int(batch.rows_B[0])} and after of the split",
                fix="use other weights; vit looks at stored weights when it loads them, so these overflow"
                if precision == "fp32"
                else "use --precision fp32, or other weights",
            )
        yield batch, outputs


def passes(
    model: nn.Module,
    network: Callable[[Tensor, Tensor], Any],
    batches: Iterator[Batch],
    preprocessing: Preprocessing,
    *,
    device: torch.device,
    precision: str,
    least: int = 1,
) -> Iterator[tuple[Batch, Any]]:
    """Each batch with what `network` makes of its rows_B and its images_BCHW in the model's range.

    Without gradients; the model is left in the mode it came in. A batch of fewer than `least` images is
    filled up with blank ones, at the end of what the network makes of it: few networks take none at all.
    """
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            rows_B, images_BCHW = _filled_up(batch, least)
            images_BCHW = images_BCHW.to(device, non_blocking=True)
            images_BCHW = to_model_range(images_BCHW, mean=preprocessing.mean, std=preprocessing.std)
            with torch.no_grad(), autocast(device, precision):
                made = network(rows_B, images_BCHW)
            yield batch, made
    finally:
        model.train(was_training)


def _filled_up(batch: Batch, least: int) -> tuple[Tensor, Tensor]:
    count = len(batch.rows_B)
    if count >= least:
        return batch.rows_B, batch.images_BCHW
    shape = (least, *batch.images_BCHW.shape[1:])
    # In the memory format of a full batch: a convolution of another one differs in its last bits.
    images_BCHW = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last).zero_()
    images_BCHW[:count] = batch.images_BCHW
    return torch.cat([batch.rows_B, batch.rows_B.new_zeros(least - count)]), images_BCHW


def in_step(
    batches: Iterator[Batch], model: nn.Module, preprocessing: Preprocessing, runtime: Runtime
) -> Iterator[Batch]:
    """The same batches, and for a sharded model empty ones while other processes still have some.

    Its weights are put together by all processes, so that all must compute equally often.
    """
    if not sharding.is_sharded(model):
        yield from batches
        return
    none = torch.empty(0, dtype=torch.int64)
    nothing = Batch(torch.empty(0, 3, *preprocessing.image_size, dtype=torch.uint8), none, none, ())
    while True:
        with runtime.own_errors():
            mine = next(batches, None)
        if not runtime.any(mine is not None):
            return
        yield nothing if mine is None else mine


def watched(
    passed: Iterator[tuple[Batch, Tensor]], console: Console, title: str, *, total: int, at_once: int
) -> Iterator[tuple[Batch, Tensor]]:
    """The same batches, with a progress line; `at_once` processes do as much each."""
    began_at, done = time.perf_counter(), 0
    console.begin(title, total)
    try:
        for batch, logits_BK in passed:
            yield batch, logits_BK
            done = min(done + (len(batch.rows_B) + len(batch.skipped)) * at_once, total)
            console.update(done, f"{done / (time.perf_counter() - began_at):.0f} img/s")
    finally:
        console.end()
