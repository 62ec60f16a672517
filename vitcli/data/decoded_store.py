"""Decoded images by row: in memory, or in mapped files that any number of processes read and extend.

A store of N rows on disk is a folder of the user's cache:

    index          N records: the place, shape and checksum of the pixels of a row, and a check of the record
    pixels-ID      the images that one process has added, up to SEGMENT bytes; no other process writes it
    about.json     what the key is made of, for people
    lock           locked (shared) by every process that uses the store

An image is whole or not there: its pixels are written first, then its record in one write. A record that is
torn, or that a power failure kept without its pixels, fails a checksum and counts as missing; pixels are
checked when a process first reads them. Processes that add the same row at once write the same pixels.
"""

import json
import mmap
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from vitcli.output import user_cache
from vitcli.output.user_cache import ABOUT, LOCK

# Stamp of the image, segment, offset in it, height, width, nothing, checksum of the pixels.
PLACE = struct.Struct("<QQIIIIQ")
RECORD_BYTES = PLACE.size + 8  # and a checksum of the place
SEGMENT = 2**30  # bytes
MOST_SEGMENTS = 400  # mapped by one process, each with a file handle
ALIGNMENT = 64
RETRY_S = 0.02
SEED = 0x766974  # so that the checksum of zeros is not zero


class MemoryStore:
    """Decoded (H, W, 3) uint8 images by row in the memory of this process, for any number of threads.

    Attributes:
        num_added: images that are stored.
        is_full: whether an image had no room.
        problem: None; see `FileStore`.
    """

    problem: OSError | None = None
    is_full = False

    def __init__(self, limit_bytes: float):
        self.limit_bytes, self.added_bytes = limit_bytes, 0
        self._images: dict[int, tuple[int, np.ndarray]] = {}
        self._mutex = threading.Lock()

    @property
    def num_added(self) -> int:
        return len(self._images)

    def get(self, row: int, stamp: int) -> np.ndarray | None:
        """Return the image of a row, to be read only; None if it is not there with this stamp."""
        stored, pixels_HWC = self._images.get(row, (None, None))
        return pixels_HWC if stored == stamp else None

    def add(self, row: int, stamp: int, pixels_HWC: np.ndarray) -> bool:
        """Store the image of a row; return whether there was room."""
        with self._mutex:
            if self.added_bytes + pixels_HWC.nbytes > self.limit_bytes:
                self.is_full = True
                return False
            self.added_bytes += pixels_HWC.nbytes
        # A part of a larger array would keep all of it in memory.
        self._images[row] = stamp, pixels_HWC if pixels_HWC.base is None else pixels_HWC.copy()
        return True

    def close(self) -> None:
        """Do nothing; see `FileStore`."""


class FileStore:
    """Decoded (H, W, 3) uint8 images by row on disk; threads and processes may read and add at the same time.

    Args:
        index, index_file: the records, mapped, and the file to write them to.
        make_segment: creates the file of a new segment, for so many bytes, and returns how many there is room
            for; None where nothing may be added.
        open_segment: opens one that this or another process has created.
        limit_bytes: of what this process adds.
        lock: held as long as the store is open.

    Attributes:
        added_bytes, num_added: what this process has added.
        is_full: whether nothing more is added: an image had no room, or the disk failed.
        problem: why no more is added, if it was an error of the disk.
    """

    is_full = False

    def __init__(
        self,
        index: mmap.mmap,
        index_file: BinaryIO,
        *,
        make_segment: Callable[[int, int], tuple[BinaryIO, int]] | None,
        open_segment: Callable[[int], BinaryIO],
        limit_bytes: float,
        lock: BinaryIO | None = None,
    ):
        self._index, self._index_file, self._lock_file = index, index_file, lock
        self._make_segment, self._open_segment = make_segment, open_segment
        self.limit_bytes, self.added_bytes, self.num_added = limit_bytes, 0, 0
        self.problem: OSError | None = None
        self._mutex = threading.Lock()
        self._checked: dict[int, bytes] = {}  # rows whose pixels agree with this record
        self._maps: dict[int, mmap.mmap] = {}
        self._segment, self._file, self._end = 0, None, SEGMENT

    def get(self, row: int, stamp: int) -> np.ndarray | None:
        """Return the image of a row, to be read only; None if it is not there with this stamp."""
        first = row * RECORD_BYTES
        record = self._index[first : first + RECORD_BYTES]
        stored, segment, offset, height, width, _, checksum = PLACE.unpack_from(record)
        if stored != stamp or not (height and width):
            return None
        is_checked = self._checked.get(row) == record
        if not is_checked and _check(record[: PLACE.size]) != record[PLACE.size :]:
            return None
        num_bytes = height * width * 3
        mapped = self._map(segment)
        if mapped is None or offset + num_bytes > len(mapped):
            return None
        pixels_HWC = np.frombuffer(mapped, np.uint8, num_bytes, offset).reshape(height, width, 3)
        if not is_checked:
            if xxhash.xxh3_64_intdigest(pixels_HWC, SEED) != checksum:
                return None
            self._checked[row] = record
        return pixels_HWC

    def add(self, row: int, stamp: int, pixels_HWC: np.ndarray) -> bool:
        """Store the image of a row; return whether there was room. A disk that fails only ends the adding."""
        height, width, _ = pixels_HWC.shape
        if self._make_segment is None or not pixels_HWC.nbytes:
            return False
        pixels_HWC = np.ascontiguousarray(pixels_HWC)
        try:
            with self._mutex:
                place = self._reserve(pixels_HWC.nbytes)
            if place is None:
                self.is_full = True
                return False
            segment, file, offset = place
            _write(file, memoryview(pixels_HWC).cast("B"), offset)
            checksum = xxhash.xxh3_64_intdigest(pixels_HWC, SEED)
            self._write_record(row, PLACE.pack(stamp, segment, offset, height, width, 0, checksum))
        except OSError as error:
            self.problem, self.is_full, self._make_segment = error, True, None
            return False
        with self._mutex:
            self.num_added += 1
        return True

    def close(self) -> None:
        """Unlock the store. Images that were read stay valid."""
        if self._lock_file:
            self._lock_file.close()
        self._make_segment = None

    def _reserve(self, num_bytes: int) -> tuple[int, BinaryIO, int] | None:
        """Return segment, its file and the offset for an image; None beyond the limit."""
        length = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if self.added_bytes + length > self.limit_bytes or length > SEGMENT:
            return None
        if self._end + length > SEGMENT:
            segment, needed = secrets.randbits(64), int(min(SEGMENT, self.limit_bytes - self.added_bytes))
            file, room = self._make_segment(segment, needed)
            if room < needed:
                self.limit_bytes = self.added_bytes + room
            os.ftruncate(file.fileno(), SEGMENT)  # a hole, so that it can be mapped at once
            self._segment, self._file, self._end = segment, file, 0
            if length > room:
                return None
        offset = self._end
        self._end += length
        self.added_bytes += length
        return self._segment, self._file, offset

    def _write_record(self, row: int, place: bytes) -> None:
        record = place + _check(place)
        _write(self._index_file, memoryview(record), row * RECORD_BYTES)
        self._checked[row] = record

    def _map(self, segment: int) -> mmap.mmap | None:
        mapped = self._maps.get(segment)
        if mapped is not None:
            return mapped
        with self._mutex:
            if segment in self._maps or len(self._maps) >= MOST_SEGMENTS:
                return self._maps.get(segment)
            try:
                # Private to this process, so that a slip of a transform could never reach the file.
                with self._open_segment(segment) as file:
                    self._maps[segment] = mmap.mmap(file.fileno(), SEGMENT, access=mmap.ACCESS_COPY)
            except (OSError, ValueError):  # deleted, or not of that length
                return None
            return self._maps[segment]


