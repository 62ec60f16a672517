"""Features of a split on disk, row by row: computed once, resumed after a kill, never used when damaged.

Rows are those of a `RowStore`; one that is damaged, or belongs to other images or another network, is missing
and computed again.

N rows, D features, K logits, M labels per row (1, or the most of any row), O = D + K outputs.
"""

import json
import struct
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.cache import row_store, user_cache
from vitcli.cache.row_store import SEGMENT, RowStore, aligned
from vitcli.errors import MachineError

ROWS_AT_ONCE = 1024
NUMBERS = 3  # D, K, M at the beginning of every row


class FeatureStore:
    """Features by row in an open store.

    Args:
        about: the key: everything the features depend on, as JSON.
        where: the store is, for errors.

    Attributes:
        notes: messages about a cache that cannot be used.
        width: (D, K, M) of its rows; None before the first row.
        is_kept: whether another command can use it.
    """

    def __init__(
        self, rows: RowStore, about: dict[str, Any], num_rows: int, *, where: str, is_kept: bool = True
    ):
        self.rows, self.num_rows, self.where, self.is_kept = rows, num_rows, where, is_kept
        self.notes: list[str] = []
        self.width: tuple[int, int, int] | None = None
        self._record: np.dtype | None = None
        self._stamp = int(name_of(about)[:16], 16) or 1
        self.has(np.arange(num_rows))

    def has(self, rows_N: np.ndarray) -> np.ndarray:
        """Return which of these rows are stored, (N,) bool."""
        claimed_N = self.rows.stamps()[rows_N] == self._stamp
        for place in np.flatnonzero(claimed_N):
            claimed_N[place] = self._fits(self.rows.get(int(rows_N[place]), self._stamp))
        return claimed_N

    def append(
        self, rows_N: np.ndarray, labels_NM: np.ndarray, outputs_NO: np.ndarray, num_logits: int
    ) -> None:
        """Add rows; `outputs_NO` are features, then `num_logits` logits.

        Raises:
            MachineError: the disk is full, or fails.
        """
        width = (outputs_NO.shape[1] - num_logits, num_logits, labels_NM.shape[1])
        if self.width is None:
            self._begin(width)
        self.rows.segment_bytes = min(SEGMENT, self.num_rows * aligned(self._record.itemsize))
        assert width == self.width, "all rows of a store have one width"
        records_N = np.empty(len(rows_N), dtype=self._record)
        records_N["width"], records_N["row"], records_N["labels"] = width, rows_N, labels_NM
        records_N["features"], records_N["logits"] = np.split(outputs_NO, [width[0]], axis=1)
        contents_NB = records_N.view(np.uint8).reshape(len(rows_N), self._record.itemsize)
        for row, content_B in zip(rows_N.tolist(), contents_NB, strict=True):
            if not self.rows.add(row, self._stamp, content_B.reshape(-1, 1, 1)):
                raise MachineError(
                    f"features cannot be written: {self.rows.problem.strerror}",
                    where=self.where,
                    fix="free disk space" + ("; the same command then resumes" if self.is_kept else ""),
                ) from self.rows.problem

    def read(self, rows_N: np.ndarray) -> np.ndarray:
        """Read records of stored rows, with the fields row, labels, features, logits.

        Raises:
            MachineError: a row was damaged in the meantime, or there is no memory to map it.
        """
        contents = [self.rows.get(row, self._stamp) for row in rows_N.tolist()]
        if any(content is None for content in contents):
            fix = "check the disk and the free memory, then start the same command again"
            raise MachineError("features cannot be read back", where=self.where, fix=fix)
        return np.frombuffer(b"".join(contents), dtype=self._record)

    def close(self) -> None:
        """Unlock the store; in the cache, the least recently used entries make room for what was added."""
        if self.is_kept:
            user_cache.make_room(0)
        self.rows.close()

    def _fits(self, content: np.ndarray | None) -> bool:
        """Return whether the content of a row is one of this store; the first tells the width of all."""
        if content is None or content.size < NUMBERS * 4:
            return False
        width = tuple(content.ravel()[: NUMBERS * 4].view(np.uint32).tolist())
        num_features, num_logits, num_labels = width
        num_bytes = NUMBERS * 4 + 8 + 8 * num_labels + 4 * (num_features + num_logits)
        if self.width is None and num_bytes == content.size:
            self._begin(width)
        return width == self.width

    def _begin(self, width: tuple[int, int, int]) -> None:
        self.width, self._record = width, _record(width)


