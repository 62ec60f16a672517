"""Splits of shards, for data that are too large to copy or remote: rows are read where they are.

A row is at a known place in a known shard, so any order can be read and nothing has to be resumed.
Neighbouring rows share a block (a Parquet row group, a remote .tar), and the most recent blocks are cached.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import xxhash

from vitcli.data.shards import parquet, webdataset
from vitcli.data.shards.block_cache import StoredBlocks
from vitcli.data.shards.paths import kind_of
from vitcli.data.shards.remote import BlockCache, Columns, Contents, RowOf, ShardFile, each, file_name, locate
from vitcli.data.sources.tables import split_named_in
from vitcli.data.split import SourceFiles, Split
from vitcli.errors import DataError
from vitcli.io.credentials import public_address
from vitcli.output.text import bytes_text


def open_shards(
    urls: Sequence[str],
    *,
    name: str,
    image_column: str | None,
    label_column: str | None,
    cache_bytes: int = 2 * 2**30,
    num_classes: int | None = None,
) -> Split:
    """Open shards as one split, which any number of threads can read.

    The label of a row is an int, or a tuple of ints if the column holds lists. Memory: at most `cache_bytes`
    of blocks, and one block for each thread that reads or holds one.

    Args:
        urls: all of one split and kind, as `find_shards` returns them.
        name: of the split, for messages.
        image_column, label_column: a column of Parquet; of .tar the suffix of a member ("jpg", "cls") or, for
            labels, a field of its .json. Needed where types and usual names are ambiguous.
        cache_bytes: for the most recently read blocks.
        num_classes: needed where neither class names nor the shards give it.

    Raises:
        DataError: no rows; shards of two splits; a missing, damaged or compressed one; columns or classes
            that differ between them; an unknown number of classes; or a block larger than the cache.
    """
    # Rows and columns of each shard, from footers and indices, a few shards side by side.
    _check_one_split(urls, name)
    kind = ".parquet" if kind_of(urls[0]) == ".parquet" else ".tar"
    blocks = StoredBlocks(public_address(urls[0]).rpartition("/")[0])
    files = each(partial(locate, blocks=blocks), urls)
    inspect = partial(parquet.inspect_file, image_column=image_column, label_column=label_column)
    if kind == ".tar":
        inspect = partial(
            webdataset.inspect_file,
            image_column=image_column,
            label_column=label_column,
            counts=webdataset.known_counts(files) if num_classes else {},
        )
    contents = each(inspect, files)
    if not any(sum(shard.counts) for shard in contents):
        raise DataError(
            f"{name} has no rows", where=files[0].shown, fix="name another split, or other shards"
        )
    # What all of them have in common.
    columns = _same_columns(files, contents)
    columns = columns or Columns(image_column or "", label_column or "", has_many=False, class_names=None)
    num_classes = _num_classes(files, contents, columns, num_classes, name)
    shards = _Shards(files, contents, kind, columns, num_classes, name=name, cache_bytes=cache_bytes)
    return Split(
        name=name,
        num_examples=shards.block_starts[-1],
        class_names=columns.class_names,
        num_classes=num_classes,
        read_row=shards.read_row,
        read_labels=shards.read_labels,
        where_is=shards.where_is,
        is_multilabel=columns.has_many,
        block_starts=np.array(shards.block_starts),
        identity=shards.fingerprint(),
        source_files=shards.source_files(contents),
        read_column=None if shards.is_remote_tar else shards.read_column,
    )


class _Shards:
    """The shards of one split in order, and their rows through a cache of blocks."""

    def __init__(
        self,
        files: Sequence[ShardFile],
        contents: Sequence[Contents],
        kind: str,
        columns: Columns,
        num_classes: int,
        *,
        name: str,
        cache_bytes: int,
    ):
        for file, shard in zip(files, contents, strict=True):
            _check_fits(file, shard.largest_block, cache_bytes)
        self.files, self.kind, self.columns, self.num_classes = files, kind, columns, num_classes
        self.name, self.cache = name, BlockCache(cache_bytes)
        self.counts = [shard.counts for shard in contents]
        self.blocks = [
            (shard, group) for shard, counts in enumerate(self.counts) for group in range(len(counts))
        ]
        # The row of the split at which each block, or shard, begins; at the end the number of rows.
        self.block_starts = [0, *accumulate(chain(*self.counts))]
        self.shard_starts = [0, *accumulate(map(sum, self.counts))]

    def fingerprint(self) -> str:
        """Return a hash of the shards' names, sizes, rows, columns and classes, the same for any copy."""
        # Stored with runs and features, so that not even the name `Columns` may change.
        digest = blake2b(repr((self.kind, self.columns, self.num_classes)).encode(), digest_size=16)
        for file, counts in zip(self.files, self.counts, strict=True):
            digest.update(repr((file_name(file.url), file.size, counts)).encode())
        return digest.hexdigest()

    def source_files(self, contents: Sequence[Contents]) -> SourceFiles:
        """Return what footers and indices, which have been read, and servers tell of the shards."""
        structure = " ".join([self.kind, *(shard.structure for shard in contents)])
        is_local = all(file.is_local for file in self.files)
        paths = [file.path for file in self.files] if is_local else []
        stamps = [] if is_local else [file.stamp for file in self.files]
        stamp = xxhash.xxh3_128_hexdigest(repr(stamps).encode()) if stamps and all(stamps) else ""
        return SourceFiles(lambda: paths, structure, stamp)

    def read_row(self, row: int) -> tuple[bytes, int | tuple[int, ...]]:
        number = _index_of(self.block_starts, row)
        row_of = self.cache.get(number, lambda: self._load(number))
        image, label = row_of(row - self.block_starts[number])
        labels = label if isinstance(label, tuple) else (label,)
        classes = tuple(value for value in labels if value is not None and 0 <= value < self.num_classes)
        if len(classes) < len(labels):
            wrong = f"label {label} is not one of 0 ... {self.num_classes - 1}"
            raise DataError(
                "a row has no label" if label in (None, -1) else wrong,
                where=self.where_is(row),
                fix="correct it, or name a labelled split or another data.label_column",
            )
        return image, classes if isinstance(label, tuple) else classes[0]

    def read_labels(self) -> np.ndarray:
        """Return all labels, (num_examples,) int64: of local shards, and of remote Parquet without images."""
        if self.columns.has_many or self.is_remote_tar:
            why = "shards are remote .tar files" if self.is_remote_tar else "rows have several labels"
            raise DataError(
                f"the labels of {self.name} cannot be listed: its {why}",
                where=self.files[0].shown,
                fix="stream it (data.streaming=true), or copy the shards to this machine",
            )

        def labels_of(shard: int) -> np.ndarray:
            if self.kind == ".tar":
                return webdataset.read_labels(self.files[shard], columns=self.columns)
            return parquet.read_labels(self.files[shard], columns=self.columns, footer=self._footer(shard))

        return np.concatenate(each(labels_of, range(len(self.files))))

    @property
    def is_remote_tar(self) -> bool:
        """Whether every byte must be fetched to read what is not an image."""
        return self.kind == ".tar" and not all(file.is_local for file in self.files)

    def read_column(self, name: str) -> list:
        """Return all values of another column, without reading images; KeyError if there is none."""

        def values_of(shard: int) -> list:
            if not sum(self.counts[shard]):
                return []
            if self.kind == ".tar":
                return webdataset.read_column(self.files[shard], name, columns=self.columns)
            footer = self._footer(shard)
            return parquet.read_column(self.files[shard], name, columns=self.columns, footer=footer)

        return list(chain.from_iterable(each(values_of, range(len(self.files)))))

    def where_is(self, row: int) -> str:
        shard = _index_of(self.shard_starts, row)
        return f"{self.files[shard].shown}, row {row - self.shard_starts[shard]}"

    def _load(self, number: int) -> tuple[RowOf, int]:
        shard, group = self.blocks[number]
        file, columns = self.files[shard], self.columns
        if self.kind == ".tar":
            block = webdataset.read_block(file, columns=columns, count=self.counts[shard][0])
        else:
            first_row = self.block_starts[number] - self.shard_starts[shard]
            footer = self._footer(shard)
            block = parquet.read_block(file, group, columns=columns, footer=footer, first_row=first_row)
        _check_fits(file, block[1], self.cache.limit_bytes)
        return block

    def _footer(self, shard: int) -> pq.FileMetaData:
        return self.cache.get((shard, "footer"), lambda: parquet.read_footer(self.files[shard]))


