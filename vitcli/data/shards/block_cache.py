"""Blocks and indexes of shards in the user's cache, which the next epoch or command does not read again.

All those of a data set are in one store, which is not deleted while it is read from: of a data set that is
larger than its room, what came first stays. The key of a block gives the rows that it may have; where other
blocks have taken them all, it is not stored.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import xxhash

from vitcli.cache import row_store, user_cache
from vitcli.io.files import delete_lock, lock_file

NUM_ROWS = 2**20  # of the index of a store, a sparse file
TRIED_ROWS = 4
LOCK_WAIT_S = 600  # enough for some GB over a slow line; a process that holds the lock longer may hang


class StoredBlocks:
    """The stored blocks of a data set, for any number of threads; a cache that fails costs time only.

    Args:
        dataset: what all its shards have in common, such as their folder.
    """

    def __init__(self, dataset: str):
        about = {"name": dataset, "dataset": dataset}
        self.folder = user_cache.cache_folder("shards") / row_store.name_of(about)
        self._rows: row_store.RowStore | None = None
        with suppress(OSError):
            self._rows = row_store.open_cached("shards", about, NUM_ROWS, limit_bytes=float("inf"))

    def get(self, key: Hashable, load: Callable[[], bytes]) -> bytes:
        """Return the bytes with this key, else load and store them."""
        content = self._find(stamp := _stamp_of(key))
        if content is None:
            content = load()
            self._add(stamp, content)
        return content

    def get_slow(self, key: Hashable, load: Callable[[], bytes]) -> bytes:
        """As `get`, but of all processes of this machine one loads, and the others wait for it."""
        content = self._find(stamp := _stamp_of(key))
        if content is None:
            with self._one_at_a_time(stamp):
                content = self.get(key, load)
        return content

    def _find(self, stamp: int) -> bytes | None:
        contents = (self._rows.get(row, stamp) for row in _rows_of(stamp)) if self._rows else ()
        return next((content.tobytes() for content in contents if content is not None), None)

    def _add(self, stamp: int, content: bytes) -> None:
        if self._rows is None:
            return
        stamps = self._rows.stamps()
        row = next((row for row in _rows_of(stamp) if int(stamps[row]) in (0, stamp)), None)
        if row is not None:
            self._rows.add(row, stamp, np.frombuffer(content, np.uint8).reshape(-1, 1, 1))

    @contextmanager
    def _one_at_a_time(self, stamp: int) -> Iterator[None]:
        """Keep other processes from loading the same.

        Without a lock (an unwritable home folder, a file system without locks, a process that hangs while it
        holds the lock) each process loads it, which only costs time.
        """
        path, lock = self.folder / f"{stamp:016x}.lock", None
        with suppress(OSError):
            lock = lock_file(path, wait_s=LOCK_WAIT_S)
        try:
            yield
        finally:
            if lock:
                delete_lock(path)
                lock.close()


def _stamp_of(key: Hashable) -> int:
    return xxhash.xxh3_64_intdigest(repr(key).encode()) or 1  # 0 is that of no row


def _rows_of(stamp: int) -> list[int]:
    return [(stamp + tried) % NUM_ROWS for tried in range(TRIED_ROWS)]
