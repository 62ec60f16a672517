"""Data too large to copy, or remote: splits whose rows are read where they lie, in shards.

A row is at a known place in a known shard, so any order can be read and nothing has to be resumed. Neighbouring
rows share a block (a Parquet row group, a remote .tar), and the blocks read last are kept.
"""

import posixpath
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

import numpy as np

from vitcli import shard_parquet, shard_tar
from vitcli.data_files import split_of
from vitcli.errors import DataError
from vitcli.shard_files import BlockCache, Columns, Contents, Label, RowOf, ShardFile, each, locate, shown
from vitcli.shard_places import KINDS, compressed, find_shards, kind_of
from vitcli.split import Split

__all__ = ["Shards", "fingerprint_of", "find_shards", "look_at", "open_shards"]
ROWS_UNKNOWN = Columns("", "", has_many=False, class_names=None)  # of shards that a file beside them counts


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

    The label of a row is an int, or a tuple of ints where the column holds lists. Memory: at most `cache_bytes`
    of blocks, and one block for each thread that reads or holds one.

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
    asked = dict(image_column=image_column, label_column=label_column)
    shards = look_at(urls, name=name, num_classes=num_classes, **asked)
    for file, contents in zip(shards.files, shards.contents, strict=True):
        _check_fits(file, contents.largest_block, cache_bytes)
    cache = BlockCache(cache_bytes)
    blocks = [
        (shard, group) for shard, found in enumerate(shards.contents) for group in range(len(found.counts))
    ]
    counts = [shards.contents[shard].counts[group] for shard, group in blocks]
    starts = [0, *accumulate(counts)]  # row of the split at which each block begins
    shard_starts = [0, *accumulate(sum(contents.counts) for contents in shards.contents)]

    def footer_of(shard: int):
        return cache.get((shard, "footer"), partial(shard_parquet.read_footer, shards.files[shard]))

    def load(number: int) -> tuple[RowOf, int]:
        shard, group = blocks[number]
        file = shards.files[shard]
        if shards.kind == ".tar":
            found = shard_tar.read_block(file, count=counts[number], **asked)
        else:
            first_row = starts[number] - shard_starts[shard]
            columns, footer = shards.columns, footer_of(shard)
            found = shard_parquet.read_block(file, group, columns=columns, footer=footer, first_row=first_row)
        _check_fits(file, found[1], cache_bytes)
        return found

    def read_row(row: int) -> tuple[bytes, int | tuple[int, ...]]:
        number = _place(starts, row)
        image, label = cache.get(number, partial(load, number))(row - starts[number])
        _check_label(label, shards.num_classes, where=lambda: where_is(row))
        return image, label

    def read_labels() -> np.ndarray:
        _check_labels_can_be_read(shards, name)

        def labels_of(shard: int) -> np.ndarray:
            if shards.kind == ".tar":
                return shard_tar.read_labels(shards.files[shard], **asked)
            footer = footer_of(shard)
            return shard_parquet.read_labels(shards.files[shard], columns=shards.columns, footer=footer)

        return np.concatenate(each(labels_of, range(len(shards.files))))

    def where_is(row: int) -> str:
        shard = _place(shard_starts, row)
        return f"{shards.files[shard].shown}, row {row - shard_starts[shard]}"

    names, num_examples = shards.columns.class_names, shards.num_examples
    return Split(name, num_examples, names, shards.num_classes, read_row, read_labels, where_is)


def look_at(
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
        contents = each(partial(shard_parquet.look, **asked), files)
    else:
        told = shard_tar.known_counts(files) if num_classes else {}

        def look(file: ShardFile) -> Contents:
            return (
                shard_tar.trust_count(file, told[file.url])
                if file.url in told
                else shard_tar.look(file, **asked)
            )

        contents = each(look, files)
    shards = Shards(tuple(files), tuple(contents), kind, _columns(files, contents), num_classes or 0)
    if not shards.num_examples:
        raise DataError(f"{name} has no rows", where=files[0].shown, fix="name another split or other shards")
    return Shards(*list(vars(shards).values())[:-1], _num_classes(shards, num_classes, name))


def fingerprint_of(shards: Shards) -> str:
    """Changes when shards, their sizes, rows, columns or classes do; the same wherever a copy of them lies."""
    digest = blake2b(repr((shards.kind, shards.columns, shards.num_classes)).encode(), digest_size=16)
    for file, contents in zip(shards.files, shards.contents, strict=True):
        digest.update(repr((posixpath.basename(file.shown), file.size, contents.counts)).encode())
    return digest.hexdigest()


def _place(starts: list[int], row: int) -> int:
    if not 0 <= row < starts[-1]:
        raise IndexError(f"row {row} of {starts[-1]}")
    return bisect_right(starts, row) - 1
