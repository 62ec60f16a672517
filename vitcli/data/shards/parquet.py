"""Shards in Parquet: a block is a row group, and of its columns only images and labels are read."""

from collections.abc import Iterator

import datasets
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vitcli.data.columns import find_image_column, find_label_column, image_bytes
from vitcli.data.shards.remote import Columns, Contents, RangeReader, RowOf, ShardFile, unreadable
from vitcli.errors import DataError

# Where neither types nor the user say which column it is.
IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp")
LABEL_NAMES = ("label", "labels", "cls", "class", "target")
LISTS = (datasets.List, datasets.LargeList)
FOOTER_IN_MEMORY = 8  # times its bytes in the file; an estimate


def inspect_file(file: ShardFile, *, image_column: str | None, label_column: str | None) -> Contents:
    """Rows and columns of a shard, from its footer alone.

    Raises:
        DataError: it is no whole Parquet file, no column fits or several do, or its labels are text without
            class names, which only all rows together would number.
    """
    try:
        footer, _ = read_footer(file)
        features = datasets.Features.from_arrow_schema(footer.schema.to_arrow_schema())
    except DataError:
        raise
    except Exception as error:  # pyarrow's, and OSError where a footer points out of the file
        raise unreadable(file.url, error) from error
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    counts = tuple(group.num_rows for group in groups)
    if not any(counts):  # the types of a table without rows are anyone's guess
        return Contents(counts, 0, None, None)
    columns = _columns(features, image_column, label_column, file.shown)
    paths = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
    images = [leaf for leaf, path in enumerate(paths) if _belongs(path, columns.image)]
    labels = [leaf for leaf, path in enumerate(paths) if _belongs(path, columns.label)]
    largest = max(
        sum(group.column(leaf).total_uncompressed_size for leaf in images + labels) for group in groups
    )
    return Contents(counts, largest, columns, _label_range(groups, labels[0]))


def read_footer(file: ShardFile) -> tuple[pq.FileMetaData, int]:
    """The footer, and about how many bytes of memory it takes."""
    try:
        footer = pq.ParquetFile(RangeReader(file)).metadata
    except DataError:
        raise
    except Exception as error:
        raise unreadable(file.url, error) from error
    return footer, FOOTER_IN_MEMORY * footer.serialized_size


def read_block(
    file: ShardFile, group: int, *, columns: Columns, footer: pq.FileMetaData, first_row: int
) -> tuple[RowOf, int]:
    """A row group, and its bytes in memory; `first_row` is the number of its first row in the shard."""
    try:
        table = _open(file, footer).read_row_group(
            group, columns=[columns.image, columns.label], use_threads=False
        )
        images, labels = table.column(columns.image), table.column(columns.label)
        labels = (labels if columns.has_many else labels.cast("int64")).to_pylist()
    except DataError:
        raise
    except Exception as error:
        raise unreadable(file.url, error) from error

    def row_of(place: int) -> tuple[bytes, int | tuple[int, ...] | None]:
        image = image_bytes(images[place].as_py(), None, file.shown, first_row + place)
        return image, tuple(labels[place]) if isinstance(labels[place], list) else labels[place]

    return row_of, table.get_total_buffer_size()


def read_labels(file: ShardFile, *, columns: Columns, footer: pq.FileMetaData) -> np.ndarray:
    """All labels of a shard, (rows,) int64, -1 where there is none; nothing else is read."""

    def chunks() -> Iterator[np.ndarray]:
        opened = _open(file, footer)
        for group in range(footer.num_row_groups):
            values = opened.read_row_group(group, columns=[columns.label], use_threads=False)
            yield pc.fill_null(values.column(columns.label).cast("int64"), -1).to_numpy()

    try:
        return np.concatenate([np.empty(0, np.int64), *chunks()])
    except DataError:
        raise
    except Exception as error:
        raise unreadable(file.url, error) from error


def _open(file: ShardFile, footer: pq.FileMetaData) -> pq.ParquetFile:
    return pq.ParquetFile(
        RangeReader(file), metadata=footer, pre_buffer=True, page_checksum_verification=True
    )


def _columns(features: datasets.Features, image: str | None, label: str | None, where: str) -> Columns:
    typed = [type(feature) for feature in features.values()]
    if datasets.Image not in typed:
        image = image or _only_one_called(IMAGE_NAMES, features)
    single = {
        name: feature.feature if _lists_labels(name, feature, label) else feature
        for name, feature in features.items()
    }
    if not any(isinstance(feature, datasets.ClassLabel) for feature in single.values()):
        label = label or _only_one_called(LABEL_NAMES, features)
    image = find_image_column(features, image, where)
    label = find_label_column(single, label, where)
    feature = single[label]
    if isinstance(feature, datasets.Value) and "string" in feature.dtype:
        raise DataError(
            f"the classes in column {label!r} are text, which only all rows together would number",
            where=where,
            fix="write the column with its class names (datasets.ClassLabel), or set data.streaming=false",
        )
    names = tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else None
    return Columns(image, label, isinstance(features[label], LISTS), names)


def _lists_labels(name: str, feature, wanted: str | None) -> bool:
    if not isinstance(feature, LISTS):
        return False
    return name == wanted or name in LABEL_NAMES or isinstance(feature.feature, datasets.ClassLabel)


def _only_one_called(names: tuple[str, ...], features: datasets.Features) -> str | None:
    found = [name for name in names if name in features]
    return found[0] if len(found) == 1 else None


def _belongs(path: str, column: str) -> bool:
    return path == column or path.startswith(f"{column}.")


def _label_range(groups: list[pq.RowGroupMetaData], leaf: int) -> tuple[int, int] | None:
    """From the statistics in the footer; None where its writer left them out."""
    ranges = []
    for group in groups:
        found = group.column(leaf).statistics if group.num_rows else None
        if group.num_rows and (found is None or not found.has_min_max):
            return None
        ranges += [(int(found.min), int(found.max))] if found else []
    return min(low for low, _ in ranges), max(high for _, high in ranges)
