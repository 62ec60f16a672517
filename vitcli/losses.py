"""The two training losses. K: classes, B: batch. Both average over the batch."""

from torch import Tensor
from torch.nn import functional as F


def loss_fn(name: str, *, label_smoothing: float):
    """The loss of a recipe's `objective.loss`: (logits_BK, labels_B) -> scalar."""
    match name:
        case "softmax":
            return lambda logits_BK, labels_B: softmax_xent(
                logits_BK, labels_B, label_smoothing=label_smoothing
            )
        case "sigmoid":
            return lambda logits_BK, labels_B: sigmoid_xent(
                logits_BK, labels_B, label_smoothing=label_smoothing
            )


def softmax_xent(logits_BK: Tensor, labels_B: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy with one right class an image (paper, section 4.1). A zero head gives ln K."""
    return F.cross_entropy(logits_BK.float(), labels_B, label_smoothing=label_smoothing)


def sigmoid_xent(logits_BK: Tensor, labels_B: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """K independent yes-or-no questions, summed over the classes (the authors' ImageNet-21k pre-training).

    `label_smoothing` e makes the targets e and 1 - e. A zero head gives K ln 2.
    """
    targets_BK = F.one_hot(labels_B, logits_BK.shape[-1]).to(logits_BK.device, logits_BK.float().dtype)
    targets_BK = targets_BK * (1 - 2 * label_smoothing) + label_smoothing
    losses_BK = F.binary_cross_entropy_with_logits(logits_BK.float(), targets_BK, reduction="none")
    return losses_BK.sum(dim=-1).mean()
