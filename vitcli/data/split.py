"""Splits: rows of encoded images with checked labels from any source, and parts of them.

Loads neither `datasets` nor Arrow, which image files by themselves do not need.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from vitcli.data import sampler
from vitcli.data.sources.folders import NOTHING, LeftOut
from vitcli.data.task import Task
from vitcli.distributed import launch
from vitcli.errors import DataError
from vitcli.output.text import is_text, plain

MANY_ROWS = 10_000_000
LARGEST_NUMBER = 1e100  # of those to predict: sums of their squares are finite
Label = int | float | tuple[int, ...]
ReadRow = Callable[[int], tuple[bytes | np.ndarray, Label]]
MEMORY_FRACTION = 1 / 16  # of the free memory, for encoded images; decoded ones may take four times as much


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
class Grouping:
    """Which rows of a split belong together: photographs of one object, patient or scene.

    Attributes:
        rule: the value of `data.group_column`.
        read: function to the group of each row, (N,) int64.
    """

    rule: str
    read: Callable[[], np.ndarray]

    @cached_property
    def groups_N(self) -> np.ndarray:
        """The group of each row; of a part of a split the numbers are those of the whole."""
        return self.read()

    def with_single_rows(self, num_rows: int) -> "Grouping":
        """Return the groups of these rows and, behind them, of others that are a group each."""

        def read() -> np.ndarray:
            return np.append(self.groups_N, self.groups_N.max(initial=-1) + 1 + np.arange(num_rows))

        return Grouping(self.rule, read)


@dataclass(frozen=True)
class Split:
    """Rows of one split, read one at a time.

    Attributes:
        name: for messages: "flowers17, split train".
        class_names: in the order of the label numbers, or None if the data has numbers only.
        num_classes: outputs of a head for these labels; 1 for numbers.
        read_row: function of the row to its image, encoded bytes or a decoded (H, W, 3) uint8 array, and its
            label, a tuple of labels or a number to predict; a `RowReader` where several are better read at
            once.
        read_labels: function to all labels, (num_examples,) int64; (num_examples, M) padded with -1 if rows
            have several, (num_examples,) float64 of numbers to predict.
        where_is: function of the row to its name in errors: a file, or the row.
        dev_cut: of a dev part: which split it was cut from, the rule, and the fingerprint of the whole.
        is_multilabel: whether labels are tuples; they may be empty.
        has_numbers: whether labels are numbers to predict; `class_names` then has the name of their column.
        block_starts: of shards, the first row of each block that is read at once, and at the end the
            number of rows; None for tables, where any row is as near as any other.
        identity: of shards, the source of the fingerprint, since their rows are too many to be read.
        read_column: function of a name to the values of another column, of `columns.PATHS` to the paths of
            the images; KeyError if there is none. None if the source has no columns.
        column_names: of a table, the names of its columns.
        has_labels: False for images without labels, which all have the label 0.
        left_out: files of the data set's folder that are not read.
        notes: what else a reader of a number on these rows must know.
        stamp_of: function of a row to a number that is another one as soon as its image has changed, or None
            for an image that has just been written; None if the source tells nothing of the kind.
        source_files: the files that hold the images, of a part those of the whole; None if they are unknown.
        whole: of a part, the split that it was cut from first, and the function of its rows to rows there.
        opened: what the command has read of the images, by their rows in the whole; None where nothing is
            kept of them.
        grouping: which rows belong together, by `data.group_column`; None for each row alone.
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
    is_multilabel: bool = False
    has_numbers: bool = False
    block_starts: np.ndarray | None = None
    identity: str | None = None
    read_column: Callable[[str], list] | None = None
    column_names: tuple[str, ...] = ()
    has_labels: bool = True
    left_out: LeftOut = NOTHING
    notes: tuple[str, ...] = ()
    stamp_of: Callable[[int], int | None] | None = None
    source_files: SourceFiles | None = None
    whole: "tuple[Split, Callable[[np.ndarray], np.ndarray]] | None" = None
    opened: "OpenedFiles | None" = None
    grouping: Grouping | None = None
    cache: Any = None

    def __post_init__(self) -> None:
        names = self.class_names or ()
        if not is_text(*names):
            wrong = next(number for number, name in enumerate(names) if not is_text(name))
            raise DataError(
                f"the name of class {wrong} is not text that UTF-8 can express",
                where=f"{self.name}: {plain(names[wrong])}",
                fix="correct the names of the classes, where the data set lists them",
            )

    @property
    def is_large(self) -> bool:
        """Whether there are too many labels to read them at once; each is then checked when it is loaded."""
        return self.block_starts is not None or self.num_examples > MANY_ROWS

    @property
    def is_drawn(self) -> bool:
        """Whether the images are made when they are read, and come from no file."""
        try:
            return not isinstance(self.image_of(0), bytes)
        except DataError:  # of a file
            return False

    def __len__(self) -> int:
        return self.num_examples

    @property
    def groups_N(self) -> np.ndarray | None:
        """The group of each row, (N,) int64, read when it is first asked for; None without groups."""
        return self.grouping.groups_N if self.grouping else None

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
                image, label = self.read_row(int(row)) if self.is_large else (self.image_of(int(row)), None)
                digest.update(repr(label).encode() if self.is_large else b"")
            except DataError as error:  # a row without an image belongs to the data too
                image = error.message.encode()
            digest.update(image if isinstance(image, bytes) else image.tobytes())
        return digest.hexdigest()

    def image_of(self, row: int) -> bytes | np.ndarray:
        """Return the image of a row to recognise it by; its file is not opened again to be decoded."""
        return self.opened.image(self._row_in_whole(row)) if self.opened else self.read_row(row)[0]

    def fact_of(self, row: int, name: str, of_image: Callable[[bytes | np.ndarray], Any]) -> Any:
        """Return what a function says of the image of a row; see `OpenedFiles.fact`."""
        if self.opened is None:
            return of_image(self.read_row(row)[0])
        return self.opened.fact(self._row_in_whole(row), name, of_image)

    def _row_in_whole(self, row: int) -> int:
        return int(self.whole[1](np.array([row]))[0]) if self.whole else row

    def reader_of(self, rows: Sequence[int]) -> ReadRow:
        """Return `read_row` for these rows, which are read together where that is faster."""
        return self.read_row.several(rows) if isinstance(self.read_row, RowReader) else self.read_row

    def label_of(self, row: int) -> Label:
        """Return the label or labels of a row, without its image; not for large splits."""
        return self._labels[row]

    @cached_property
    def _labels(self) -> list[Label]:
        labels = self.read_labels().tolist()
        if self.is_multilabel:
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
        firsts = self.block_starts
        assert firsts is not None, "it is of shards"
        sizes = np.diff(firsts)
        drawn = sampler.permute(np.arange(len(sizes)), num_examples=len(sizes), key=key)
        drawn = drawn[: np.searchsorted(np.cumsum(sizes[drawn]), num_examples) + 1]
        ends = np.minimum(np.cumsum(sizes[drawn]), num_examples)
        starts = np.concatenate([[0], ends])

        def source_rows(rows: np.ndarray) -> np.ndarray:
            block = np.searchsorted(ends, rows, side="right")
            return firsts[drawn[block]] + rows - starts[block]

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

        def several(rows: Sequence[int]) -> ReadRow:
            places_N = source_rows(np.asarray(rows, dtype=np.int64))
            sources = dict(zip(rows, places_N.tolist(), strict=True))
            read_row = self.reader_of([*sources.values()])
            return lambda row: read_row(sources[row])

        def all_rows() -> np.ndarray:
            return source_rows(np.arange(num_examples))

        read_column, grouping = self.read_column, self.grouping
        return replace(
            self,
            num_examples=num_examples,
            read_row=RowReader(several),
            read_labels=lambda: self.read_labels()[all_rows()],
            where_is=lambda row: self.where_is(int(source_rows(np.array([row]))[0])),
            read_column=read_column and (lambda name: [*map(read_column(name).__getitem__, all_rows())]),
            whole=(whole, lambda rows: rows_of_whole(source_rows(rows))),
            grouping=grouping and Grouping(grouping.rule, lambda: grouping.groups_N[all_rows()]),
            cache=None,
        )

    @property
    def readable_class_names(self) -> tuple[str, ...]:
        """Return a name of each class to read: its own, or `class K`."""
        return self.class_names or tuple(f"class {k}" for k in range(self.num_classes))

    @property
    def task(self) -> Task:
        return Task.NUMBER if self.has_numbers else Task.MULTILABEL if self.is_multilabel else Task.ONE_CLASS

    def _reader_with(self, label_of: Callable[[Any], Label]) -> RowReader:
        """Return a reader of the same images with another label for each."""

        def several(rows: Sequence[int]) -> ReadRow:
            read_row = self.reader_of(rows)
            return lambda row: ((example := read_row(row))[0], label_of(example[1]))

        return RowReader(several)

    def with_label_lists(self) -> "Split":
        """Return the same rows with a list of one label each, if they have one label."""
        if self.is_multilabel:
            return self

        return replace(
            self,
            is_multilabel=True,
            read_row=self._reader_with(lambda label: (label,)),
            read_labels=lambda: self.read_labels()[:, None],
            whole=self.whole or (self, lambda rows: rows),
        )

    def with_unlabelled(self, others: "Split") -> "Split":
        """Return these rows and, behind them, the images of another split with the label -1."""
        count, splits = len(self), (self, others)

        def several(rows: Sequence[int]) -> ReadRow:
            of_each = [self.reader_of([row for row in rows if row < count])]
            of_each.append(others.reader_of([row - count for row in rows if row >= count]))
            return lambda row: of_each[0](row) if row < count else (of_each[1](row - count)[0], -1)

        def stamp_of(row: int) -> int | None:
            split, place = (self, row) if row < count else (others, row - count)
            return split.stamp_of(place) if split.stamp_of else None

        return Split(
            name=f"{self.name} and {others.name}",
            num_examples=sum(map(len, splits)),
            class_names=self.class_names,
            num_classes=self.num_classes,
            read_row=RowReader(several),
            read_labels=lambda: np.append(self.read_labels(), np.full(len(others), -1)),
            where_is=lambda row: self.where_is(row) if row < count else others.where_is(row - count),
            left_out=self.left_out | others.left_out,
            notes=(*self.notes, *others.notes),
            grouping=self.grouping and self.grouping.with_single_rows(len(others)),
            stamp_of=stamp_of,
        )

    def relabelled(self, number_of: np.ndarray, class_names: tuple[str, ...]) -> "Split":
        """Return the same rows with label k renumbered to number_of[k], in another list of classes."""

        def renumbered(label: Any) -> Label:
            if isinstance(label, tuple):
                return tuple(int(number_of[number]) for number in label)
            return int(number_of[label])

        def read_labels() -> np.ndarray:
            labels = self.read_labels()
            return np.where(labels < 0, labels, number_of[labels])  # -1 pads rows of several labels

        return replace(
            self,
            class_names=class_names,
            num_classes=len(class_names),
            read_row=self._reader_with(renumbered),
            read_labels=read_labels,
            whole=self.whole or (self, lambda rows: rows),
        )


