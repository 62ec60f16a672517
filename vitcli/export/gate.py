"""What a file in another precision changes, by images: `vit export --gate` accepts or refuses it by accuracy.

Both networks see the same images, so only those count that one has right and the other wrong. The file passes
if the upper end of a one-sided 95 % interval of the accuracy that it loses is at most `--max-drop`. Without
`--gate` a note says what the file changes.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitcli.errors import CheckFailed
from vitcli.export.agreement import Agreement
from vitcli.output.text import count_of

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


def note_of(agreement: Agreement, verdict: Verdict | None, precision: str, images: str) -> str:
    """Return what a file in another precision changes on images, for which no gate was named.

    Args:
        verdict: on images with labels.
        images: what they are.
    """
    shown = f"{count_of(agreement.num_images, 'image')} of {images}"
    if agreement.num_same is None:
        changed = f"outputs differ by up to {agreement.max_rel_difference:.2g} of the largest on {shown}"
        return f"{precision} is not judged: {changed}"
    changed = f"{agreement.num_same} of {shown} have the class of the checkpoint ({agreement.top1:.2%})"
    if verdict is None:
        return f"{precision}: {changed}; --gate DATA, or --images, measures it on images of yours"
    facts = verdict.as_json()
    right = f"{facts['top1_exported']:.2%} are right, by the checkpoint {facts['top1_checkpoint']:.2%}"
    return f"{precision}: {changed}; {right}; --gate DATA --max-drop POINTS refuses what loses more"


def refuse(verdict: Verdict) -> CheckFailed:
    """Return the error for a file that is not accepted, with what would change the verdict."""
    images = count_of(verdict.num_images, "image")
    least = math.ceil(1000 * verdict.highest_drop) / 10  # points
    fix = f"--max-drop {least:g} would accept it"
    if verdict.lost:
        answers = f"{verdict.lost} right answers and gains {verdict.gained}"
        what = f"of {images} the file loses {answers}, a drop of {verdict.drop:.2%}"
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
