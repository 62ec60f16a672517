"""Features of a split on disk, row by row: computed once, resumed after a kill, never used when damaged.

A file is a header with the key of its contents, and blocks of rows. Blocks are only appended, each with a
checksum: a row is stored once its block is complete, so nothing needs to be finished or renamed. A file is
truncated at the first block with a wrong checksum, and the rows from there on are computed again.

    header  magic, checksum, length    {"about": key, "width": [D, K, M]} as JSON
    block   checksum, number of rows   records of row, labels (M), features (D), logits (K)

N rows, D features, K logits, M labels per row (1, or the most of any row), O = D + K outputs.
"""

import errno
import json
import os
import stat
import struct
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vitcli.errors import MachineError
from vitcli.output import user_cache
from vitcli.output.owned_folder import lock_open_file

MAGIC = b"vitfeat1"
HEAD = struct.Struct("<8s16sQ")  # magic, checksum, bytes of JSON that follow
BLOCK = struct.Struct("<16sQ")  # checksum, rows that follow
ROWS_AT_ONCE = 1024


class FeatureStore:
    """Open file of features, locked by this process.

    Attributes:
        notes: messages about damage of the file.
        width: (D, K, M) of its rows; None before the first row.
        is_kept: whether another command can use it.
        is_bounded: whether it is in the cache, whose oldest entries make room for it.
    """

    def __init__(
        self, file: BinaryIO, about: dict[str, Any], num_rows: int, *, where: str, is_kept: bool = True
    ):
        self.file, self.about, self.where, self.is_kept = file, about, where, is_kept
        self.notes: list[str] = []
        self.is_bounded = False
        self.width: tuple[int, int, int] | None = None
        self._record: np.dtype | None = None
        self._offsets_N = np.full(num_rows, -1, dtype=np.int64)
        self._end = 0
        self._read_existing()

    @property
    def num_rows(self) -> int:
        """Return the number of rows of the split, stored or not."""
        return len(self._offsets_N)

    def has(self, rows_N: np.ndarray) -> np.ndarray:
        """Return which of these rows are stored, (N,) bool."""
        return self._offsets_N[rows_N] >= 0

    def append(
        self, rows_N: np.ndarray, labels_NM: np.ndarray, outputs_NO: np.ndarray, num_logits: int
    ) -> None:
        """Append rows as one block; `outputs_NO` are features, then `num_logits` logits.

        Raises:
            MachineError: the disk is full, or fails.
        """
        width = (outputs_NO.shape[1] - num_logits, num_logits, labels_NM.shape[1])
        records_N = np.empty(len(rows_N), dtype=_record(width))
        records_N["row"], records_N["labels"] = rows_N, labels_NM
        records_N["features"], records_N["logits"] = np.split(outputs_NO, [width[0]], axis=1)
        content = records_N.tobytes()
        try:
            if self.width is None:
                self._begin(width)
            assert width == self.width, "all rows of a file have one width"
            self._write(BLOCK.pack(_checksum(content), len(rows_N)) + content)
        except OSError as error:
            raise MachineError(
                f"features cannot be written: {error.strerror}",
                where=self.where,
                fix="free disk space" + ("; the same command then resumes" if self.is_kept else ""),
            ) from error
        self._add_offsets(records_N["row"], self._end - len(content))

    def read(self, rows_N: np.ndarray) -> np.ndarray:
        """Read records of stored rows, with the fields row, labels, features, logits."""
        size = self._record.itemsize
        offsets_N = self._offsets_N[rows_N]
        assert (offsets_N >= 0).all(), "only stored rows are read"
        breaks = np.flatnonzero(np.diff(offsets_N) != size) + 1  # adjacent records are read at once
        parts = []
        for part in np.split(offsets_N, breaks):
            if len(part):
                parts.append(os.pread(self.file.fileno(), len(part) * size, int(part[0])))
        return np.frombuffer(b"".join(parts), dtype=self._record)

    def sync(self) -> None:
        """Force appended rows to disk; in the cache, what was used longest ago makes room for them."""
        os.fsync(self.file.fileno())
        if self.is_bounded:
            user_cache.make_room(0)

    def close(self) -> None:
        """Close and unlock the file."""
        self.file.close()

    def _read_existing(self) -> None:
        size = os.fstat(self.file.fileno()).st_size
        if size and not self._read_header(size):
            self.notes.append(f"{self.where} is damaged or holds other features; all rows are computed again")
            self.file.truncate(0)
            return
        while self._end < size:
            if not self._read_block(size):
                damage = f"{self.where} is damaged from byte {self._end} on"
                self.notes.append(f"{damage}; the rows after it are computed again")
                self.file.truncate(self._end)
                return

    def _read_header(self, size: int) -> bool:
        start = os.pread(self.file.fileno(), HEAD.size, 0)
        if len(start) < HEAD.size:
            return False
        magic, checksum, length = HEAD.unpack(start)
        if magic != MAGIC or length > size:
            return False
        content = os.pread(self.file.fileno(), length, HEAD.size)
        if len(content) < length or _checksum(content) != checksum:
            return False
        try:
            head = json.loads(content)
            if head["about"] != json.loads(json.dumps(self.about)):
                return False
            record = _record(head["width"])
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):  # another program's
            return False
        self.width, self._record, self._end = tuple(head["width"]), record, HEAD.size + length
        return True

    def _read_block(self, size: int) -> bool:
        start = os.pread(self.file.fileno(), BLOCK.size, self._end)
        if len(start) < BLOCK.size:
            return False
        checksum, count = BLOCK.unpack(start)
        first, length = self._end + BLOCK.size, count * self._record.itemsize
        if first + length > size:
            return False
        content = os.pread(self.file.fileno(), length, first)
        if _checksum(content) != checksum:
            return False
        rows_N = np.frombuffer(content, dtype=self._record)["row"]
        if len(rows_N) and not 0 <= rows_N.min() <= rows_N.max() < self.num_rows:
            return False
        self._add_offsets(rows_N, first)
        self._end = first + length
        return True

    def _add_offsets(self, rows_N: np.ndarray, first: int) -> None:
        self._offsets_N[rows_N] = first + np.arange(len(rows_N)) * self._record.itemsize

    def _begin(self, width: tuple[int, int, int]) -> None:
        content = json.dumps({"about": self.about, "width": width}).encode()
        self._write(HEAD.pack(MAGIC, _checksum(content), len(content)) + content)
        self.width, self._record = width, _record(width)

    def _write(self, content: bytes) -> None:
        self.file.seek(self._end)
        self.file.write(content)
        self.file.flush()
        self._end += len(content)


