"""Metrics of logits: one number per example, summed in row order so that totals are exact.

Letters: N examples, B batch, K classes, M labels of an example.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

GROUP, FEW_CLASSES = 128, 4_096  # the largest of more classes are sought in groups


@dataclass(frozen=True)
class Metrics:
    """Metrics of a split.

    Attributes:
        top1, top5: fraction of examples whose label has the highest, or one of the five highest logits.
        loss: mean softmax cross-entropy in nats.
        num_examples: examples counted, each once.
    """

    top1: float
    top5: float
    loss: float
    num_examples: int


@dataclass(frozen=True)
class PatchMetrics:
    """Metrics of masked patch prediction (paper, section 4.6).

    Attributes:
        patch_accuracy: fraction of the colours of corrupted patches predicted right; None for pixels.
        most_frequent_color: accuracy of always predicting the most frequent colour; None for pixels.
        loss: mean over the corrupted patches, in nats; squared error where pixels are predicted.
        num_examples: images counted, each once.
    """

    patch_accuracy: float | None
    most_frequent_color: float | None
    loss: float
    num_examples: int


def label_ranks(logits_BK: Tensor, labels: Tensor) -> Tensor:
    """Return the number of classes ranked above the label, (B,) int64: 0 is a top-1 hit, below 5 a top-5 hit.

    Equal logits rank by class number, as in `argmax`, so a head of zeros scores the frequency of class 0
    and not 100 %. Of several right classes, the highest ranked counts.

    Args:
        labels: (B,), or (B, M) padded with -1.
    """
    labels_BM = labels[:, None] if labels.ndim == 1 else labels
    num_classes = logits_BK.shape[1]
    right_BM1 = logits_BK.gather(1, labels_BM.clamp(min=0))[..., None]

    # The results are floats, which are written and added four times as fast as booleans.
    def compared(compare: Callable[..., Tensor], values: Tensor, others: Tensor) -> Tensor:
        return compare(values, others, out=logits_BK.new_empty(*labels_BM.shape, num_classes))

    above_BMK = compared(torch.gt, logits_BK[:, None], right_BM1)
    equal_BMK = compared(torch.eq, logits_BK[:, None], right_BM1)
    classes_K = torch.arange(num_classes, dtype=logits_BK.dtype)
    before_BMK = compared(torch.lt, classes_K, labels_BM[..., None].to(logits_BK.dtype))
    ranks_BM = above_BMK.addcmul_(equal_BMK, before_BMK).sum(dim=-1).long()
    return ranks_BM.where(labels_BM >= 0, num_classes).min(dim=1).values


def top_classes(logits_BK: Tensor, count: int) -> Tensor:
    """Return the first `count` classes of a stable sort, larger logits first, (B, at most count) int64.

    Args:
        logits_BK: float32.
    """
    num_classes = logits_BK.shape[1]
    if num_classes < FEW_CLASSES:
        return _first_by_key(logits_BK, count)
    # Of equal maxima the first groups, as of equal logits the first classes; then of their classes the same
    whole = num_classes - num_classes % GROUP
    maxima_BG = logits_BK[:, :whole].unflatten(1, (-1, GROUP)).amax(dim=2)
    groups_BT1 = _first_by_key(maxima_BG, count).sort(dim=1).values[..., None]
    near_BC = (GROUP * groups_BT1 + torch.arange(GROUP)).flatten(1)
    near_BC = torch.cat([near_BC, torch.arange(whole, num_classes).expand(len(near_BC), -1)], dim=1)
    return near_BC.gather(1, _first_by_key(logits_BK.gather(1, near_BC), count))


def _first_by_key(logits_BK: Tensor, count: int) -> Tensor:
    """Return the same by `topk`, of whole numbers in the order of logits and classes: no two are equal."""
    bits_BK = (logits_BK + 0.0).view(torch.int32)  # there is no -0
    ordered_BK = bits_BK ^ (bits_BK >> 31 & 0x7FFFFFFF)
    num_classes = logits_BK.shape[1]
    keys_BK = ordered_BK.long() * num_classes - torch.arange(num_classes)
    return keys_BK.topk(min(count, num_classes)).indices


def example_losses(log_probabilities_BK: Tensor, labels: Tensor) -> Tensor:
    """Return the softmax cross-entropy of each example, (B,), from the log-softmax of the logits in float64.

    Of several right classes it is their mean, of none 0.
    """
    labels_BM = labels[:, None] if labels.ndim == 1 else labels
    is_label_BM = labels_BM >= 0
    losses_BM = -log_probabilities_BK.gather(1, labels_BM.clamp(min=0))
    return (losses_BM * is_label_BM).sum(dim=1) / is_label_BM.sum(dim=1).clamp(min=1)


def brier_scores(probabilities_BK: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance of the probabilities from the label's, (B,) float64 from 0 to 2.

    Of several right classes, each has the same probability in the target.
    """
    labels_BM = labels[:, None] if labels.ndim == 1 else labels
    is_label_BM = labels_BM >= 0
    targets_BM = is_label_BM / is_label_BM.sum(dim=1, keepdim=True).clamp(min=1).double()
    return probabilities_BK.scatter_add(1, labels_BM.clamp(min=0), -targets_BM).square_().sum(dim=1)


def scores_of(metrics: Any) -> dict[str, Any]:
    """Return the scores of one of the dataclasses of metrics as a result has them, by their keys there."""
    return {name: value for name, value in asdict(metrics).items() if name != "num_examples"}


# Scores of an example, of its probabilities and labels, of which a result has the mean; by its key there.
EXAMPLE_SCORES = {"brier": brier_scores}


def metrics_of_logits(logits_NK: Tensor, labels: Tensor) -> Metrics:
    """Return the metrics of a split from its logits, in row order."""
    losses_N = example_losses(logits_NK.double().log_softmax(dim=1), labels)
    return metrics_of(label_ranks(logits_NK, labels), losses_N)


def metrics_of(ranks: Tensor | np.ndarray, losses: Tensor | np.ndarray) -> Metrics:
    """Return the metrics of a split from its `label_ranks` and `example_losses`, (N,) in row order."""
    ranks_N, losses_N, count = torch.as_tensor(ranks), torch.as_tensor(losses), len(ranks)
    return Metrics(
        top1=int((ranks_N == 0).sum()) / count,
        top5=int((ranks_N < 5).sum()) / count,
        loss=float(losses_N.double().sum()) / count,
        num_examples=count,
    )
