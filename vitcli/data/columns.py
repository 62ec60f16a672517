"""Tables of `datasets`: image and label columns, found by their types, and a table as a split."""

import math
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from vitcli.data.sources.label_values import offered_numbers
from vitcli.data.split import Label, ReadRow, RowReader, SourceFiles, Split
from vitcli.errors import DataError, is_of_machine, nearest
from vitcli.io.files import MOST_BYTES, read_regular
from vitcli.output.text import first_few

ROWS_AT_A_TIME = 1_000
STAMP = struct.Struct("<QQQ")  # size, and the times of the last change of content and of state
CLOCK_TICK_NS = 50_000_000  # more than the clock of any file system is late by
PATHS = "<paths>"  # as the name of a column: the paths of the images


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


def find_image_column(features: datasets.Features, named: str | None, name: str) -> str:
    """Return the named column, else the only one whose type may be an image.

    Args:
        named: by the user or the alias.
        name: of the data set, for errors.
    """
    candidates = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    # Files not written by `datasets` have a binary type, or a struct of bytes and path.
    candidates = candidates or [column for column, kind in features.items() if may_be_image(kind)]
    column = _pick_column(features, named, candidates, what="image", key="data.image_column", name=name)
    feature = features[column]
    if not may_be_image(feature):
        raise DataError(
            f"column {column!r} of {name} holds {_type_name(feature)}, which cannot be an image",
            where="recipe key data.image_column",
            fix="name a column of encoded images",
        )
    return column


def may_be_image(feature) -> bool:
    """Return whether a type may be an image: one of `datasets`, binary, or a struct of bytes and path."""
    if isinstance(feature, datasets.Image | datasets.Value):
        return isinstance(feature, datasets.Image) or feature.dtype in ("binary", "large_binary")
    return isinstance(feature, dict) and {"bytes", "path"} >= set(feature) and "bytes" in feature


def find_label_column(features: datasets.Features, named: str | None, name: str) -> str:
    """Return the named column, else the only one whose type may be a label; see `find_image_column`."""
    candidates = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if not candidates:
        plain = [column for column, feature in features.items() if _is_label(feature)]
        candidates = [c for c in plain if c in ("label", "labels", "class", "target")] or plain
    column = _pick_column(features, named, candidates, what="label", key="data.label_column", name=name)
    feature = features[column]
    if not _is_label(feature):
        raise DataError(
            f"column {column!r} of {name} holds {_type_name(feature)}, which cannot be a class",
            where="recipe key data.label_column",
            fix="name a column of class labels, whole numbers or strings, or of lists of labels or numbers",
        )
    return column


def find_number_column(features: datasets.Features, named: str | None, name: str) -> str:
    """Return the named column of numbers, else the only one that may be; see `find_image_column`.

    Numbers are of a numeric type, or classes whose names are numbers (folders called 17, 18, ...).
    """
    candidates = [column for column, feature in features.items() if _is_number(feature)]
    usual = [column for column in candidates if column in ("label", "labels", "target", "value")]
    column = _pick_column(
        features, named, usual or candidates, what="number", key="data.label_column", name=name,
        offered=offered_numbers(candidates),
    )  # fmt: skip
    if not _is_number(features[column]):
        raise DataError(
            f"column {column!r} of {name} holds {_type_name(features[column])}, and no numbers to predict",
            where="recipe keys data.label_column and objective.loss",
            fix="name a column of numbers, or predict classes: --set objective.loss=softmax",
        )
    return column


def _is_number(feature) -> bool:
    types = ("int", "uint", "float", "double")
    is_value = isinstance(feature, datasets.Value) and feature.dtype.startswith(types)
    return is_value or isinstance(feature, datasets.ClassLabel)


def numbers_of(table: datasets.Dataset, column: str, name: str) -> dict[int | None, float] | None:
    """Return the number that each class is called; None where the column holds numbers itself.

    Raises:
        DataError: a class is not called as a number.
    """
    feature = table.features[column]
    if not isinstance(feature, datasets.ClassLabel):
        return None
    try:
        numbers = {label: float(text) for label, text in enumerate(feature.names)}
    except ValueError as error:
        raise DataError(
            f"the labels of {name} are classes and no numbers: {first_few(feature.names)}",
            where="recipe key objective.loss, which is regression",
            fix="--set objective.loss=softmax, or name a column of numbers with data.label_column",
        ) from error
    return numbers | {None: math.nan, -1: math.nan}


