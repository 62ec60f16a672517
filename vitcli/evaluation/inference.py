"""The one pass without gradients over a split: every row exactly once, the same on any number of processes.

The batches of a pass are fixed by the split and the batch size; process r of P takes every P-th one. Each
row's numbers are then put in their place in one array for the whole split, and whatever is summed is summed
in row order. So not only the counts but every bit of the loss is that of one process.
Letters: N rows, B batch, K classes.
"""

from functools import partial

import torch
from torch import Tensor, nn

from vitcli.data.loader import eval_batches
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.distributed import fsdp
from vitcli.distributed.runtime import Runtime, unwrap
from vitcli.evaluation import metrics
from vitcli.evaluation.forward import fill_by_row, logits_of, my_batches, outputs_of, watched
from vitcli.models.build import features as model_features
from vitcli.output.progress import Console


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
        console=console,
    )
    return metrics.scores(columns["ranks"][seen_N], columns["losses"][seen_N]), skipped


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