def _index_of(starts: list[int], row: int) -> int:
    """Return the block or shard that holds a row."""
    if not 0 <= row < starts[-1]:
        raise IndexError(f"row {row} of {starts[-1]}")
    return bisect_right(starts, row) - 1


def _check_one_split(urls: Sequence[str], name: str) -> None:
    """Refuse shards whose paths, without the parts that all have in common, name different splits."""
    parts = {url: public_address(url).split("/") for url in reversed(urls)}
    common = set.intersection(*map(set, parts.values()))
    distinct = {url: [part for part in path if part not in common] for url, path in parts.items()}
    splits = {split: url for url, path in distinct.items() if (split := split_named_in(Path("_", *path)))}
    if len(splits) > 1:
        raise DataError(
            f"the shards of {name} belong to several splits: {', '.join(sorted(splits))}",
            where=" and ".join(public_address(url) for url in list(splits.values())[:2]),
            fix="open each split by itself, or rename the files",
        )


def _same_columns(files: Sequence[ShardFile], contents: Sequence[Contents]) -> Columns | None:
    """Return the columns of all shards whose rows were inspected, None if there are none."""
    inspected = [(file, shard.columns) for file, shard in zip(files, contents, strict=True) if shard.columns]
    for file, columns in inspected[1:]:
        first_file, first = inspected[0]
        if columns != first:
            a, b = asdict(columns), asdict(first)
            parts = [key.replace("_", " ") for key in a if a[key] != b[key]]
            raise DataError(
                f"the shards differ in their {', '.join(parts)}",
                where=f"{file.shown}, unlike {first_file.shown}",
                fix="write all shards alike, or name the columns (data.image_column, data.label_column)",
            )
    return inspected[0][1] if inspected else None


