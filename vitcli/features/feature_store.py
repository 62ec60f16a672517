"""Features of a split on disk, row by row: computed once, taken up again after a kill, never used damaged.

A file is a head, which says what its numbers are of, and blocks of rows. Blocks are only ever appended, and
each carries a checksum: a row is there once its block is whole, so nothing needs to be finished or renamed.
From the first block that is not what was written, the file is cut off and those rows are computed again.

N rows, D features, K logits, M labels a row (1, or what the row with most labels has).
"""

import fcntl
import json
import os
import struct
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vitcli.errors import MachineError

MAGIC = b"vitfeat1"
HEAD = struct.Struct("<8s16sQ")  # magic, checksum, bytes of JSON that follow
BLOCK = struct.Struct("<16sQ")  # checksum, rows that follow
ROWS_AT_ONCE = 1024


class FeatureStore:
    """An open file of features, held by this process alone.

    Attributes:
        notes: what was found wrong with the file, for a person.
        width: (D, K, M) of its rows; None until there is one.
        is_kept: whether another command finds it.
    """

    def __init__(
        self, file: BinaryIO, about: dict[str, Any], num_rows: int, *, where: str, is_kept: bool = True
    ):
        self.file, self.about, self.where, self.is_kept = file, about, where, is_kept
        self.notes: list[str] = []
        self.width: tuple[int, int, int] | None = None
        self._record: np.dtype | None = None
        self._offsets_N = np.full(num_rows, -1, dtype=np.int64)
        self._end = 0
        self._take_up()

    @property
    def num_rows(self) -> int:
        """Rows of the split, there or not."""
        return len(self._offsets_N)

    def has(self, rows_N: np.ndarray) -> np.ndarray:
        """Which of these rows are there, (N,) bool."""
        return self._offsets_N[rows_N] >= 0

    def append(
        self, rows_N: np.ndarray, labels_NM: np.ndarray, outputs_NO: np.ndarray, num_logits: int
    ) -> None:
        """Write rows as one block; `outputs_NO` are features and, last, `num_logits` logits.

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
            assert width == self.width, "all rows of a file are alike"
            self._write(BLOCK.pack(_checksum(content), len(rows_N)) + content)
        except OSError as error:
            raise MachineError(
                f"features were not written: {error.strerror}",
                where=self.where,
                fix="make room" + ("; the same command goes on with the rows there" if self.is_kept else ""),
            ) from error
        self._find(records_N["row"], self._end - len(content))

    def read(self, rows_N: np.ndarray) -> np.ndarray:
        """Records of rows that are there, with the fields row, labels, features, logits."""
        size = self._record.itemsize
        offsets_N = self._offsets_N[rows_N]
        assert (offsets_N >= 0).all(), "only rows that are there are read"
        breaks = np.flatnonzero(np.diff(offsets_N) != size) + 1  # what lies together is read as one
        parts = []
        for part in np.split(offsets_N, breaks):
            if len(part):
                parts.append(os.pread(self.file.fileno(), len(part) * size, int(part[0])))
        return np.frombuffer(b"".join(parts), dtype=self._record)

    def sync(self) -> None:
        """Force what was appended to disk."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Let another process have the file."""
        self.file.close()

    def _take_up(self) -> None:
        size = os.fstat(self.file.fileno()).st_size
        if size and not self._read_head(size):
            self.notes.append(f"{self.where} is damaged or of something else, so all of it is computed anew")
            self.file.truncate(0)
            return
        while self._end < size:
            if not self._read_block(size):
                what = f"{self.where} is not what was written from byte {self._end} on"
                self.notes.append(f"{what}; the rows after it are computed again")
                self.file.truncate(self._end)
                return

    def _read_head(self, size: int) -> bool:
        start = os.pread(self.file.fileno(), HEAD.size, 0)
        if len(start) < HEAD.size:
            return False
        magic, checksum, length = HEAD.unpack(start)
        if magic != MAGIC or length > size:
            return False
        content = os.pread(self.file.fileno(), length, HEAD.size)
        if len(content) < length or _checksum(content) != checksum:
            return False
        head = json.loads(content)
        if head["about"] != json.loads(json.dumps(self.about)):
            return False
        self.width = tuple(head["width"])
        self._record, self._end = _record(self.width), HEAD.size + length
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
        self._find(np.frombuffer(content, dtype=self._record)["row"], first)
        self._end = first + length
        return True

    def _find(self, rows_N: np.ndarray, first: int) -> None:
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
    """Features of chosen rows as an (N, D) float32 array of which a slice is read when it is asked for."""

    def __init__(self, store: FeatureStore, rows_N: np.ndarray):
        self.store, self.rows_N = store, rows_N
        self.shape = (len(rows_N), store.width[0])

    def __len__(self) -> int:
        return len(self.rows_N)

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        return self.store.read(self.rows_N[which])["features"]


def open_store(path: Path, about: dict[str, Any], num_rows: int) -> FeatureStore:
    """The store in a file, made if it is not there, and begun anew if it is of something else.

    Raises:
        OSError: the file cannot be written; BlockingIOError: another process has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return FeatureStore(file, about, num_rows, where=str(path))
    except BaseException:
        file.close()
        raise


def open_cached(about: dict[str, Any], num_rows: int) -> FeatureStore:
    """The store of exactly this in the cache; where there can be no cache, one that vanishes when closed.

    Args:
        about: everything the features depend on, as JSON.

    Raises:
        MachineError: neither the cache nor the folder for temporary files can be written.
    """
    path = cache_folder() / f"{name_of(about)}.features"
    try:
        return open_store(path, about, num_rows)
    except BlockingIOError:
        note = f"another process is using {path}: these features are computed without the cache"
    except OSError as error:
        note = f"features are not kept, {cache_folder()} cannot be written: {error.strerror}"
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115, open as long as the store
        store = FeatureStore(file, about, num_rows, where="a temporary file", is_kept=False)
    except OSError as error:
        fix = "let XDG_CACHE_HOME or TMPDIR name a folder that can be written"
        where = f"{path.parent} and {tempfile.gettempdir()}"
        raise MachineError(
            f"there is no place for features: {error.strerror}", where=where, fix=fix
        ) from error
    store.notes.append(note)
    return store


def name_of(about: dict[str, Any]) -> str:
    """A word for what features are of."""
    return blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/vit/features, by default in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "vit", "features")


def digest_of(tensors: dict[str, Any]) -> str:
    """A checksum of named tensors: names, types, shapes and every number."""
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_safetensors(path: Path, store: FeatureStore, rows_N: np.ndarray, metadata: dict[str, str]) -> None:
    """Rows of a store as one .safetensors file, a few thousand at a time.

    Tensors: labels and rows int64, features and, where the store has them, logits float32.
    """
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
    words = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    words = words.ljust(-(-len(words) // 8) * 8)  # spaces, so that numbers lie at multiples of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(words)) + words)
        for name in shapes:
            for first in range(0, count, ROWS_AT_ONCE):
                records_N = store.read(rows_N[first : first + ROWS_AT_ONCE])
                file.write(records_N["row" if name == "rows" else name].tobytes())


def _record(width: Sequence[int]) -> np.dtype:
    num_features, num_logits, num_labels = width
    fields = [("row", "<i8"), ("labels", "<i8", (num_labels,))]
    return np.dtype([*fields, ("features", "<f4", (num_features,)), ("logits", "<f4", (num_logits,))])


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
