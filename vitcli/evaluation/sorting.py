"""`vit predict --sort-into`: copies of the images in a folder for each class, nothing overwritten."""

import filecmp
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from vitcli.data.sources.folders import SYSTEM_FOLDERS
from vitcli.errors import MachineError, VitError
from vitcli.io.files import UPDATE, irregularity, open_regular
from vitcli.output.atomic import remove_debris, temporary_beside

UNSURE = "unsure"  # the folder, and the word, for what --threshold leaves undecided
SORT_INTO = "--sort-into"
COPY = "copy"  # in the name of a file that is not whole yet
LONGEST = 120  # bytes of a folder's name
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # on Windows


def check_target(
    folder: Path, names: Sequence[str], files: Sequence[str], *, option: str = SORT_INTO
) -> None:
    """Refuse what is not a folder, cannot be written, or has images to sort in it, above or below it.

    Args:
        names: of the images as they were given, files and folders.
        files: the images.

    Raises:
        VitError: the reason.
    """
    where = f"{option} {folder}"
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


def refuse_links(folder: Path, class_names: Sequence[str], *, option: str = SORT_INTO) -> None:
    """Refuse a link, or a file, in the place of the folder of a class: copies would be made where it points.

    Raises:
        MachineError: one is there; nothing has been copied.
    """
    for name in (*folder_names(class_names).values(), UNSURE):
        if kind := irregularity(folder / name, is_folder=True):
            raise MachineError(
                f"{name} is {kind}, and no image is copied into it",
                where=f"{option} {folder}",
                fix="remove it, or name another folder",
            )


def is_only_unlike(prediction: Mapping[str, Any]) -> bool:
    """Return whether an image is unlike the training images, and not below a threshold."""
    return prediction.get("in_distribution") is False and not prediction.get(UNSURE)


def copy_into(
    folder: Path,
    predictions: Sequence[dict[str, Any]],
    class_names: Sequence[str],
    *,
    option: str = SORT_INTO,
) -> dict[str, int]:
    """Copy each image into the folder of its class; return the number of copies by the name of the folder.

    Those below the threshold, or unlike the training images, go to UNSURE.
    A file of the same name and bytes is not copied again; one of other bytes stays, and the copy gets a
    number after its name.

    Raises:
        MachineError: a copy cannot be written, or a folder is a link; copies that have been made are whole.
    """
    refuse_links(folder, class_names, option=option)
    names, counts = folder_names(class_names), dict[str, int]()
    for prediction in predictions:
        is_unsure = prediction.get(UNSURE) or is_only_unlike(prediction)
        name = UNSURE if is_unsure else names[prediction["top"][0]["class"]]
        source = prediction["file"]
        try:
            if name not in counts:
                (folder / name).mkdir(parents=True, exist_ok=True)
                remove_debris(folder / name / COPY)
            _copy(source, folder / name / os.path.basename(source))
        except OSError as error:
            raise MachineError(
                f"{source} cannot be copied: {error.strerror or error}",
                where=f"{option} {folder}",
                fix="free disk space or correct the permissions; what is copied is whole",
            ) from error
        counts[name] = counts.get(name, 0) + 1
    return counts


def _copy(source: str, target: Path) -> None:
    """Copy a file under the first name that is free, through a hidden one, so that no part of it is seen.

    The copy has the permissions of its source, as far as the umask allows them.
    """
    temporary = temporary_beside(target.with_name(COPY))
    try:
        with open_regular(source) as original:
            mode = os.fstat(original.fileno()).st_mode & 0o777
            with open_regular(temporary, UPDATE | os.O_EXCL, mode=mode) as file:
                shutil.copyfileobj(original, file)
        numbered = (target.with_stem(f"{target.stem}-{number}") for number in count(2))
        while True:
            try:
                os.link(temporary, target)
                return
            except OSError:  # the name is taken, or there are no hard links here
                if not os.path.lexists(target):
                    os.rename(temporary, target)
                    return
            is_file = target.is_file() and not target.is_symlink()  # a link is never the same
            if is_file and filecmp.cmp(temporary, target, shallow=False):
                return
            target = next(numbered)
    finally:
        temporary.unlink(missing_ok=True)
