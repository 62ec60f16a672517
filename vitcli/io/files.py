"""Files of anyone, read without waiting for a pipe and without filling the memory; locks of processes."""

import errno
import json
import os
import stat
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

MOST_TEXT_BYTES = 2**26  # of a file of settings or results; as text it may take four times that
MOST_VALUES = 2_000_000  # of JSON: each takes up to 100 bytes
MOST_BYTES = 2**30  # of an image
HARD_LINK = "a hard link"
RETRY_S = 0.02  # between tries to get a lock
# Of `os.open`, where the system has them: bytes as they are, no waiting for a pipe, none for a child process
PLAIN = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_NONBLOCK", "O_CLOEXEC"))
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
UPDATE = os.O_RDWR | os.O_CREAT | NO_LINK  # of a file of ours


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, mode: int = 0o600) -> BinaryIO:
    """Open a file; a pipe or a device is refused, and not waited for.

    Args:
        flags: of `os.open`, by default for reading, also by a link; what may be written is not buffered.
        mode: of a new file.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    if flags & os.O_CREAT and not NO_LINK and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    handle = os.open(path, flags | PLAIN, mode)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        is_update = flags & os.O_RDWR
        return os.fdopen(handle, "r+b" if is_update else "rb", buffering=0 if is_update else -1)
    os.close(handle)
    if stat.S_ISDIR(kind):
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


def lock_file(path: Path, *, wait_s: float = 0.0) -> BinaryIO:
    """Open a file, made if missing, and lock it until it is closed or this process ends, however it ends.

    The lock is the system's own (flock, LockFileEx on Windows), never a file that a killed process leaves.

    Raises:
        BlockingIOError: another process has held the lock for `wait_s`.
        OSError: it cannot be opened, or its file system has no locks.
    """
    from filelock import lock_descriptor  # a tenth of a second, for commands that lock nothing

    until = time.monotonic() + wait_s
    while True:
        file = open_regular(path, UPDATE, mode=0o666)
        try:
            is_locked = lock_descriptor(file.fileno(), blocking=False)
            # Its owner may have deleted it in between; lock the new one then
            if is_locked and os.path.samestat(os.fstat(file.fileno()), os.lstat(path)):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()
        if not is_locked and time.monotonic() >= until:
            raise BlockingIOError(errno.EAGAIN, "another process holds its lock", str(path))
        time.sleep(RETRY_S)


def delete_lock(path: Path) -> None:
    """Delete the file of a lock that this process holds; where no open file can be deleted, it stays."""
    with suppress(PermissionError):
        path.unlink(missing_ok=True)
