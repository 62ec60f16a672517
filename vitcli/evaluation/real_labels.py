"""ReaL: the reassessed labels of ImageNet's validation pictures, and which list belongs to which row.

real.json of google-research/reassessed-imagenet: a list of classes for each picture, in the order of the file
names ILSVRC2012_val_00000001.JPEG and on (Beyer et al., arXiv 2006.07159).
"""

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

from vitcli.data.columns import PATHS
from vitcli.data.split import Split
from vitcli.errors import DataError, MachineError, nearest

FILE_NAME = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")
INDEX = "index"  # the column that is looked for where no other is named


def read_real(path: str) -> list[list[int]]:
    """The lists of a .json or .json.gz file.

    Raises:
        DataError: it is not there, not JSON, or not one list of classes for each picture.
    """
    try:
        packed = Path(path).read_bytes()
        text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
        lists = json.loads(text)
    except FileNotFoundError as error:
        fix = "real.json of github.com/google-research/reassessed-imagenet, or the path of another such file"
        raise DataError(f"there is no file {path}", where="--real", fix=fix) from error
    except (gzip.BadGzipFile, zlib.error, EOFError, RecursionError, ValueError) as error:
        what = f"{path} is damaged, or not JSON: {error}"
        raise DataError(what, where="--real", fix="fetch it anew") from error
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error}", where="--real", fix="fetch it anew") from error
    if not isinstance(lists, list) or not lists:
        raise DataError(f"{path} holds no lists", where="--real", fix="one list of classes for each picture")
    wrong = next((place for place, one in enumerate(lists) if not _is_list_of_classes(one)), None)
    if wrong is not None:
        raise DataError(
            f"entry {wrong} of {path} is no list of classes: {str(lists[wrong])[:60]}",
            where="--real",
            fix="one list of whole numbers from 0 for each picture, empty where it has no label",
        )
    return lists


def labels_for_rows(
    split: Split, lists: list[list[int]], *, column: str | None
) -> tuple[list[list[int]], str]:
    """The list of each row of a split, and in a few words what it was found by.

    By the column that is named; else by the number in file names ILSVRC2012_val_XXXXXXXX; else by a column
    called index, which counts from 0; else by the row, where there must be as many lists as rows.

    Raises:
        DataError: no such column, a picture that the lists do not reach to, or another count of them.
    """
    if column is not None:
        return _picked(split, lists, _column(split, column), f"column {column}")
    paths = _values(split, PATHS)
    named = [FILE_NAME.search(path or "") for path in paths or ()]
    if named and all(named):
        return _picked(split, lists, [int(name[1]) - 1 for name in named], "file name")
    numbers = _values(split, INDEX)
    if numbers is not None:
        return _picked(split, lists, numbers, f"column {INDEX}")
    if len(lists) != len(split):
        raise DataError(
            f"there are {len(lists)} lists of ReaL labels for {len(split)} rows of {split.name}",
            where="--real",
            fix="score the whole validation split in the order of its file names, or name the column that "
            "holds each picture's number from 0: --real-index COLUMN",
        )
    return lists, "row"


def check_any(lists: list[list[int]], name: str) -> None:
    """Refuse pictures of which none counts.

    Raises:
        DataError: every list is empty.
    """
    if not any(lists):
        raise DataError(
            f"none of the {len(lists)} pictures of {name} has a ReaL label",
            where="--real",
            fix="name the file that belongs to these pictures, or leave --real out",
        )


def _is_list_of_classes(one: Any) -> bool:
    return isinstance(one, list) and all(type(number) is int and number >= 0 for number in one)


def _values(split: Split, column: str) -> list | None:
    try:
        return split.read_column(column) if split.read_column else None
    except KeyError:
        return None


def _column(split: Split, column: str) -> list:
    values = _values(split, column)
    if values is None:
        raise DataError(
            f"{split.name} has no column {column!r}{nearest(column, [INDEX])}",
            where="--real-index",
            fix="name the column that holds each picture's number, counted from 0, or leave the option out",
        )
    return values


def _picked(split: Split, lists: list[list[int]], numbers: list, by: str) -> tuple[list[list[int]], str]:
    for row, number in enumerate(numbers):
        if type(number) is not int or not 0 <= number < len(lists):
            raise DataError(
                f"there are {len(lists)} lists of ReaL labels, and a picture by its {by} is number {number}",
                where=split.where_is(row),
                fix="name the file with a list for every picture; --real-index names another column",
            )
    return [lists[number] for number in numbers], by
