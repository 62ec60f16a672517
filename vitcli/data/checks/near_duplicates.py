"""Exact and near duplicates of the images of one split in another, or within one.

Every image is reduced to three numbers of 64 bits, see `parts.image_hashes`. All pairs are compared.

Letters: N images, P pairs.
"""

import csv
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitcli.data.checks.splits import NoLabels, SplitLabels
from vitcli.data.dataset import DataSet, from_section
from vitcli.data.parts.image_hashes import ImageHashes, near_pairs
from vitcli.data.split import Split, base_of
from vitcli.errors import DataError
from vitcli.recipe.schema import Data

SHOWN_PAIRS = 20
KINDS = ("file", "pixels", "near")  # the same encoded file, the same decoded pixels, a similar image
COLUMNS = ("kind", "distance", "row", "against_row", "place", "against_place", "label", "against_label")


class SplitName(NamedTuple):
    """A split as the command line names it; "auto" stands for the usual one."""

    dataset: str | None
    split: str


class ExaminedSplit(NamedTuple):
    """A split with what is known of its images.

    Attributes:
        data: the data set that it is of, and the name that it has there.
        labels: None where they cannot be read, for the reason `no_labels`.
    """

    data: Data
    name: str
    split: Split
    hashes: ImageHashes
    labels: SplitLabels | None
    no_labels: NoLabels | None


class NamedSplit(NamedTuple):
    """A split that is opened, without its labels."""

    data: Data
    name: str
    split: Split


def open_splits(name: SplitName, against: SplitName, section: Data) -> list[NamedSplit]:
    """Open the split to check, by default the test split, and the one to search, by default train.

    Where neither is named, the other splits of the data follow. A split that is the only one, or named by
    both, is returned once.

    Args:
        section: the columns of the data set and what else a recipe says of it.
    """
    section = section.model_copy(update={"dataset": name.dataset})
    data = _open_images(section)
    is_same_data = against.dataset is None or _is_same(name.dataset or "", against.dataset)
    other_section = section.model_copy(update={} if is_same_data else {"dataset": against.dataset})
    other_data = data if is_same_data else _open_images(other_section)
    nothing_to_compare = partial(_nothing_to_compare, names=data.split_names)
    # The only split is searched for copies within itself.
    is_default = against.dataset is None and (name.split, against.split) == ("auto", "auto")
    if is_default and len(data.split_names) == 1:
        only = data.split_names[0]
        return [NamedSplit(section, only, data.open(only))]
    # The split to search.
    searched = other_data.split_called(against.split)
    if searched == "auto":
        train_split = other_data.default_train_split()
        if not train_split and is_same_data:
            raise nothing_to_compare(f"{name.dataset} has no train split")
        searched = train_split or other_data.only_split("--against-split")
    # The split to check: of the same data not the one searched.
    searched_base = base_of(searched)
    checked = data.split_called(name.split)
    if checked == "auto":
        eval_split = data.default_eval_split(besides=searched_base if is_same_data else None)
        if eval_split is None and is_same_data:
            raise nothing_to_compare(f"{name.dataset} has no split to check besides {searched_base}")
        checked = eval_split or data.only_split("--split")
    # A split is compared with itself only if both options name it; two slices of it may be meant otherwise.
    has_default = "auto" in (name.split, against.split)
    is_same_split = is_same_data and base_of(checked) == searched_base
    if has_default and is_same_split and (searched_base in (checked, searched) or checked == searched):
        raise nothing_to_compare(f"split {checked} of {name.dataset} would be compared with itself")
    opened = [
        NamedSplit(section, checked, data.open(checked)),
        NamedSplit(other_section, searched, other_data.open(searched)),
    ]
    if opened[0].split.name == opened[1].split.name:
        return opened[:1]
    if is_default:
        others = [split for split in data.split_names if split not in (checked, searched)]
        opened += [NamedSplit(section, split, data.open(split)) for split in others]
    return opened


def index_to_train(opened: Sequence[NamedTuple], against: SplitName) -> int:
    """Return which split a run would train on: the one that is searched, unless it is of other data."""
    return 0 if against.dataset else min(1, len(opened) - 1)


def _is_same(dataset: str, against: str) -> bool:
    """Return whether two names are one data set: a folder has many."""
    paths = Path(dataset), Path(against)
    return dataset == against or (all(path.exists() for path in paths) and paths[0].samefile(paths[1]))


def _nothing_to_compare(message: str, *, names: Sequence[str]) -> DataError:
    return DataError(
        message,
        where="--against and --against-split",
        fix=f"--against OTHER_DATA, or --split and --against-split, each one of {', '.join(names)}",
    )


def _open_images(section: Data) -> DataSet:
    """Open a data set whose labels play no part, so that unlabelled and ambiguous tables can be read.

    It is opened as with its labels where that works, so that it has the same splits.
    """
    for numbers in (False, True):
        with suppress(DataError):
            data = from_section(section, numbers=numbers)
            break
    else:
        data = from_section(section, needs_labels=False)
    if data.tables is not None:  # shards and the demo have one kind of labels
        data.tables = replace(data.tables, has_labels=False)
    return data


