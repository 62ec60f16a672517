"""Range reads of local and remote shards, and a cache of their most recent blocks for all threads.

Every read is a range request of its own (through fsspec), so threads share no position in a file and nothing
has to be resumed. Remote reads are retried; an error that persists names the shard.
"""

import io
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from vitcli.data.shards.block_cache import StoredBlocks
from vitcli.errors import DataError, MachineError, VitError, is_of_machine, pip_install, reason_of
from vitcli.io import http
from vitcli.io.credentials import public_address
from vitcli.io.http import ETAG, MODIFIED

WAITS_S = (0.5, 2.0, 8.0)  # before each retry of a remote read
THREADS = 16  # shards inspected side by side
REMOTE_BUFFER = 8 * 2**20  # bytes per request of a remote shard that is read from front to back
# HTTP status
REFUSALS = (401, 403)  # a retry would be refused too
MISSING = (404, 410)
RETRY = "check the network, then start the same command again"
LOG_IN = "log in with access to it; on the Hub, accept the data set's conditions, then hf auth login"
# Keys under which file systems give something that changes with the file.
STAMPS = (
    *(ETAG, "etag", "blob_id", "mtime", "LastModified", MODIFIED),
    *("last_modified", "updated", "created"),
)

T = TypeVar("T")
Item = TypeVar("Item")
Label = int | tuple[int | None, ...] | None  # as a shard has it
RowOf = Callable[[int], tuple[bytes, Label]]  # a block: row in it to encoded image and label


@dataclass(frozen=True)
class ShardFile:
    """A shard that has been located.

    Attributes:
        url: as `find_shards` returned it.
        fs, path: its file system, and its path there.
        size: in bytes.
        stamp: changes when the file does; empty if the file system gives nothing that does.
        blocks: of its data set; None to store nothing.
    """

    url: str
    fs: fsspec.AbstractFileSystem
    path: str
    size: int
    stamp: str
    blocks: StoredBlocks | None = None

    @property
    def shown(self) -> str:
        return public_address(self.url)

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    def read(self, first: int, last: int) -> bytes:
        """Read bytes first ... last - 1.

        Raises:
            MachineError: all retries failed, or the shard is gone: no row is bad, and none is to be skipped.
        """

        def request() -> bytes:
            how = http.request_options(self.url, self.stamp)
            data = self.fs.cat_file(self.path, first, last, **how)
            if len(data) != last - first:
                raise OSError(f"got {len(data)} bytes instead of {last - first}")
            return data

        try:
            return attempt(request, url=self.url, is_local=self.is_local) if last > first else b""
        except DataError as error:
            fix = "restore the shard as it was, then start the same command again"
            raise MachineError(error.message, where=error.where, fix=fix) from error

    def read_cached(self, first: int, last: int) -> bytes:
        """As `read`; the bytes of a remote shard stay in the user's cache as long as it does not change."""
        if self.is_local or self.stored is None:
            return self.read(first, last)
        return self.stored.get(self.key(first, last), lambda: self.read(first, last))

    @property
    def stored(self) -> StoredBlocks | None:
        """Where what is read of it is stored; None for nowhere, as where a change would not be noticed."""
        return self.blocks if self.stamp else None

    def key(self, *part: Hashable) -> Hashable:
        """Return the key of something that is read of this version of the shard."""
        return (self.url, self.path, self.size, self.stamp, *part)

    def open(self) -> BinaryIO:
        """Open a seekable stream: cheap if only headers are read, few requests if the shard is remote."""
        if self.is_local:
            return attempt(lambda: self.fs.open(self.path, "rb"), url=self.url, is_local=True)
        return io.BufferedReader(RangeReader(self), REMOTE_BUFFER)


