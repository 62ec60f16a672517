"""Splits: rows of encoded images with checked labels from any source, and the parts cut from them.

Loads neither `datasets` nor Arrow, which image files by themselves do not need.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

import numpy as np

from vitcli.data import sampler
from vitcli.data.sources.folders import NOTHING, LeftOut
from vitcli.errors import DataError

MANY_ROWS = 10_000_000
PART = re.compile(r" \([\d,]+ of ([\d,]+) images\)$")  # ends the name of what is left to train on
Label = int | tuple[int, ...]
ReadRow = Callable[[int], tuple[bytes | np.ndarray, Label]]


@dataclass(frozen=True, slots=True)
class RowReader:
    """A `Split.read_row` that reads several rows at once in less time than one by one.

    Attributes:
        several: function of rows to the `read_row` of these; what fails then fails for its row alone.
    """

    several: Callable[[Sequence[int]], ReadRow]

    def __call__(self, row: int) -> tuple[bytes | np.ndarray, Label]:
        return self.several([row])(row)


@dataclass(frozen=True)
class SourceFiles:
    """The files that hold the images of a split.

    Attributes:
        local_paths: function to those on this machine, in the order of the data set; of remote ones to none.
        structure: of shards, a text that changes with the sizes and places of their images; else "".
        stamp: of remote files, a text that changes with them, if their server has one; else "".
    """

    local_paths: Callable[[], Sequence[str]]
    structure: str = ""
    stamp: str = ""


@dataclass(frozen=True)
class Split:
    """Rows of one split, read one at a time.

    Attributes:
        name: for messages: "flowers17, split train".
        num_examples: number of rows.
        class_names: in the order of the label numbers, or None if the data has numbers only.
        num_classes: outputs of a head for these labels.
        read_row: function of the row to its image, encoded bytes or a decoded (H, W, 3) uint8 array, and its
            label, or a tuple of labels; a `RowReader` where several are better read at once.
        read_labels: function to all labels, (num_examples,) int64; (num_examples, M) padded with -1 if rows
            have several.
        where_is: function of the row to its name in errors: a file, or the row.
        dev_cut: of a dev part: which split it was cut from, the rule, and the fingerprint of the whole.
        has_several_labels: whether labels are tuples.
        block_starts: of shards, the first row of each block that is read at once, and at the end the
            number of rows; None for tables, where any row is as near as any other.
        identity: of shards, the source of the fingerprint, since their rows are too many to be read.
        read_column: function of a name to the values of another column, of `columns.PATHS` to the paths of
            the images; KeyError if there is none. None if the source has no columns.
        has_labels: False for images without labels, which all have the label 0.
        left_out: files of the data set's folder that are not read.
        notes: what else a reader of a number on these rows must know.
        stamp_of: function of a row to a number that is another one as soon as its image has changed, or None
            for an image that has just been written; None if the source tells nothing of the kind.
        source_files: the files that hold the images, of a part those of the whole; None if they are unknown.
        whole: of a part, the split that it was cut from first, and the function of its rows to rows there.
        cache: images that are kept once they are decoded, see `image_cache`.
    """

    name: str
    num_examples: int
    class_names: tuple[str, ...] | None
    num_classes: int
    read_row: ReadRow
    read_labels: Callable[[], np.ndarray]
    where_is: Callable[[int], str]
    dev_cut: dict | None = None
    has_several_labels: bool = False
    block_starts: np.ndarray | None = None
    identity: str | None = None
    read_column: Callable[[str], list] | None = None
    has_labels: bool = True
    left_out: LeftOut = NOTHING
    notes: tuple[str, ...] = ()
    stamp_of: Callable[[int], int | None] | None = None
    source_files: SourceFiles | None = None
    whole: "tuple[Split, Callable[[np.ndarray], np.ndarray]] | None" = None
    cache: Any = None

    @property
    def is_large(self) -> bool:
        """Whether there are too many labels to read them at once; each is then checked when it is loaded."""
        return self.block_starts is not None or self.num_examples > MANY_ROWS

    def __len__(self) -> int:
        return self.num_examples

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all labels and class names and of a sample of the images; changes when the data do."""
        digest = blake2b(
            repr((self.num_examples, self.class_names, self.num_classes)).encode(), digest_size=16
        )
        if self.identity is not None:
            digest.update(self.identity.encode())
            return digest.hexdigest()
        if not self.is_large:
            digest.update(self.read_labels().tobytes())
        for row in np.linspace(0, self.num_examples - 1, min(32, self.num_examples)).astype(int):
            try:
                image, label = self.read_row(int(row))
                digest.update(repr(label).encode() if self.is_large else b"")
            except DataError as error:  # a row without an image belongs to the data too
                image = error.message.encode()
            digest.update(image if isinstance(image, bytes) else image.tobytes())
        return digest.hexdigest()

    def reader_of(self, rows: Sequence[int]) -> ReadRow:
        """Return `read_row` for these rows, which are read together where that is faster."""
        return self.read_row.several(rows) if isinstance(self.read_row, RowReader) else self.read_row

    def label_of(self, row: int) -> Label:
        """Return the label or labels of a row, without its image; not for large splits."""
        return self._labels[row]

    @cached_property
    def _labels(self) -> list[Label]:
        labels = self.read_labels().tolist()
        if self.has_several_labels:
            return [tuple(label for label in several if label >= 0) for several in labels]
        return labels

    @property
    def lines(self) -> list[str]:
        """Lines about files that are not read, and other notes on the data set."""
        return [*self.left_out.lines(), *(f"note: {note}" for note in self.notes)]

    def column(self, name: str) -> list | None:
        """Return the values of another column, see `read_column`; None if there is none."""
        try:
            return self.read_column(name) if self.read_column else None
        except KeyError:
            return None

    def part(self, first: int, last: int, *, name: str, shuffle_key: int | None = None) -> "Split":
        """Return rows first ... last - 1 of this split, or of a fixed shuffle of it; neither takes memory."""
        assert shuffle_key is None or self.block_starts is None, "shards are not shuffled row by row"

        def source_rows(rows: np.ndarray) -> np.ndarray:
            if shuffle_key is None:
                return first + rows
            return sampler.permute(first + rows, num_examples=self.num_examples, key=shuffle_key)

        starts = self.block_starts
        return replace(
            self._at(source_rows, last - first),
            name=name,
            block_starts=None if starts is None else np.unique(np.clip(starts, first, last)) - first,
            identity=None if self.identity is None else f"{self.identity}, rows {first} to {last}",
        )

    def random_blocks(self, num_examples: int, *, name: str, key: int) -> "Split":
        """Draw whole blocks of shards without replacement, and as much of the last one as is needed."""
        sizes = np.diff(self.block_starts)
        drawn = sampler.permute(np.arange(len(sizes)), num_examples=len(sizes), key=key)
        drawn = drawn[: np.searchsorted(np.cumsum(sizes[drawn]), num_examples) + 1]
        ends = np.minimum(np.cumsum(sizes[drawn]), num_examples)
        starts = np.concatenate([[0], ends])

        def source_rows(rows: np.ndarray) -> np.ndarray:
            block = np.searchsorted(ends, rows, side="right")
            return self.block_starts[drawn[block]] + rows - starts[block]

        identity = f"{self.identity}, {num_examples} rows of blocks drawn by {key}"
        return replace(self._at(source_rows, num_examples), name=name, block_starts=starts, identity=identity)

    def rows(self, chosen: np.ndarray) -> "Split":
        """Return some rows of this split, in this order."""
        digest = blake2b(chosen.tobytes(), digest_size=8).hexdigest()
        return replace(
            self._at(lambda rows: chosen[rows], len(chosen)),
            block_starts=None if self.block_starts is None else np.arange(len(chosen) + 1),
            identity=None if self.identity is None else f"{self.identity}, rows {digest}",
        )

    def _at(self, source_rows: Callable[[np.ndarray], np.ndarray], num_examples: int) -> "Split":
        """Return a split whose row r is row `source_rows(r)` of this one."""

        whole, rows_of_whole = self.whole or (self, lambda rows: rows)

        def source_row(row: int) -> int:
            return int(source_rows(np.array([row]))[0])

        def several(rows: Sequence[int]) -> ReadRow:
            sources = dict(zip(rows, source_rows(np.asarray(rows)).tolist(), strict=True))
            read_row = self.reader_of([*sources.values()])
            return lambda row: read_row(sources[row])

        def all_rows() -> np.ndarray:
            return source_rows(np.arange(num_examples))

        return replace(
            self,
            num_examples=num_examples,
            read_row=RowReader(several),
            read_labels=lambda: self.read_labels()[all_rows()],
            where_is=lambda row: self.where_is(source_row(row)),
            read_column=self.read_column
            and (lambda name: [*map(self.read_column(name).__getitem__, all_rows())]),
            whole=(whole, lambda rows: rows_of_whole(source_rows(rows))),
            cache=None,
        )

    def relabelled(self, number_of: np.ndarray, class_names: tuple[str, ...]) -> "Split":
        """Return the same rows with label k renumbered to number_of[k], in another list of classes."""

        def renumbered(read_row: ReadRow) -> ReadRow:
            def renumber(row: int) -> tuple[bytes | np.ndarray, Label]:
                image, label = read_row(row)
                if isinstance(label, tuple):
                    return image, tuple(int(number_of[number]) for number in label)
                return image, int(number_of[label])

            return renumber

        def read_labels() -> np.ndarray:
            labels = self.read_labels()
            return np.where(labels < 0, labels, number_of[labels])  # -1 pads rows of several labels

        return replace(
            self,
            class_names=class_names,
            num_classes=len(class_names),
            read_row=RowReader(lambda rows: renumbered(self.reader_of(rows))),
            read_labels=read_labels,
            whole=self.whole or (self, lambda rows: rows),
        )


