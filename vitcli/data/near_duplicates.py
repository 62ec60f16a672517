"""`vit datasets check`: exact and near duplicates of the images of one split in another.

Every image is read once and reduced to three numbers of 64 bits, see `parts.image_hashes`. All pairs are
compared.

Letters: N images, P pairs.
"""

import csv
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitcli.data.dataset import DataSet
from vitcli.data.parts.image_hashes import ImageHashes, hash_images, near_pairs
from vitcli.data.split import Split, base_of
from vitcli.errors import DataError
from vitcli.output.atomic import check_out, replace_file
from vitcli.output.progress import Progress

SHOWN_PAIRS = 20
KINDS = ("file", "pixels", "near")  # the same encoded file, the same decoded pixels, a similar image
COLUMNS = ("kind", "distance", "row", "against_row", "place", "against_place")


class SplitName(NamedTuple):
    """A split as the command line names it; "auto" stands for the usual one."""

    dataset: str | None
    split: str


def check(
    name: SplitName,
    against: SplitName,
    *,
    distance: int,
    out: Path | None,
    overwrite: bool,
    num_threads: int | None,
    quiet: bool,
) -> dict[str, Any]:
    """Find the duplicates of one split in another; images that cannot be read are listed and left out.

    Args:
        name: whose test split is checked by default.
        against: another data set (None: the same), whose train split is searched by default.
        distance: perceptual hashes that differ in at most so many of their 64 bits count as near.
        out: a CSV file for all pairs.
    """
    if out:
        check_out(out, overwrite=overwrite)
    began_at = time.perf_counter()
    split, other = _open_both(name, against)
    is_within = split.name == other.name
    # Read both splits, or the only one.
    progress = Progress(quiet=quiet)
    left_out = split.left_out | other.left_out
    for line in dict.fromkeys(split.lines + other.lines):
        progress.note(line)
    hashes: list[ImageHashes] = []
    for part in [split] if is_within else [split, other]:
        progress.begin(f"reading {part.name}", len(part))
        hashes.append(hash_images(part, num_threads=num_threads, progress=progress.update))
        progress.end()
    # Compare all pairs, and write them while they are counted.
    pairs = DuplicatePairs(split, other, hashes[0], hashes[-1], distance, within=is_within)
    if out:
        replace_file(out, pairs.write)
    else:
        pairs.count()
    return {
        "command": "datasets check",
        "split": split.name,
        "against": other.name,
        "num_images": len(split),
        "num_against": len(other),
        "distance": distance,
        **pairs.result(),
        "unreadable": [place for part in hashes for place in part.unreadable],
        **left_out.summary(),
        "pairs_file": str(out) if out else None,
        "elapsed_s": time.perf_counter() - began_at,
    }


def _open_both(name: SplitName, against: SplitName) -> tuple[Split, Split]:
    """Open the split to check, by default the test split, and the one to search, by default train."""
    data = _open_images(name.dataset)
    is_same_data = against.dataset is None or _is_same(name.dataset, against.dataset)
    other_data = data if is_same_data else _open_images(against.dataset)
    nothing_to_compare = partial(_nothing_to_compare, names=data.split_names)
    # The only split is searched for copies within itself.
    is_default = against.dataset is None and (name.split, against.split) == ("auto", "auto")
    if is_default and len(data.split_names) == 1:
        only = data.open(data.split_names[0])
        return only, only
    # The split to search.
    searched = other_data.split_called(against.split)
    if searched == "auto":
        searched = other_data.default_train_split()
        if not searched and is_same_data:
            raise nothing_to_compare(f"{name.dataset} has no train split")
        searched = searched or other_data.only_split("--against-split")
    # The split to check: of the same data another one than the one searched.
    searched_base = base_of(searched)
    checked = data.split_called(name.split)
    if checked == "auto":
        checked = data.default_eval_split(besides=searched_base if is_same_data else None)
        if checked is None and is_same_data:
            raise nothing_to_compare(f"{name.dataset} has no split to check besides {searched_base}")
        checked = checked or data.only_split("--split")
    # A split is compared with itself only if both options name it; two slices of it may be meant otherwise.
    has_default = "auto" in (name.split, against.split)
    is_same_split = is_same_data and base_of(checked) == searched_base
    if has_default and is_same_split and (searched_base in (checked, searched) or checked == searched):
        raise nothing_to_compare(f"split {checked} of {name.dataset} would be compared with itself")
    return data.open(checked), other_data.open(searched)


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


def _open_images(name: str) -> DataSet:
    """Open a data set whose labels play no part, so that unlabelled and ambiguous tables can be read."""
    data = DataSet(name, needs_labels=False)
    if data.tables is not None:  # shards and the demo have one kind of labels
        data.tables = replace(data.tables, has_labels=False)
    return data


class DuplicatePairs:
    """The duplicate pairs of two splits, found block by block; their counts and the closest ones are kept."""

    def __init__(
        self, split: Split, other: Split, a: ImageHashes, b: ImageHashes, distance: int, *, within: bool
    ):
        self.split, self.other, self.a, self.b = split, other, a, b
        self.distance, self.within = distance, within
        self.counts = [0] * len(KINDS)
        self.has_pair = np.zeros((len(KINDS), len(split)), dtype=bool)
        self.closest: list[tuple[int, int, int, int]] = []  # kind, bits, row, other row

    def blocks(self) -> Iterator[np.ndarray]:
        """Count all pairs and yield them in blocks, (P, 4) int64: kind, differing bits, row and other row."""
        a, b = self.a, self.b
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
        }

    def _count(self, block_P4: np.ndarray) -> None:
        for kind in range(len(KINDS)):
            pairs_P4 = block_P4[block_P4[:, 0] == kind]
            self.counts[kind] += len(pairs_P4)
            self.has_pair[kind, pairs_P4[:, 2]] = True
            if self.within:
                self.has_pair[kind, pairs_P4[:, 3]] = True
        first = block_P4[np.lexsort(block_P4.T[::-1])[:SHOWN_PAIRS]]
        self.closest = sorted([*self.closest, *map(tuple, first.tolist())])[:SHOWN_PAIRS]

    def _with_places(self, pair: Sequence[int]) -> dict[str, Any]:
        kind, bits, row, other_row = pair
        places = (self.split.where_is(row), self.other.where_is(other_row))
        return dict(zip(COLUMNS, (KINDS[kind], bits, row, other_row, *places), strict=True))
