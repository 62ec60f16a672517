"""Rows of bytes in files that any number of processes read and extend: images, features, blocks of shards.

A store of N rows is a folder, of the user's cache or beside a file that a command writes:

    index          N records: the place, shape and checksum of the content of a row, and a check of the record
    rows-ID        what one process has added, up to SEGMENT bytes or one row; no other process writes it
    about.json     what the key is made of, for people
    use-N.lock     locked by a user of the store (`user_cache.lock_use`); `lock` by one that uses it alone

A row is whole or missing: its content is written first, then its record in one write. A record that is torn,
or that a power failure kept without its content, fails a checksum and counts as missing; contents are checked
when a process first reads them. Processes that add the same row at once write the same content.

The content of a row is a (A, B, C) uint8 array, such as the pixels of an image; others are (bytes, 1, 1).
"""

import errno
import json
import mmap
import os
import secrets
import struct
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import xxhash

from vitcli.cache import user_cache
from vitcli.cache.user_cache import ABOUT, LOCK
from vitcli.io.files import NO_LINK, UPDATE, lock_file, open_regular

FORMAT = 1  # part of every key: a store of another format is not found
# Stamp of the row, segment, offset in it, shape, checksum of the content.
PLACE = struct.Struct("<QQIIIIQ")
RECORD_BYTES = PLACE.size + 8  # and a checksum of the place
SEGMENT = 2**30 if os.name == "posix" else 2**26  # bytes, most of them a hole where files have holes
MOST_ROW_BYTES = 2**32 - 2**10  # by the width of the numbers in a record
MOST_SEGMENTS = 400  # mapped by one process, each with a file handle
ALIGNMENT = 64
SEED = 0x766974  # so that the checksum of zeros is not zero
DELETED_WITHIN_S = 0.2  # a store, by another process
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of a file system without any

MakeSegment = Callable[[int, int], tuple[BinaryIO, int]]  # number and bytes to a new file, and its room


@dataclass
class _Segment:
    """The file that this process adds rows to, in use up to `end`."""

    number: int
    file: BinaryIO
    length: int
    end: int = 0


