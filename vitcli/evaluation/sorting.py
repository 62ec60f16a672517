"""`vit predict --sort-into`: copies of the images in a folder for each class, nothing overwritten."""

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from vitcli.data.sources.folders import SYSTEM_FOLDERS
from vitcli.errors import MachineError, VitError

UNSURE = "unsure"  # the folder, and the word, for what --threshold leaves undecided
LONGEST = 120  # bytes of a folder's name
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # on Windows


def check_target(folder: Path, names: Sequence[str], files: Sequence[str]) -> None:
    """Refuse a folder that is no folder, cannot be written, or has images to sort in it, above or below it.

    Args:
        names: of the images as they were given, files and folders.
        files: the images.

    Raises:
        VitError: the reason.
    """
    where = f"--sort-into {folder}"
    if not str(folder).strip() or (os.path.lexists(folder) and not folder.is_dir()):
        what = f"{folder} is a file" if folder.name else "the name of the folder is empty"
        raise VitError(what, where=where, fix="name a folder, new or with earlier copies")
    target = folder.resolve()
    sources = {Path(name).resolve() for name in names if Path(name).is_dir()}
    for source in sorted(sources | {Path(file).resolve().parent for file in files}):
        if target == source or source in target.parents or target in source.parents:
            is_above = target != source and target in source.parents
            place = "above" if is_above else "the same as" if target == source else "within"
            raise VitError(
                f"{folder} is {place} the folder of images to sort, {source}",
                where=where,
                fix="name a folder beside it; images are copied, never moved",
            )


def folder_names(class_names: Sequence[str]) -> dict[str, str]:
    """Return a name for the folder of each class, different for different classes on any file system."""
    names: dict[str, str] = {}
    taken = {UNSURE}
    for class_name in class_names:
        base = _safe(class_name)
        candidates = (base if number == 1 else f"{base}-{number}" for number in count(1))
        names[class_name] = next(name for name in candidates if name.casefold() not in taken)
        taken.add(names[class_name].casefold())
    return names


def _safe(text: str) -> str:
    """Return a text as the name of one visible folder: no separator, no control character, not too long."""
    name = re.sub(r'[\x00-\x1f\x7f/\\:*?"<>|]', "_", text).strip(" .") or "class"
    while len(name.encode()) > LONGEST:
        name = name[:-1]
    is_special = RESERVED.fullmatch(name) or name.lower() in SYSTEM_FOLDERS
    return f"{name}_" if is_special else name


def copy_into(
    folder: Path, predictions: Sequence[dict[str, Any]], class_names: Sequence[str]
) -> dict[str, int]:
    """Copy each image into the folder of its class; return the number of copies by the name of the folder.

    A file of the same name and bytes is not copied again; one of other bytes stays, and the copy gets a
    number after its name.

    Raises:
        MachineError: a copy cannot be written; those that have been are whole.
    """
    names, counts = folder_names(class_names), {}
    for prediction in predictions:
        name = UNSURE if prediction.get(UNSURE) else names[prediction["top"][0]["class"]]
        source = prediction["file"]
        try:
            (folder / name).mkdir(parents=True, exist_ok=True)
            _copy(source, folder / name / os.path.basename(source))
        except OSError as error:
            raise MachineError(
                f"{source} cannot be copied: {error.strerror or error}",
                where=f"--sort-into {folder}",
                fix="free disk space or correct the permissions; the same command goes on with what is left",
            ) from error
        counts[name] = counts.get(name, 0) + 1
    return counts


def _copy(source: str, target: Path) -> None:
    """Copy a file under the first name that is free, through a hidden one, so that no part of it is seen."""
    handle, temporary = tempfile.mkstemp(prefix=".vit-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file, open(source, "rb") as original:
            shutil.copyfileobj(original, file)
        os.chmod(temporary, 0o644)
        numbered = (target.with_stem(f"{target.stem}-{number}") for number in count(2))
        while True:
            try:
                os.link(temporary, target)
                return
            except FileExistsError:
                if _are_equal(temporary, target):
                    return
                target = next(numbered)
            except OSError:  # no hard links here
                if not os.path.lexists(target):
                    os.rename(temporary, target)
                    return
                if _are_equal(temporary, target):
                    return
                target = next(numbered)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _are_equal(one: str, other: Path) -> bool:
    if not other.is_file() or os.path.getsize(one) != os.path.getsize(other):
        return False
    with open(one, "rb") as first, open(other, "rb") as second:
        while chunk := first.read(2**20):
            if chunk != second.read(2**20):
                return False
    return True