def is_stored(about: dict[str, Any]) -> bool:
    """Return whether the cache folder has a store with this key."""
    return (user_cache.cache_folder("decoded") / name_of(about)).is_dir()


def open_store(about: dict[str, Any], num_rows: int, *, limit_bytes: float) -> FileStore:
    """Open the store with this key in the user's cache, or begin one.

    Args:
        about: the key: everything the pixels depend on, as JSON, and "name" for people.
        limit_bytes: of what this process adds.

    Raises:
        OSError: the cache cannot be used.
    """
    folder = user_cache.make_cache_folder("decoded") / name_of(about)
    lock = _lock(folder, about)
    try:
        file = _open(folder / "index", os.O_RDWR | os.O_CREAT)
        length = max(1, num_rows) * RECORD_BYTES
        if os.fstat(file.fileno()).st_size < length:
            os.ftruncate(file.fileno(), length)
        index = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        lock.close()
        raise error if isinstance(error, OSError) else OSError(0, str(error)) from error
    user_cache.mark_used(folder)

    def make_segment(segment: int, num_bytes: int) -> tuple[BinaryIO, int]:
        room = min(num_bytes, user_cache.room_for_more())
        if not (room and user_cache.make_room(room)):
            raise OSError(0, f"they take all that {user_cache.LIMIT} and the free space allow")
        return _open(folder / f"pixels-{segment:016x}", os.O_RDWR | os.O_CREAT | os.O_EXCL), room

    return FileStore(
        index,
        file,
        make_segment=make_segment,
        open_segment=lambda segment: _open(folder / f"pixels-{segment:016x}", os.O_RDONLY),
        limit_bytes=limit_bytes,
        lock=lock,
    )


def name_of(about: dict[str, Any]) -> str:
    """Return the folder name of a key, a digest of all but its "name"."""
    content = {key: value for key, value in about.items() if key != "name"}
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def _lock(folder: Path, about: dict[str, Any]) -> BinaryIO:
    """Make the folder of a store if needed, and hold its lock."""
    for _ in range(10):  # another process may be deleting it
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            raise OSError(0, f"{folder} is a link or belongs to another user")
        _open(folder / LOCK, os.O_RDWR | os.O_CREAT).close()
        lock = user_cache.lock_entry(folder, shared=True)
        if lock is not None:
            if not (folder / ABOUT).exists():
                (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
            return lock
        time.sleep(RETRY_S)
    raise OSError(0, f"{folder} cannot be locked")


def _open(path: Path, flags: int) -> BinaryIO:
    mode = "rb" if flags == os.O_RDONLY else "r+b"
    return os.fdopen(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), mode, buffering=0)


def _check(place: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(place, SEED).to_bytes(8, "little")


def _write(file: BinaryIO, content: memoryview, offset: int) -> None:
    """Write all of it at an offset; OSError if the disk is full."""
    while content:
        written = os.pwrite(file.fileno(), content, offset)
        if not written:
            raise OSError(0, "nothing more can be written")
        content, offset = content[written:], offset + written