class RowStore:
    """Open rows; threads and processes may read and add at the same time.

    Args:
        index_file: the records; a file that is too short is extended.
        make_segment: creates the file of a new segment, for this many bytes, and returns how many there is
            room for; None where nothing may be added.
        open_segment: opens one that this or another process has created.
        limit_bytes: of what this process adds.
        remembers: which rows have been checked; False for rows that are read once.
        lock: held as long as the store is open.

    Attributes:
        added_bytes, num_added: what this process has added.
        is_full: whether nothing more is added: a row had no room, or the disk failed.
        problem: why no more is added, if it was an error of the disk.
        segment_bytes: length of a new segment, a file with holes.

    Raises:
        OSError: the index cannot be extended or mapped.
    """

    is_full = False
    segment_bytes = SEGMENT

    def __init__(
        self,
        index_file: BinaryIO,
        num_rows: int,
        *,
        make_segment: MakeSegment | None,
        open_segment: Callable[[int], BinaryIO],
        limit_bytes: float = float("inf"),
        remembers: bool = True,
        lock: BinaryIO | None = None,
    ):
        length = max(1, num_rows) * RECORD_BYTES
        # Never shortened, whatever another process makes of it meanwhile.
        if os.fstat(index_file.fileno()).st_size < length:
            _write(index_file, memoryview(b"\0"), length - 1)
        self._index = mmap.mmap(index_file.fileno(), length, access=mmap.ACCESS_READ)
        self._index_file, self._lock_file = index_file, lock
        self._make_segment, self._open_segment = make_segment, open_segment
        self.limit_bytes, self.added_bytes, self.num_added = limit_bytes, 0, 0
        self.problem: OSError | None = None
        self._mutex = threading.Lock()
        self._remembers = remembers
        self._checked: dict[int, bytes] = {}  # rows whose content agrees with this record
        self._maps: dict[int, mmap.mmap] = {}
        self._segment: _Segment | None = None

    def stamps(self) -> np.ndarray:
        """Return the stamps of all rows as they are now, (N,) uint64; 0 for one that was never added."""
        return np.frombuffer(self._index, np.uint64).reshape(-1, RECORD_BYTES // 8)[:, 0]

    def get(self, row: int, stamp: int) -> np.ndarray | None:
        """Return the content of a row, to be read only; None if it is not there with this stamp."""
        first = row * RECORD_BYTES
        record = self._index[first : first + RECORD_BYTES]
        stored, segment, offset, a, b, c, checksum = PLACE.unpack_from(record)
        num_bytes = a * b * c
        if stored != stamp or not num_bytes:
            return None
        is_checked = self._checked.get(row) == record
        if not is_checked and _check(record[: PLACE.size]) != record[PLACE.size :]:
            return None
        mapped = self._map(segment)
        if mapped is None or offset + num_bytes > len(mapped):
            return None
        content_ABC = np.frombuffer(mapped, np.uint8, num_bytes, offset).reshape(a, b, c)
        if not is_checked:
            if xxhash.xxh3_64_intdigest(content_ABC.data, SEED) != checksum:
                return None
            if self._remembers:
                self._checked[row] = record
        return content_ABC

    def add(self, row: int, stamp: int, content_ABC: np.ndarray) -> bool:
        """Store the content of a row; return whether there was room. A disk that fails only ends the adding.

        Args:
            stamp: not 0; changes when the content does.
        """
        make_segment = self._make_segment
        if make_segment is None or not content_ABC.nbytes:
            return False
        content_ABC = np.ascontiguousarray(content_ABC)
        try:
            with self._mutex:
                reserved = self._reserve(content_ABC.nbytes, make_segment)
            if reserved is None:
                self.is_full = True
                return False
            segment, file, offset = reserved
            _write(file, content_ABC.data.cast("B"), offset)
            checksum = xxhash.xxh3_64_intdigest(content_ABC.data, SEED)
            place = PLACE.pack(stamp, segment, offset, *content_ABC.shape, checksum)
            record = place + _check(place)
            _write(self._index_file, memoryview(record), row * RECORD_BYTES)
            if self._remembers:
                self._checked[row] = record
        except OSError as error:
            self.problem, self.is_full, self._make_segment = error, True, None
            return False
        with self._mutex:
            self.num_added += 1
        return True

    def close(self) -> None:
        """Unlock the store. What was read stays valid."""
        self._make_segment = None
        for file in (self._lock_file, self._index_file, self._segment and self._segment.file):
            if file:
                file.close()

    def _reserve(self, num_bytes: int, make_segment: MakeSegment) -> tuple[int, BinaryIO, int] | None:
        """Return segment, its file and the offset for a content; None beyond the limit."""
        length = aligned(num_bytes)
        if self.added_bytes + length > self.limit_bytes or length > MOST_ROW_BYTES:
            return None
        segment = self._segment
        if segment is None or segment.end + length > segment.length:
            number = secrets.randbits(64)
            needed = max(length, int(min(self.segment_bytes, self.limit_bytes - self.added_bytes)))
            file, room = make_segment(number, needed)
            if room < needed:
                self.limit_bytes = self.added_bytes + room
            os.ftruncate(file.fileno(), needed)  # a hole, so that it can be mapped at once
            segment = self._segment = _Segment(number, file, needed)
            if length > room:
                return None
        offset = segment.end
        segment.end += length
        self.added_bytes += length
        return segment.number, segment.file, offset

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
                    self._maps[segment] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError):  # deleted, or cut to nothing
                return None
            return self._maps[segment]


def is_stored(kind: str, about: dict[str, Any]) -> bool:
    """Return whether the user's cache has a store with this key."""
    return (user_cache.cache_folder(kind) / name_of(about)).is_dir()


def open_cached(
    kind: str,
    about: dict[str, Any],
    num_rows: int,
    *,
    limit_bytes: float,
    is_bounded: bool = True,
    remembers: bool = True,
) -> RowStore:
    """Open the store with this key in the user's cache, or begin one.

    Args:
        about: the key: everything the contents depend on, as JSON, and "name" for people.
        limit_bytes: of what this process adds.
        is_bounded: add nothing beyond the bound of the cache; False for what a command needs stored.
        remembers: see `RowStore`.

    Raises:
        OSError: the cache cannot be used.
    """

    def room_for(num_bytes: int) -> int:
        room = min(num_bytes, user_cache.room_for_more())
        if not (room and user_cache.make_room(room)):
            raise OSError(0, f"they take all that {user_cache.LIMIT} and the free space allow")
        return room

    folder = user_cache.make_own_folder(user_cache.cache_folder(kind)) / name_of(about)
    room = room_for if is_bounded else int
    store = open_folder(folder, about, num_rows, limit_bytes=limit_bytes, room_for=room, remembers=remembers)
    user_cache.mark_used(folder)
    return store