def _num_classes(
    files: Sequence[ShardFile], contents: Sequence[Contents], columns: Columns, given: int | None, name: str
) -> int:
    """Return the number of class names, else the given number, else one more than the largest label."""
    with_rows = [shard for shard in contents if sum(shard.counts)]
    largest = [shard.labels[1] for shard in with_rows if shard.labels]
    known = len(columns.class_names) if columns.class_names else given
    if known is None and len(largest) == len(with_rows):
        known = 1 + max(largest)
    if known is None or given not in (None, known):
        names = f"{name} has {known} class names, and num_classes is {given}"
        raise DataError(
            f"the number of classes of {name} is unknown" if known is None else names,
            where=files[0].shown,
            fix="set data.num_classes to the number of its classes, or write the shards with class names",
        )
    for file, shard in zip(files, contents, strict=True):
        low, high = shard.labels or (0, 0)
        if not 0 <= low <= high < known:
            raise DataError(
                f"labels go from {low} to {high}, and the classes are 0 ... {known - 1}",
                where=file.shown,
                fix="correct the labels, name a labelled split, or name another data.label_column",
            )
    return known


def _check_fits(file: ShardFile, num_bytes: int, cache_bytes: int) -> None:
    if num_bytes > cache_bytes:
        what = "row groups" if kind_of(file.url) == ".parquet" else "shards"
        sizes = [bytes_text(size) for size in (num_bytes, cache_bytes)]
        raise DataError(
            f"a block of {sizes[0]} does not fit into a cache of {sizes[1]}",
            where=file.shown,
            fix=f"write smaller {what}",
        )