class RangeReader(io.RawIOBase):
    """A file object whose every read is one range request, or with `is_cached` one from the user's cache."""

    def __init__(self, file: ShardFile, *, is_cached: bool = False):
        self.file, self.position = file, 0
        self._read_range = file.read_cached if is_cached else file.read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.file.size}[whence]
        self.position = max(0, start + offset)
        return self.position

    def read(self, size: int = -1) -> bytes:
        last = self.file.size if size < 0 else min(self.position + size, self.file.size)
        data = self._read_range(self.position, last)
        self.position += len(data)
        return data

    def readinto(self, buffer) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class BlockCache:
    """The most recently used blocks, up to `limit_bytes`, for any number of threads.

    Threads that need the same block wait for one read of it. A read that fails raises in all of them and is
    not cached. Beyond the limit there are only the blocks that threads are reading or holding.
    """

    def __init__(self, limit_bytes: int):
        self.limit_bytes, self.num_bytes = limit_bytes, 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Hashable, Future[Any]] = OrderedDict()  # least recently used first
        self._sizes: dict[Hashable, int] = {}  # of those that have been read

    def get(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """Return the block of this key, loading it if needed; `load` returns it and its bytes in memory."""
        with self._lock:
            known = self._blocks.get(key)
            future = self._blocks[key] = known or Future()
            self._blocks.move_to_end(key)
        if known:
            return known.result()
        # This thread loads it; the others wait for its future.
        try:
            block, num_bytes = load()
        except BaseException as error:  # of any kind, or other threads would wait forever
            with self._lock:
                del self._blocks[key]
            future.set_exception(error)
            raise
        with self._lock:
            self._make_room(num_bytes)
            self._sizes[key] = num_bytes
            self.num_bytes += num_bytes
        future.set_result(block)
        return block

    def _make_room(self, num_bytes: int) -> None:
        for key in list(self._blocks):
            if self.num_bytes + num_bytes <= self.limit_bytes:
                return
            if key in self._sizes:
                del self._blocks[key]
                self.num_bytes -= self._sizes.pop(key)


@dataclass(frozen=True)
class Columns:
    """Image and label columns of a shard, the same in all shards of a split.

    Attributes:
        image, label: names of columns; of tar files as the user named them, or "".
        has_many: whether a row has a list of labels.
        class_names: in the order of the label numbers, if the shard has them.
    """

    image: str
    label: str
    has_many: bool
    class_names: tuple[str, ...] | None


@dataclass(frozen=True)
class Contents:
    """Rows and labels of a shard, known without reading its images.

    Attributes:
        counts: rows of each block.
        largest_block: bytes in memory of the largest block.
        columns: None for a shard without rows, or whose rows have not been inspected.
        labels: the smallest and the largest; None if unknown.
        structure: changes with the sizes and places of the images; "" if unknown.
    """

    counts: tuple[int, ...]
    largest_block: int
    columns: Columns | None
    labels: tuple[int, int] | None
    structure: str = ""


def locate(url: str, blocks: StoredBlocks | None = None) -> ShardFile:
    """Find a shard and its size.

    Args:
        blocks: of its data set.

    Raises:
        DataError: it does not exist, is not a plain file, or its size is unknown.
    """
    fs, path = file_system(url)
    info = attempt(lambda: fs.info(path), url=url, is_local=isinstance(fs, LocalFileSystem))
    if info["type"] != "file" or info.get("size") is None:
        raise DataError(
            f"{file_name(url)} is not a file of known size",
            where=public_address(url),
            fix="name .parquet or .tar files, on a server that gives their length",
        )
    stamp = next((str(info[key]) for key in STAMPS if info.get(key)), "")
    return ShardFile(url, fs, path, info["size"], stamp, blocks)


def file_system(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a URL, and its path there."""
    try:
        return fsspec.core.url_to_fs(url, **http.file_system_options(url))
    except (ImportError, ValueError) as error:
        raise DataError(
            f"{public_address(url)} cannot be opened: {_reason(error)}",
            where="--dataset",
            fix=f"{pip_install('vitcli[remote]')} (s3fs for s3://, gcsfs for gs://, aiohttp for https://)",
        ) from error


def attempt(action: Callable[[], T], *, url: str, is_local: bool) -> T:
    """Run `action`; if the shard is remote and it fails, wait and retry.

    Raises:
        DataError: the shard does not exist, or cannot be read from this disk.
        MachineError: all retries failed, or the server refuses access.
    """
    waits = iter(WAITS_S)
    while True:
        try:
            return action()
        except Exception as raised:  # clients have their own: aiohttp's, botocore's, httpx', plain OS errors
            error = _failure_of_server(raised, url) or raised
            if isinstance(error, FileNotFoundError | PermissionError):
                raise unreadable(url, error, fix="check the name and the permissions") from error
            if is_local and is_of_machine(error):  # no row is bad
                raise
            if is_local:
                raise unreadable(url, error, fix="check the disk") from error
            advice, wait_s = _advice(error), next(waits, None)
            if wait_s is None or advice != RETRY:  # no DataError: the row is not bad and must not be skipped
                failure = unreadable(url, error, fix=advice)
                raise MachineError(failure.message, where=failure.where, fix=failure.fix) from error
        time.sleep(wait_s)


def _advice(error: BaseException) -> str:
    """Return what to do about a failed request; other than RETRY where it is not to be tried again."""
    if type(error).__name__ == "OfflineModeIsEnabled":  # of the Hub's client
        return "unset HF_HUB_OFFLINE to read shards of the Hub, or name files of this machine"
    return LOG_IN if _status(error) in REFUSALS else RETRY


def _failure_of_server(error: Exception, url: str) -> BaseException | None:
    """Return what fsspec calls a missing file of a web server that could not be asked, or failed."""
    is_hidden = isinstance(error, FileNotFoundError) and url.startswith(("http://", "https://"))
    cause = error.__cause__ if is_hidden else None
    return cause if cause and _status(cause) not in MISSING else None


def each(action: Callable[[Item], T], items: Iterable[Item]) -> list[T]:
    """Apply `action` to every item, a few at a time; the first failure ends it."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="vit-shards")
    try:
        return list(pool.map(action, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn any exception of a parser into a DataError that names the shard."""
    try:
        yield
    except VitError:
        raise
    except Exception as error:  # pyarrow's, tarfile's, and OSError where an offset is outside the file
        if is_of_machine(error):
            raise
        raise unreadable(url, error) from error


def unreadable(url: str, error: BaseException, *, fix: str = "replace the damaged shard") -> DataError:
    return DataError(f"{file_name(url)} cannot be read: {_reason(error)}", where=public_address(url), fix=fix)


def file_name(url: str) -> str:
    return public_address(url).rpartition("/")[2]


def _reason(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):  # its text differs between file systems
        return "it does not exist"
    if _status(error) in REFUSALS:  # the Hub's client explains these, if at all, some lines later
        return f"its server refuses it with status {_status(error)}"
    words = http.failure_in_words(error) or reason_of(error)
    return re.sub(r"(?<=://)[^/@\s]*@|(?<=\w)\?\S+", "", words)[:160]


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of aiohttp, or of requests and httpx, which keep it elsewhere."""
    return getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
