"""Image files that a command line names, as an unlabelled split."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitcli.data.sources.folders import (
    NOTHING,
    UNREADABLE,
    LeftOut,
    advice_on,
    holds_results,
    is_image,
    left_out_of,
    list_files,
    named,
    union,
)
from vitcli.data.sources.wrong_layouts import no_data_set
from vitcli.data.split import Split
from vitcli.errors import DataError, is_of_machine
from vitcli.io.files import MOST_BYTES, read_regular


def find_images(names: Sequence[str], *, where: str) -> Split:
    """Return every image that files, folders and globs name, each once, in the order given, without labels.

    A file that is named itself is among them whatever it holds: who reads it gets the reason. Files of other
    kinds that a folder or a glob holds are left out.

    Raises:
        DataError: a name matches no image, or nothing else is named than files that cannot be read.
    """
    matches = [_matches(name, where) for name in names]
    files = list(dict.fromkeys(file for images, _ in matches for file in images))
    if files and all(map(advice_on, files)):
        what = f"{files[0]} is not an image vit can read: {advice_on(files[0])}"
        raise DataError(what, where=where, fix="convert it to JPEG or PNG")
    return as_split(files, union(left_out for _, left_out in matches))


def _matches(name: str, where: str) -> tuple[list[str], LeftOut]:
    """Return the images that one name stands for, and what is left out of a folder or a glob."""
    path = Path(name)
    if name and path.is_dir():
        if holds_results(path):
            fix = "name files or folders of images; --ckpt takes a run"
            raise DataError(f"{name} is a folder of results, whose images are figures", where=where, fix=fix)
        listed = list_files(path, path)
        if not listed.images:
            refusal = no_data_set(path, name)
            raise DataError(refusal.message, where=where, fix="name a file, a folder or a glob of images")
        return listed.images, listed.left_out(path)
    if path.is_file():
        return [name], NOTHING
    files = sorted(file for file in glob.glob(name, recursive=True) if Path(file).is_file())
    images, others = list[str](), list[str]()
    for file in files:
        (images if is_image(file) else others).append(file)
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
        if advice := advice_on(files[row]):  # by their bytes, some files of cameras are small TIFF images
            what = f"an image cannot be read: {advice}"
            raise DataError(what, where=files[row], fix="convert it to JPEG or PNG")
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
