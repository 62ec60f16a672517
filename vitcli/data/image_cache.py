"""An in-memory cache of encoded and decoded images, shared by the runs of one command.

It changes neither pixels nor fingerprints: a cached image is still the bytes of its file, which remember what
they were decoded to.
"""

import threading
from dataclasses import replace

import numpy as np

from vitcli.data.split import Label, Split


class MemoryBudget:
    """The bytes that cached images may take, and those that they do take.

    Attributes:
        num_decoded: images whose pixels are cached.
    """

    def __init__(self, max_bytes: float):
        self.max_bytes, self.used, self.num_decoded = max_bytes, 0, 0
        self._lock = threading.Lock()

    def reserve(self, num_bytes: int) -> bool:
        """Reserve room for so many bytes; return False if there is none."""
        with self._lock:
            if self.used + num_bytes > self.max_bytes:
                return False
            self.used += num_bytes
            return True


class CachedImage(bytes):
    """An encoded image with its decoded pixels, if there was room for them."""

    memory: MemoryBudget
    pixels_HWC: np.ndarray | None = None

    def store(self, pixels_HWC: np.ndarray) -> None:
        if self.pixels_HWC is None and self.memory.reserve(pixels_HWC.nbytes):
            self.memory.num_decoded += 1
            self.pixels_HWC = pixels_HWC


def cached(split: Split, memory: MemoryBudget) -> Split:
    """Return the same split with each row read once; streamed shards are returned unchanged."""
    if split.block_starts is not None:
        return split
    rows: dict[int, tuple[bytes | np.ndarray, Label]] = {}

    def read_row(row: int) -> tuple[bytes | np.ndarray, Label]:
        if row in rows:
            return rows[row]
        image, label = split.read_row(row)
        if memory.reserve(len(image) if isinstance(image, bytes) else image.nbytes):
            if isinstance(image, bytes):
                image = CachedImage(image)
                image.memory = memory
            rows[row] = (image, label)
        return image, label

    return replace(split, read_row=read_row)
