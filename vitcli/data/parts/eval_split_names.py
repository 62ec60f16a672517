"""What `data.eval_split` may be besides the name of a split: parts of the training images to hold out."""

import re
from dataclasses import dataclass, replace

DEV_PART = "dev_fraction"  # what data.dev_fraction cuts from what "auto" trains on
DEV_PART_OF_ALL = "dev_fraction_of_all"  # from all of train, where other rows are named to report on
FOLD = re.compile(r"(?P<dev>dev_fraction of )?fold (?P<fold>[1-9]\d*) of (?P<num_folds>[1-9]\d*)")
ALL_FOLDS = re.compile(r"(?P<num_folds>[1-9]\d*) folds")


@dataclass(frozen=True)
class FoldName:
    """One of several folds of the training images, or all of them.

    Attributes:
        fold: its number from 1; None for all: train on every image, scored by the models of the folds.
        is_choice: the dev split within a run, not reported on: the dev part of what is left without the fold.
    """

    num_folds: int
    fold: int | None = None
    is_choice: bool = False

    def __str__(self) -> str:
        if self.fold is None:
            return f"{self.num_folds} folds"
        return f"{'dev_fraction of ' if self.is_choice else ''}fold {self.fold} of {self.num_folds}"

    @classmethod
    def of(cls, name: str) -> "FoldName | None":
        """Read a value of `data.eval_split`; None if it names no folds."""
        if of_one := FOLD.fullmatch(name):
            fold, num_folds = int(of_one["fold"]), int(of_one["num_folds"])
            return cls(num_folds, fold, is_choice=bool(of_one["dev"])) if fold <= num_folds > 1 else None
        of_all = ALL_FOLDS.fullmatch(name)
        return cls(int(of_all["num_folds"])) if of_all else None


def choice_part(eval_split: str) -> str:
    """Return the dev part of the training images, where `eval_split` is to report on."""
    if eval_split == "auto":  # a test split cut from the training images must not take part in choosing
        return DEV_PART
    if (folds := FoldName.of(eval_split)) and folds.fold is not None:
        return str(replace(folds, is_choice=True))
    return DEV_PART_OF_ALL


def is_choice(eval_split: str) -> bool:
    """Return whether a part of the training images is a dev split."""
    folds = FoldName.of(eval_split)
    return eval_split in (DEV_PART, DEV_PART_OF_ALL) or bool(folds and folds.is_choice)
