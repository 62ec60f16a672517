"""The image files of a split, each opened once by a command, however many parts, folds and runs it has.

A run recognises its images by content and checks that they can be decoded before it trains on them. The bytes
that are read to recognise an image are kept while there is room, and what was found out about them as long as
the file does not change.
"""

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from vitcli.distributed import launch

if TYPE_CHECKING:  # it imports this module
    from vitcli.data.split import ReadRow, Split

MEMORY_FRACTION = 1 / 16  # of the free memory, for encoded images; decoded ones may take four times as much


class OpenedFiles:
    """What a command has read of the images of a whole split.

    Args:
        whole: the split, whose rows are read from its source.
    """

    def __init__(self, whole: "Split"):
        self._whole = whole
        self._kept: dict[int, tuple[int, tuple[bytes | np.ndarray, Any]]] = {}  # stamp and example of a row
        self._facts: dict[tuple[int, str], tuple[int, Any]] = {}
        self._mutex = threading.Lock()

    def several(self, rows: Sequence[int]) -> "ReadRow":
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