class StoredFeatures:
    """Features of chosen rows as an (N, D) float32 array whose slices are read from disk on access."""

    def __init__(self, store: FeatureStore, rows_N: np.ndarray):
        self.store, self.rows_N = store, rows_N
        self.shape = (len(rows_N), store.width[0])

    def __len__(self) -> int:
        return len(self.rows_N)

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        return self.store.read(self.rows_N[which])["features"]


def open_store(path: Path, about: dict[str, Any], num_rows: int) -> FeatureStore:
    """Open the store in a file; a missing file is created, one with another key is emptied.

    Raises:
        OSError: the file cannot be written; BlockingIOError: another process has locked it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o666), "r+b")
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device")
        lock_open_file(file)
        return FeatureStore(file, about, num_rows, where=str(path))
    except BaseException:
        file.close()
        raise


def open_cached(about: dict[str, Any], num_rows: int) -> FeatureStore:
    """Open the store with this key in the cache, or a temporary one if the cache cannot be used.

    Args:
        about: the key: everything the features depend on, as JSON.

    Raises:
        MachineError: neither the cache nor the folder for temporary files can be written.
    """
    path = user_cache.cache_folder("features") / f"{name_of(about)}.features"
    try:
        if not user_cache.asked_limit():
            raise OSError(0, f"{user_cache.LIMIT} is 0")
        store = open_store(path, about, num_rows)
        store.is_bounded = True
        user_cache.mark_used(path)
        user_cache.make_room(0)
        return store
    except BlockingIOError:
        note = f"another process is using {path}; features are computed without the cache"
    except OSError as error:
        note = f"features are not cached, {path.parent} cannot be written: {error.strerror}"
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115, open as long as the store
        store = FeatureStore(file, about, num_rows, where="a temporary file", is_kept=False)
    except OSError as error:
        fix = "set XDG_CACHE_HOME or TMPDIR to a folder that can be written"
        where = f"{path.parent} and {tempfile.gettempdir()}"
        raise MachineError(f"features cannot be stored: {error.strerror}", where=where, fix=fix) from error
    store.notes.append(note)
    return store


def name_of(about: dict[str, Any]) -> str:
    """Return the file name of a key, a digest."""
    return blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()


def digest_of(tensors: dict[str, Any]) -> str:
    """Return a digest of named tensors: names, types, shapes and values."""
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_safetensors(
    path: Path, store: FeatureStore, rows_N: np.ndarray, metadata: dict[str, str], *, has_labels: bool = True
) -> None:
    """Write rows of a store as a .safetensors file, a thousand at a time.

    Tensors: labels and rows int64, features and, where the store has them, logits float32.

    Args:
        has_labels: False where the images have none; they are written as -1.
    """
    # The header: metadata, then type, shape and offsets of each tensor (safetensors format).
    num_features, num_logits, num_labels = store.width
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
                values = records_N["row" if name == "rows" else name]
                is_unknown = name == "labels" and not has_labels
                file.write((np.full_like(values, -1) if is_unknown else values).tobytes())


def _record(width: Sequence[int]) -> np.dtype:
    num_features, num_logits, num_labels = width
    fields = [("row", "<i8"), ("labels", "<i8", (num_labels,))]
    return np.dtype([*fields, ("features", "<f4", (num_features,)), ("logits", "<f4", (num_logits,))])


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
