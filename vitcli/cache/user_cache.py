"""The user's cache folder: what is in it, for how long, and how much of it at most.

Every kind has a folder of entries, each a folder of its own. Whoever uses an entry holds one of the locks
use-0.lock, use-1.lock, ... in it, taken under its lock "lock", and what is in use is never deleted.
All but downloads are bounded together: the least recently used entries make room. Only names that vit gives
are ever deleted, and no link is followed.
"""

import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vitcli.errors import VitError
from vitcli.io.files import lock_file
from vitcli.output.atomic import DEBRIS_AGE_S, TEMPORARY, read_json

LIMIT = "VIT_CACHE_LIMIT"  # environment variable: bytes of all kinds that are bounded
DEFAULT_LIMIT = 50 * 10**9
FREE_FRACTION = 0.25  # of the free disk space, with what the cache takes of it now
UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
         "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}  # fmt: skip
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)
SIZE_EXAMPLES = "a size such as 20GB, 500MB or 0"
LOCK, ABOUT = "lock", "about.json"  # in the folder of an entry
USE_WAIT_S = 10.0  # while others begin to use an entry, or delete it


@dataclass(frozen=True)
class EntryKind:
    """A kind of entry.

    Attributes:
        folder: below the cache folder.
        what: it holds, in a few words.
        is_bounded: whether old entries make room for new ones.
    """

    folder: str
    what: str
    is_bounded: bool = True


KINDS = {
    "decoded": EntryKind("decoded", "decoded images"),
    "features": EntryKind("features", "features of frozen networks"),
    "teachers": EntryKind("teachers", "teacher predictions of training views"),
    "shards": EntryKind("shards", "blocks of remote shards, indexes of .tar shards"),
    "weights": EntryKind("weights", "downloaded weights", is_bounded=False),
}
NAME = re.compile(r"[0-9a-f]{16}|[0-9a-f]{32}")  # of an entry; nothing else is touched


@dataclass(frozen=True)
class CacheEntry:
    """One folder of the cache.

    Attributes:
        num_bytes: on disk, which is less than the length of a file with holes.
        last_used: seconds since the epoch.
        about: what it holds, in words; "" if it does not say.
    """

    kind: str
    path: Path
    num_bytes: int
    last_used: float
    about: str = ""

    @property
    def is_bounded(self) -> bool:
        """Whether it counts towards the bound, and may be deleted for it."""
        return KINDS[self.kind].is_bounded


def cache_folder(kind: str) -> Path:
    """Return the folder of a kind: $XDG_CACHE_HOME/vit/KIND, by default ~/.cache/vit/KIND."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base), "vit", KINDS[kind].folder)


def make_own_folder(folder: Path) -> Path:
    """Make a folder for this user alone.

    Raises:
        OSError: it cannot be made, it is a link, or it belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink():
        raise OSError(0, f"{folder} is a link; to move the cache, set XDG_CACHE_HOME")
    if hasattr(os, "geteuid") and folder.stat().st_uid != os.geteuid():
        raise OSError(0, f"{folder} belongs to another user")
    return folder


