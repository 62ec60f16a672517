"""Every picture of a split as three numbers of 64 bits, in threads: what two splits have in common.

Letters: N rows.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

from vitcli.data.columns import find_image_column
from vitcli.data.decoding import decode
from vitcli.data.layouts import Tables
from vitcli.data.split import Split
from vitcli.distributed import launch
from vitcli.errors import DataError

ROWS_A_TASK = 64
MOST_THREADS = 16
SHOWN_PAIRS = 20
KINDS = ("file", "pixels", "near")  # the same encoded file, the same decoded pixels, the same look
COLUMNS = ("kind", "distance", "row", "against_row", "place", "against_place")


@dataclass(frozen=True)
class Prints:
    """Fingerprints of the pictures that could be read, 32 bytes a row with their row numbers.

    Attributes:
        rows_N: their rows in the split, int64.
        files_N: first 64 bits of the SHA-256 of the encoded file, uint64; of what is drawn, of its pixels.
        pixels_N: the same of the decoded pixels and their height and width.
        looks_N: `perceptual_hash`; of a plain surface `pixels_N`, so that only its exact copies are near it.
        unreadable: where the pictures lie that could not be read, and why.
    """

    rows_N: np.ndarray
    files_N: np.ndarray
    pixels_N: np.ndarray
    looks_N: np.ndarray
    unreadable: tuple[str, ...]


def fingerprints(split: Split, *, num_threads: int | None, progress: Callable[[int], None]) -> Prints:
    """Read and decode every picture once.

    Args:
        progress: told how many rows are done.
    """
    prints_N4 = np.zeros((len(split), 4), dtype=np.uint64)
    is_read_N = np.ones(len(split), dtype=bool)

    def look(rows: range) -> list[str]:
        unreadable = []
        for row in rows:
            try:
                prints_N4[row] = (row, *_prints_of(split, row))
            except DataError as error:
                is_read_N[row] = False
                unreadable.append(f"{error.where}: {error.message}")
        return unreadable

    parts = [
        range(first, min(first + ROWS_A_TASK, len(split))) for first in range(0, len(split), ROWS_A_TASK)
    ]
    unreadable: list[str] = []
    with ThreadPoolExecutor(num_threads or min(MOST_THREADS, launch.cpu_count())) as pool:
        for part, found in zip(parts, pool.map(look, parts), strict=True):
            unreadable += found
            progress(part.stop)
    rows, files, pixels, looks = prints_N4[is_read_N].T.copy()
    return Prints(rows.astype(np.int64), files, pixels, looks, tuple(unreadable))


def without_labels(tables: Tables, image_column: str | None) -> Tables:
    """The pictures alone: which column has the labels, and whether all are labelled, does not matter here."""

    def pictures(read: Callable[[], datasets.Dataset], split: str) -> datasets.Dataset:
        table = read()
        column = find_image_column(table.features, image_column, split)
        nothing = np.zeros(len(table), dtype=np.int64)
        label = datasets.ClassLabel(names=["any"])
        return table.select_columns([column]).add_column("label", nothing, feature=label)

    opened = {split: partial(pictures, read, split) for split, read in tables.open.items()}
    return Tables(opened, tables.root)


def _prints_of(split: Split, row: int) -> tuple[int, int, int]:
    image, _ = split.read_row(row)
    image_HWC = decode(image, where=split.where_is, row=row) if isinstance(image, bytes) else image
    pixels = _first_64_bits(repr(image_HWC.shape).encode(), np.ascontiguousarray(image_HWC).data)
    file = _first_64_bits(image) if isinstance(image, bytes) else pixels
    look = perceptual_hash(image_HWC)
    return file, pixels, pixels if look is None else look


def _first_64_bits(*parts: bytes | memoryview) -> int:
    digest = sha256()
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest()[:8], "big")


class Pairs:
    """The pairs of two splits, met one block at a time; counts and the closest ones are kept."""

    def __init__(
        self, here: Split, there: Split, mine: Prints, theirs: Prints, distance: int, *, within: bool
    ):
        self.here, self.there, self.mine, self.theirs = here, there, mine, theirs
        self.distance, self.within = distance, within
        self.counts = [0] * len(KINDS)
        self.is_met = np.zeros((len(KINDS), len(here)), dtype=bool)
        self.closest: list[tuple[int, int, int, int]] = []  # kind, bits, row, other row

    def blocks(self) -> Iterator[np.ndarray]:
        """(P, 4) int64: kind, differing bits, row and other row of some pairs."""
        mine, theirs = self.mine, self.theirs
        found = near_pairs(mine.looks_N, theirs.looks_N, distance=self.distance, within=self.within)
        for here_P, there_P, bits_P in found:
            is_file_P = mine.files_N[here_P] == theirs.files_N[there_P]
            is_same_P = mine.pixels_N[here_P] == theirs.pixels_N[there_P]
            kinds_P = np.where(is_file_P, 0, np.where(is_same_P, 1, 2))
            columns = (kinds_P, bits_P, mine.rows_N[here_P], theirs.rows_N[there_P])
            yield np.stack(columns, axis=1).astype(np.int64)

    def count(self) -> None:
        for block_P4 in self.blocks():
            self._count(block_P4)

    def write(self, path: Path) -> None:
        """All pairs as a table in CSV; they are counted on the way."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for block_P4 in self.blocks():
                self._count(block_P4)
                writer.writerows(self._placed(pair) for pair in block_P4.tolist())

    def result(self) -> dict[str, Any]:
        is_exact_N = self.is_met[0] | self.is_met[1]
        return {
            **dict(zip(("num_same_file", "num_same_pixels", "num_near"), self.counts, strict=True)),
            "num_images_exact": int(is_exact_N.sum()),
            "num_images_near": int((self.is_met[2] & ~is_exact_N).sum()),
            "pairs": [self._placed(pair) for pair in self.closest],
        }

    def _count(self, block_P4: np.ndarray) -> None:
        for kind in range(len(KINDS)):
            rows = block_P4[block_P4[:, 0] == kind, 2]
            self.counts[kind] += len(rows)
            self.is_met[kind, rows] = True
            if self.within:
                self.is_met[kind, block_P4[block_P4[:, 0] == kind, 3]] = True
        first = block_P4[np.lexsort(block_P4.T[::-1])[:SHOWN_PAIRS]]
        self.closest = sorted([*self.closest, *map(tuple, first.tolist())])[:SHOWN_PAIRS]

    def _placed(self, pair: Sequence[int]) -> dict[str, Any]:
        kind, bits, row, other = pair
        places = (self.here.where_is(row), self.there.where_is(other))
        return dict(zip(COLUMNS, (KINDS[kind], bits, row, other, *places), strict=True))