class DuplicatePairs:
    """The duplicate pairs of two splits, found block by block; their counts and the closest ones are kept.

    Attributes:
        within: both are the same split; each pair then counts once.
    """

    def __init__(self, one: ExaminedSplit, other: ExaminedSplit, distance: int):
        self.one, self.other, self.distance = one, other, distance
        self.within = one is other
        self.counts = [0] * len(KINDS)
        self.has_pair = np.zeros((len(KINDS), len(one.split)), dtype=bool)
        self.closest: list[tuple[int, int, int, int]] = []  # kind, bits, row, other row
        # Exact copies with different labels, and near ones.
        self.contradictions: tuple[list[tuple[int, int, int, int]], ...] = ([], [])
        self.num_contradictions = [0, 0]
        self._codes = _common_codes(one.labels, other.labels)

    def blocks(self) -> Iterator[np.ndarray]:
        """Count all pairs and yield them in blocks, (P, 4) int64: kind, differing bits, row and other row."""
        a, b = self.one.hashes, self.other.hashes
        for i_P, j_P, bits_P in near_pairs(a.looks_N, b.looks_N, distance=self.distance, within=self.within):
            is_same_file_P = a.files_N[i_P] == b.files_N[j_P]
            is_same_pixels_P = a.pixels_N[i_P] == b.pixels_N[j_P]
            kinds_P = np.where(is_same_file_P, 0, np.where(is_same_pixels_P, 1, 2))
            block_P4 = np.stack((kinds_P, bits_P, a.rows_N[i_P], b.rows_N[j_P]), axis=1).astype(np.int64)
            self._count(block_P4)
            yield block_P4

    def count(self) -> None:
        deque(self.blocks(), maxlen=0)  # counts alone: no block is kept

    def write(self, path: Path) -> None:
        """Write all pairs as CSV while they are counted."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for block_P4 in self.blocks():
                writer.writerows(self._with_places(pair) for pair in block_P4.tolist())

    def result(self) -> dict[str, Any]:
        is_exact_N = self.has_pair[0] | self.has_pair[1]
        return {
            **dict(zip(("num_same_file", "num_same_pixels", "num_near"), self.counts, strict=True)),
            "num_images_exact": int(is_exact_N.sum()),
            "num_images_near": int((self.has_pair[2] & ~is_exact_N).sum()),
            "pairs": [self._with_places(pair) for pair in self.closest],
            "num_contradictions": self.num_contradictions[0],
            "num_near_contradictions": self.num_contradictions[1],
            "contradictions": [self._with_places(pair) for pair in self.contradictions[0]],
            "near_contradictions": [self._with_places(pair) for pair in self.contradictions[1]],
        }

    def _count(self, block_P4: np.ndarray) -> None:
        for kind in range(len(KINDS)):
            pairs_P4 = block_P4[block_P4[:, 0] == kind]
            self.counts[kind] += len(pairs_P4)
            self.has_pair[kind, pairs_P4[:, 2]] = True
            if self.within:
                self.has_pair[kind, pairs_P4[:, 3]] = True
        _keep_closest(self.closest, block_P4)
        if self._codes:
            codes_N, other_codes_N = self._codes
            differing_P4 = block_P4[codes_N[block_P4[:, 2]] != other_codes_N[block_P4[:, 3]]]
            is_near_P = differing_P4[:, 0] == KINDS.index("near")
            for i, part_P4 in enumerate((differing_P4[~is_near_P], differing_P4[is_near_P])):
                self.num_contradictions[i] += len(part_P4)
                _keep_closest(self.contradictions[i], part_P4)

    def _with_places(self, pair: Sequence[int]) -> dict[str, Any]:
        kind, bits, row, other_row = pair
        places = (self.one.split.where_is(row), self.other.split.where_is(other_row))
        labels = (_label(self.one.labels, row), _label(self.other.labels, other_row))
        return dict(zip(COLUMNS, (KINDS[kind], bits, row, other_row, *places, *labels), strict=True))


def _keep_closest(pairs: list[tuple[int, int, int, int]], block_P4: np.ndarray) -> None:
    """Add the pairs of a block to the closest ones, of which SHOWN_PAIRS are kept."""
    first = block_P4[np.lexsort(block_P4.T[::-1])[:SHOWN_PAIRS]]
    pairs[:] = sorted([*pairs, *map(tuple, first.tolist())])[:SHOWN_PAIRS]


def _label(labels: SplitLabels | None, row: int) -> str | None:
    return labels.name_of(row) if labels else None


def _common_codes(one: SplitLabels | None, other: SplitLabels | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a number for the class of each row, the same for the same name; None without such classes."""
    if not (one and other and one.is_one_class_each and other.is_one_class_each):
        return None
    codes = {name: code for code, name in enumerate(dict.fromkeys((*one.class_names, *other.class_names)))}
    return tuple(
        np.array([codes[name] for name in labels.class_names])[labels.labels] for labels in (one, other)
    )