def base_of(split: str) -> str:
    """Return the name of a split without its slice: train of train[:90%]."""
    return split.partition("[")[0]


def check_labels(split: Split) -> None:
    """Refuse a split with labels outside its classes, naming the first row; large ones use `check_label`."""
    if split.is_large:
        return
    labels = split.read_labels()
    too_high = labels >= split.num_classes
    too_low = labels < 0 if labels.ndim == 1 else (labels < 0).all(axis=1, keepdims=True)
    wrong_N = np.flatnonzero((too_high | too_low).reshape(len(labels), -1).any(axis=1))
    if not len(wrong_N):
        return
    row = int(wrong_N[0])
    what = f"a label outside 0 ... {split.num_classes - 1}"
    fix = "correct them, or name a column with data.label_column"
    if (labels[wrong_N] == -1).all():
        what, fix = "no label (-1)", "choose a labelled split with data.eval_split or --split"
    raise DataError(
        f"{len(wrong_N)} of {len(labels)} rows of {split.name} have {what}",
        where=f"{split.where_is(row)}: label {labels[row]}",
        fix=fix,
    )


def check_label(split: Split, label: Label, row: int) -> None:
    """Refuse one label that is not a class."""
    labels = label if isinstance(label, tuple) else (label,)
    if not labels or min(labels) < 0 or max(labels) >= split.num_classes:
        raise DataError(
            f"a row of {split.name} has the label {label}, outside 0 ... {split.num_classes - 1}",
            where=split.where_is(row),
            fix="correct it, or name a column with data.label_column",
        )