SIDE = 32  # pixels of the thumbnail that is looked at
NUM_BITS = 64
FLAT = 2.0  # standard deviation in grey levels below which a thumbnail is a plain surface
BLOCK = 2**22  # pairs compared at a time: 32 MiB


def _cosines() -> np.ndarray:
    """(SIDE, SIDE): row k samples the k-th cosine of the discrete cosine transform (DCT-II)."""
    k, x = np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")
    return np.cos(np.pi * k * (2 * x + 1) / (2 * SIDE)) * np.where(k == 0, np.sqrt(0.5), 1.0)


def _lowest() -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the 64 lowest frequencies after the constant one, which is the brightness."""
    order = sorted((i + j, i, j) for i in range(SIDE) for j in range(SIDE))[1 : NUM_BITS + 1]
    return np.array([i for _, i, _ in order]), np.array([j for _, _, j in order])


COSINES = _cosines()
LOWEST = _lowest()


def perceptual_hash(image_HWC: np.ndarray) -> int | None:
    """64 bits: which of the lowest frequencies of the grey thumbnail lie above their median.

    The thumbnail is the whole picture squeezed to 32x32 with averaging, so size and shape do not matter; the
    mean brightness is not looked at, and contrast scales all frequencies alike. Mirrored, turned and cropped
    copies have other bits.

    Returns:
        None for a plain surface, of which noise alone would be compared.
    """
    grey = Image.fromarray(image_HWC).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    thumbnail_HW = np.asarray(grey, dtype=np.float64)
    if thumbnail_HW.std() < FLAT:
        return None
    frequencies = (COSINES @ thumbnail_HW @ COSINES.T)[LOWEST]
    bits = frequencies > np.median(frequencies)
    return int(np.packbits(bits).view(">u8")[0])


def near_pairs(
    hashes_N: np.ndarray, hashes_M: np.ndarray, *, distance: int, within: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All pairs whose bits differ in at most `distance` places, in order of the first, a block at a time.

    Every pair is looked at, O(N M) in time and 32 MiB in memory: exact at any distance, and for splits as
    large as ImageNet's faster than an index, since the hashes of pictures crowd into few buckets.

    Args:
        hashes_N, hashes_M: uint64.
        within: both are the same pictures; each pair is then given once, and no picture with itself.

    Yields:
        Places in `hashes_N`, places in `hashes_M` and distances, three arrays of equal length.
    """
    rows = max(1, BLOCK // max(1, len(hashes_M)))
    for first in range(0, len(hashes_N), rows):
        differing = np.bitwise_xor(hashes_N[first : first + rows, None], hashes_M[None])
        distances = np.bitwise_count(differing)
        i, j = np.nonzero(distances <= distance)
        if within:
            i, j = i[j > i + first], j[j > i + first]
        if len(i):
            yield i + first, j, distances[i, j]
