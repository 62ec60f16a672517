"""Parquet shards: a block is a row group, of which only the image and label columns are read."""

import io
from collections.abc import Iterator

import datasets
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from vitcli.data.columns import PATHS, find_image_column, find_label_column, image_bytes
from vitcli.data.shards.remote import Columns, Contents, RangeReader, RowOf, ShardFile, reading
from vitcli.errors import DataError

# Names of columns, where neither types nor the user identify one.
IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp")
LABEL_NAMES = ("label", "labels", "cls", "class", "target")
LISTS = (datasets.List, datasets.LargeList)
FOOTER_IN_MEMORY = 8  # times its bytes in the file, an estimate


def inspect_file(file: ShardFile, *, image_column: str | None, label_column: str | None) -> Contents:
    """Return rows and columns of a shard from its footer.

    Raises:
        DataError: it is not a whole Parquet file, no column fits or several do, or its labels are text
            without class names, which only all rows together would number.
    """
    with reading(file.url):
        footer, _ = read_footer(file)
        features = datasets.Features.from_arrow_schema(footer.schema.to_arrow_schema())
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    counts = tuple(group.num_rows for group in groups)
    if not any(counts):  # a table without rows has no reliable types
        return Contents(counts, 0, None, None)
    columns = _columns(features, image_column, label_column, file.shown)
    # A column may be a struct of several leaves; sizes and label statistics are those of leaves.
    paths = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
    images = [leaf for leaf, path in enumerate(paths) if _belongs(path, columns.image)]
    labels = [leaf for leaf, path in enumerate(paths) if _belongs(path, columns.label)]
    largest = max(
        sum(group.column(leaf).total_uncompressed_size for leaf in images + labels) for group in groups
    )
    return Contents(counts, largest, columns, _label_range(groups, labels[0]), _digest_of(footer))


def _digest_of(footer: pq.FileMetaData) -> str:
    """Hash a footer, which has sizes, offsets and statistics of all row groups."""
    serialized = io.BytesIO()
    footer.write_metadata_file(serialized)
    return xxhash.xxh3_128_hexdigest(serialized.getvalue())


def read_footer(file: ShardFile) -> tuple[pq.FileMetaData, int]:
    """Return the footer and its approximate bytes in memory."""
    with reading(file.url):
        footer = pq.ParquetFile(RangeReader(file, is_cached=True)).metadata
    return footer, FOOTER_IN_MEMORY * footer.serialized_size


def read_block(
    file: ShardFile, group: int, *, columns: Columns, footer: pq.FileMetaData, first_row: int
) -> tuple[RowOf, int]:
    """Return a row group and its bytes in memory; `first_row` is the number of its first row in the shard."""
    with reading(file.url):
        table = _open(file, footer).read_row_group(
            group, columns=[columns.image, columns.label], use_threads=False
        )
        images, labels = table.column(columns.image), table.column(columns.label)
        labels = (labels if columns.has_many else labels.cast("int64")).to_pylist()

    def row_of(place: int) -> tuple[bytes, int | tuple[int, ...] | None]:
        image = image_bytes(images[place].as_py(), None, file.shown, first_row + place)
        return image, tuple(labels[place]) if isinstance(labels[place], list) else labels[place]

    return row_of, table.get_total_buffer_size()


def read_labels(file: ShardFile, *, columns: Columns, footer: pq.FileMetaData) -> np.ndarray:
    """Return all labels of a shard, (rows,) int64, -1 for none; no image is read."""

    def chunks() -> Iterator[np.ndarray]:
        opened = _open(file, footer)
        for group in range(footer.num_row_groups):
            values = opened.read_row_group(group, columns=[columns.label], use_threads=False)
            yield pc.fill_null(values.column(columns.label).cast("int64"), -1).to_numpy()

    with reading(file.url):
        return np.concatenate([np.empty(0, np.int64), *chunks()])


def read_column(file: ShardFile, name: str, *, columns: Columns, footer: pq.FileMetaData) -> list:
    """Return all values of a column of a shard, of `data.columns.PATHS` the paths of the images.

    Raises:
        KeyError: there is no such column, or its values are images.
    """
    leaves = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
    leaf = f"{columns.image}.path" if name == PATHS else name
    if leaf not in leaves or name == columns.image:
        raise KeyError(name)
    opened = _open(file, footer)
    with reading(file.url):
        table = opened.read_row_groups(range(footer.num_row_groups), columns=[leaf], use_threads=False)
    values = table.column(0)
    return (pc.struct_field(values, "path") if name == PATHS else values).to_pylist()


def _open(file: ShardFile, footer: pq.FileMetaData) -> pq.ParquetFile:
    return pq.ParquetFile(
        RangeReader(file, is_cached=True), metadata=footer, pre_buffer=True, page_checksum_verification=True
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
            f"the classes in column {label!r} are text, which would need all rows to be numbered",
            where=where,
            fix="write the column with its class names (datasets.ClassLabel), or set data.streaming=false",
        )
    names = tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else None
    return Columns(image, label, isinstance(features[label], LISTS), names)


def _lists_labels(name: str, feature, label_column: str | None) -> bool:
    if not isinstance(feature, LISTS):
        return False
    return name == label_column or name in LABEL_NAMES or isinstance(feature.feature, datasets.ClassLabel)


def _only_one_called(names: tuple[str, ...], features: datasets.Features) -> str | None:
    matches = [name for name in names if name in features]
    return matches[0] if len(matches) == 1 else None


def _belongs(path: str, column: str) -> bool:
    return path == column or path.startswith(f"{column}.")


def _label_range(groups: list[pq.RowGroupMetaData], leaf: int) -> tuple[int, int] | None:
    """Return smallest and largest label by the statistics in the footer; None where it has none."""
    ranges = []
    for group in groups:
        if not group.num_rows:
            continue
        statistics = group.column(leaf).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        ranges.append((int(statistics.min), int(statistics.max)))
    return min(low for low, _ in ranges), max(high for _, high in ranges)