def _type_name(feature) -> str:
    return feature.dtype if isinstance(feature, datasets.Value) else type(feature).__name__


def _is_label(feature) -> bool:
    """Return whether a type may be a class: ClassLabel, integer, string, or a list of the first two."""
    types: tuple[str, ...] = ("int", "uint", "string", "large_string", "bool")
    if isinstance(feature, datasets.List | datasets.LargeList):
        feature, types = feature.feature, ("int", "uint")
    is_value = isinstance(feature, datasets.Value) and feature.dtype.startswith(types)
    return is_value or isinstance(feature, datasets.ClassLabel)


def _pick_column(
    features, named: str | None, candidates: list[str], *, what: str, key: str, name: str, offered: str = ""
) -> str:
    columns = list(features)
    if named is not None and named not in columns:
        raise DataError(
            f"{name} has no column {named!r}{nearest(named, columns)}",
            where=f"recipe key {key}",
            fix=offered or f"one of its columns: {', '.join(columns)}",
        )
    if named is None and len(candidates) != 1:
        several = f"has {len(candidates)} columns that may be the {what}: {', '.join(candidates)}"
        raise DataError(
            f"{name} {several if candidates else f'has no {what} column'}",
            where=f"its columns: {', '.join(f'{c} ({_type_name(features[c])})' for c in columns)}",
            fix=f"--set {key}=NAME",
        )
    return named or candidates[0]


def classes_of(
    table: datasets.Dataset, column: str, name: str, *, numbers: bool
) -> tuple[tuple[str, ...] | None, int, dict | None]:
    """Return class names, their number and, where labels are not numbers from 0, the number of each value.

    Numbers to predict have the name of their column, and one output.
    """
    if numbers:
        return (column,), 1, numbers_of(table, column, name)
    feature = table.features[column]
    if isinstance(feature, datasets.List | datasets.LargeList):
        inner = feature.feature
        if isinstance(inner, datasets.ClassLabel):
            return tuple(inner.names), inner.num_classes, None
        highest = pc.max(pc.list_flatten(table.data.column(column))).as_py()
        return None, 1 + (-1 if highest is None else highest), None
    if isinstance(feature, datasets.ClassLabel):
        return tuple(feature.names), feature.num_classes, None
    with _as_data_error(column):
        values = sorted(value for value in table.unique(column) if value is not None)
    is_numbered = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    if is_numbered and -1 in values:  # an unlabelled row, which check_labels refuses by name
        return None, max(values) + 1, None
    number_of = {value: number for number, value in enumerate(values)}
    number_of[None] = -1
    return tuple(str(value) for value in values), len(values), number_of


def column_values(table: datasets.Dataset, column: str) -> list:
    """Return all values of a column; of images only their paths, so that no pixels are read.

    Raises:
        KeyError: there is no such column, or the images have no paths.
    """
    stored = table.data.column(column).type
    has_paths = pa.types.is_struct(stored) and stored.get_field_index("path") >= 0
    is_of_bytes = pa.types.is_struct(stored) or pa.types.is_binary(stored) or pa.types.is_large_binary(stored)
    if is_of_bytes and not has_paths:
        raise KeyError(column)
    # In parts: where the caller has selected rows, the images of a part are copied with their paths.
    parts = (part[column] for part in arrow_of(table, column).iter(ROWS_AT_A_TIME))
    paths_or_values = (pc.struct_field(part, "path") if has_paths else part for part in parts)
    with _as_data_error(column):
        return [value for part in paths_or_values for value in part.to_pylist()]


