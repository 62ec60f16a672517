"""Metrics of logits: one number per example, summed in row order so that totals are exact.

Letters: N examples, B batch, K classes, M labels of an example.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


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
    right_BM1 = logits_BK.gather(1, labels_BM.clamp(min=0))[..., None]
    before_BMK = torch.arange(logits_BK.shape[1], device=logits_BK.device) < labels_BM[..., None]
    ahead_BMK = (logits_BK[:, None] > right_BM1) | ((logits_BK[:, None] == right_BM1) & before_BMK)
    ranks_BM = ahead_BMK.sum(dim=-1).where(labels_BM >= 0, logits_BK.shape[1])
    return ranks_BM.min(dim=1).values


def example_losses(logits_BK: Tensor, labels: Tensor) -> Tensor:
    """Return the softmax cross-entropy of each example, (B,) float64.

    Of several right classes it is their mean, of none 0.
    """
    if labels.ndim == 1:
        return F.cross_entropy(logits_BK.double(), labels, reduction="none")
    is_label_BM = labels >= 0
    losses_BM = -logits_BK.double().log_softmax(dim=-1).gather(1, labels.clamp(min=0))
    return (losses_BM * is_label_BM).sum(dim=1) / is_label_BM.sum(dim=1).clamp(min=1)


def brier_scores(probabilities_BK: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance of the probabilities from the label's, (B,) float64 from 0 to 2.

    Of several right classes, each has the same probability in the target.
    """
    labels_BM = labels[:, None] if labels.ndim == 1 else labels
    is_label_BM = labels_BM >= 0
    targets_BK = torch.zeros(probabilities_BK.shape, dtype=torch.float64)
    targets_BK.scatter_add_(1, labels_BM.clamp(min=0), is_label_BM.double())
    targets_BK = targets_BK / is_label_BM.sum(dim=1, keepdim=True).clamp(min=1)
    return (probabilities_BK - targets_BK).square().sum(dim=1)


def metrics_of(ranks_N: Tensor, losses_N: Tensor) -> Metrics:
    """Return the metrics of a split from its `label_ranks` and `example_losses`, in row order."""
    count = len(ranks_N)
    return Metrics(
        top1=int((ranks_N == 0).sum()) / count,
        top5=int((ranks_N < 5).sum()) / count,
        loss=float(losses_N.double().sum()) / count,
        num_examples=count,
    )
