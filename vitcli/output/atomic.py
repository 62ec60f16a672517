"""Files written whole or not at all, and readers that tolerate what a crash left."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from vitcli.errors import MachineError, VitError
from vitcli.io.files import open_regular, parse_json, read_regular
from vitcli.output.leases import fence
from vitcli.output.text import bytes_text, json_of

TEMPORARY = ".tmp-"  # prefix of every file and folder that is not complete yet
DEBRIS_AGE_S = 3600.0  # after which what a killed process left half deleted or half written is deleted
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
MOST_LINE_BYTES = 2**24
MAX_RECORDS = 2_000_000  # of one .jsonl file; the rest is left out


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file under an unpredictable name beside it, force it to disk, then rename it into place.

    Raises:
        MachineError: the disk is full or the folder is not writable, or this worker holds the cell no longer
            (`leases`); an earlier file is unchanged.
    """
    temporary = temporary_beside(path)
    try:
        fence(path)  # before a folder that has vanished is made anew, and again before its file is replaced
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_debris(path)
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)  # a writer may put a file there that only its owner can read
        sync(temporary)
        fence(path)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        raise MachineError(
            f"{path.name} was not written: {error.strerror or error}",
            where=f"{path} ({room_at(path.parent)})" if error.errno in FULL else str(path),
            fix="make room, or choose another folder",
        ) from error
    finally:
        with suppress(OSError):  # the folder is a file, or has gone
            temporary.unlink(missing_ok=True)


def temporary_beside(path: Path) -> Path:
    """Return an unpredictable name for what is to become this file; `remove_debris` knows it."""
    return path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(8)}")


def remove_debris(path: Path) -> None:
    """Delete what killed commands have left beside a file or folder that they were writing.

    What is younger than an hour may be of a command that still runs.
    """
    debris = re.compile(rf"{re.escape(TEMPORARY + path.name)}-[0-9a-z_]{{8,16}}")
    before = time.time() - DEBRIS_AGE_S
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if not debris.fullmatch(entry.name) or entry.stat(follow_symlinks=False).st_mtime > before:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text in UTF-8."""
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a file by an object as indented JSON in UTF-8."""
    write_text(path, json_of(value, indent=2) + "\n")


def load_json(path: Path, **options: Any) -> Any:
    """Return the value of a file of JSON, from whomever it is.

    Args:
        options: of `json.loads`.

    Raises:
        OSError: as `read_regular`.
        ValueError: as `parse_json`.
    """
    return parse_json(read_regular(path), **options)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file; None if the file is missing, unreadable, damaged or no object."""
    try:
        value = load_json(path)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the records of a .jsonl file, none if it is missing.

    A line that is cut off or no object is left out: a live run may be writing it.

    Raises:
        MachineError: the file cannot be read.
    """
    records: list[dict[str, Any]] = []
    try:
        with open_regular(path) as file:
            for line in islice(iter(lambda: file.readline(MOST_LINE_BYTES), b""), MAX_RECORDS):
                if len(line) == MOST_LINE_BYTES:  # no record of ours, nor what follows
                    break
                try:
                    record = json.loads(line.decode("utf-8", errors="replace"))
                except (ValueError, RecursionError):
                    continue
                if isinstance(record, dict):
                    records.append(record)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unreadable(path, error) from error
    return records


def unreadable(path: Path, error: OSError) -> MachineError:
    """Return the error to raise for a file or folder that cannot be read."""
    fix = "correct its permissions, or leave it out"
    return MachineError(f"{path.name} cannot be read: {error.strerror}", where=str(path), fix=fix)


def check_out(
    path: Path,
    *,
    overwrite: bool,
    option: str = "--out",
    suffixes: Sequence[str] = (),
    folder_error: type[VitError] = MachineError,
) -> None:
    """Refuse, before any work, a file that could not be written at its end; make nothing.

    Args:
        suffixes: one of which the name must have; () accepts any.
        folder_error: raised where the path is a folder; the exit code is the command's own.

    Raises:
        VitError: another suffix, or the file already exists and is not to be overwritten.
        MachineError: the folder of the file cannot be written.
    """
    _check_path(path, option=option)
    endings = " or ".join(suffixes)
    if suffixes and path.suffix not in suffixes:
        raise VitError(f"{path} does not end in {endings}", where=option, fix=f"name a file in {endings}")
    if path.is_dir():
        raise folder_error(f"{path} is a folder", where=option, fix="name a file in it, or another file")
    if path.exists() and not overwrite:
        fix = "choose another name, or replace it with --overwrite"
        raise VitError(f"{path} already exists", where=option, fix=fix)
    check_can_write_in(path.parent, option=option)


def check_can_write_in(folder: Path, *, option: str) -> None:
    """Refuse a folder in which, or below whose nearest existing parent, no file can be made; leave nothing.

    A file without a name is made and dropped: permissions alone do not show that /proc takes no files.
    """
    _check_path(folder, option=option)
    folder = folder.absolute()
    nearest = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    if not os.path.isdir(nearest):
        raise _not_writable(folder, f"{option}: {nearest} is a file")
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise _not_writable(folder, f"{option}: {nearest}: {error.strerror}") from error


def _check_path(path: Path, *, option: str) -> None:
    """Refuse a path that cannot even be looked up: below an unsearchable folder, or with too long a name."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise _not_writable(path.parent, f"{option}: {path.name[:80]}: {error.strerror}") from error


def make_folder(folder: Path, *, option: str) -> None:
    """Make a folder and its parents, force their names to disk, and check that files can be made in it.

    Raises:
        MachineError: it cannot be done.
    """
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in made:
            with suppress(PermissionError):  # files can be made in a folder that cannot be read
                sync(path.parent)
    except OSError as error:
        raise _not_writable(folder, f"{option}: {error.strerror}") from error
    check_can_write_in(folder, option=option)


def room_at(folder: Path) -> str:
    """Say how much room the disk of a folder has, for an error."""
    try:
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        return f"{bytes_text(shutil.disk_usage(nearest).free)} free"
    except OSError:
        return "gone"


def _not_writable(folder: Path, where: str) -> MachineError:
    fix = "choose another folder, or correct its permissions"
    return MachineError(f"nothing can be written in {folder}", where=where, fix=fix)


def digest_of_file(path: Path, kind: str = "sha256") -> bytes:
    """Return a digest of a file, read in parts."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).digest()


def sync(path: str | Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if os.name == "nt" and os.path.isdir(
        path
    ):  # which cannot be opened there, and only a file to write is flushed
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
