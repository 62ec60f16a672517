"""Losses and training tasks. Losses are averaged over the batch.

Letters: B batch, K classes, M most labels of an image.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitcli.data.loader import Batch
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.distributed.transfer import constant
from vitcli.errors import DataError
from vitcli.evaluation import inference, regression
from vitcli.evaluation import masked_patch as patch_evaluation
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.metrics import Metrics, PatchMetrics
from vitcli.evaluation.multilabel import MultilabelMetrics, multilabel_metrics
from vitcli.evaluation.regression import RegressionMetrics, RegressionTarget
from vitcli.models import masked_patch
from vitcli.recipe.schema import Distill
from vitcli.recipe.schema import Objective as ObjectiveSettings

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits_BK, labels_B or labels_BM) -> scalar
Objective = Callable[..., Tensor]  # (model, images_BCHW, labels, teacher predictions) -> scalar
Targets = Callable[[Batch, int, int], Tensor]  # of a micro-batch, its step, and its part of the step
NO_LABEL = -1  # of an image that only teachers predict
UNIT = RegressionTarget("number", 0.0, 1.0)  # of a regression where no image is read


def supervised(loss: Loss, *, mixup: float, cutmix: float = 0.0, teacher: Distill | None = None) -> Objective:
    """Return the objective for labelled images, with mixup and cutmix where these are not 0.

    Each image x_i is mixed with its neighbour in the batch, and so is its loss, which for the losses here
    equals the loss of the mixed targets:

        mixup     x = w x_i + (1 - w) x_(i-1)
        cutmix    x = x_i, but x_(i-1) within a box of 1 - w of the area
        both      loss = w loss(y_i) + (1 - w) loss(y_(i-1))

    For mixup, w is the larger of b and 1 - b, for one b ~ Beta(mixup, mixup) per batch; source: the authors'
    later code (big_vision). With cutmix as well, each batch has one of them with equal probability, as
    in timm's `Mixup`. A teacher has seen the mixed image:

        loss = (1 - weight) loss + weight teacher_xent(targets)
    """

    def objective(model: nn.Module, images_BCHW: Tensor, labels: Tensor, targets: Tensor | None = None):
        size, weight = images_BCHW.shape[-2:], 1.0
        if mixup or cutmix:
            mixing = draw_mixing(size, mixup=mixup, cutmix=cutmix)
            images_BCHW, weight = mixing.mix(images_BCHW), mixing.weight
        logits_BK = model(images_BCHW)
        if targets is not None and teacher.weight == 1:
            return teacher_xent(logits_BK, targets, temperature=teacher.temperature)
        of_labels = loss(logits_BK, labels)
        if mixup or cutmix:
            of_labels = weight * of_labels + (1 - weight) * loss(logits_BK, labels.roll(1, dims=0))
        if targets is None:
            return of_labels
        of_teacher = teacher_xent(logits_BK, targets, temperature=teacher.temperature)
        return teacher.weight * of_teacher + (1 - teacher.weight) * of_labels

    return objective


@dataclass(frozen=True)
class Mixing:
    """How the images of a batch are mixed with their neighbours, see `supervised`.

    Attributes:
        weight: of the label of each image; its neighbour's has the rest.
        box: of cutmix, first and last row and column as fractions of height and width; None for mixup.
    """

    weight: float
    box: tuple[float, float, float, float] | None = None

    def mix(self, images_BCHW: Tensor) -> Tensor:
        """Return the mixed images, of any size."""
        neighbours_BCHW = images_BCHW.roll(1, dims=0)
        if self.box is None:
            return torch.lerp(neighbours_BCHW, images_BCHW, self.weight)
        height, width = images_BCHW.shape[-2:]
        top, bottom, left, right = (
            round(part * side) for part, side in zip(self.box, (height, height, width, width), strict=True)
        )
        mixed_BCHW = images_BCHW.clone()
        mixed_BCHW[..., top:bottom, left:right] = neighbours_BCHW[..., top:bottom, left:right]
        return mixed_BCHW


def draw_mixing(size: Sequence[int], *, mixup: float, cutmix: float) -> Mixing:
    """Draw how a batch of images of this height and width is mixed.

    All draws are on the CPU, whatever the device; one of `mixup` and `cutmix` at least is not 0.
    """
    if cutmix and (not mixup or float(torch.rand(())) < 0.5):
        return draw_box(size, cutmix)
    drawn = float(torch.distributions.Beta(mixup, mixup).sample())
    return Mixing(max(drawn, 1 - drawn))


def draw_box(size: Sequence[int], cutmix: float) -> Mixing:
    """Draw the box of each image that its neighbour's takes the place of.

    The box has the shape of the image and a fraction b ~ Beta(cutmix, cutmix) of its area, its centre is any
    pixel, and what lies outside the image is cut off. Source: arXiv 1905.04899, timm's `rand_bbox`.
    """
    height, width = size
    kept = float(torch.distributions.Beta(cutmix, cutmix).sample())
    centres = (int(torch.randint(side, ())) for side in (height, width))
    side_fraction = math.sqrt(1 - kept)
    (top, bottom), (left, right) = (
        _span(centre, int(side * side_fraction), side)
        for centre, side in zip(centres, (height, width), strict=True)
    )
    weight = 1 - (bottom - top) * (right - left) / (height * width)
    return Mixing(weight, (top / height, bottom / height, left / width, right / width))


def _span(centre: int, length: int, side: int) -> tuple[int, int]:
    return max(0, centre - length // 2), min(side, centre + (length + 1) // 2)


def loss_fn(name: str, *, label_smoothing: float, class_weights: tuple[float, ...] = ()) -> Loss:
    """Return the loss that a recipe's `objective.loss` names."""
    losses = {"softmax": partial(softmax_xent, class_weights=class_weights), "sigmoid": sigmoid_xent}
    return partial(losses[name], label_smoothing=label_smoothing)