def cut_dev(
    train: Split,
    *,
    dev_fraction: float,
    split: str,
    stratified: bool = False,
    order_N: np.ndarray | None = None,
) -> tuple[Split, Split]:
    """Return the rows to train on, and a `dev_fraction` of all to choose or report by (paper, section B.1.1).

    The cut depends on the split alone, never on the run's seed, so that all runs choose by the same rows. The
    dev part remembers what it was cut from, by the name `split`.

    Args:
        stratified: draw from each class, where every row has one label and all labels can be read at once.
        order_N: all rows; of each class the first are held out, see `seen_images.held_out_order`. None for a
            shuffle of the row numbers.
    """
    is_stratified = stratified and not (train.is_large or train.has_several_labels)
    cut = partial(_cut_by_class, order_N=order_N) if is_stratified else _cut_at_random
    rest, dev = cut(train, dev_fraction)
    if is_stratified and not len(dev):
        raise DataError(
            f"no class of {train.name} has two images, so none can be held out",
            where="recipe keys data.dev_fraction and data.dev_stratified",
            fix="add images, or draw from all of them at once with --set data.dev_stratified=false",
        )
    if not (len(rest) and len(dev)):
        raise DataError(
            f"a dev part of {dev_fraction:.0%} of {train.name}, {len(train)} rows, leaves one side empty",
            where="recipe key data.dev_fraction",
            fix="name the split to report on with data.eval_split, or choose another fraction",
        )
    # The name of a part of a part counts from the whole.
    earlier = PART.search(train.name)
    base = train.name[: earlier.start()] if earlier else train.name
    rest_name = f"{base} ({len(rest):,} of {earlier[1] if earlier else f'{len(train):,}'} images)"
    dev_name = f"{base}, second dev part" if earlier else f"{base}, dev part"
    about = {"split": split, "fraction": dev_fraction, "stratified": is_stratified}
    about |= {"num_rows": len(train), "fingerprint": train.fingerprint}
    about |= {"by_content": is_stratified and order_N is not None}
    return replace(rest, name=rest_name), replace(dev, name=dev_name, dev_cut=about)


