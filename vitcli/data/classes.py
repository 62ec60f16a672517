"""Classes of two splits, or of a split and a checkpoint: matched by name, and refused where they differ."""

from dataclasses import replace
from unicodedata import normalize

import numpy as np

from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.output.text import first_few


def match_class_names(
    split: Split, class_names: tuple[str, ...] | None, *, num_classes: int, ckpt: str
) -> tuple[Split, bool]:
    """Relabel a split in the order of a checkpoint's classes; also return whether that changed any label.

    Classes are matched by name, as `spelled_as` spells them, where both sides have names, else by number. By
    name the data may have only some of the checkpoint's classes, and classes without images that the
    checkpoint does not know.

    Raises:
        DataError: the data have other classes; or, without names, another number of them.
    """
    split = spelled_as(split, class_names)
    names = split.class_names
    fix = "evaluate on data with the checkpoint's classes, or fine-tune the checkpoint on this data"
    if class_names is not None and names is not None:
        unknown = set(names) - set(class_names)
        if unknown and not split.is_large:
            labels = split.read_labels()
            unknown &= {names[number] for number in np.unique(labels[labels >= 0]).tolist()}
        if unknown or not set(names) & set(class_names):
            raise DataError(
                f"{split.name} and {ckpt} have different classes",
                where=f"only in the data: {_names(unknown or set(names))}; "
                f"only in the checkpoint: {_names(set(class_names) - set(names))}",
                fix=fix,
            )
    elif split.num_classes != num_classes:
        raise DataError(
            f"{split.name} has {split.num_classes} classes, {ckpt} predicts {num_classes}",
            where="--dataset and --ckpt",
            fix=fix,
        )
    if class_names is None or names is None or class_names == names:
        return split, False
    absent = absent_classes(split, class_names)
    order = {name: number for number, name in enumerate(class_names)}
    number_of = np.array([order.get(name, -1) for name in names])  # -1: has no image
    split = split.relabelled(number_of, class_names)
    if absent:
        count = f"{len(absent)} of {ckpt}'s {len(class_names)} classes"
        note = f"{count} are absent from the data, and may still be predicted: {first_few(absent)}"
        split = replace(split, notes=(*split.notes, note))
    return split, True


def spelled_as(split: Split, class_names: tuple[str, ...] | None) -> Split:
    """Return a split with a checkpoint's spelling of names that differ only in how accents are encoded.

    A Mac's archive unpacked elsewhere has them in another form than the folder that was trained on.
    """
    if class_names is None or split.class_names is None:
        return split
    spelling = {normalize("NFC", name): name for name in class_names} | {name: name for name in class_names}
    names = tuple(
        spelling.get(name) or spelling.get(normalize("NFC", name), name) for name in split.class_names
    )
    return split if len(set(names)) < len(names) else replace(split, class_names=names)


def absent_classes(split: Split, class_names: tuple[str, ...] | None) -> list[str]:
    """Return the classes of a checkpoint that the data do not have, where both have names."""
    if class_names is None or split.class_names is None:
        return []
    return [name for name in class_names if name not in set(split.class_names)]


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