class OpenedFiles:
    """What a command has read of the images of a whole split, however many parts, folds and runs it has.

    A run recognises its images by content and checks that they can be decoded before it trains on them. The
    bytes that are read to recognise an image are kept while there is room, and what was found out about them
    as long as the file does not change.

    Args:
        whole: the split, whose rows are read from its source.
    """

    def __init__(self, whole: Split):
        self._whole = whole
        self._kept: dict[int, tuple[int, tuple[bytes | np.ndarray, Any]]] = {}  # stamp and example of a row
        self._facts: dict[tuple[int, str], tuple[int, Any]] = {}
        self._mutex = threading.Lock()

    def several(self, rows: Sequence[int]) -> ReadRow:
        """Return a function that reads these rows, from memory where a file was read and has not changed."""
        read_row = self._whole.reader_of(rows)
        return lambda row: self._kept_example(row) or read_row(row)

    def image(self, row: int) -> bytes | np.ndarray:
        """Return the image of a row, and keep the bytes of its file for whoever reads it later."""
        if example := self._kept_example(row):
            return example[0]
        stamp = self._stamp_of(row)  # before its file is read: a change meanwhile is then noticed
        image, label = self._whole.read_row(row)
        if stamp is not None and self._takes(image):
            self._kept[row] = stamp, (image, label)
        return image

    def fact(self, row: int, name: str, of_image: Callable[[bytes | np.ndarray], Any]) -> Any:
        """Return what a function says of an image, called once for each content of its file."""
        stamp, known = self._stamp_of(row), self._facts.get((row, name))
        if known and known[0] == stamp:
            return known[1]
        value = of_image(self.image(row))
        if stamp is not None:
            self._facts[row, name] = stamp, value
        return value

    def _stamp_of(self, row: int) -> int | None:
        return self._whole.stamp_of(row) if self._whole.stamp_of else None

    def _kept_example(self, row: int) -> tuple[bytes | np.ndarray, Any] | None:
        stamp, example = self._kept.get(row, (None, None))
        return example if example and stamp == self._stamp_of(row) else None

    def _takes(self, image: bytes | np.ndarray) -> bool:
        """Return whether to keep an image: it is a file of its own, and there is room."""
        if not isinstance(image, bytes) or not self._are_files:
            return False
        with self._mutex:
            self._room -= len(image)
            return self._room >= 0

    @cached_property
    def _are_files(self) -> bool:
        source = self._whole.source_files
        return source is not None and len(source.local_paths()) == len(self._whole)

    @cached_property
    def _room(self) -> float:
        return launch.free_bytes() * MEMORY_FRACTION / launch.processes_here()


