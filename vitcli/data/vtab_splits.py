"""Tables of a VTAB task: classes from raw columns, its splits, and its thousand training images.

This is for aliases of recipes/datasets.toml with the key `vtab`; the keys are explained there. Loads
`datasets`, unlike `vtab.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc

from vitcli.data import vtab
from vitcli.data.columns import find_label_column
from vitcli.data.decoding import decode
from vitcli.data.sources.tables import Tables, pooled, slice_of
from vitcli.data.split import Split, base_of
from vitcli.errors import DataError

Opener = Callable[[], datasets.Dataset]


def for_task(
    tables: Tables, declared: Mapping[str, Any], *, name: str, is_local: bool, named_label: str | None
) -> Tables:
    """Add the splits train800, val200 and train800val200 to the tables of a VTAB task, and to no others.

    Args:
        declared: the alias' entry in recipes/datasets.toml.
        is_local: whether this is a local copy; those of the Hub already have the task's classes.
        named_label: the column that the user named, which is used as it is.
    """
    if vtab.VTAB not in declared:
        return tables
    opened = dict(tables.open)
    if is_local and named_label is None and "label_rules" in declared:
        opened = _raw_splits(opened, declared)
        for split, read in opened.items():
            opened[split] = partial(_labelled, read, declared, f"{name}, split {split}")
    column = named_label if is_local or named_label else declared["label_column"]
    for split, read in opened.items():
        opened[split] = partial(_numbered, read, column, declared["classes"], f"{name}, split {split}")
    return replace(tables, open=opened | _protocol(opened, name))


def with_image_rule(split: Split, declared: Mapping[str, Any]) -> Split:
    """Scale images of 0 and 1 to black and white, if the alias says that there may be such images."""
    if declared.get("image_rule") != "times_255":
        return split

    def read_row(row: int):
        image, label = split.read_row(row)
        image_HWC = decode(image, where=split.where_is, row=row) if isinstance(image, bytes) else image
        return image_HWC * np.uint8(255 if image_HWC.max() <= 1 else 1), label

    return replace(split, read_row=read_row)


def _protocol(opened: Mapping[str, Opener], name: str) -> dict[str, Opener]:
    """Return the splits of VTAB-1k, cut from train and, if there is one, validation (paper, B.1.1)."""
    if "train" not in opened:
        return {}
    num_train, num_val = vtab.TRAIN_ROWS, vtab.VAL_ROWS
    train = partial(_rows, opened, "train", 0, num_train, name)
    val = partial(_rows, opened, "train", num_train, num_train + num_val, name)
    if "validation" in opened:
        val = partial(_rows, opened, "validation", 0, num_val, name)

    def both() -> datasets.Dataset:
        return pooled([train(), val()], name=name, split="train+validation")

    return {f"train{num_train}": train, f"val{num_val}": val, f"train{num_train}val{num_val}": both}


def _rows(opened: Mapping[str, Opener], split: str, first: int, last: int, name: str) -> datasets.Dataset:
    table = opened[split]()
    if len(table) < last:
        raise DataError(
            f"VTAB needs {last} rows, and there are {len(table)}",
            where=f"{name}, split {split}",
            fix="copy the whole data set there, or name other rows: --set data.train_split=train",
        )
    return table.select(range(first, last))


def _raw_splits(opened: dict[str, Opener], declared: Mapping[str, Any]) -> dict[str, Opener]:
    """Return the task's splits of a raw copy that has exactly those of TensorFlow Datasets."""
    specs = declared.get("raw_splits", {})
    if {base_of(spec) for spec in specs.values()} != set(opened):
        return opened
    if not set(declared["label_rules"]) & set(opened["train"]().column_names):
        return opened
    return {split: partial(_part, opened, spec) for split, spec in specs.items()}


def _part(opened: Mapping[str, Opener], spec: str) -> datasets.Dataset:
    table = opened[base_of(spec)]()
    first, last = slice_of(spec, len(table))
    return table.select(range(first, last))


def _labelled(read: Opener, declared: Mapping[str, Any], where: str) -> datasets.Dataset:
    """Return images and the classes by the rule of the first raw column; a table without one is unchanged."""
    table = read()
    column = next((column for column in declared["label_rules"] if column in table.column_names), None)
    if column is None:
        return table
    images = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image)]
    if declared["image_column"] in table.column_names:
        images = [declared["image_column"]]  # small NORB has two images per row; the task uses the first
    kind = table.features[column]
    if isinstance(kind, datasets.ClassLabel) and kind.num_classes == declared["classes"]:
        return table.select_columns([*images, column])
    labels = _classes(table, column, declared["label_rules"][column], where)
    feature = datasets.ClassLabel(num_classes=declared["classes"])
    return table.select_columns(images).add_column("label", labels, feature=feature)


def _numbered(read: Opener, column: str | None, num_classes: int, where: str) -> datasets.Dataset:
    """Give integer labels the number of classes of the task: a thousand images may lack some class."""
    table = read()
    column = find_label_column(table.features, column, where)
    kind = table.features[column]
    if not (isinstance(kind, datasets.Value) and kind.dtype.startswith(("int", "uint"))):
        return table
    range_of = pc.min_max(table.data.column(column)).as_py()
    if range_of["min"] is None or not 0 <= range_of["min"] <= range_of["max"] < num_classes:
        return table  # other classes; refused, if they are wrong, when the split is opened
    return table.cast_column(column, datasets.ClassLabel(num_classes=num_classes))


def _classes(table: datasets.Dataset, column: str, rule: str, where: str) -> np.ndarray:
    labels = np.empty(len(table), dtype=np.int64)
    row = 0
    for batch in table.with_format(None).select_columns([column]).iter(batch_size=1000):
        for value in batch[column]:
            try:
                labels[row] = vtab.class_of(rule, value)
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise DataError(
                    f"rule {rule} has no class for a value of column {column!r}: {error}",
                    where=f"{where}, row {row}",
                    fix="write the column as TensorFlow Datasets has it, or name a column of classes: "
                    "--set data.label_column=NAME",
                ) from error
            row += 1
    return labels
