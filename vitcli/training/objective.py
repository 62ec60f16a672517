"""What training minimises, averaged over the batch. K: classes, B: batch, M: most labels of an image."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitcli.evaluation import inference
from vitcli.evaluation import masked_patch as evaluation_masked_patch
from vitcli.evaluation.metrics import Metrics, PatchMetrics
from vitcli.models import masked_patch
from vitcli.recipe import Recipe

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits_BK, labels_B or labels_BM) -> scalar
Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (model, images_BCHW, labels) -> scalar


def supervised(loss: Loss, *, mixup: float) -> Objective:
    """The loss of the model's logits; with `mixup`, of mixed pictures.

    Every picture then is `share` of itself and the rest of its neighbour in the batch, and so is its loss:
    with both losses here that is the loss of the mixed targets. `share` is drawn once a batch from
    Beta(mixup, mixup), the larger side, as in the authors' later code (big_vision).
    """

    def objective(model: nn.Module, images_BCHW: Tensor, labels: Tensor) -> Tensor:
        if not mixup:
            return loss(model(images_BCHW), labels)
        drawn = float(torch.distributions.Beta(mixup, mixup).sample())  # on the CPU, whatever the device
        share = max(drawn, 1 - drawn)
        logits_BK = model(torch.lerp(images_BCHW.roll(1, dims=0), images_BCHW, share))
        return share * loss(logits_BK, labels) + (1 - share) * loss(logits_BK, labels.roll(1, dims=0))

    return objective


def loss_fn(name: str, *, label_smoothing: float) -> Loss:
    """The loss of a recipe's `objective.loss`."""
    match name:
        case "softmax":
            return lambda logits_BK, labels: softmax_xent(logits_BK, labels, label_smoothing=label_smoothing)
        case "sigmoid":
            return lambda logits_BK, labels: sigmoid_xent(logits_BK, labels, label_smoothing=label_smoothing)


def softmax_xent(logits_BK: Tensor, labels_B: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy with one right class an image (paper, section 4.1). A zero head gives ln K."""
    return F.cross_entropy(logits_BK.float(), labels_B, label_smoothing=label_smoothing)


def sigmoid_xent(logits_BK: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """K independent yes-or-no questions, summed over the classes (the authors' ImageNet-21k pre-training).

    `labels` is (B,), or (B, M) where an image has several right classes, filled up with -1.
    `label_smoothing` e makes the targets e and 1 - e. A zero head gives K ln 2.
    """
    targets_BK = multi_hot(labels, logits_BK.shape[-1]).to(logits_BK.device)
    targets_BK = targets_BK * (1 - 2 * label_smoothing) + label_smoothing
    losses_BK = F.binary_cross_entropy_with_logits(logits_BK.float(), targets_BK, reduction="none")
    return losses_BK.sum(dim=-1).mean()


def multi_hot(labels: Tensor, num_classes: int) -> Tensor:
    """(B, K) float32, 1 for each right class; -1 among the labels is none."""
    labels_BM = labels[:, None] if labels.ndim == 1 else labels
    hot_BK1 = torch.zeros(len(labels_BM), num_classes + 1, device=labels.device)  # the last is that of -1
    return hot_BK1.scatter_(1, labels_BM.where(labels_BM >= 0, num_classes), 1.0)[:, :num_classes]


@dataclass(frozen=True)
class TrainingTask:
    """One of the two kinds of training.

    Attributes:
        objective: what is minimised.
        score: the pass over a held-out split, with the arguments of `inference.evaluate`.
        line: scores in a few words.
        kept: of a state dict, what a finished run leaves, in timm's naming.
    """

    objective: Objective
    score: Callable[..., tuple[Any, list[str]]]
    line: Callable[[Any], str]
    kept: Callable[[dict[str, Tensor]], dict[str, Tensor]]


def training_task(recipe: Recipe) -> TrainingTask:
    """The task that a recipe's `objective.loss` names."""
    wanted = recipe.objective
    if wanted.loss == "masked_patch":
        return TrainingTask(
            objective=lambda model, images_BCHW, labels: masked_patch.loss(model(images_BCHW)),
            score=evaluation_masked_patch.evaluate_patches,
            line=_patch_line,
            kept=masked_patch.backbone_state,
        )
    loss = loss_fn(wanted.loss, label_smoothing=wanted.label_smoothing)
    return TrainingTask(
        objective=supervised(loss, mixup=wanted.mixup),
        score=inference.evaluate,
        line=_class_line,
        kept=lambda state: state,
    )


def _class_line(scores: Metrics) -> str:
    return f"top-1 {scores.top1:.2%}, loss {scores.loss:.4f}"


def _patch_line(scores: PatchMetrics) -> str:
    if scores.patch_accuracy is None:
        return f"loss {scores.loss:.4f}"
    right = f"{scores.patch_accuracy:.2%} of the colours right (one guess: {scores.most_frequent_color:.2%})"
    return f"{right}, loss {scores.loss:.4f}"
