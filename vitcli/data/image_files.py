"""Pictures that a command line names: files, folders and globs to an unlabelled split."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitcli.data import layouts
from vitcli.data.split import Split
from vitcli.errors import DataError


def find_images(pictures: Sequence[str], *, where: str) -> list[str]:
    """Every picture that files, folders and globs name, each once, in the order given.

    Args:
        where: the option or argument that they come from.

    Raises:
        DataError: a name that leads to no picture.
    """
    found: dict[str, None] = {}
    for name in pictures:
        if name and Path(name).is_dir():
            here = [file for file in layouts.image_files(Path(name)) if os.path.isfile(file)]
        elif Path(name).is_file():
            here = [name]
        else:
            here = sorted(path for path in glob.glob(name, recursive=True) if Path(path).is_file())
        if not here:
            raise DataError(
                f"no picture is found under {name!r}",
                where=where,
                fix="a file, a folder of pictures, or a glob",
            )
        found.update(dict.fromkeys(here))
    return list(found)


def as_split(files: list[str]) -> Split:
    """Unlabelled files in the form that evaluation reads, so that both see the same pixels."""

    def read_row(row: int) -> tuple[bytes, int]:
        try:
            return Path(files[row]).read_bytes(), 0
        except OSError as error:
            raise DataError(
                f"a picture cannot be read: {error.strerror}", where=files[row], fix="check it"
            ) from error

    return Split(
        name="the given pictures",
        num_examples=len(files),
        class_names=None,
        num_classes=1,
        read_row=read_row,
        read_labels=lambda: np.zeros(len(files), dtype=np.int64),
        where_is=lambda row: files[row],
    )
