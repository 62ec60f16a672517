"""`vit export --gate`: an exported file is accepted if it is shown to lose no more accuracy than allowed.

Both networks see the same images, so only those count that one has right and the other wrong. The file passes
if the upper end of a one-sided 95 % interval of the accuracy that it loses is at most `--max-drop`.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitcli.data import classes as data_classes
from vitcli.data.split import Split
from vitcli.errors import CheckFailed, VitError
from vitcli.evaluation.regression import target_of
from vitcli.evaluation.setup import open_eval_split
from vitcli.evaluation.several_labels import several_labels_of
from vitcli.output.text import count_of
from vitcli.recipe.request import RecipeRequest
from vitcli.weights.io import Weights

Z = 1.6448536269514722  # standard normal quantile of 0.95


@dataclass(frozen=True)
class Verdict:
    """What the images say of an exported file.

    Attributes:
        lost: images that only the checkpoint has right.
        gained: images that only the file has right.
        num_right: that the checkpoint has.
        max_drop: the loss of accuracy that is allowed, a fraction.
    """

    num_images: int
    num_right: int
    lost: int
    gained: int
    max_drop: float

    @property
    def drop(self) -> float:
        """Return the accuracy that is lost on these images, a fraction."""
        return (self.lost - self.gained) / self.num_images

    @property
    def highest_drop(self) -> float:
        """Return the end of the one-sided 95 % interval."""
        return highest_drop(self.lost, self.gained, self.num_images)

    @property
    def is_accepted(self) -> bool:
        return self.highest_drop <= self.max_drop

    def as_json(self) -> dict[str, Any]:
        return {
            "num_images": self.num_images,
            "top1_checkpoint": self.num_right / self.num_images,
            "top1_exported": (self.num_right - self.lost + self.gained) / self.num_images,
            "only_checkpoint_right": self.lost,
            "only_exported_right": self.gained,
            "drop": self.drop,
            "highest_drop": self.highest_drop,
            "max_drop": self.max_drop,
        }


def open_labelled(dataset: str, split: str, weights: Weights) -> Split:
    """Open the images of the gate, with labels in the order of the checkpoint's classes.

    Args:
        split: its name; "auto" is what `vit evaluate` scores by itself.

    Raises:
        VitError: the network has no accuracy: no head, several labels, or a number.
        DataError: the data cannot be read, have no labels, or other classes.
    """
    arch = weights.architecture
    kind = None
    if not arch.num_classes:
        kind = "no classifier"
    elif target_of(weights.metadata):
        kind = "a number instead of classes"
    elif several_labels_of(weights.metadata, arch.num_classes):
        kind = "several labels an image"
    if kind:
        raise VitError(
            f"the gate compares accuracies; these weights have {kind}", where="--gate", fix="leave it out"
        )
    recipe = RecipeRequest(shorthands={"model.ckpt": weights.source, "data.dataset": dataset}).load(
        command="evaluate"
    )
    opened = data_classes.spelled_as(open_eval_split(recipe, split, weights), weights.class_names)
    matched, _ = data_classes.match_class_names(
        opened, weights.class_names, num_classes=arch.num_classes, ckpt=weights.source
    )
    return matched


def judge(outputs_NK: Tensor, exported_NK: Tensor, labels_N: Tensor, *, max_drop: float) -> Verdict:
    """Return the verdict on logits of both networks."""
    is_right_N, exported_is_right_N = (
        logits_NK.argmax(1) == labels_N for logits_NK in (outputs_NK, exported_NK)
    )
    return Verdict(
        num_images=len(labels_N),
        num_right=int(is_right_N.sum()),
        lost=int(torch.sum(is_right_N & ~exported_is_right_N)),
        gained=int(torch.sum(exported_is_right_N & ~is_right_N)),
        max_drop=max_drop,
    )


def refuse(verdict: Verdict) -> CheckFailed:
    """Return the error for a file that is not accepted, with what would change the verdict."""
    images = count_of(verdict.num_images, "image")
    least = math.ceil(1000 * verdict.highest_drop) / 10  # points
    fix = f"--max-drop {least:g} would accept it"
    if verdict.lost:
        what = f"of {images} the file loses {verdict.lost} right answers and gains {verdict.gained}"
        fix += ", or export in a higher --precision"
    else:
        what = f"no right answer is lost, but {images} are too few to show it"
        if verdict.max_drop:
            enough = math.ceil(Z**2 * (1 - verdict.max_drop) / verdict.max_drop)
            fix += f"; {count_of(enough, 'image')} without a change would show it"
    return CheckFailed(
        f"{what}: a drop of up to {verdict.highest_drop:.2%} cannot be ruled out",
        where=f"--gate, --max-drop {100 * verdict.max_drop:g}",
        fix=f"nothing was kept; {fix}",
    )


def highest_drop(lost: int, gained: int, num_images: int) -> float:
    """Return the end of Tango's one-sided 95 % score interval of (lost - gained) / num_images.

    "Equivalence test and confidence interval for the difference in proportions for the paired-sample design"
    (Statistics in Medicine 17, 1998): the largest drop that the score test does not reject.
    """
    low, high = max((lost - gained) / num_images, -1.0), 1.0
    for _ in range(60):
        drop = (low + high) / 2
        low, high = (drop, high) if _score(lost, gained, num_images, drop) > -Z else (low, drop)
    return high


def _score(lost: int, gained: int, num_images: int, drop: float) -> float:
    """Return the score statistic of a drop, with the fraction gained that is likeliest at this drop."""
    a = 2 * num_images
    b = (2 * num_images - lost + gained) * drop - lost - gained
    c = -gained * drop * (1 - drop)
    gained_fraction = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = num_images * (2 * gained_fraction + drop * (1 - drop))
    difference = lost - gained - num_images * drop
    return difference / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, difference)
