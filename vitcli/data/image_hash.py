"""A picture as 64 bits that survive re-encoding, resizing and more light; pairs of such by distance.

Letters: H, W height and width, N, M numbers of pictures.
"""

from collections.abc import Iterator

import numpy as np
from PIL import Image

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
