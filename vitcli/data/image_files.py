"""Image files that a command line names, as an unlabelled split."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitcli.data import layouts
from vitcli.data.split import Split
from vitcli.errors import DataError


def find_images(names: Sequence[str], *, where: str) -> list[str]:
    """Return every image file that files, folders and globs name, each once, in the order given.

    Args:
        where: the option or argument that they come from.

    Raises:
        DataError: a name matches no image.
    """
    files: dict[str, None] = {}
    for name in names:
        if name and Path(name).is_dir():
            matches = [file for file in layouts.image_files(Path(name)) if os.path.isfile(file)]
        elif Path(name).is_file():
            matches = [name]
        else:
            matches = sorted(path for path in glob.glob(name, recursive=True) if Path(path).is_file())
        if not matches:
            raise DataError(f"no image found in {name!r}", where=where, fix="a file, a folder or a glob")
        files.update(dict.fromkeys(matches))
    return list(files)


def as_split(files: list[str]) -> Split:
    """Return unlabelled files as a split, so that they are decoded and resized as evaluation does it."""

    def read_row(row: int) -> tuple[bytes, int]:
        try:
            return Path(files[row]).read_bytes(), 0
        except OSError as error:
            raise DataError(
                f"an image cannot be read: {error.strerror}", where=files[row], fix="check the file"
            ) from error

    return Split(
        name="the given images",
        num_examples=len(files),
        class_names=None,
        num_classes=1,
        read_row=read_row,
        read_labels=lambda: np.zeros(len(files), dtype=np.int64),
        where_is=lambda row: files[row],
    )
