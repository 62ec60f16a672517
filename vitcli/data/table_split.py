"""A table of `datasets` as a split: its image and label columns, and the rows read from it."""

import math
import os
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vitcli.data.columns import (
    PATHS,
    arrow_of,
    classes_of,
    column_values,
    files_of,
    find_image_column,
    find_label_column,
    find_number_column,
    image_bytes,
    stamps_of,
)
from vitcli.data.split import Label, ReadRow, RowReader, SourceFiles, Split


def from_table(
    table: datasets.Dataset,
    *,
    name: str,
    root: Path | None,
    image_column: str | None,
    label_column: str | None,
    numbers: bool = False,
) -> Split:
    """Return a Hugging Face table as a split; columns that are not named are found by their types.

    Args:
        numbers: whether the labels are numbers to predict.

    Raises:
        DataError: no column fits, or several do; an image path is outside `root`.
    """
    # Two columns of the table, with the images still encoded.
    image_column = find_image_column(table.features, image_column, name)
    find = find_number_column if numbers else find_label_column
    label_column = find(table.features, label_column, name)
    if isinstance(table.features[image_column], datasets.Image):
        table = table.cast_column(image_column, datasets.Image(decode=False))
    whole = table.with_format(None)  # a saved table may have a format such as torch, and hidden columns
    table = whole.select_columns([image_column, label_column])
    # Their classes, and the functions that read them.
    class_names, num_classes, number_of = classes_of(table, label_column, name, numbers=numbers)
    root = Path(os.path.realpath(root)) if root else None

    def example_of(row: int, image: Any, label: Any) -> tuple[bytes, Label]:
        data = image_bytes(image, root, name, row)
        if isinstance(label, list):
            return data, tuple(label)
        if number_of:
            return data, number_of[label]
        return data, (math.nan if label is None else float(label)) if numbers else label

    stored = table.with_format("arrow")

    def read_rows(rows: Sequence[int]) -> ReadRow:
        @cache
        def values() -> dict[int, tuple]:
            columns = stored[list(rows)]
            each = (columns[column].to_pylist() for column in (image_column, label_column))
            return dict(zip(rows, zip(*each, strict=True), strict=True))

        return lambda row: example_of(row, *values()[row])

    def where_is(row: int) -> str:
        image = table[row][image_column]
        path = image.get("path") if isinstance(image, dict) else None
        return f"{name}, row {row}" + (f", file {path}" if path else "")

    paths = files_of(table, image_column, root)
    return Split(
        name=name,
        num_examples=len(table),
        class_names=class_names,
        num_classes=num_classes,
        read_row=RowReader(read_rows),
        read_labels=cache(partial(_labels_in, table, label_column, number_of, numbers=numbers)),
        where_is=where_is,
        has_numbers=numbers,
        is_multilabel=isinstance(table.features[label_column], datasets.List | datasets.LargeList),
        stamp_of=stamps_of(table, image_column, root),
        source_files=SourceFiles(paths) if paths else None,
        read_column=lambda column: column_values(whole, image_column if column == PATHS else column),
    )


def _labels_in(table: datasets.Dataset, column: str, number_of: dict | None, *, numbers: bool) -> np.ndarray:
    """Return all labels of a table, see `Split.read_labels`."""
    values = arrow_of(table, column)[:][column]
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return _padded(values)
    if number_of:
        kind = np.float64 if numbers else np.int64
        return np.array([number_of[value] for value in values.to_pylist()], dtype=kind)
    if numbers:
        return pc.fill_null(pc.cast(values, pa.float64()), math.nan).to_numpy()
    return pc.fill_null(values, -1).to_numpy().astype(np.int64)


def without_labels(table: datasets.Dataset, image_column: str | None, name: str) -> datasets.Dataset:
    """Return the images of a table, all with the label 0."""
    column = find_image_column(table.features, image_column, name)
    zeros = np.zeros(len(table), dtype=np.int64)
    label = datasets.ClassLabel(names=["any"])
    return table.select_columns([column]).add_column("label", zeros, feature=label)


def _padded(lists: pa.ChunkedArray) -> np.ndarray:
    """Return lists of up to M labels as (N, M) int64, padded with -1."""
    counts_N = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    labels_NM = np.full((len(lists), max(int(counts_N.max(initial=1)), 1)), -1, dtype=np.int64)
    rows_V = np.repeat(np.arange(len(lists)), counts_N)
    columns_V = np.arange(counts_N.sum()) - np.repeat(np.cumsum(counts_N) - counts_N, counts_N)
    labels_NM[rows_V, columns_V] = pc.list_flatten(lists).to_numpy()
    return labels_NM
