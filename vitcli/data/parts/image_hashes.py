"""Hashes of images that tell copies: of the file, of the pixels, and a perceptual one of what is seen.

The perceptual hash survives re-encoding, resizing and a change of brightness. All pairs are compared.

Letters: N, M images of two splits, H, W height and width.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from PIL import Image

from vitcli.data.decoding import decode
from vitcli.data.sampler import ROWS_PER_TASK, row_ranges
from vitcli.data.split import Split
from vitcli.distributed import launch
from vitcli.errors import DataError

MAX_THREADS = 16
SIDE = 32  # pixels of the thumbnail that is hashed
NUM_BITS = 64
FLAT = 2.0  # standard deviation in grey levels below which a thumbnail counts as a plain surface
BLOCK = 2**22  # pairs compared at a time: 32 MiB


@dataclass(frozen=True)
class ImageHashes:
    """Hashes and sizes of the images of a split that could be read, 48 bytes per image with its row number.

    Attributes:
        rows_N: their rows in the split, int64.
        files_N: first 64 bits of the SHA-256 of the encoded file, uint64; of the pixels for drawn images.
        pixels_N: the same of the decoded pixels and their height and width.
        looks_N: `perceptual_hash`; for a plain surface `pixels_N`, so that only its exact copies are near it.
        sides_N2: their height and width in pixels, as they are shown, int64.
        unreadable: place and error of the images that could not be read.
    """

    rows_N: np.ndarray
    files_N: np.ndarray
    pixels_N: np.ndarray
    looks_N: np.ndarray
    sides_N2: np.ndarray
    unreadable: tuple[str, ...]


def hash_images(split: Split, *, num_threads: int | None, progress: Callable[[int], None]) -> ImageHashes:
    """Read, decode and hash every image once; `progress` gets the number of rows done."""
    hashes_N4 = np.zeros((len(split), 4), dtype=np.uint64)
    sides_N2 = np.zeros((len(split), 2), dtype=np.int64)
    is_read_N = np.ones(len(split), dtype=bool)

    def hash_rows(rows: range) -> list[str]:
        errors = []
        for row in rows:
            try:
                hashes, sides_N2[row] = _hashes_and_sides(split, row)
                hashes_N4[row] = (row, *hashes)
            except DataError as error:
                is_read_N[row] = False
                errors.append(f"{error.where}: {error.message}")
        return errors

    parts = list(row_ranges(len(split), ROWS_PER_TASK))
    unreadable: list[str] = []
    with ThreadPoolExecutor(num_threads or min(MAX_THREADS, launch.cpu_count())) as pool:
        for part, errors in zip(parts, pool.map(hash_rows, parts), strict=True):
            unreadable += errors
            progress(part.stop)
    rows, files, pixels, looks = hashes_N4[is_read_N].T.copy()
    return ImageHashes(rows.astype(np.int64), files, pixels, looks, sides_N2[is_read_N], tuple(unreadable))


def _hashes_and_sides(split: Split, row: int) -> tuple[tuple[int, int, int], tuple[int, int]]:
    image = split.image_of(row)
    image_HWC = decode(image, where=split.where_is, row=row) if isinstance(image, bytes) else image
    pixels = _first_64_bits(repr(image_HWC.shape).encode(), np.ascontiguousarray(image_HWC).data)
    file = _first_64_bits(image) if isinstance(image, bytes) else pixels
    look = perceptual_hash(image_HWC)
    return (file, pixels, pixels if look is None else look), image_HWC.shape[:2]


def _first_64_bits(*parts: bytes | memoryview) -> int:
    digest = sha256()
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest()[:8], "big")


# The matrix of the discrete cosine transform (DCT-II): row k is the k-th cosine, sampled at x.
_k, _x = np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")
COSINES = np.cos(np.pi * _k * (2 * _x + 1) / (2 * SIDE)) * np.where(_k == 0, np.sqrt(0.5), 1.0)
# Rows and columns of the 64 lowest frequencies after the constant one, which is the brightness.
_by_frequency = sorted((i + j, i, j) for i in range(SIDE) for j in range(SIDE))[1 : NUM_BITS + 1]
LOWEST = tuple(np.array(_by_frequency).T[1:])


def perceptual_hash(image_HWC: np.ndarray) -> int | None:
    """Return 64 bits: which of the lowest frequencies of the grey thumbnail are above their median.

    The thumbnail is the whole image resized to 32x32 with averaging, so size and shape do not matter; the
    mean brightness is left out, and contrast scales all frequencies alike. Mirrored, rotated and cropped
    copies have other bits.

    Returns:
        None for a plain surface, of which only the noise would be compared.
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
    """Yield all pairs whose hashes differ in at most `distance` bits, in order of the first, block by block.

    Every pair is compared, O(N M) in time and 32 MiB in memory: exact at any distance, and for splits as
    large as ImageNet's faster than an index, since perceptual hashes crowd into few buckets.

    Args:
        hashes_N, hashes_M: uint64.
        within: both are the same images; each pair is then yielded once, and no image with itself.

    Yields:
        Indices into `hashes_N`, indices into `hashes_M` and distances, three arrays of equal length.
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
