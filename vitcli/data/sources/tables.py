"""The splits of a data set as tables of images, which every layout becomes."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitcli.data.sources.folders import NOTHING, LeftOut, list_files
from vitcli.data.split import base_of
from vitcli.errors import DataError
from vitcli.output.text import plain

if TYPE_CHECKING:
    import datasets  # which takes time to load, and the names in this file are needed without it

SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
}
UNLABELLED = "images"  # the split of a folder of images without labels


@dataclass(frozen=True)
class Choices:
    """What a user says about a data set that its files may leave open.

    Attributes:
        image_column, label_column: of tables, shards and files of labels; else found by types and usual
            names. Several columns of 0 and 1 in a file of labels are named with commas between them.
        num_classes: of shards that do not give it.
        streaming: read shards in place; remote shards and .tar files are always read so.
        one_class: take a folder that holds one folder of folders as a data set of one class.
        group_column: which rows belong together, see `parts.groups`; None for each row alone.
        needs_labels: False where images alone will do, so that any folder of images is taken.
        numbers: whether the labels are numbers to predict, and no classes.
    """

    image_column: str | None = None
    label_column: str | None = None
    num_classes: int | None = None
    streaming: bool = False
    one_class: bool = False
    group_column: str | None = None
    needs_labels: bool = True
    numbers: bool = False


AS_FOUND = Choices()  # nothing is said


@dataclass(frozen=True)
class Tables:
    """The splits of one data set.

    Attributes:
        open: by split name, a function that opens it.
        root: the folder that image paths may point into; None where rows carry their bytes.
        left_out: function of a split name to the files that are not read.
        notes: lines about the data set that a user should see.
        has_labels: False for plain folders of images.
        label_column: of the labels, where a file of labels names it; None to find it by its type.
    """

    open: Mapping[str, Callable[[], "datasets.Dataset"]]
    root: Path | None
    left_out: Callable[[str], LeftOut] = lambda split: NOTHING
    notes: tuple[str, ...] = ()
    has_labels: bool = True
    label_column: str | None = None


def table_of(
    paths: Sequence[str],
    columns: dict[str, list] | None = None,
    types: dict[str, object] | None = None,
    *,
    image_column: str = "image",
) -> "datasets.Dataset":
    """Return a table of image files, which are not read yet, and other columns of these types."""
    import datasets

    check_names(paths)
    features = datasets.Features({image_column: datasets.Image(decode=False), **(types or {})})
    images = [{"bytes": None, "path": path} for path in paths]
    return datasets.Dataset.from_dict({image_column: images, **(columns or {})}, features=features)


def pooled(tables: Sequence["datasets.Dataset"], *, name: str, split: str) -> "datasets.Dataset":
    """Return the rows of one table, or of several, one after the other; DataError if their columns differ.

    Args:
        name, split: of the data set, and of the splits that they are, for messages.
    """
    import datasets

    if len(tables) == 1:
        return tables[0]
    try:
        return datasets.concatenate_datasets([*tables])
    except ValueError as error:
        raise DataError(
            f"the splits {split} of {name} cannot be pooled: their columns or classes differ",
            where=f"split {split!r}",
            fix="write them with the same columns and class names, or name one of them",
        ) from error


def slice_of(split: str, num_rows: int) -> tuple[int, int]:
    """Return the first row of a slice such as train[:90%], and the one behind its last, of this many.

    Raises:
        ValueError, AssertionError: it is not a slice as `datasets` writes them.
    """
    import datasets

    (piece,) = datasets.ReadInstruction.from_spec(split).to_absolute({base_of(split): num_rows})
    return piece.from_ or 0, num_rows if piece.to is None else piece.to


def check_names(names: Iterable[str]) -> None:
    """Refuse names in another encoding, which neither a table nor a checkpoint can hold."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"a name is not UTF-8: {plain(os.path.basename(name))}",
                where=plain(name),
                fix="rename it; of many files: convmv -r -f latin1 -t utf8 --notest FOLDER",
            ) from error


def open_without_labels(path: Path) -> Tables | None:
    """Return all images below a folder as one split without labels; None if there are none."""
    files = list_files(path, path)
    if not files.images:
        return None
    return Tables(
        {UNLABELLED: partial(table_of, files.images)},
        path,
        left_out=lambda split: files.left_out(path),
        has_labels=False,
    )


def split_of(file: Path) -> str:
    """Return the split that the path of a file inside the data set names, else train."""
    return split_named_in(file) or "train"


def split_named_in(file: Path) -> str | None:
    """Return the split of a file by the first such word in its path inside the data set; None without one."""
    words = [
        word for part in file.with_suffix("").parts for word in part.lower().replace("_", "-").split("-")
    ]
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), None)
