"""What a run learns and how it is scored: classes (paper, section 3.1) or corrupted patches (section 4.6).

Shared by the commands that train; no command of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitcli.evaluation import inference
from vitcli.evaluation import masked_patch as evaluation_masked_patch
from vitcli.evaluation.metrics import PatchScores, Scores
from vitcli.models import masked_patch
from vitcli.recipe import Recipe
from vitcli.training import objective as training_objective
from vitcli.training.objective import Objective


@dataclass(frozen=True)
class Task:
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


def task_of(resolved: Recipe) -> Task:
    """The task that a recipe's `objective.loss` names."""
    wanted = resolved.objective
    if wanted.loss == "masked_patch":
        return Task(
            objective=lambda model, images_BCHW, labels: masked_patch.loss(model(images_BCHW)),
            score=evaluation_masked_patch.evaluate_patches,
            line=_patch_line,
            kept=masked_patch.backbone_state,
        )
    loss = training_objective.loss_fn(wanted.loss, label_smoothing=wanted.label_smoothing)
    return Task(
        objective=training_objective.supervised(loss, mixup=wanted.mixup),
        score=inference.evaluate,
        line=_class_line,
        kept=lambda state: state,
    )


def _class_line(scores: Scores) -> str:
    return f"top-1 {scores.top1:.2%}, loss {scores.loss:.4f}"


def _patch_line(scores: PatchScores) -> str:
    if scores.patch_accuracy is None:
        return f"loss {scores.loss:.4f}"
    right = f"{scores.patch_accuracy:.2%} of the colours right (one guess: {scores.most_frequent_color:.2%})"
    return f"{right}, loss {scores.loss:.4f}"
