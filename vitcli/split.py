"""`Split`: the rows of one split as encoded images with checked labels, whatever they were read from."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vitcli import order
from vitcli.errors import DataError, nearest


@dataclass(frozen=True)
class Split:
    """Rows of one split, read one at a time.

    Attributes:
        name: what people call it, for messages: "flowers17, split train".
        num_examples: how many rows.
        class_names: names in the order of the label numbers, or None where the data has numbers only.
        num_classes: how many classes a head for these labels has.
        read_row: row number to (encoded bytes, or an already decoded (H, W, 3) uint8 array, and its label).
        read_labels: all labels, (num_examples,) int64.
        where_is: row number to what an error should call it: a file name, or the row.
        dev_cut: for the dev part of a split, which split, what fraction, and the fingerprint of the whole.
    """

    name: str
    num_examples: int
    class_names: tuple[str, ...] | None
    num_classes: int
    read_row: Callable[[int], tuple[bytes | np.ndarray, int]]
    read_labels: Callable[[], np.ndarray]
    where_is: Callable[[int], str]
    dev_cut: dict | None = None

    def __len__(self) -> int:
        return self.num_examples

    @cached_property
    def fingerprint(self) -> str:
        """Changes when rows, labels or classes do: from all labels and names and a sample of the images."""
        digest = blake2b(
            repr((self.num_examples, self.class_names, self.num_classes)).encode(), digest_size=16
        )
        digest.update(self.read_labels().tobytes())
        for row in np.linspace(0, self.num_examples - 1, min(32, self.num_examples)).astype(int):
            try:
                image, _ = self.read_row(int(row))
            except DataError as error:  # a row without an image is a fact of the data too
                image = error.message.encode()
            digest.update(image if isinstance(image, bytes) else image.tobytes())
        return digest.hexdigest()

    def part(self, first: int, last: int, *, name: str, shuffle_key: int | None = None) -> "Split":
        """Rows first ... last - 1 of this split, or of a fixed shuffle of it; neither takes memory."""

        def source_rows(rows: np.ndarray) -> np.ndarray:
            if shuffle_key is None:
                return first + rows
            return order.permute(first + rows, num_examples=self.num_examples, key=shuffle_key)

        def source_row(row: int) -> int:
            return int(source_rows(np.array([row]))[0])

        return replace(
            self,
            name=name,
            num_examples=last - first,
            read_row=lambda row: self.read_row(source_row(row)),
            read_labels=lambda: self.read_labels()[source_rows(np.arange(last - first))],
            where_is=lambda row: self.where_is(source_row(row)),
        )

    def relabelled(self, number_of: np.ndarray, class_names: tuple[str, ...]) -> "Split":
        """The same rows, label k called number_of[k], in another list of classes."""

        def read_row(row: int) -> tuple[bytes | np.ndarray, int]:
            image, label = self.read_row(row)
            return image, int(number_of[label])

        return replace(
            self,
            class_names=class_names,
            num_classes=len(class_names),
            read_row=read_row,
            read_labels=lambda: number_of[self.read_labels()],
        )


def from_table(
    table: datasets.Dataset,
    *,
    name: str,
    root: Path | None,
    image_column: str | None,
    label_column: str | None,
) -> Split:
    """A Hugging Face table as a split; its columns found by their types where they are not named.

    Raises:
        DataError: no column fits, or several do; an image path leaves `root`.
    """
    image_column = find_image_column(table.features, image_column, name)
    label_column = find_label_column(table.features, label_column, name)
    if isinstance(table.features[image_column], datasets.Image):
        table = table.cast_column(image_column, datasets.Image(decode=False))
    # A saved table remembers a format such as torch, and columns to leave out.
    table = table.with_format(None).select_columns([image_column, label_column])
    class_names, num_classes, number_of = _classes(table, label_column)
    root = Path(os.path.realpath(root)) if root else None

    def read_row(row: int) -> tuple[bytes, int]:
        values = table[row]
        label = values[label_column]
        return image_bytes(values[image_column], root, name, row), number_of[label] if number_of else label

    def read_labels() -> np.ndarray:
        values = table.data.column(label_column)
        if table._indices is not None:  # a selection made before it came to us
            values = pa.chunked_array([pa.array(table[label_column])])
        if number_of:
            return np.array([number_of[value] for value in values.to_pylist()], dtype=np.int64)
        return pc.fill_null(values, -1).to_numpy().astype(np.int64)

    def where_is(row: int) -> str:
        image = table[row][image_column]
        path = image.get("path") if isinstance(image, dict) else None
        return f"{name}, row {row}" + (f", file {path}" if path else "")

    return Split(
        name=name,
        num_examples=len(table),
        class_names=class_names,
        num_classes=num_classes,
        read_row=read_row,
        read_labels=read_labels,
        where_is=where_is,
    )


def check_labels(split: Split) -> None:
    """Refuse a split with a label that is no class, naming its first row."""
    labels_N = split.read_labels()
    wrong_N = np.flatnonzero((labels_N < 0) | (labels_N >= split.num_classes))
    if not len(wrong_N):
        return
    row = int(wrong_N[0])
    if (labels_N[wrong_N] == -1).all():
        what, fix = "no label (-1)", "choose a labelled split with --split or data.eval_split"
    else:
        what, fix = (
            f"a label outside 0 ... {split.num_classes - 1}",
            "mend them, or name a column with data.label_column",
        )
    raise DataError(
        f"{len(wrong_N)} of {len(labels_N)} rows of {split.name} have {what}",
        where=f"{split.where_is(row)}: label {labels_N[row]}",
        fix=fix,
    )


def find_image_column(features: datasets.Features, wanted: str | None, name: str) -> str:
    """The column called `wanted`, else the only one whose type may be an image; `name` is for the error."""
    found = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    # Files that were not written by `datasets` say "binary", or a struct of bytes and path.
    found = found or [column for column, feature in features.items() if _may_hold_images(feature)]
    column = _pick_column(features, wanted, found, what="image", key="data.image_column", name=name)
    feature = features[column]
    if not isinstance(feature, datasets.Image) and not _may_hold_images(feature):
        raise DataError(
            f"column {column!r} of {name} holds {_type_name(feature)}, which cannot be an image",
            where="recipe key data.image_column",
            fix="name a column of encoded images",
        )
    return column


def _may_hold_images(feature) -> bool:
    if isinstance(feature, datasets.Value):
        return feature.dtype in ("binary", "large_binary")
    return isinstance(feature, dict) and {"bytes", "path"} >= set(feature) and "bytes" in feature


def find_label_column(features: datasets.Features, wanted: str | None, name: str) -> str:
    """The column called `wanted`, else the only one whose type may be a label; `name` is for the error."""
    found = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if not found:
        plain = [c for c, f in features.items() if isinstance(f, datasets.Value) and _may_be_label(f.dtype)]
        found = [c for c in plain if c in ("label", "labels", "class", "target")] or plain
    column = _pick_column(features, wanted, found, what="label", key="data.label_column", name=name)
    feature = features[column]
    is_plain = isinstance(feature, datasets.Value) and _may_be_label(feature.dtype)
    if not is_plain and not isinstance(feature, datasets.ClassLabel):
        raise DataError(
            f"column {column!r} of {name} holds {_type_name(feature)}, which cannot be a class",
            where="recipe key data.label_column",
            fix="name a column of class labels, whole numbers or strings",
        )
    return column


def _type_name(feature) -> str:
    return feature.dtype if isinstance(feature, datasets.Value) else type(feature).__name__


def _may_be_label(dtype: str) -> bool:
    return dtype.startswith(("int", "uint", "string", "large_string", "bool"))


def _pick_column(features, wanted: str | None, found: list[str], *, what: str, key: str, name: str) -> str:
    columns = list(features)
    if wanted is not None and wanted not in columns:
        raise DataError(
            f"{name} has no column {wanted!r}{nearest(wanted, columns)}",
            where=f"recipe key {key}",
            fix=f"one of its columns: {', '.join(columns)}",
        )
    if wanted is None and len(found) != 1:
        several = f"has {len(found)} columns that may be the {what}: {', '.join(found)}"
        raise DataError(
            f"{name} {several if found else f'has no {what} column'}",
            where=f"its columns: {', '.join(columns)}",
            fix=f"--set {key}=NAME",
        )
    return wanted or found[0]


def _classes(table: datasets.Dataset, column: str) -> tuple[tuple[str, ...] | None, int, dict | None]:
    """Class names, their count and, where labels are not yet numbers from 0, what number each value gets."""
    feature = table.features[column]
    if isinstance(feature, datasets.ClassLabel):
        return tuple(feature.names), feature.num_classes, None
    values = sorted(value for value in table.unique(column) if value is not None)
    is_numbered = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    if is_numbered and -1 in values:  # an unlabelled row: refused by check_labels, which names it
        return None, max(values) + 1, None
    number_of = {value: number for number, value in enumerate(values)}
    number_of[None] = -1
    return tuple(str(value) for value in values), len(values), number_of


def image_bytes(image, root: Path | None, name: str, row: int) -> bytes:
    """Encoded bytes of one value of an image column; a path is read only inside `root`, without it never."""
    if isinstance(image, bytes):
        return image
    if image and image.get("bytes") is not None:
        return image["bytes"]
    path = image.get("path") if image else None
    here = f"{name}, row {row}"
    if not path:
        raise DataError("a row without an image", where=here, fix="remove it, or set data.on_bad_image=skip")
    if root and os.path.islink(os.path.join(root, path)) and not os.path.exists(os.path.join(root, path)):
        raise DataError(f"{path!r} is a link to a file that is not there", where=here, fix="restore the file")
    real = os.path.realpath(os.path.join(root, path)) if root else None
    if real is None or "://" in path or not Path(real).is_relative_to(root):
        raise DataError(
            f"image path {path!r} leads out of the data set",
            where=here,
            fix="put the files themselves, not links to them, into the data set's folder",
        )
    try:
        return Path(real).read_bytes() if os.path.isfile(real) else _missing(path, here)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}", where=here, fix="check the file"
        ) from error


def _missing(path: str, here: str):
    raise DataError(f"image file {path!r} is missing", where=here, fix="restore the file, or remove the row")