class StoredFeatures:
    """Features of chosen rows as an (N, D) float32 array whose slices are read from disk on access."""

    def __init__(self, store: FeatureStore, rows_N: np.ndarray):
        self.store, self.rows_N = store, rows_N
        self.shape = (len(rows_N), store.width[0])

    def __len__(self) -> int:
        return len(self.rows_N)

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        return self.store.read(self.rows_N[which])["features"]


def open_beside(folder: Path, about: dict[str, Any], num_rows: int) -> FeatureStore:
    """Open the store in a folder for this process alone; rows of another key count as missing.

    Raises:
        OSError: it cannot be written; BlockingIOError: another process has locked it.
    """
    rows = row_store.open_folder(folder, about, num_rows, is_shared=False)
    return FeatureStore(rows, about, num_rows, where=str(folder))


def open_cached(about: dict[str, Any], num_rows: int) -> FeatureStore:
    """Open the store with this key in the cache, or a temporary one if the cache cannot be used.

    Raises:
        MachineError: neither the cache nor the folder for temporary files can be written.
    """
    folder = user_cache.cache_folder("features")
    try:
        if not user_cache.asked_limit():
            raise OSError(0, f"{user_cache.LIMIT} is 0")
        rows = row_store.open_cached("features", about, num_rows, limit_bytes=float("inf"), is_bounded=False)
        user_cache.make_room(0)
        return FeatureStore(rows, about, num_rows, where=str(folder / row_store.name_of(about)))
    except OSError as error:
        note = f"features are not cached, {folder} cannot be written: {error.strerror}"
    store = open_temporary(about, num_rows)
    store.notes.append(note)
    return store


def open_temporary(about: dict[str, Any], num_rows: int) -> FeatureStore:
    """Open a store that is gone with this process.

    Raises:
        MachineError: the folder for temporary files cannot be written.
    """
    try:
        rows = row_store.open_temporary(num_rows)
    except OSError as error:
        fix = "set XDG_CACHE_HOME or TMPDIR to a folder that can be written"
        where = f"{user_cache.cache_folder('features')} and {tempfile.gettempdir()}"
        raise MachineError(f"features cannot be stored: {error.strerror}", where=where, fix=fix) from error
    return FeatureStore(rows, about, num_rows, where="a temporary file", is_kept=False)


def name_of(about: dict[str, Any]) -> str:
    """Return a digest of a key."""
    return blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()


def write_safetensors(
    path: Path,
    store: FeatureStore,
    rows_N: np.ndarray,
    metadata: dict[str, str],
    *,
    has_labels: bool = True,
    first_row: int = 0,
) -> None:
    """Write rows of a store as a .safetensors file, a thousand at a time.

    Tensors: labels and rows int64, features and, where the store has them, logits float32.

    Args:
        has_labels: False where the images have none; they are written as -1.
        first_row: added to the rows, of a store that holds a part of a split.
    """
    # The header: metadata, then type, shape and offsets of each tensor (safetensors format).
    num_features, num_logits, num_labels = store.width or (0, 0, 1)
    count = len(rows_N)
    shapes = {"labels": [count] if num_labels == 1 else [count, num_labels], "rows": [count]}
    shapes["features"] = [count, num_features]
    if num_logits:
        shapes["logits"] = [count, num_logits]
    header, end = {"__metadata__": dict(sorted(metadata.items()))}, 0
    for name, shape in shapes.items():
        kind, size = ("I64", 8) if name in ("labels", "rows") else ("F32", 4)
        first, end = end, end + size * int(np.prod(shape))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [first, end]}
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded = encoded.ljust(-(-len(encoded) // 8) * 8)  # spaces, so that tensors start at multiples of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name in shapes:
            for first in range(0, count, ROWS_AT_ONCE):
                records_N = store.read(rows_N[first : first + ROWS_AT_ONCE])
                values = records_N["row"] + first_row if name == "rows" else records_N[name]
                is_unknown = name == "labels" and not has_labels
                file.write((np.full_like(values, -1) if is_unknown else values).tobytes())


def _record(width: Sequence[int]) -> np.dtype:
    num_features, num_logits, num_labels = width
    fields = [("width", "<u4", (NUMBERS,)), ("row", "<i8"), ("labels", "<i8", (num_labels,))]
    return np.dtype([*fields, ("features", "<f4", (num_features,)), ("logits", "<f4", (num_logits,))])
