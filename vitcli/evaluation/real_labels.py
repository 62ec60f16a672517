"""ReaL: the reassessed labels of ImageNet's validation images, matched to the rows of a split.

real.json of google-research/reassessed-imagenet holds a list of classes for each image, in the order of the
file names from ILSVRC2012_val_00000001.JPEG on (Beyer et al., arXiv 2006.07159). timm includes a copy.
"""

import gzip
import io
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.data.columns import PATHS
from vitcli.data.split import Split
from vitcli.errors import DataError, MachineError, nearest
from vitcli.io.files import MOST_TEXT_BYTES, package_folder, parse_json, read_regular

FILE_NAME = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")
INDEX = "index"  # column searched for by default
TIMMS_COPY = "timm"  # in the place of a path


@dataclass(frozen=True)
class RealLabels:
    """All right classes of each row of a split, and the column or name that rows were matched by."""

    lists: list[list[int]]
    matched_by: str


def read_real(path: str) -> list[list[int]]:
    """Read the lists of a .json or .json.gz file, or TIMMS_COPY.

    Raises:
        DataError: the file is missing, not JSON, or not a list of classes for each image.
        MachineError: the file cannot be read.
    """
    # The file, compressed or not; timm's copy is read without loading timm.
    try:
        if path == TIMMS_COPY and not Path(path).exists():
            content = (package_folder("timm") / "data" / "_info" / "imagenet_real_labels.json").read_bytes()
        else:
            content = read_regular(path)
        if content[:2] == b"\x1f\x8b":
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MOST_TEXT_BYTES + 1)
        if len(content) > MOST_TEXT_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_TEXT_BYTES:,} bytes")
        lists = parse_json(content)
    except FileNotFoundError as error:
        fix = "--real without a file takes timm's copy of the published labels"
        raise DataError(f"there is no file {path}", where="--real", fix=fix) from error
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        problem = f"{path} is damaged or not JSON: {error}"
        raise DataError(problem, where="--real", fix="download it again") from error
    except OSError as error:
        problem = f"{path} cannot be read: {error}"
        raise MachineError(problem, where="--real", fix="download it again") from error
    # A list of classes for each image.
    if not isinstance(lists, list) or not lists:
        raise DataError(f"{path} holds no lists", where="--real", fix="one list of classes for each image")
    wrong = next((index for index, entry in enumerate(lists) if not _is_list_of_classes(entry)), None)
    if wrong is not None:
        raise DataError(
            f"entry {wrong} of {path} is not a list of classes: {str(lists[wrong])[:60]}",
            where="--real",
            fix="one list of whole numbers from 0 for each image, empty where it has no label",
        )
    return lists


def labels_for_rows(
    split: Split, lists: list[list[int]], *, column: str | None
) -> tuple[list[list[int]], str]:
    """Return the list of each row of a split, and what rows were matched by.

    Rows are matched by `column` if named, else by the number in file names ILSVRC2012_val_XXXXXXXX, else by a
    column named index that counts from 0, else by row number, which needs as many lists as rows.

    Raises:
        DataError: no such column, an image's number exceeds the lists, or their count differs from the rows.
    """
    # The column that the user names.
    if column is not None:
        numbers = split.column(column)
        if numbers is None:
            similar = "" if column == INDEX else nearest(column, [INDEX])
            why = f"has no column {column!r}{similar}"
            if split.block_starts is not None and split.read_column is None:  # remote .tar files
                why = f"can give no column {column!r} without reading every image"
            raise DataError(
                f"{split.name} {why}",
                where="--real-index",
                fix="name the column that holds each image's number from 0, or leave the option out",
            )
        return _picked(split, lists, numbers, f"column {column}")
    # Without a name: file names, a column of numbers, the order of the rows.
    paths = split.column(PATHS)
    named = [int(name[1]) - 1 for path in paths or () if (name := FILE_NAME.search(path or ""))]
    if paths and len(named) == len(paths):
        return _picked(split, lists, named, "file name")
    numbers = split.column(INDEX)
    if numbers is not None:
        return _picked(split, lists, numbers, f"column {INDEX}")
    if len(lists) != len(split):
        raise DataError(
            f"there are {len(lists)} lists of ReaL labels for {len(split)} rows of {split.name}",
            where="--real",
            fix="evaluate on the whole validation split in the order of its file names, or name the column "
            "that holds each image's number from 0: --real-index COLUMN",
        )
    return lists, "row"


def labels_of_split(
    split: Split, lists: list[list[int]], number_of: list[int] | None, *, path: str, column: str | None
) -> RealLabels:
    """Return the ReaL labels of a split, and check that they belong to its images.

    Args:
        number_of: the checkpoint's number of each class of the data; None where both number alike.

    Raises:
        DataError: the labels name other classes, or disagree with most labels of the split.
    """
    # They must name the data's classes, and agree with most of its labels.
    of_rows, matched_by = labels_for_rows(split, lists, column=column)
    highest = max((number for numbers in of_rows for number in numbers), default=0)
    if highest >= split.num_classes:
        raise DataError(
            f"the ReaL labels name class {highest}, {split.name} has {split.num_classes} classes",
            where=f"--real {path}",
            fix="evaluate on ImageNet's validation split, which these labels belong to",
        )
    labels = split.read_labels().tolist()
    agrees = [label in numbers for label, numbers in zip(labels, of_rows, strict=True) if numbers]
    if sum(agrees) < len(agrees) / 2:  # in the published lists about nine in ten agree
        raise DataError(
            f"the ReaL labels agree with the label of only {sum(agrees)} of {len(agrees)} images",
            where=f"--real {path}, {split.name}, by {matched_by}",
            fix="use a copy with ImageNet's order of classes, or name the images with --real-index",
        )
    # In the checkpoint's numbers.
    if number_of is not None:
        of_rows = [[number_of[number] for number in numbers] for numbers in of_rows]
    check_any(of_rows, split.name)
    return RealLabels(of_rows, matched_by)


def real_hits(classes_N: list[int], lists_N: list[list[int]]) -> tuple[int, int]:
    """Return the number of right images, and of images that count for ReaL accuracy.

    An image counts if its list has a class, and is right if the list has the predicted class (Beyer et al.).
    """
    hits = (predicted in right for predicted, right in zip(classes_N, lists_N, strict=True))
    return sum(hits), sum(map(bool, lists_N))


def check_any(lists: list[list[int]], name: str) -> None:
    """Raise DataError if every list is empty, so that no image counts."""
    if not any(lists):
        raise DataError(
            f"none of the {len(lists)} images of {name} has a ReaL label",
            where="--real",
            fix="name the file that belongs to these images, or leave --real out",
        )


def _is_list_of_classes(entry: Any) -> bool:
    return isinstance(entry, list) and all(type(number) is int and number >= 0 for number in entry)


def _picked(split: Split, lists: list[list[int]], numbers: list, by: str) -> tuple[list[list[int]], str]:
    for row, number in enumerate(numbers):
        if type(number) is not int or not 0 <= number < len(lists):
            raise DataError(
                f"there are {len(lists)} lists of ReaL labels, but an image is number {number} by its {by}",
                where=split.where_is(row),
                fix="name the file with a list for every image; --real-index names another column",
            )
    return [lists[number] for number in numbers], by
