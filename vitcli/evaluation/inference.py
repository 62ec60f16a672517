"""Evaluation without gradients: one pass over the batches of a split, and the results from its outputs.

`evaluate` returns metrics, `predict_split` predictions of every row and `features_and_logits` a network's own
outputs; all of them run `outputs_of` over the same batches.

The batches of a pass are fixed by the split and the batch size; process r of P takes every P-th one. The
numbers of each row are written to its place in one array for the whole split, and sums are taken in row
order. So the counts and every bit of the loss are the same on any number of processes.
Letters: N rows, B batch, K classes, D hidden width, T top classes kept.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitcli.data.loader import Batch, eval_batches
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.distributed import fsdp
from vitcli.distributed.runtime import Runtime, autocast, unwrap
from vitcli.distributed.transfer import Download, Uploads, runs_ahead
from vitcli.errors import DataError, WeightsError
from vitcli.evaluation import metrics
from vitcli.evaluation.predictions import Predictions
from vitcli.models import features as model_features
from vitcli.models.kernels import dense_layers
from vitcli.output import profile
from vitcli.output.profile import StepProfiler
from vitcli.output.progress import Progress

# On a CPU a matrix product of few rows sums in another order (measured with MKL 2024.2), and several
# threads split its rows so that one gets few. With the tokens of 4 images, and with single vectors as
# `models.kernels` computes them, no bit depends on the batch size there; on a GPU the last ones may.
MULTIPLE = 4
NUM_TOP = 5  # classes kept of each prediction
IN_CACHE = 2**18  # logits computed with in float64 at a time: 2 MiB
MOST_SCORES = 2**27  # of rows times classes, kept for AUROC and mAP: half a GiB, 134,000 images of ImageNet


Mean = Callable[[Tensor, Tensor], Tensor]  # of the outputs_BO for images and for their mirror images


class NothingDecoded(DataError):
    """No image of a split can be decoded."""


class Interrupted(Exception):
    """A pass over a split was given up, as `EvalSettings.is_stopping` asks."""


@dataclass(frozen=True)
class EvalSettings:
    """Settings of a pass over a split, shared by all passes of a command.

    Attributes:
        runtime: the processes that divide the rows among them, and their device.
        batch_size: images per forward pass.
        on_bad_image: "error" or "skip", for images that cannot be decoded.
        num_threads: loader threads of this process.
        precision: "fp32", "bf16" or "fp16", of the forward pass.
        profiler: traces a few batches of the first pass, if there is one.
        is_stopping: whether this process has been asked to stop; None for passes that are never interrupted.
    """

    runtime: Runtime
    batch_size: int
    on_bad_image: str
    num_threads: int
    progress: Progress
    precision: str = "fp32"
    profiler: StepProfiler | None = None
    is_stopping: Callable[[], bool] | None = None

    @property
    def device(self) -> torch.device:
        return self.runtime.device

    def batches(
        self, split: Split, preprocessing: Preprocessing, *, all_rows: bool = False
    ) -> Iterator[Batch]:
        """Return this process's batches of a split, or with `all_rows` every batch.

        Raises:
            Interrupted: before a batch, on all processes, once any of them is stopping.
        """
        world_size = 1 if all_rows else self.runtime.world_size
        batches = eval_batches(
            split,
            preprocessing,
            batch_size=self.batch_size,
            rank=0 if all_rows else self.runtime.rank,
            world_size=world_size,
            on_bad_image=self.on_bad_image,
            num_threads=self.num_threads,
        )
        if self.is_stopping:
            num_of_each = math.ceil(len(split) / self.batch_size) // world_size
            batches = self._until_stopped(batches, num_of_each, self.is_stopping)
        return self.profiler.watch(batches) if self.profiler else batches

    def _until_stopped(
        self, batches: Iterator[Batch], num_of_each: int, is_stopping: Callable[[], bool]
    ) -> Iterator[Batch]:
        """Yield batches; before those that every process has, ask all whether to go on."""
        for number, batch in enumerate(batches):
            if number < num_of_each and self.runtime.any(is_stopping()):
                raise Interrupted
            yield batch


def evaluate(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    may_overflow: bool = False,
) -> tuple[metrics.Metrics | None, list[str]]:
    """Return the metrics of a split, and the places of this process's undecodable images.

    Args:
        may_overflow: return None as metrics, on all processes, if a logit is not a finite number.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none can.
        WeightsError: a logit is not a finite number; not with `may_overflow`.
    """

    def columns_of(batch: Batch, logits_BK: Tensor) -> dict[str, Tensor]:
        return {
            "ranks": metrics.label_ranks(logits_BK, batch.labels_B),
            "losses": metrics.example_losses(logits_BK.double().log_softmax(dim=1), batch.labels_B),
            "finite": ((0 * logits_BK).sum(dim=1) == 0).long(),  # as in `check_finite`
        }

    batches = balanced_batches(model, split, preprocessing, settings)
    logits = outputs_of(
        model, batches, preprocessing, settings.device, settings.precision, may_overflow=may_overflow
    )
    columns, seen_N, skipped = by_row(logits, columns_of, split, settings)
    if not columns["finite"][seen_N].all():
        return None, skipped
    return metrics.metrics_of(columns["ranks"][seen_N], columns["losses"][seen_N]), skipped


def predict_split(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    num_classes: int,
    project: Callable[[Tensor], Tensor] | None = None,
    mean: Mean | None = None,
) -> tuple[Predictions, list[str]]:
    """Return the predictions of a split, and the places of this process's undecodable images.

    Args:
        num_classes: of the logits that compete: the model's, or the projected ones.
        project: maps logits_BK to the logits that compete; None keeps them as they are.
        mean: of the logits that compete, for each image and for its mirror image; None: of the image alone.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none can.
        WeightsError: a logit is not a finite number.
    """
    has_room = len(split) * num_classes <= MOST_SCORES
    has_scores = not split.is_multilabel and has_room
    keeps_logits = split.is_multilabel and not split.is_large and has_room

    def columns_of(batch: Batch, logits_BK: Tensor) -> dict[str, Tensor]:
        logits_BK = logits_BK if project is None or mean else project(logits_BK)
        labels = {} if split.is_multilabel else {"labels": batch.labels_B}
        logits = {"logits_NK": logits_BK} if keeps_logits else {}
        return prediction_columns(logits_BK, batch.labels_B, has_scores=has_scores) | labels | logits

    batches = balanced_batches(model, split, preprocessing, settings)
    network = mirrored(model, mean, project) if mean else None
    logits = outputs_of(model, batches, preprocessing, settings.device, settings.precision, network=network)
    columns, seen_N, skipped = by_row(logits, columns_of, split, settings)
    rows_N = seen_N.nonzero()[:, 0]
    counted = {name: values_N[rows_N] for name, values_N in columns.items()}
    if split.is_multilabel:
        counted["labels"] = torch.from_numpy(split.read_labels()[rows_N.numpy()])
    return _predictions(counted, rows_N), skipped


def predictions_of_rows(rows: "RowOutputs") -> Predictions:
    """Return the predictions that `predict_split` gives of images with one label, from their outputs."""
    has_scores = rows.logits_NK.numel() <= MOST_SCORES
    columns = prediction_columns(rows.logits_NK, rows.labels_N, has_scores=has_scores)
    return _predictions(columns | {"labels": rows.labels_N}, rows.rows_N)


def _predictions(columns: dict[str, Tensor], rows_N: Tensor) -> Predictions:
    counted = {name: values_N.numpy() for name, values_N in columns.items()}
    example_scores = {name: counted.pop(name) for name in metrics.EXAMPLE_SCORES}
    return Predictions(rows_N=rows_N.numpy(), example_scores=example_scores, **counted)


def prediction_columns(logits_BK: Tensor, labels: Tensor, *, has_scores: bool = False) -> dict[str, Tensor]:
    """Return the columns of `Predictions` for the rows of a batch, each from its own logits alone."""
    classes_BT = metrics.top_classes(logits_BK, NUM_TOP)
    parts = []
    num_rows = max(1, IN_CACHE // logits_BK.shape[1])
    whole = (logits_BK, labels, classes_BT)
    for part_BK, labels_B, top_BT in zip(*(values.split(num_rows) for values in whole), strict=True):
        exact_BK = part_BK.double()
        log_probabilities_BK, probabilities_BK = exact_BK.log_softmax(dim=1), exact_BK.softmax(dim=1)
        columns = {
            "ranks_N": metrics.label_ranks(part_BK, labels_B),
            "losses_N": metrics.example_losses(log_probabilities_BK, labels_B),
            "classes_NT": top_BT,
            "probabilities_NT": probabilities_BK.gather(1, top_BT),
            **{name: score(probabilities_BK, labels_B) for name, score in metrics.EXAMPLE_SCORES.items()},
        }
        # In the order of the probabilities, which as float32 would be equal near 0 and 1
        parts.append(columns | ({"scores_NK": log_probabilities_BK.float()} if has_scores else {}))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def mirrored(
    model: nn.Module, mean: Mean, project: Callable[[Tensor], Tensor] | None = None
) -> Callable[[Tensor], Tensor]:
    """Return a function of images to the `mean` of the outputs_BO for each and for its mirror image.

    Args:
        project: maps the outputs to those of which the mean is taken; None keeps them as they are.
    """

    def outputs(images_BCHW: Tensor) -> Tensor:
        outputs_BO = model_features.logits(unwrap(model), images_BCHW).float()
        return project(outputs_BO) if project else outputs_BO

    return lambda images_BCHW: mean(outputs(images_BCHW), outputs(images_BCHW.flip(-1)))


def mean_of_classes(one_BK: Tensor, other_BK: Tensor) -> Tensor:
    """Return logits whose softmax is the mean of the two softmaxes."""
    return torch.logaddexp(one_BK.log_softmax(dim=-1), other_BK.log_softmax(dim=-1))


def mean_of_labels(one_BK: Tensor, other_BK: Tensor) -> Tensor:
    """Return logits whose sigmoid is the mean of the two sigmoids, different ones also near 0 and 1."""
    log_p_BK = torch.logaddexp(F.logsigmoid(one_BK), F.logsigmoid(other_BK))
    log_not_p_BK = torch.logaddexp(F.logsigmoid(-one_BK), F.logsigmoid(-other_BK))
    return log_p_BK - log_not_p_BK


def mean_number(one_BO: Tensor, other_BO: Tensor) -> Tensor:
    return (one_BO + other_BO) / 2


@dataclass(frozen=True, eq=False)
class RowOutputs:
    """What a network computes for the decodable rows of a split, in their order, equal on all processes.

    Attributes:
        features_ND, logits_NK: float32; logits have no columns where they are not asked for.
        labels_N, rows_N: int64.
        skipped: places of this process's undecodable images.
    """

    features_ND: Tensor
    logits_NK: Tensor
    labels_N: Tensor
    rows_N: Tensor
    skipped: list[str]


def features_and_logits(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    layer: str = "pre_logits",
    num_logits: int = 0,
    may_overflow: bool = False,
) -> RowOutputs:
    """Return the features of a split at a layer, see `models.features.outputs`, and the logits behind them.

    Args:
        num_logits: of the model's head; 0 without logits.
        may_overflow: return rows whose outputs are not finite, too.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none can.
        WeightsError: an output is not a finite number.
    """
    bare: Any = getattr(unwrap(model), "vit", unwrap(model))  # the backbone of a masked patch model
    network = partial(model_features.outputs, bare, layer=layer, with_logits=num_logits > 0)
    outputs = outputs_of(
        bare,
        balanced_batches(model, split, preprocessing, settings),
        preprocessing,
        settings.device,
        settings.precision,
        network=fsdp.gathered_for(unwrap(model), network),
        may_overflow=may_overflow,
    )

    def columns_of(batch: Batch, outputs_BO: Tensor) -> dict[str, Tensor]:
        return {"outputs": outputs_BO, "labels": batch.labels_B}

    columns, seen_N, skipped = by_row(outputs, columns_of, split, settings, title="features")
    rows_N = seen_N.nonzero()[:, 0]
    outputs_NO, labels_N = columns["outputs"][rows_N], columns["labels"][rows_N]
    width = outputs_NO.shape[1] - num_logits
    return RowOutputs(outputs_NO[:, :width], outputs_NO[:, width:], labels_N, rows_N, skipped)


def balanced_batches(
    model: nn.Module, split: Split, preprocessing: Preprocessing, settings: EvalSettings
) -> Iterator[Batch]:
    """Yield this process's batches; for a sharded model, empty ones while other processes still have some.

    All processes gather the weights of a sharded model together, so all must run as many forward passes.
    """
    batches, runtime = settings.batches(split, preprocessing), settings.runtime
    if not fsdp.is_sharded(model):
        yield from batches
        return
    no_rows = torch.empty(0, dtype=torch.int64)
    empty = Batch(torch.empty(0, 3, *preprocessing.image_size, dtype=torch.uint8), no_rows, no_rows, ())
    while True:
        with runtime.local_errors():
            batch = next(batches, None)
        if not runtime.any(batch is not None):
            return
        yield empty if batch is None else batch


def outputs_of(
    model: nn.Module,
    batches: Iterator[Batch],
    preprocessing: Preprocessing,
    device: torch.device,
    precision: str,
    *,
    network: Callable[[Tensor], Tensor] | None = None,
    may_overflow: bool = False,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield each batch with its outputs_BO, float32 on the CPU: logits by default; the model keeps its mode.

    Args:
        may_overflow: yield outputs that are not finite, too.
        network: a function of images that uses the bare model, to run instead of its forward pass.
    """
    bare = unwrap(model)  # DDP would wait for processes that have fewer batches
    network = network or partial(model_features.logits, bare)
    outputs = forward_batches(
        bare, lambda _, images_BCHW: network(images_BCHW), batches, preprocessing, device, precision
    )
    for batch, outputs_BO in _downloaded(outputs, device):
        if not may_overflow:
            check_finite(outputs_BO, batch, so="no accuracy can be computed", precision=precision)
        yield batch, outputs_BO


