"""Whether the classes of two splits, or of a split and a checkpoint, are the same ones."""

import numpy as np

from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.output.text import first_few


def match_class_names(
    split: Split, class_names: tuple[str, ...] | None, *, num_classes: int, ckpt: str
) -> tuple[Split, bool]:
    """The split with its labels in the order of a checkpoint's classes, and whether that changed any.

    Classes are matched by name where both sides have names, else by number.

    Raises:
        DataError: the classes are other ones, or another count of them.
    """
    by_name = class_names is not None and split.class_names is not None
    if by_name and set(class_names) != set(split.class_names):
        ours = _names(set(split.class_names) - set(class_names))
        theirs = _names(set(class_names) - set(split.class_names))
        raise DataError(
            f"{split.name} and {ckpt} have different classes",
            where=f"only in the data: {ours}; only in the checkpoint: {theirs}",
            fix="evaluate on data with the checkpoint's classes, or fine-tune the checkpoint on this data",
        )
    if split.num_classes != num_classes:
        raise DataError(
            f"{split.name} has {split.num_classes} classes, {ckpt} predicts {num_classes}",
            where="--dataset and --ckpt",
            fix="evaluate on data with the checkpoint's classes, or fine-tune the checkpoint on this data",
        )
    if not by_name or class_names == split.class_names:
        return split, False
    number_of = np.array([class_names.index(name) for name in split.class_names])
    return split.relabelled(number_of, class_names), True


def check_same_classes(train: Split, held_out: Split) -> None:
    """Refuse a held-out split with other classes than the one trained on."""
    if train.class_names == held_out.class_names and train.num_classes == held_out.num_classes:
        return
    here, there = set(train.class_names or ()), set(held_out.class_names or ())
    raise DataError(
        f"{train.name} has {train.num_classes} classes, {held_out.name} has other ones or another count",
        where=f"only in the first: {_names(here - there)}; only in the second: {_names(there - here)}",
        fix="make both splits name the same classes in the same order",
    )


def _names(names: set[str]) -> str:
    return first_few(sorted(names)) or "none"