def opened_once(whole: Split) -> Split:
    """Return a whole split whose image files are opened once by those who look at all of them."""
    opened = OpenedFiles(whole)
    return replace(whole, read_row=RowReader(opened.several), opened=opened)


def base_of(split: str) -> str:
    """Return the name of a split without its slice: train of train[:90%]."""
    return split.partition("[")[0]


def check_labels(split: Split) -> None:
    """Refuse a split with labels outside its classes, naming the first row; large ones use `check_label`."""
    if split.is_large:
        return
    labels = split.read_labels()
    if split.has_numbers:
        _check_numbers(split, labels)
        return
    too_high = labels >= split.num_classes
    # Rows of several labels may have none, but not all of them.
    too_low = labels < 0 if labels.ndim == 1 else (labels < 0) & (labels < 0).all()
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


def _check_numbers(split: Split, labels_N: np.ndarray) -> None:
    """Refuse numbers to predict that are missing, not finite or too large, naming the first row."""
    wrong_N = np.flatnonzero(~(np.abs(labels_N) <= LARGEST_NUMBER))
    if len(wrong_N):
        rows = f"{len(wrong_N)} of {len(labels_N)} rows of {split.name}"
        raise DataError(
            f"{rows} have no finite number of up to {LARGEST_NUMBER:g}",
            where=f"{split.where_is(int(wrong_N[0]))}: {labels_N[wrong_N[0]]}",
            fix="correct them, or name another column with data.label_column",
        )


def check_label(split: Split, label: Label, row: int) -> None:
    """Refuse one label that is not a class."""
    labels = label if isinstance(label, tuple) else (label,)
    if split.has_numbers or (label == () and split.is_multilabel):
        return
    if not labels or min(labels) < 0 or max(labels) >= split.num_classes:
        raise DataError(
            f"a row of {split.name} has the label {label}, outside 0 ... {split.num_classes - 1}",
            where=split.where_is(row),
            fix="correct it, or name a column with data.label_column",
        )


def classes_without(split: Split, train: Split) -> list[str]:
    """Return the names of the classes that have rows in `train` but none in `split`."""
    if split.is_large or train.is_large or train.has_numbers:
        return []
    trained_K, held_K = (
        np.bincount(labels[labels >= 0], minlength=train.num_classes)
        for labels in (train.read_labels(), split.read_labels())
    )
    names = train.readable_class_names
    return [names[label] for label in np.flatnonzero((trained_K > 0) & (held_K == 0))]