def open_folder(
    folder: Path,
    about: dict[str, Any],
    num_rows: int,
    *,
    limit_bytes: float = float("inf"),
    room_for: Callable[[int], int] = int,
    is_shared: bool = True,
    remembers: bool = True,
) -> RowStore:
    """Open the store in a folder, or begin one.

    Args:
        room_for: makes room for this many bytes and returns how many there is room for.
        is_shared: whether other processes may use it at the same time.

    Raises:
        OSError: it cannot be used; BlockingIOError: another process holds it.
    """
    lock = _lock(folder, about, is_shared=is_shared)

    def make_segment(segment: int, num_bytes: int) -> tuple[BinaryIO, int]:
        room = room_for(num_bytes)
        return open_regular(folder / f"rows-{segment:016x}", UPDATE | os.O_EXCL), room

    try:
        return RowStore(
            open_regular(folder / "index", UPDATE),
            num_rows,
            make_segment=make_segment,
            open_segment=lambda segment: open_regular(folder / f"rows-{segment:016x}", os.O_RDONLY | NO_LINK),
            limit_bytes=limit_bytes,
            remembers=remembers,
            lock=lock,
        )
    except (OSError, ValueError) as error:
        if lock:
            lock.close()
        raise error if isinstance(error, OSError) else OSError(0, str(error)) from error


def open_temporary(num_rows: int) -> RowStore:
    """Open a store in files without a name, which are gone with this process.

    Raises:
        OSError: the folder for temporary files cannot be written.
    """
    files: dict[int, BinaryIO] = {}  # on Windows, wrappers of them

    def make_segment(segment: int, num_bytes: int) -> tuple[BinaryIO, int]:
        return files.setdefault(segment, cast(BinaryIO, tempfile.TemporaryFile(buffering=0))), num_bytes

    return RowStore(
        cast(BinaryIO, tempfile.TemporaryFile(buffering=0)),
        num_rows,
        make_segment=make_segment,
        open_segment=lambda segment: os.fdopen(os.dup(files[segment].fileno()), "rb"),
    )


def name_of(about: dict[str, Any]) -> str:
    """Return the folder name of a key, a digest of all but its "name"."""
    content = {"format": FORMAT, **{key: value for key, value in about.items() if key != "name"}}
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def aligned(num_bytes: int) -> int:
    """Return the bytes that a content takes in a segment."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _lock(folder: Path, about: dict[str, Any], *, is_shared: bool) -> BinaryIO | None:
    """Make the folder of a store if needed, and hold its lock; None on a file system without locks.

    A folder whose lock cannot be had is never deleted, so that it can be used without one.
    """
    for _ in range(10):  # another process may be deleting it
        try:
            user_cache.make_own_folder(folder)
            if is_shared:
                lock = user_cache.lock_use(folder)
            else:
                lock = lock_file(folder / LOCK, wait_s=DELETED_WITHIN_S)
        except (FileNotFoundError, FileExistsError):
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            lock = None
        with suppress(FileExistsError), open_regular(folder / ABOUT, UPDATE | os.O_EXCL) as file:
            file.write((json.dumps(about, indent=2) + "\n").encode())
        return lock
    raise OSError(0, f"{folder} cannot be locked")


def _check(place: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(place, SEED).to_bytes(8, "little")


_seeking = threading.Lock()  # where the system has no pwrite


def _write(file: BinaryIO, content: memoryview, offset: int) -> None:
    """Write all of it at an offset; OSError if the disk is full."""
    while content:
        if hasattr(os, "pwrite"):
            written = os.pwrite(file.fileno(), content, offset)
        else:
            with _seeking:
                file.seek(offset)
                written = file.write(content)
        if not written:
            raise OSError(0, "nothing more can be written")
        content, offset = content[written:], offset + written
