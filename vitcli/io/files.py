"""Files of anyone, read without waiting for a pipe and without filling the memory; locks of processes."""

import errno
import fcntl
import json
import os
import stat
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

MOST_TEXT_BYTES = 2**26  # of a file of settings or results; as text it may take four times that
MOST_VALUES = 2_000_000  # of JSON: each takes up to 100 bytes
MOST_BYTES = 2**30  # of an image
HARD_LINK = "a hard link"
RETRY_S = 0.02  # between tries to get a lock


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading, also by a link; a pipe or a device is refused, and not waited for.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))


def package_folder(name: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    spec = find_spec(name)
    assert spec and spec.submodule_search_locations, f"{name} is a dependency"
    return Path(spec.submodule_search_locations[0])


def irregularity(path: str | Path, *, is_folder: bool = False, hard_links: bool = True) -> str | None:
    """Return what is in the place of a file or folder, such as "a link"; None if it is one, or missing.

    Args:
        hard_links: whether a file may have other names, anywhere on its disk.
    """
    try:
        state = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISLNK(state.st_mode):
        return "a link"
    if is_folder:
        return None if stat.S_ISDIR(state.st_mode) else "not a folder"
    if not stat.S_ISREG(state.st_mode):
        return "not a file"
    return HARD_LINK if state.st_nlink > 1 and not hard_links else None


def read_regular(path: str | Path, most: int = MOST_TEXT_BYTES) -> bytes:
    """Return the bytes of a file.

    Raises:
        OSError: as `open_regular`, or it has more than `most` bytes.
    """
    with open_regular(path) as file:
        # Python takes memory for all that is asked for: first what is there, then what has been added.
        num_bytes = os.fstat(file.fileno()).st_size
        content = b"" if num_bytes > most else file.read(num_bytes + 1)
        if len(content) > num_bytes:
            content += file.read(most + 1 - len(content))
        if len(content) > most or os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return the value of JSON from whomever it is.

    Args:
        options: of `json.loads`.

    Raises:
        ValueError: it is not JSON, has more than `MOST_VALUES` values, or is nested too deeply.
    """
    if isinstance(text, bytes):
        num_values = sum(text.count(mark) for mark in (b"[", b"{", b","))
    else:
        num_values = sum(text.count(mark) for mark in "[{,")
    if num_values > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES:,} values")
    try:
        return json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def lock_file(path: Path, *, is_shared: bool = False, wait_s: float = 0.0) -> BinaryIO:
    """Open a file, made if missing, and lock it until it is closed or this process ends, however it ends.

    Raises:
        BlockingIOError: another process has held the lock for `wait_s`.
        OSError: it cannot be opened, or its file system has no locks.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    kind, until = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX, time.monotonic() + wait_s
    while True:
        file = os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), os.lstat(path)):
                return file
        except FileNotFoundError:  # its owner has deleted it in between; lock the new one then
            pass
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() >= until:
                file.close()
                raise
        file.close()
        time.sleep(RETRY_S)