@contextmanager
def _as_data_error(column: str) -> Iterator[None]:
    """Refuse text that is not UTF-8, which Arrow stores unseen."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(
            f"column {column!r} holds text that is not UTF-8",
            where=f"column {column!r}: {error.object[:40]!r}",
            fix="write the column again as UTF-8, or name another with data.label_column",
        ) from error


def arrow_of(table: datasets.Dataset, column: str) -> datasets.Dataset:
    """Return one column, whose rows are Arrow tables of the stored values."""
    return table.with_format(None).select_columns([column]).with_format("arrow")


def files_of(table: datasets.Dataset, column: str, root: Path | None) -> Callable[[], list[str]] | None:
    """Return a function to the files of the images, one for each row, or to those of the table if it has
    the images in it; None if neither is so for all of them.
    """
    is_beside = _lie_beside(table, column)
    if is_beside is None or (is_beside and root is None):
        return None
    if not is_beside:
        return lambda: [file["filename"] for file in table.cache_files]
    return cache(lambda: [os.path.join(root or "", path or "") for path in column_values(table, column)])


def _lie_beside(table: datasets.Dataset, column: str) -> bool | None:
    """Return whether all images are files beside the table, False if all are in it, None if it is mixed."""
    stored = table.data.column(column)
    num_bytes = len(stored) - stored.null_count
    if pa.types.is_struct(stored.type):
        num_bytes -= pc.struct_field(stored, "bytes").null_count if num_bytes else 0
    if num_bytes == len(stored):
        return False
    return None if num_bytes or not pa.types.is_struct(stored.type) else True


def stamps_of(table: datasets.Dataset, column: str, root: Path | None) -> Callable[[int], int | None] | None:
    """Return a function of the row to a number that changes with its image; None if nothing does.

    It is None for a row whose file changed so recently that another change might have the same time.
    """
    files = files_of(table, column, root)
    if files is None:
        return None
    if not _lie_beside(table, column):
        return _stamp_of_tables(files())

    def stamp_of(row: int) -> int | None:
        try:
            state = os.stat(files()[row])
        except OSError:  # reading the file then says so
            return None
        if time.time_ns() - state.st_ctime_ns < CLOCK_TICK_NS:
            return None
        values = STAMP.pack(state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        return xxhash.xxh3_64_intdigest(files()[row].encode() + values)

    return stamp_of


def _stamp_of_tables(files: list[str]) -> Callable[[int], int | None] | None:
    """Return the stamp of every row of tables with the images in them: of their files, as they are now."""
    digest = xxhash.xxh3_64(repr(sorted(files)).encode())
    try:
        for file in sorted(files):
            state = os.stat(file)
            digest.update(STAMP.pack(state.st_size, state.st_mtime_ns, state.st_ctime_ns))
    except OSError:
        return None
    stamp = digest.intdigest()
    return (lambda row: stamp) if files else None


def image_bytes(image, root: Path | None, name: str, row: int) -> bytes:
    """Return the encoded bytes of one image; a path is read only inside `root`, and never without one."""
    if isinstance(image, bytes):
        return image
    if image and image.get("bytes") is not None:
        return image["bytes"]
    path = image.get("path") if image else None
    here = f"{name}, row {row}"
    if not path:
        raise DataError(
            "a row without an image", where=here, fix="remove it, or leave it out with --skip-bad"
        )
    if "\0" in path:
        raise DataError(f"image path {path!r} holds a NUL", where=here, fix="remove the row, or --skip-bad")
    if root and os.path.islink(os.path.join(root, path)) and not os.path.exists(os.path.join(root, path)):
        raise DataError(f"{path!r} is a link to a missing file", where=here, fix="restore the file")
    real = os.path.realpath(os.path.join(root, path)) if root else None
    if root is None or real is None or "://" in path or not Path(real).is_relative_to(root):
        raise DataError(
            f"image path {path!r} is outside the data set",
            where=here,
            fix="put the files themselves, not links to them, into the data set's folder",
        )
    try:
        return read_regular(real, MOST_BYTES)
    except FileNotFoundError as error:
        fix = "restore the file, or remove the row"
        raise DataError(f"image file {path!r} is missing", where=here, fix=fix) from error
    except OSError as error:
        if is_of_machine(error):  # the image may be whole: it must not be left out
            raise
        raise DataError(
            f"{path} cannot be read: {error.strerror}", where=here, fix="check the file"
        ) from error
