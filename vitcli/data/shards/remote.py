"""Bytes of shards, local or remote, read in pieces; and the blocks read last, kept for all threads.

Every read is a range request of its own (through fsspec), so threads share no position in a file and nothing
has to be resumed. Remote reads are tried again; what stays wrong is a `DataError` that names the shard.
"""

import io
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from vitcli.errors import DataError, MachineError, VitError

WAITS_S = (0.5, 2.0, 8.0)  # before each further try of a remote read
THREADS = 16  # shards looked at side by side
REMOTE_BUFFER = (
    8 * 2**20
)  # bytes; a remote shard that is read from front to back comes in pieces of this size
REFUSALS = (401, 403)  # HTTP status; asked again, a server says it again
RETRY = "check the network, then start the same command again"
LOG_IN = "log in as one who may read it; on the Hub, accept the data set's conditions, then hf auth login"
# What file systems call the thing that changes when a file does.
STAMPS = ("ETag", "etag", "blob_id", "mtime", "LastModified", "last_modified", "updated", "created")

Found = TypeVar("Found")
Label = int | tuple[int, ...] | None
RowOf = Callable[[int], tuple[bytes, Label]]  # a block: place in it to encoded image and label


@dataclass(frozen=True)
class ShardFile:
    """Where a shard lies.

    Attributes:
        url: as `find_shards` gave it.
        fs, path: what opens it.
        size: in bytes.
        stamp: changes when the file does, as far as its file system tells; empty where it does not.
    """

    url: str
    fs: fsspec.AbstractFileSystem
    path: str
    size: int
    stamp: str

    @property
    def shown(self) -> str:
        return shown(self.url)

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    def read(self, first: int, last: int) -> bytes:
        """Bytes first ... last - 1.

        Raises:
            DataError: they are not there, or do not come after several tries.
        """

        def request() -> bytes:
            data = self.fs.cat_file(self.path, first, last)
            if len(data) != last - first:
                raise OSError(f"{len(data)} bytes came where {last - first} were asked for")
            return data

        return attempt(request, url=self.url, is_local=self.is_local) if last > first else b""

    def open(self) -> BinaryIO:
        """A stream to seek in: cheap where only headers are read, few requests where the shard is remote."""
        if self.is_local:
            return attempt(lambda: self.fs.open(self.path, "rb"), url=self.url, is_local=True)
        return io.BufferedReader(RangeReader(self), REMOTE_BUFFER)


class RangeReader(io.RawIOBase):
    """A file object whose every read is one range request."""

    def __init__(self, file: ShardFile):
        self.file, self.place = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.file.size}[whence]
        self.place = max(0, start + offset)
        return self.place

    def read(self, size: int = -1) -> bytes:
        last = self.file.size if size < 0 else min(self.place + size, self.file.size)
        data = self.file.read(self.place, last)
        self.place += len(data)
        return data

    def readinto(self, buffer) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class BlockCache:
    """The blocks used last, up to `limit_bytes`, for any number of threads.

    Threads that want the same block wait for one read of it. A read that fails raises in all of them and is
    forgotten. Beyond the limit there are only the blocks that threads are reading or holding at the moment.
    """

    def __init__(self, limit_bytes: int):
        self.limit_bytes, self.num_bytes = limit_bytes, 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Hashable, Future] = OrderedDict()  # least recently used first
        self._sizes: dict[Hashable, int] = {}  # of those that have been read

    def get(self, key: Hashable, load: Callable[[], tuple[Found, int]]) -> Found:
        """What `load` gave for this key, now or earlier; it returns a block and its bytes in memory."""
        with self._lock:
            future = self._blocks.get(key)
            is_mine = future is None
            if is_mine:
                future = self._blocks[key] = Future()
            self._blocks.move_to_end(key)
        if not is_mine:
            return future.result()
        try:
            block, num_bytes = load()
        except BaseException as error:  # whatever it is, no thread may wait for ever
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
    """What a shard calls images and labels, the same in all shards of a split.

    Attributes:
        image, label: names of columns; of tar files what was asked for, or "".
        has_many: a row has a list of labels.
        class_names: names in the order of the label numbers, where the shard says them.
    """

    image: str
    label: str
    has_many: bool
    class_names: tuple[str, ...] | None


