"""Data too large to copy, or remote: splits whose rows are read where they lie, in shards.

A row is at a known place in a known shard, so any order can be read and nothing has to be resumed.
Neighbouring rows share a block (a Parquet row group, a remote .tar), and the blocks read last are kept.
"""

import posixpath
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from vitcli.data.layouts import split_of
from vitcli.data.shards import parquet, webdataset
from vitcli.data.shards.paths import COMPRESSED, PLACES, compressed, kind_of
from vitcli.data.shards.remote import BlockCache, Columns, Contents, RowOf, ShardFile, each, locate, shown
from vitcli.data.split import Split
from vitcli.errors import DataError


@dataclass(frozen=True)
class Shards:
    """The shards of one split in order, known without reading an image.

    Attributes:
        files: where they lie.
        contents: what each holds.
        kind: ".parquet" or ".tar".
        columns: what all of them call images and labels.
        num_classes: how many classes a head for their labels has.
    """

    files: tuple[ShardFile, ...]
    contents: tuple[Contents, ...]
    kind: str
    columns: Columns
    num_classes: int

    @property
    def num_examples(self) -> int:
        return sum(sum(contents.counts) for contents in self.contents)


def open_shards(
    urls: Sequence[str],
    *,
    name: str,
    image_column: str | None,
    label_column: str | None,
    cache_bytes: int = 2 * 2**30,
    num_classes: int | None = None,
) -> Split:
    """Shards as one split, read from any number of threads.

    The label of a row is an int, or a tuple of ints where the column holds lists. Memory: at most
    `cache_bytes` of blocks, and one block for each thread that reads or holds one.

    Args:
        urls: all of one split, as `find_shards` gives them.
        name: what the split is called in messages.
        image_column, label_column: of Parquet a column, of .tar the suffix of a member ("jpg", "cls") or, for
            labels, a field of its .json; needed where types and usual names do not say.
        cache_bytes: for the blocks read last.
        num_classes: needed where neither class names nor the shards tell.

    Raises:
        DataError: see `look_at`; or a block is larger than the cache.
    """
    shards = inspect_shards(
        urls, name=name, image_column=image_column, label_column=label_column, num_classes=num_classes
    )
    rows = _Rows(shards, name, cache_bytes)
    return Split(
        name=name,
        num_examples=shards.num_examples,
        class_names=shards.columns.class_names,
        num_classes=shards.num_classes,
        read_row=rows.read_row,
        read_labels=rows.read_labels,
        where_is=rows.where_is,
        has_several_labels=shards.columns.has_many,
        block_starts=np.array(rows.block_starts),
        identity=fingerprint_of(shards),
    )


def inspect_shards(
    urls: Sequence[str],
    *,
    name: str,
    image_column: str | None,
    label_column: str | None,
    num_classes: int | None = None,
) -> Shards:
    """Rows, columns and classes of shards, from footers and indices, a few shards side by side.

    Raises:
        DataError: no shards or no rows; shards of two splits or kinds; a missing, damaged or compressed one;
            columns or classes that differ between them; or nothing tells the number of classes.
    """
    kind = _check_together(urls, name)
    files = each(locate, urls)
    asked = dict(image_column=image_column, label_column=label_column)
    if kind == ".parquet":
        contents = each(partial(parquet.inspect_file, **asked), files)
    else:
        told = webdataset.known_counts(files) if num_classes else {}

        def look(file: ShardFile) -> Contents:
            count = told.get(file.url)
            return (
                webdataset.inspect_file(file, **asked)
                if count is None
                else webdataset.trust_count(file, count)
            )

        contents = each(look, files)
    if not any(sum(found.counts) for found in contents):
        raise DataError(
            f"{name} has no rows", where=files[0].shown, fix="name another split, or other shards"
        )
    found = _same_columns(files, contents)
    columns = found or Columns(image_column or "", label_column or "", has_many=False, class_names=None)
    num_classes = _num_classes(files, contents, columns, num_classes, name)
    return Shards(tuple(files), tuple(contents), kind, columns, num_classes)


def fingerprint_of(shards: Shards) -> str:
    """Changes when shards, their sizes, rows, columns or classes do; the same wherever a copy lies."""
    digest = blake2b(repr((shards.kind, shards.columns, shards.num_classes)).encode(), digest_size=16)
    for file, contents in zip(shards.files, shards.contents, strict=True):
        digest.update(repr((posixpath.basename(file.shown), file.size, contents.counts)).encode())
    return digest.hexdigest()


