"""Exact counts from logits: one number an example, added up in the order of the rows."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Metrics:
    """What one evaluation says.

    Attributes:
        top1, top5: share of examples whose label is the highest, or among the five highest logits.
        loss: mean softmax cross-entropy in nats.
        num_examples: how many examples were counted, each once.
    """

    top1: float
    top5: float
    loss: float
    num_examples: int


@dataclass(frozen=True)
class PatchMetrics:
    """What an evaluation of masked patch prediction says (paper, section 4.6).

    Attributes:
        patch_accuracy: share of the colours of corrupted patches that are predicted right; None for pixels.
        most_frequent_color: what always saying the most frequent colour would get.
        loss: mean over the corrupted patches, in nats; squared error where pixels are predicted.
        num_examples: how many pictures were counted, each once.
    """

    patch_accuracy: float | None
    most_frequent_color: float | None
    loss: float
    num_examples: int


def label_ranks(logits_BK: Tensor, labels: Tensor) -> Tensor:
    """How many classes come before the label's, (B,) int64: 0 is a top-1 hit, below 5 a top-5 hit.

    Among equal logits the lower class number comes first, as `argmax` has it, so a head of zeros
    scores the share of class 0 and not 100 %. Of several right classes the best placed one counts.

    Args:
        labels: (B,), or (B, M) filled up with -1.
    """
    labels_BM = labels[:, None] if labels.ndim == 1 else labels
    right_BM1 = logits_BK.gather(1, labels_BM.clamp(min=0))[..., None]
    before_BMK = torch.arange(logits_BK.shape[1], device=logits_BK.device) < labels_BM[..., None]
    ahead_BMK = (logits_BK[:, None] > right_BM1) | ((logits_BK[:, None] == right_BM1) & before_BMK)
    ranks_BM = ahead_BMK.sum(dim=-1).where(labels_BM >= 0, logits_BK.shape[1])
    return ranks_BM.min(dim=1).values


def example_losses(logits_BK: Tensor, labels: Tensor) -> Tensor:
    """Softmax cross-entropy of each example, (B,) float64; of several right classes their mean."""
    if labels.ndim == 1:
        return F.cross_entropy(logits_BK.double(), labels, reduction="none")
    is_label_BM = labels >= 0
    losses_BM = -logits_BK.double().log_softmax(dim=-1).gather(1, labels.clamp(min=0))
    return (losses_BM * is_label_BM).sum(dim=1) / is_label_BM.sum(dim=1)


def brier_scores(probabilities_BK: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance of the probabilities from the label's, (B,) float64 from 0 to 2.

    Of several right classes, each has the same probability in the target.
    """
    if labels.ndim == 1:
        targets_BK = F.one_hot(labels, probabilities_BK.shape[1]).double()
    else:
        is_label_BM = labels >= 0
        targets_BK = torch.zeros(probabilities_BK.shape, dtype=torch.float64)
        targets_BK.scatter_add_(1, labels.clamp(min=0), is_label_BM.double())
        targets_BK = targets_BK / is_label_BM.sum(dim=1, keepdim=True)
    return (probabilities_BK - targets_BK).square().sum(dim=1)


def metrics_of(ranks_N: Tensor, losses_N: Tensor) -> Metrics:
    """Totals of a split from each example's `label_ranks` and `example_losses`, in row order."""
    count = len(ranks_N)
    return Metrics(
        top1=int((ranks_N == 0).sum()) / count,
        top5=int((ranks_N < 5).sum()) / count,
        loss=float(losses_N.double().sum()) / count,
        num_examples=count,
    )


def real_hits(classes_N: list[int], lists_N: list[list[int]]) -> tuple[list[bool], list[bool]]:
    """Which pictures count for ReaL, and which of them are right (Beyer et al., arXiv 2006.07159).

    A picture counts if its list names any class at all; it is right if the predicted class is in the list.

    Args:
        classes_N: the one likeliest class of each picture.
        lists_N: all right classes of each; an empty list means that the picture is left out.
    """
    is_rated_N = [bool(right) for right in lists_N]
    is_hit_N = [guess in right for guess, right in zip(classes_N, lists_N, strict=True)]
    return is_rated_N, is_hit_N