@dataclass(frozen=True)
class Contents:
    """What there is in a shard, known without reading its images.

    Attributes:
        counts: rows of each block.
        largest_block: bytes in memory of the largest block.
        columns: None of a shard without rows, or whose rows have not been looked at.
        labels: the smallest and the largest; None where there are none, or only all rows would tell.
    """

    counts: tuple[int, ...]
    largest_block: int
    columns: Columns | None
    labels: tuple[int, int] | None


def locate(url: str) -> ShardFile:
    """Find a shard and its size.

    Raises:
        DataError: it is not there, is no plain file, or its place does not tell its size.
    """
    fs, path = file_system(url)
    info = attempt(lambda: fs.info(path), url=url, is_local=isinstance(fs, LocalFileSystem))
    if info["type"] != "file" or info.get("size") is None:
        raise DataError(
            f"{_file_name(url)} is not a file of known size",
            where=shown(url),
            fix="name .parquet or .tar files, on a server that tells their length",
        )
    stamp = next((str(info[key]) for key in STAMPS if info.get(key)), "")
    return ShardFile(url, fs, path, info["size"], stamp)


def file_system(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """What opens a URL, and its path there."""
    # The Hub's file system reads 5 MB more than it was asked for unless told otherwise.
    options = {"block_size": 2**16} if url.startswith("hf://") else {}
    try:
        return fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        raise DataError(
            f"{shown(url)} cannot be opened: {_reason(error)}",
            where="--dataset",
            fix="pip install s3fs for s3://, gcsfs for gs://, aiohttp and requests for https://",
        ) from error


def attempt(action: Callable[[], Found], *, url: str, is_local: bool) -> Found:
    """Do it; where it is remote and fails, wait and try again.

    Raises:
        DataError: it is not there, or may not or cannot be read from this disk.
        MachineError: the network failed for good, or a server wants somebody else to ask.
    """
    for wait_s in (None,) if is_local else (*WAITS_S, None):
        try:
            return action()
        except (FileNotFoundError, PermissionError) as error:
            raise unreadable(url, error, fix="check the name and who may read it") from error
        except Exception as error:  # clients have their own: aiohttp's, botocore's, httpx', plain OS errors
            if wait_s is None and is_local:
                raise unreadable(url, error, fix="check the disk") from error
            is_refused = _status(error) in REFUSALS
            if wait_s is None or is_refused:  # no fault of the row's, which may not be skipped for it
                told = unreadable(url, error, fix=LOG_IN if is_refused else RETRY)
                raise MachineError(told.message, where=told.where, fix=told.fix) from error
        time.sleep(wait_s)


def each(action: Callable[..., Found], items: Iterable) -> list[Found]:
    """`action` of every item, a few at a time; the first failure ends it."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="vit-shards")
    try:
        return list(pool.map(action, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def unreadable(url: str, error: Exception, *, fix: str = "replace the damaged shard") -> VitError:
    if isinstance(error, VitError):  # told already, and a network that failed is no fault of the shard's
        return error
    return DataError(f"{_file_name(url)} cannot be read: {_reason(error)}", where=shown(url), fix=fix)


def shown(url: str) -> str:
    """A URL for messages, without the password or signature that may be in it."""
    return re.sub(r"(?<=://)[^/@]*@", "", url.partition("?")[0]) if "://" in url else url


def _file_name(url: str) -> str:
    return shown(url).rpartition("/")[2]


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):  # some file systems give the path, others the words
        return "it is not there"
    if _status(error) in REFUSALS:  # of which the Hub's client says why lines later, if at all
        return f"its server refuses it with status {_status(error)}"
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"(?<=://)[^/@\s]*@|(?<=\w)\?\S+", "", line)[:160]


def _status(error: Exception) -> int | None:
    """The HTTP status of an error: aiohttp keeps it in one place, requests and httpx in another."""
    return getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
