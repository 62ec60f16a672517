"""Image files that a command line names, as an unlabelled split."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitcli.data.sources.folders import (
    ADVICE,
    NOTHING,
    UNREADABLE,
    LeftOut,
    is_image_name,
    left_out_of,
    list_files,
    named,
    suffix_of,
    union,
)
from vitcli.data.sources.wrong_layouts import no_data_set, unpacking
from vitcli.data.split import Split
from vitcli.errors import DataError, is_of_machine
from vitcli.regular_files import MOST_BYTES, read_regular


def find_images(names: Sequence[str], *, where: str) -> Split:
    """Return every image that files, folders and globs name, each once, in the order given, without labels.

    Args:
        where: the option or argument that they come from.

    Raises:
        DataError: a name matches no image.
    """
    matches = [_matches(name, where) for name in names]
    files = dict.fromkeys(file for images, _ in matches for file in images)
    return as_split(list(files), union(left_out for _, left_out in matches))


def _matches(name: str, where: str) -> tuple[list[str], LeftOut]:
    """Return the images that one name stands for, and what is left out of a folder or a glob."""
    path = Path(name)
    if name and path.is_dir():
        listed = list_files(path, path)
        if not listed.images:
            refusal = no_data_set(path, name)
            raise DataError(refusal.message, where=where, fix="name a file, a folder or a glob of images")
        return listed.images, listed.left_out(path)
    if path.is_file():
        if suffix_of(name) in ADVICE:
            what = f"{name} is not an image vit can read: {ADVICE[suffix_of(name)]}"
            raise DataError(what, where=where, fix=unpacking(name) or "convert it to JPEG or PNG")
        return [name], NOTHING
    files = sorted(file for file in glob.glob(name, recursive=True) if Path(file).is_file())
    images, others = [], []
    for file in files:
        (images if is_image_name(os.path.basename(file)) else others).append(file)
    if not images:
        holds = f", but {named(others)}" if others else ""
        fix = (
            "download it first: images are read from this machine"
            if "://" in name
            else "a file, a folder or a glob"
        )
        raise DataError(f"no image found in {name!r}{holds}", where=where, fix=fix)
    return images, left_out_of(UNREADABLE, others)


def as_split(files: list[str], left_out: LeftOut = NOTHING) -> Split:
    """Return unlabelled files as a split, so that they are decoded and resized as evaluation does it."""

    def read_row(row: int) -> tuple[bytes, int]:
        try:
            return read_regular(files[row], MOST_BYTES), 0
        except OSError as error:
            if is_of_machine(error):
                raise
            reason = "it is a link to a missing file" if os.path.islink(files[row]) else error.strerror
            raise DataError(
                f"an image cannot be read: {reason}", where=files[row], fix="check the file"
            ) from error

    return Split(
        name="the given images",
        num_examples=len(files),
        class_names=None,
        num_classes=1,
        read_row=read_row,
        read_labels=lambda: np.zeros(len(files), dtype=np.int64),
        where_is=lambda row: files[row],
        has_labels=False,
        left_out=left_out,
    )
