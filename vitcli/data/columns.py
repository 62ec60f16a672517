"""Which columns of a table hold images and labels, and what is in them."""

import os
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.compute as pc

from vitcli.errors import DataError, nearest

PATHS = "<paths>"  # stands for the column of images where only their paths are wanted


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
        plain = [column for column, feature in features.items() if _is_label(feature)]
        found = [c for c in plain if c in ("label", "labels", "class", "target")] or plain
    column = _pick_column(features, wanted, found, what="label", key="data.label_column", name=name)
    feature = features[column]
    if not _is_label(feature):
        raise DataError(
            f"column {column!r} of {name} holds {_type_name(feature)}, which cannot be a class",
            where="recipe key data.label_column",
            fix="name a column of class labels, whole numbers or strings, or of lists of labels or numbers",
        )
    return column


def _type_name(feature) -> str:
    return feature.dtype if isinstance(feature, datasets.Value) else type(feature).__name__


def _is_label(feature) -> bool:
    """One class or several: a ClassLabel, whole numbers, strings, or a list of the first two."""
    if isinstance(feature, datasets.List | datasets.LargeList):
        inner = feature.feature
        is_number = isinstance(inner, datasets.Value) and inner.dtype.startswith(("int", "uint"))
        return isinstance(inner, datasets.ClassLabel) or is_number
    is_value = isinstance(feature, datasets.Value) and _may_be_label(feature.dtype)
    return is_value or isinstance(feature, datasets.ClassLabel)


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
            where=f"its columns: {', '.join(f'{c} ({_type_name(features[c])})' for c in columns)}",
            fix=f"--set {key}=NAME",
        )
    return wanted or found[0]


def classes_of(table: datasets.Dataset, column: str) -> tuple[tuple[str, ...] | None, int, dict | None]:
    """Class names, their count and, where labels are not yet numbers from 0, what number each value gets."""
    feature = table.features[column]
    if isinstance(feature, datasets.List | datasets.LargeList):
        inner = feature.feature
        if isinstance(inner, datasets.ClassLabel):
            return tuple(inner.names), inner.num_classes, None
        highest = pc.max(pc.list_flatten(table.data.column(column))).as_py()
        return None, 1 + (-1 if highest is None else highest), None
    if isinstance(feature, datasets.ClassLabel):
        return tuple(feature.names), feature.num_classes, None
    values = sorted(value for value in table.unique(column) if value is not None)
    is_numbered = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    if is_numbered and -1 in values:  # an unlabelled row: refused by check_labels, which names it
        return None, max(values) + 1, None
    number_of = {value: number for number, value in enumerate(values)}
    number_of[None] = -1
    return tuple(str(value) for value in values), len(values), number_of


def column_values(table: datasets.Dataset, column: str) -> list:
    """All values of a column; of images their paths alone, so that no pixels are read.

    Raises:
        KeyError: there is no such column, or the images have no paths.
    """
    values = table.data.column(column)
    if pa.types.is_struct(values.type):
        values = pc.struct_field(values, "path") if values.type.get_field_index("path") >= 0 else None
    if values is None or pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        raise KeyError(column)
    if table._indices is not None:  # a selection made before it came to us
        values = values.take(table._indices.column(0).combine_chunks())
    return values.to_pylist()


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