def _cut_at_random(train: Split, dev_fraction: float) -> tuple[Split, Split]:
    """Return all but the dev part, and the dev part: a random one of all rows, of shards whole blocks."""
    key = sampler.derive_seed(0, "dev split", len(train))
    whole, num_train = train, len(train) - round(len(train) * dev_fraction)
    if train.block_starts is not None:  # single rows would need every block to be read
        whole, key = train.random_blocks(len(train), name=train.name, key=key), None
    parts = ((0, num_train), (num_train, len(train)))
    rest, dev = (whole.part(first, last, name=train.name, shuffle_key=key) for first, last in parts)
    return rest, dev


def _cut_by_class(train: Split, dev_fraction: float, *, order_N: np.ndarray | None) -> tuple[Split, Split]:
    """Return all but the dev part, and the dev part: the first rows of each class in `order_N`.

    Without an order they are random, and the part keeps that of the rows; see `cut_dev`.
    """
    labels_N = train.read_labels()
    dev_counts_K = stratified_counts(np.bincount(labels_N, minlength=train.num_classes), dev_fraction)
    if order_N is None:
        key = sampler.derive_seed(0, "dev split", len(train))
        shuffled_N = sampler.permute(np.arange(len(train)), num_examples=len(train), key=key)
    else:
        shuffled_N = order_N
    # Sorted by class, a row's place in its class is known.
    by_class_N = shuffled_N[np.argsort(labels_N[shuffled_N], kind="stable")]
    sorted_N = labels_N[by_class_N]
    place_N = np.arange(len(train)) - np.searchsorted(sorted_N, sorted_N)
    dev_rows = by_class_N[place_N < dev_counts_K[sorted_N]]
    is_dev_N = np.zeros(len(train), dtype=bool)
    is_dev_N[dev_rows] = True
    dev_rows = np.flatnonzero(is_dev_N) if order_N is None else dev_rows  # as the fingerprint of the part
    return train.rows(np.flatnonzero(~is_dev_N)), train.rows(dev_rows)


def stratified_counts(counts_K: np.ndarray, fraction: float) -> np.ndarray:
    """Return how many rows of each class are held out, (K,) int64.

    As near to `fraction` of each class as whole rows allow (largest remainders), with `fraction` of all rows
    in total; but at least one of each class with two or more, and never all rows of a class.
    """
    quotas_K = fraction * counts_K
    least_K, most_K = (counts_K >= 2).astype(np.int64), np.maximum(counts_K - 1, 0)
    total = int(np.clip(round(fraction * counts_K.sum()), least_K.sum(), most_K.sum()))
    held_K = np.clip(np.floor(quotas_K).astype(np.int64), least_K, most_K)
    while missing := total - int(held_K.sum()):
        step = 1 if missing > 0 else -1
        may_change_K = held_K < most_K if step > 0 else held_K > least_K
        farthest_K = np.argsort(-step * (quotas_K - held_K), kind="stable")
        held_K[farthest_K[may_change_K[farthest_K]][: abs(missing)]] += step
    return held_K


def classes_without(split: Split, train: Split) -> list[str]:
    """Return the names of the classes that have rows in `train` but none in `split`."""
    if split.is_large or train.is_large:
        return []
    trained_K, held_K = (
        np.bincount(labels[labels >= 0], minlength=train.num_classes)
        for labels in (train.read_labels(), split.read_labels())
    )
    names = train.class_names or [f"class {label}" for label in range(train.num_classes)]
    return [names[label] for label in np.flatnonzero((trained_K > 0) & (held_K == 0))]


def random_subset(split: Split, num_examples: int, *, seed: int) -> Split:
    """Draw `num_examples` rows without replacement; of shards whole blocks are drawn."""
    if num_examples > len(split):
        raise DataError(
            f"data.num_examples is {num_examples}, and {split.name} has {len(split)}",
            where="recipe key data.num_examples",
            fix=f"a number up to {len(split)}, or leave the key out",
        )
    key, name = sampler.derive_seed(seed, "subset", num_examples), f"{num_examples} of {split.name}"
    if split.block_starts is not None:
        return split.random_blocks(num_examples, name=name, key=key)
    return split.part(0, num_examples, name=name, shuffle_key=key)