def parse_size(text: str, *, where: str) -> int:
    """Return the bytes that a size such as 20GB, 1.5 GiB or 0 stands for.

    Raises:
        VitError: it is not a size.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise VitError(f"{text[:40]!r} is not a size", where=where, fix=f"write {SIZE_EXAMPLES}")
    return int(float(match[1]) * UNITS[match[2].lower()])


def asked_limit() -> int:
    """Return the bytes that VIT_CACHE_LIMIT allows.

    Raises:
        VitError: it is not a size.
    """
    text = os.environ.get(LIMIT)
    return parse_size(text, where=f"environment variable {LIMIT}") if text else DEFAULT_LIMIT


def room_for_more() -> int:
    """Return the bytes that a new entry may take if all entries that nobody uses made room."""
    entries = _bounded_entries()
    in_use = sum(entry.num_bytes for entry in entries if is_in_use(entry.path))
    return max(0, limit_bytes(sum(entry.num_bytes for entry in entries)) - in_use)


def make_room(num_bytes: int) -> bool:
    """Delete the least recently used entries until this many bytes more fit; return False if they cannot."""
    entries = sorted(_bounded_entries(), key=lambda entry: entry.last_used)
    used = sum(entry.num_bytes for entry in entries)
    limit = limit_bytes(used)
    if num_bytes > limit:  # in vain
        return False
    for entry in entries:
        if used + num_bytes <= limit:
            return True
        if delete(entry.path):
            used -= entry.num_bytes
    return used + num_bytes <= limit


def limit_bytes(used: int) -> int:
    """Return the bytes that all bounded kinds may take, now that they take `used`."""
    folder = cache_folder("decoded").absolute()
    nearest = next(parent for parent in folder.parents if parent.exists())
    return int(min(asked_limit(), FREE_FRACTION * (shutil.disk_usage(nearest).free + used)))


def _bounded_entries() -> list[CacheEntry]:
    return [entry for entry in all_entries() if entry.is_bounded]


def all_entries(kinds: Iterable[str] = KINDS) -> list[CacheEntry]:
    """List the entries of several kinds; a missing, linked or unreadable folder has none."""
    entries = []
    for kind, folder in ((kind, cache_folder(kind)) for kind in kinds):
        if folder.is_symlink():
            continue
        with suppress(OSError), os.scandir(folder) as names:
            for name in names:
                with suppress(OSError):  # deleted meanwhile
                    if _is_entry(name):
                        entries.append(_entry(kind, Path(name.path)))
    return entries


def _is_entry(name: os.DirEntry) -> bool:
    if not name.is_dir(follow_symlinks=False):
        return False
    if name.name.startswith(TEMPORARY):
        return time.time() - name.stat(follow_symlinks=False).st_mtime > DEBRIS_AGE_S
    return NAME.fullmatch(name.name) is not None


def _entry(kind: str, path: Path) -> CacheEntry:
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    sizes, last_used = 0, 0.0
    for file in files:
        with suppress(OSError):
            inner = file.lstat()
            blocks = getattr(inner, "st_blocks", -(-inner.st_size // 512))  # which Windows does not count
            on_disk = blocks * 512 if stat.S_ISREG(inner.st_mode) else 0
            sizes, last_used = sizes + on_disk, max(last_used, inner.st_mtime)
    about = (read_json(path / ABOUT) or {}).get("name")
    downloads = [file.name for file in files if file.name != LOCK and file.suffix not in (".lock", ".json")]
    names = ", ".join(sorted(downloads)[:2]) if kind == "weights" else ""
    return CacheEntry(kind, path, sizes, last_used or path.lstat().st_mtime, str(about or names))


def mark_used(path: Path) -> None:
    """Remember that an entry is used now; a cache that cannot be written only forgets it."""
    with suppress(OSError):
        os.utime(path / LOCK)


_held: dict[Path, BinaryIO] = {}


def hold(folder: Path) -> None:
    """Keep an entry from being deleted as long as this process runs, where the cache can be written."""
    if folder not in _held:
        with suppress(OSError):
            _held[folder] = lock_use(folder)
    mark_used(folder)


def lock_use(path: Path) -> BinaryIO:
    """Return an open, locked file of an entry; until it is closed, no process deletes the entry.

    It is taken under the lock that deletion holds; the time of that one's file is that of the last use.

    Raises:
        OSError: as `lock_file`; FileNotFoundError: the entry has been deleted.
    """
    with lock_file(path / LOCK, wait_s=USE_WAIT_S):
        number = 0
        while True:
            try:
                return lock_file(path / f"use-{number}.lock")
            except BlockingIOError:  # of another that uses it
                number += 1


def _lock_unused(path: Path) -> BinaryIO | None:
    """Return the open, locked lock of an unused entry, which stays unused until it is closed.

    None if it is in use, deleted, or cannot be locked, as on a file system without locks.
    """
    with ExitStack() as held, suppress(OSError):
        lock = held.enter_context(lock_file(path / LOCK))
        for use in path.glob("use-*.lock"):
            lock_file(use).close()
        held.pop_all()
        return lock
    return None


def is_in_use(path: Path) -> bool:
    """Return whether a process uses an entry."""
    if not os.path.lexists(path / LOCK):
        return False
    if lock := _lock_unused(path):
        lock.close()
    return lock is None


def delete(path: Path) -> bool:
    """Delete an entry that no process uses; return False if one does, or it cannot be deleted.

    It is renamed first: another process sees all of it or nothing. No link is followed.
    """
    if path.is_symlink():
        return False
    lock = _lock_unused(path)
    if lock is None:
        return False
    with lock:
        if os.name == "nt":  # which renames no folder in which anybody has a file open, such as a lock
            lock.close()
        grave = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        try:
            path.rename(grave)
        except OSError:
            return False
        shutil.rmtree(grave, ignore_errors=True)
        return True


def choose(
    entries: Sequence[CacheEntry], *, older_than_s: float | None = None, keep_bytes: int | None = None
) -> list[CacheEntry]:
    """Return the entries to delete, least recently used first.

    Args:
        older_than_s: only those unused for at least this long.
        keep_bytes: only as many as are needed to keep this many bytes.
    """
    now, used = time.time(), sum(entry.num_bytes for entry in entries)
    chosen = []
    for entry in sorted(entries, key=lambda entry: entry.last_used):
        if keep_bytes is not None and used <= keep_bytes:
            break
        if older_than_s is not None and now - entry.last_used <= older_than_s:
            break
        chosen.append(entry)
        used -= entry.num_bytes
    return chosen


def parse_age(text: str, *, where: str) -> float:
    """Return the seconds that an age such as 30d, 12h or 2w stands for.

    Raises:
        VitError: it is not an age.
    """
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip(), re.IGNORECASE)
    if match is None or not math.isfinite(float(match[1])):
        raise VitError(f"{text[:40]!r} is not an age", where=where, fix="write one such as 30d, 12h or 2w")
    return float(match[1]) * units[match[2].lower()]