def _downloaded(
    outputs: Iterator[tuple[Batch, Tensor]], device: torch.device
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield the outputs of a batch's own rows in main memory.

    A device that the host runs ahead of computes the next batch meanwhile.
    """
    waiting: deque[tuple[Batch, Download]] = deque()
    for batch, outputs_BO in outputs:
        waiting.append((batch, Download([outputs_BO[: len(batch.rows_B)].float()])))
        if len(waiting) > runs_ahead(device):
            batch, download = waiting.popleft()
            yield batch, download.read()[0]
    for batch, download in waiting:
        yield batch, download.read()[0]


def check_finite(outputs: Tensor, batch: Batch, *, so: str, precision: str) -> None:
    """Raise WeightsError if an output of the batch is not finite; `so` is the consequence to report."""
    # 0 times another number is NaN; `isfinite` takes ten times as long.
    if (0 * outputs).sum() != 0:
        raise WeightsError(
            f"the model's outputs are not finite numbers, so {so}",
            where=f"row {int(batch.rows_B[0])} and after of the split",
            fix="use other weights; stored weights are checked when they are loaded, so these overflow"
            if precision == "fp32"
            else "use fp32 (--precision; in a run precision.evaluation), or other weights",
        )


def forward_batches(
    model: nn.Module,
    network: Callable[[Tensor, Tensor], Any],
    batches: Iterator[Batch],
    preprocessing: Preprocessing,
    device: torch.device,
    precision: str,
    *,
    multiple: int = MULTIPLE,
) -> Iterator[tuple[Batch, Any]]:
    """Yield each batch with `network(rows_B, images_BCHW)`, images in the model's range, without gradients.

    The model is left in the mode it was in. Batches are padded with blank images to a `multiple`, at least
    one; the outputs of the padding come last and are for the caller to cut off.
    """
    was_training, upload = model.training, Uploads(device)
    model.eval()
    try:
        with dense_layers(model, device, precision):
            for batch in batches:
                rows_B, images_BCHW = _padded(batch, multiple)
                (images_BCHW,) = upload(images_BCHW)
                images_BCHW = to_model_range(images_BCHW, mean=preprocessing.mean, std=preprocessing.std)
                with torch.no_grad(), autocast(device, precision), profile.forward():
                    outputs = network(rows_B, images_BCHW)
                yield batch, outputs
    finally:
        model.train(was_training)


def _padded(batch: Batch, multiple: int) -> tuple[Tensor, Tensor]:
    count = len(batch.rows_B)
    size = max(1, -(-count // multiple)) * multiple
    if count == size:
        return batch.rows_B, batch.images_BCHW
    shape = (size, *batch.images_BCHW.shape[1:])
    # In the memory format of a full batch: a convolution in another one differs in its last bits.
    images_BCHW = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last).zero_()
    images_BCHW[:count] = batch.images_BCHW
    return torch.cat([batch.rows_B, batch.rows_B.new_zeros(size - count)]), images_BCHW


def report_progress(
    outputs: Iterator[tuple[Batch, Any]],
    settings: EvalSettings,
    title: str,
    total: int,
    *,
    all_rows: bool = False,
) -> Iterator[tuple[Batch, Any]]:
    """Yield the same batches and show the progress to `total` rows, assuming all processes are equally far.

    With `all_rows` this process has every batch, as in `EvalSettings.batches`.
    """
    progress, num_processes = settings.progress, 1 if all_rows else settings.runtime.world_size
    started_at, done = time.perf_counter(), 0
    with progress.bar(title, total):
        for batch, batch_outputs in outputs:
            yield batch, batch_outputs
            done = min(done + (len(batch.rows_B) + len(batch.skipped)) * num_processes, total)
            progress.update(done, f"{done / (time.perf_counter() - started_at):.0f} img/s")


def by_row(
    outputs: Iterator[tuple[Batch, Any]],
    columns_of: Callable[[Batch, Any], dict[str, Tensor]],
    split: Split,
    settings: EvalSettings,
    *,
    title: str = "evaluate",
) -> tuple[dict[str, Tensor], Tensor, list[str]]:
    """Return the numbers of every row in columns for the whole split, equal on all processes.

    Args:
        outputs: this process's batches with the network's outputs.
        columns_of: maps such a pair to the numbers of its rows, by column.
        title: of the progress.

    Returns:
        Columns by name, (N, ...), zeros in rows that were not decoded; (N,) bool, the rows that were; and the
        places of this process's undecodable images.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none can.
    """
    runtime = settings.runtime
    columns: dict[str, Tensor] = {}
    seen_N = torch.zeros(len(split), dtype=torch.int64)
    skipped: list[str] = []
    with runtime.local_errors():
        for batch, batch_outputs in report_progress(outputs, settings, title, len(split)):
            for name, values_B in columns_of(batch, batch_outputs).items():
                if name not in columns:
                    columns[name] = values_B.new_zeros(len(split), *values_B.shape[1:])
                columns[name][batch.rows_B] = values_B
            seen_N[batch.rows_B] += 1
            skipped += batch.skipped
    # A process without a batch has no columns yet.
    kinds = [(name, values_N.shape[1:], values_N.dtype) for name, values_N in columns.items()]
    for name, shape, dtype in runtime.concatenated(kinds):
        columns.setdefault(name, torch.zeros(len(split), *shape, dtype=dtype))
    # Each row is zero on all processes but one, so a sum puts the processes' rows together.
    for values_N in (*(columns[name] for name in sorted(columns)), seen_N):
        runtime.sum_over_processes(values_N)
    num_rows = int(seen_N.sum() + runtime.sum_over_processes(torch.tensor(len(skipped))))
    assert int(seen_N.max()) <= 1 and num_rows == len(split), "a row was not counted once"
    if not seen_N.any():
        raise nothing_decoded(split)
    return columns, seen_N.bool(), skipped


def nothing_decoded(split: Split) -> DataError:
    """Return the error for a split without a single decodable image."""
    return NothingDecoded(
        f"no image of {split.name} can be decoded", where=split.name, fix="check its image files"
    )