class _Rows:
    """Rows of shards, through a cache of blocks."""

    def __init__(self, shards: Shards, name: str, cache_bytes: int):
        for file, contents in zip(shards.files, shards.contents, strict=True):
            _check_fits(file, contents.largest_block, cache_bytes)
        self.shards, self.name = shards, name
        self.cache = BlockCache(cache_bytes)
        counts = [contents.counts for contents in shards.contents]
        self.blocks = [(shard, group) for shard, found in enumerate(counts) for group in range(len(found))]
        # The row of the split at which each block, or shard, begins; at the end the number of rows.
        self.block_starts = [0, *accumulate(chain(*counts))]
        self.shard_starts = [0, *accumulate(map(sum, counts))]

    def read_row(self, row: int) -> tuple[bytes, int | tuple[int, ...]]:
        number = _place(self.block_starts, row)
        row_of = self.cache.get(number, lambda: self._load(number))
        image, label = row_of(row - self.block_starts[number])
        labels = label if isinstance(label, tuple) else (label,)
        if not all(value is not None and 0 <= value < self.shards.num_classes for value in labels):
            wrong = f"label {label} is not one of 0 ... {self.shards.num_classes - 1}"
            raise DataError(
                "a row has no label" if label in (None, -1) else wrong,
                where=self.where_is(row),
                fix="mend it, or name a labelled split or another data.label_column",
            )
        return image, label

    def read_labels(self) -> np.ndarray:
        """All labels, (num_examples,) int64; of local shards, and of remote Parquet without its images."""
        shards = self.shards
        is_remote_tar = shards.kind == ".tar" and not all(file.is_local for file in shards.files)
        if shards.columns.has_many or is_remote_tar:
            why = "shards are remote .tar files" if is_remote_tar else "rows have several labels"
            raise DataError(
                f"the labels of {self.name} cannot be listed: its {why}",
                where=shards.files[0].shown,
                fix="stream it (data.streaming=true), or copy the shards to this machine",
            )

        def labels_of(shard: int) -> np.ndarray:
            if shards.kind == ".tar":
                return webdataset.read_labels(shards.files[shard], columns=shards.columns)
            footer = self._footer(shard)
            return parquet.read_labels(shards.files[shard], columns=shards.columns, footer=footer)

        return np.concatenate(each(labels_of, range(len(shards.files))))

    def where_is(self, row: int) -> str:
        shard = _place(self.shard_starts, row)
        return f"{self.shards.files[shard].shown}, row {row - self.shard_starts[shard]}"

    def _load(self, number: int) -> tuple[RowOf, int]:
        shard, group = self.blocks[number]
        file, columns = self.shards.files[shard], self.shards.columns
        if self.shards.kind == ".tar":
            block = webdataset.read_block(file, columns=columns, count=self.shards.contents[shard].counts[0])
        else:
            first_row = self.block_starts[number] - self.shard_starts[shard]
            footer = self._footer(shard)
            block = parquet.read_block(file, group, columns=columns, footer=footer, first_row=first_row)
        _check_fits(file, block[1], self.cache.limit_bytes)
        return block

    def _footer(self, shard: int) -> pq.FileMetaData:
        file = self.shards.files[shard]
        return self.cache.get((shard, "footer"), lambda: parquet.read_footer(file))


def _place(starts: list[int], row: int) -> int:
    if not 0 <= row < starts[-1]:
        raise IndexError(f"row {row} of {starts[-1]}")
    return bisect_right(starts, row) - 1


def _check_together(urls: Sequence[str], name: str) -> str:
    """The kind of shards that belong to one split."""
    if not urls:
        raise DataError(f"{name} has no shards", where="--dataset", fix=PLACES)
    kinds = {kind_of(url): url for url in reversed(urls)}
    for kind, url in kinds.items():
        if kind in COMPRESSED:
            raise compressed(url)
        if kind is None or len(kinds) > 1:
            what = "is no shard" if kind is None else f"and {shown(urls[0])} are of two kinds"
            raise DataError(f"{shown(url)} {what}", where=name, fix=PLACES)
    parts = {url: shown(url).split("/") for url in reversed(urls)}
    shared = set.intersection(*map(set, parts.values()))
    own = {url: [part for part in found if part not in shared] for url, found in parts.items()}
    splits = {split_of(Path("_", *found), None): url for url, found in own.items()}
    splits.pop(None, None)
    if len(splits) > 1:
        raise DataError(
            f"the shards of {name} are of several splits: {', '.join(sorted(splits))}",
            where=" and ".join(shown(url) for url in list(splits.values())[:2]),
            fix="open each split by itself, or call the files otherwise",
        )
    return next(iter(kinds))


def _same_columns(files: Sequence[ShardFile], contents: Sequence[Contents]) -> Columns | None:
    """The columns of all shards that have rows and were looked at, None where there are none."""
    first = None
    for file, found in zip(files, contents, strict=True):
        if found.columns and first is None:
            first, first_file = found.columns, file
        elif found.columns and found.columns != first:
            here, there = asdict(found.columns), asdict(first)
            parts = [key.replace("_", " ") for key in here if here[key] != there[key]]
            raise DataError(
                f"the shards differ in their {', '.join(parts)}",
                where=f"{file.shown}, unlike {first_file.shown}",
                fix="write all shards alike, or name the columns (data.image_column, data.label_column)",
            )
    return first


def _num_classes(
    files: Sequence[ShardFile],
    contents: Sequence[Contents],
    columns: Columns,
    given: int | None,
    name: str,
) -> int:
    """From the class names, else as given, else one more than the largest label."""
    ranges = [found.labels for found in contents if sum(found.counts)]
    known = len(columns.class_names) if columns.class_names else given
    if known is None and all(ranges):
        known = 1 + max(high for _, high in ranges)
    if known is None or given not in (None, known):
        names = f"{name} has {known} class names, and num_classes is {given}"
        raise DataError(
            f"nothing says how many classes {name} has" if known is None else names,
            where=files[0].shown,
            fix="set data.num_classes to the number of its classes, or write the shards with class names",
        )
    for file, found in zip(files, contents, strict=True):
        low, high = found.labels or (0, 0)
        if not 0 <= low <= high < known:
            raise DataError(
                f"labels go from {low} to {high}, and the classes are 0 ... {known - 1}",
                where=file.shown,
                fix="mend the labels, name a labelled split, or name another data.label_column",
            )
    return known


def _check_fits(file: ShardFile, num_bytes: int, cache_bytes: int) -> None:
    if num_bytes > cache_bytes:
        what = "row groups" if kind_of(file.url) == ".parquet" else "shards"
        sizes = [f"{size / 2**20:,.1f} MiB" for size in (num_bytes, cache_bytes)]
        raise DataError(
            f"a block of {sizes[0]} does not fit into a cache of {sizes[1]}",
            where=file.shown,
            fix=f"write smaller {what}",
        )