def softmax_xent(
    logits_BK: Tensor,
    labels_B: Tensor,
    *,
    label_smoothing: float = 0.0,
    class_weights: tuple[float, ...] = (),
) -> Tensor:
    """Return the cross-entropy with one correct class per image (paper, section 4.1).

    A zero head gives ln K.

    Args:
        class_weights: factor of the loss of an image by its class; () for 1. The sum is divided by B, not by
            the weights of the batch as in torch: so a batch in parts has the same loss as a whole one. With
            weights, an image with the label -1 has no loss.
    """
    if not class_weights:
        return F.cross_entropy(logits_BK.float(), labels_B, label_smoothing=label_smoothing)
    how = {"label_smoothing": label_smoothing, "reduction": "none", "ignore_index": NO_LABEL}
    losses_B = F.cross_entropy(logits_BK.float(), labels_B, **how)
    return (losses_B * constant(class_weights, losses_B.device)[labels_B]).mean()


def sigmoid_xent(logits_BK: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the binary cross-entropy summed over the classes (the authors' ImageNet-21k pre-training).

    A zero head gives K ln 2.

    Args:
        labels: (B,), or (B, M) for images with several correct classes, padded with -1.
        label_smoothing: e makes the targets e and 1 - e.
    """
    targets_BK = multi_hot(labels, logits_BK.shape[-1]).to(logits_BK.device)
    targets_BK = targets_BK * (1 - 2 * label_smoothing) + label_smoothing
    losses_BK = F.binary_cross_entropy_with_logits(logits_BK.float(), targets_BK, reduction="none")
    return losses_BK.sum(dim=-1).mean()


def multi_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return (B, K) float32 targets, 1 for each correct class; labels of -1 are padding."""
    labels_BM = labels[:, None] if labels.ndim == 1 else labels
    hot_BK1 = torch.zeros(
        len(labels_BM), num_classes + 1, device=labels.device
    )  # the last column takes the padding
    return hot_BK1.scatter_(1, labels_BM.where(labels_BM >= 0, num_classes), 1.0)[:, :num_classes]


def teacher_xent(logits_BK: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
    """Return the divergence of the student's probabilities from those of a teacher, averaged over the batch.

        temperature^2 KL(p || q),    p, q = softmax(logits / temperature)

    so that its gradients have the same size at any temperature (arXiv 1503.02531). With fewer targets than
    classes the last one is the probability of all classes without a target, taken as one class.

    Args:
        targets: (B, T, 2) float32, classes and the logarithms of their probabilities.
    """
    classes_BT, of_teacher_BT = targets[..., 0].long(), targets[..., 1]
    of_student_BK = F.log_softmax(logits_BK.float() / temperature, dim=1)
    if classes_BT.shape[1] == logits_BK.shape[1]:
        of_student_BT = of_student_BK.gather(1, classes_BT)
    else:
        classes_BT = classes_BT[:, :-1]
        others_B1 = of_student_BK.scatter(1, classes_BT, -math.inf).logsumexp(dim=1, keepdim=True)
        of_student_BT = torch.cat([of_student_BK.gather(1, classes_BT), others_B1], dim=1)
    return temperature**2 * F.kl_div(of_student_BT, of_teacher_BT, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class TrainingTask:
    """Supervised classification, regression or masked patch prediction.

    Attributes:
        score: scores a held-out split, with the arguments of `inference.evaluate`.
        line: formats the metrics for the terminal.
        published: picks from a state dict what a finished run publishes, in timm's names.
        target: of a regression, what it predicts.
    """

    objective: Objective
    score: Callable[..., tuple[Any, list[str]]]
    line: Callable[[Any], str]
    published: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    target: RegressionTarget | None = None


def training_task(
    settings: ObjectiveSettings,
    train_split: Split | None = None,
    *,
    class_weights: tuple[float, ...] = (),
    teacher: Distill | None = None,
) -> TrainingTask:
    """Return the task that a recipe's [objective] section describes.

    Args:
        train_split: whose numbers a regression scales; None where nothing is trained.
        class_weights: see `softmax_xent`.
        teacher: the [distill] section, if there is one.
    """
    if settings.loss == "masked_patch":
        return TrainingTask(
            objective=lambda model, images_BCHW, labels: masked_patch.loss(model(images_BCHW)),
            score=patch_evaluation.evaluate_patches,
            line=_patch_line,
            published=masked_patch.backbone_state,
        )
    if settings.loss == "regression":
        target = target_of_split(train_split) if train_split else UNIT
        return TrainingTask(
            objective=partial(squared_error, target=target),
            score=_scored(partial(regression.predict_numbers, target=target), regression.metrics_of),
            line=_number_line,
            published=lambda state: state,
            target=target,
        )
    loss = loss_fn(settings.loss, label_smoothing=settings.label_smoothing, class_weights=class_weights)
    score, gives_several = inference.evaluate, train_split and gives_several_labels(settings, train_split)
    if gives_several:
        predict = partial(inference.predict_split, num_classes=train_split.num_classes, project=None)
        score = _scored(predict, multilabel_metrics)
    return TrainingTask(
        objective=supervised(loss, mixup=settings.mixup, cutmix=settings.cutmix, teacher=teacher),
        score=score,
        line=_several_line if gives_several else _class_line,
        published=lambda state: state,
    )


def _scored(predict: Callable[..., Any], metrics_of: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function to the metrics of what `predict` returns for a split, and the undecodable images."""

    def score(
        model: nn.Module, split: Split, preprocessing: Preprocessing, settings: EvalSettings
    ) -> tuple[Any, list[str]]:
        predictions, skipped = predict(model, split, preprocessing, settings)
        return metrics_of(predictions), skipped

    return score


def _class_line(metrics: Metrics) -> str:
    return f"top-1 {metrics.top1:.2%}, loss {metrics.loss:.4f}"


def gives_several_labels(settings: ObjectiveSettings, train_split: Split) -> bool:
    """Return whether a run trains a network to give an image several labels, and scores it so.

    Shards, whose labels cannot be read at once, are scored by the top class alone.
    """
    return settings.loss == "sigmoid" and train_split.is_multilabel and not train_split.is_large


def _several_line(metrics: Metrics | MultilabelMetrics) -> str:
    mean_ap = getattr(metrics, "mean_ap", None)
    return ("" if mean_ap is None else f"mAP {mean_ap:.2%}, ") + _class_line(metrics)


def _number_line(metrics: RegressionMetrics) -> str:
    explained = "" if metrics.r2 is None else f", R2 {metrics.r2:.4f}"
    return f"MAE {metrics.mae:.4g}, RMSE {metrics.rmse:.4g}{explained}, loss {metrics.loss:.4f}"


def _patch_line(metrics: PatchMetrics) -> str:
    if metrics.patch_accuracy is None:
        return f"loss {metrics.loss:.4f}"
    correct = f"{metrics.patch_accuracy:.2%} of the colours correct"
    return f"{correct} (majority class: {metrics.most_frequent_color:.2%}), loss {metrics.loss:.4f}"


def target_of_split(train: Split) -> RegressionTarget:
    """Return mean and standard deviation of the numbers of a training split.

    Raises:
        DataError: all numbers are equal, so that there is nothing to predict.
    """
    numbers = train.read_labels().tolist()
    mean = math.fsum(numbers) / len(numbers)
    std = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))
    (name,) = train.class_names
    if not std > 1e-9 * abs(mean):
        raise DataError(
            f"all {len(numbers)} numbers to predict are {numbers[0]:g}",
            where=f"{train.name}, column {name}",
            fix="name a column whose numbers differ: --set data.label_column=NAME",
        )
    return RegressionTarget(name, mean, std)


def squared_error(
    model: nn.Module, images_BCHW: Tensor, numbers_B: Tensor, *, target: RegressionTarget
) -> Tensor:
    """Return the mean squared error of the standardised numbers: 1 for always the mean."""
    outputs_B = model(images_BCHW)[:, 0].float()
    return torch.mean((outputs_B - target.standardised(numbers_B).float()) ** 2)
