"""Classes of two splits, or of a split and a checkpoint: matched by name, and refused where they differ."""

import numpy as np

from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.output.text import first_few


def match_class_names(
    split: Split, class_names: tuple[str, ...] | None, *, num_classes: int, ckpt: str
) -> tuple[Split, bool]:
    """Relabel a split in the order of a checkpoint's classes; also return whether that changed any label.

    Classes are matched by name where both sides have names, else by number.

    Raises:
        DataError: the class names or their number differ.
    """
    has_names = class_names is not None and split.class_names is not None
    fix = "evaluate on data with the checkpoint's classes, or fine-tune the checkpoint on this data"
    if has_names and set(class_names) != set(split.class_names):
        in_data, in_ckpt = set(split.class_names), set(class_names)
        raise DataError(
            f"{split.name} and {ckpt} have different classes",
            where=f"only in the data: {_names(in_data - in_ckpt)}; "
            f"only in the checkpoint: {_names(in_ckpt - in_data)}",
            fix=fix,
        )
    if split.num_classes != num_classes:
        raise DataError(
            f"{split.name} has {split.num_classes} classes, {ckpt} predicts {num_classes}",
            where="--dataset and --ckpt",
            fix=fix,
        )
    if not has_names or class_names == split.class_names:
        return split, False
    number_of = np.array([class_names.index(name) for name in split.class_names])
    return split.relabelled(number_of, class_names), True


def check_same_classes(train: Split, held_out: Split) -> None:
    """Refuse a held-out split whose classes differ from those of the training split."""
    if train.class_names == held_out.class_names and train.num_classes == held_out.num_classes:
        return
    in_train, in_held_out = set(train.class_names or ()), set(held_out.class_names or ())
    raise DataError(
        f"{train.name} ({train.num_classes} classes) and {held_out.name} ({held_out.num_classes}) "
        "do not have the same classes",
        where=f"only in the first: {_names(in_train - in_held_out)}; "
        f"only in the second: {_names(in_held_out - in_train)}",
        fix="make both splits name the same classes in the same order",
    )


def _names(names: set[str]) -> str:
    return first_few(sorted(names)) or "none"
