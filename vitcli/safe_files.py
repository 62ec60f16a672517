"""Files that are there whole or not at all, whatever happens while they are written."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vitcli.errors import MachineError

TEMPORARY = ".tmp-"  # begins the name of every file and folder that is not whole yet


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file under an unpredictable name beside it, force it to disk, then rename it into place.

    Raises:
        MachineError: the disk is full or the folder may not be written to; an earlier file is as it was.
    """
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}-")
        os.close(handle)
        write(Path(name))
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes files for their owner alone
        sync(name)
        os.replace(name, path)
        sync(path.parent)
    except (OSError, SafetensorError) as error:
        fix = "make room, or choose another folder"
        raise MachineError(f"{path.name} was not written: {error}", where=str(path), fix=fix) from error
    finally:
        if name:
            Path(name).unlink(missing_ok=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """An object as JSON for people and programs, in the place of what was there."""
    replace_file(path, lambda file: file.write_text(json.dumps(value, indent=2) + "\n"))


def sync(path: str | Path) -> None:
    """Force a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
