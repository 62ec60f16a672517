"""Labels from a file beside the images: labels.csv, or metadata.csv and metadata.jsonl as on the Hub.

One row names an image file, its label or labels and, if there is such a column, its split. Files are
untrusted: a row can name no file outside the folder, and labels are text (`label_values`).
"""

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from vitcli.data.decoding import IMAGE_SUFFIXES, PHOTOGRAPH_SUFFIXES
from vitcli.data.sources.class_folders import alike_notes, check_no_more_classes
from vitcli.data.sources.folders import (
    UNNAMED,
    UNREADABLE,
    Files,
    has_images,
    left_out_of,
    list_files,
    relative,
    subfolders,
    suffix_of,
)
from vitcli.data.sources.label_values import (
    NEEDS_NUMBERS,
    WHOLE_NUMBER,
    Classes,
    ClassLists,
    LabelText,
    LabelValues,
    Numbers,
    check_are_classes,
    columns_of_numbers,
    hot_names,
    offered_numbers,
    read_labels,
)
from vitcli.data.sources.tables import SPLIT_WORDS, Choices, Tables, split_of, table_of
from vitcli.errors import DataError, nearest, reason_of
from vitcli.io.files import parse_json, read_regular
from vitcli.output.text import count_of, first_few, is_text

if TYPE_CHECKING:
    import datasets  # which takes time to load, and the names in this file are needed without it

NAMES = ("metadata.csv", "metadata.jsonl", "labels.csv", "labels.tsv", "labels.jsonl")
SUFFIXES = (".csv", ".tsv", ".jsonl")
FILE_COLUMNS = (
    "file_name", "filename", "file", "image", "image_path", "path", "filepath", "file_path", "image_file",
    "image_name", "img", "image_id", "id",
)  # fmt: skip
LABEL_COLUMNS = (
    "label", "labels", "class", "classes", "class_name", "category", "categories", "target", "targets",
    "species", "breed", "tag", "tags",
)  # fmt: skip
NUMBER_COLUMNS = (*LABEL_COLUMNS, "value", "score", "y")
SPLIT_COLUMNS = ("split", "subset", "partition")
PERHAPS_SPLIT_COLUMNS = ("fold", "set")  # of splits only if all values are words for splits
MOST_BYTES = 2**28  # of a table; Parquet is for more
MOST_COLUMNS, MOST_VALUES = 2_000, 4_000_000  # each value takes up to 250 bytes
NEEDED = "the columns of files, labels, splits and groups"
MOST_MISSING = 100_000  # files that are looked for in vain
SEVERAL = "labels"  # the column of a table that the columns of 0 and 1 become
COLUMNS_HELP = "a line with the columns file,label, then a line for each image: cat/1.jpg,cat"


class NoColumn(DataError):
    """A table of files does not say which column has their names or their labels."""


class LabelRow(Mapping[str, str]):
    """One line of a label file: its number in the file, and the text of each column.

    There may be millions: the columns' places are those of all rows.
    """

    __slots__ = ("_cells", "_places", "line")

    def __init__(self, line: int, places: dict[str, int], cells: Iterable[str]):
        self.line, self._places, self._cells = line, places, tuple(cells)

    def __getitem__(self, column: str) -> str:
        return self._cells[self._places[column]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._cells)


@dataclass(frozen=True)
class LabelFile:
    """A file of labels, and which of its columns are which.

    Attributes:
        folder: the folder that its paths start from.
        label_columns: one, or several of 0 and 1, one for each class.
        split_column: None if all rows are of `split`.
    """

    path: Path
    folder: Path
    rows: list[LabelRow]
    file_column: str
    label_columns: tuple[str, ...]
    split_column: str | None
    split: str

    @property
    def label_column(self) -> str:
        """Return the name of the column of labels in a table of this file."""
        return self.label_columns[0] if len(self.label_columns) == 1 else SEVERAL

    def label_of(self, row: LabelRow, place: str) -> str:
        if len(self.label_columns) > 1:
            return hot_names(row, self.label_columns, place)
        return row[self.label_columns[0]]


@dataclass(frozen=True)
class LabelledImage:
    """An image that a row names."""

    path: str
    label: LabelText
    row: LabelRow
    file: LabelFile


def find_label_files(path: Path) -> list[Path]:
    """Return the label file of a folder, else those of its train/, val/ and test/ folders.

    Raises:
        DataError: a folder has two.
    """
    folders = [path]
    if not _label_file_in(path):
        folders = [path / name for name in subfolders(path) if name.lower() in SPLIT_WORDS]
    return [file for folder in folders if (file := _label_file_in(folder))]


def _label_file_in(folder: Path) -> Path | None:
    files = [folder / name for name in NAMES if (folder / name).is_file()]
    if len(files) > 1:
        raise DataError(
            f"{folder.name}/ has two files of labels: {' and '.join(file.name for file in files[:2])}",
            where=str(folder),
            fix=f"name one: --dataset {files[0]}, or move the other away",
        )
    return files[0] if files else None


def open_label_files(
    files: Sequence[Path], root: Path, choices: Choices, *, one_hot: bool = False, of_folder: bool = True
) -> Tables:
    """Return a table for each split that label files name, with the images' paths and their labels.

    Args:
        root: the folder that all images are in.
        one_hot: take columns of 0 and 1 for classes if there is no column of labels.
        of_folder: whether the folder is the data set, so that what no row names is left out of it. Where the
            file is the data set, it may lie among runs and other data.

    Raises:
        DataError: a file is not such a table, names a file that is missing, outside the folder or twice, has
            a label in another split that train lacks, or labels that cannot be classes.
    """
    # Read the rows, and find the image that each names.
    listed = list_files(root, root)
    read = [_read_label_file(path, root, choices, one_hot=one_hot) for path in files]
    images = _labelled_images(read, _Places(root, listed))
    # Files that are not images are left out like those that no row names.
    named, others = {image.path for image in images}, {*listed.others}
    images = [image for image in images if image.path not in others]
    if not images:
        what = f"no row of {read[0].path.name} names an image that vit can read"
        raise DataError(what, where=str(read[0].path), fix=f"write {COLUMNS_HELP}")
    # Sort them by split; what kind of labels they have is decided by all of them.
    rows_of: dict[str, list[int]] = {}
    for row, image in enumerate(images):
        rows_of.setdefault(_split_of_row(image), []).append(row)
    file = images[0].file
    labels = read_labels(
        [image.label for image in images],
        numbers=choices.numbers,
        is_one_hot=len(file.label_columns) > 1,
    )
    if choices.label_column is None:
        check_are_classes(labels, file.label_column, where=str(file.path))
    names = _class_names(labels, rows_of, read[0])
    unnamed = relative([path for path in listed.images if path not in named], root)
    left_out = left_out_of(UNREADABLE, relative([path for path in listed.others if path in named], root))
    if of_folder:
        left_out = listed.left_out(root, but=map(str, files)) | left_out_of(UNNAMED, unnamed)
    return Tables(
        {split: partial(_table, images, rows, labels, names) for split, rows in rows_of.items()},
        root,
        label_column=read[0].label_column,
        left_out=lambda split: left_out,
        notes=(*(_folder_note(read, root) if of_folder else ()), *alike_notes(names)),
    )


def _labelled_images(files: list[LabelFile], places: "_Places") -> list[LabelledImage]:
    """Return the image of each row; refuse rows without a file or a label, and a second row of an image."""
    images: dict[str, LabelledImage] = {}
    missing: list[str] = []
    for file in files:
        for row in file.rows:
            place = f"{file.path.name}, line {row.line}"
            name, label = row[file.file_column], file.label_of(row, place)
            path = places.find(file.folder, name, where=place)
            if path is None:
                missing.append(name)
                if len(missing) > MOST_MISSING:
                    raise _missing(missing, files)
                continue
            if path in images:
                raise _twice(images[path], label, place, os.path.relpath(path, places.root))
            images[path] = LabelledImage(path, LabelText(label, place), row, file)
    if missing:
        raise _missing(missing, files)
    if blank := [image for image in images.values() if not image.label.text]:
        raise _without_label(blank, files)
    return list(images.values())


def _twice(first: LabelledImage, label: str, place: str, name: str) -> DataError:
    """Return the error for a second row of an image; its labels may be another."""
    where = f"{first.label.place}, and {place}"
    if label == first.label.text:
        fix = "leave one row for each image: it has one label, and belongs to one split"
        return DataError(f"two rows name the same image, {name}", where=where, fix=fix)
    return DataError(
        f"two rows give {name} different labels, {first.label.text!r} and {label!r}",
        where=where,
        fix=f"remove one; for an image of several classes write one row: {first.label.text}|{label}",
    )


def _read_label_file(path: Path, root: Path, choices: Choices, *, one_hot: bool) -> LabelFile:
    """Read a .csv, .tsv or .jsonl file and find its columns of files, labels and splits.

    Raises:
        DataError: it cannot be read, or has no such columns.
    """
    read = _rows_of_jsonl if path.suffix.lower() == ".jsonl" else _rows_of_csv
    rows = _within_bounds(path, read(path))
    if not rows:
        raise DataError(f"{path.name} has no rows", where=str(path), fix=f"write {COLUMNS_HELP}")
    columns = list(rows[0])
    names = _column(path, rows[0], columns, choices.image_column, FILE_COLUMNS)
    split = _split_column(columns, rows)
    others = [c for c in columns if c != names and (c != split or c == choices.label_column)]
    labels = _label_columns(path, others, rows, choices, one_hot=one_hot)
    return LabelFile(path, path.parent, rows, names, labels, split, split_of(path.relative_to(root)))


def _split_column(columns: list[str], rows: list[LabelRow]) -> str | None:
    by_lower = {column.strip().lower(): column for column in reversed(columns)}
    if usual := [by_lower[name] for name in SPLIT_COLUMNS if name in by_lower]:
        return usual[0]
    perhaps = (by_lower[name] for name in PERHAPS_SPLIT_COLUMNS if name in by_lower)
    return next((c for c in perhaps if all(row[c].lower() in SPLIT_WORDS for row in rows)), None)


def _label_columns(
    path: Path, columns: list[str], rows: list[LabelRow], choices: Choices, *, one_hot: bool
) -> tuple[str, ...]:
    """Return the column of labels, or those of 0 and 1 that stand for a class each."""
    named = choices.label_column
    several = [name.strip() for name in named.split(",")] if named and named not in columns else []
    if len(several) > 1 and {*several} <= {*columns}:
        return tuple(dict.fromkeys(several))
    usual = NUMBER_COLUMNS if choices.numbers else LABEL_COLUMNS
    try:
        return (_column(path, rows[0], columns, named, usual),)
    except NoColumn as error:
        of_numbers, are_hot = columns_of_numbers(columns, rows)
        if choices.numbers and not named and len(of_numbers) == 1:
            return (of_numbers[0],)
        if choices.numbers and named:
            error.fix = offered_numbers(of_numbers)
        if not (named or choices.numbers) and one_hot and len(columns) > 1 and are_hot:
            return tuple(columns)
        if not (named or choices.numbers) and len(of_numbers) == 1:
            raise _only_numbers(path, of_numbers[0], list(rows[0])) from None
        raise


def _only_numbers(path: Path, column: str, columns: list[str]) -> NoColumn:
    what = f"{path.name} has no column of labels, but one of numbers, {column!r}"
    fix = f"--set data.label_column=NAME names the classes; {NEEDS_NUMBERS}"
    if len(columns) == 2:  # the other has the files
        fix = f"{NEEDS_NUMBERS}; --set data.label_column={column} takes them as classes"
    return NoColumn(what, where=f"{path}, its columns: {first_few(columns, 8)}", fix=fix)


def _rows_of_csv(path: Path) -> Iterator[LabelRow]:
    """Yield the rows of a table of commas, semicolons or tabs, with or without a line of names."""
    lines = _lines_of_csv(path)
    first = next(lines, None)
    if first is None:
        return
    header = [cell.strip() for cell in first[1]]
    _check_columns(path, len(header))
    if 2 <= len(header) <= 3 and _names_image(header[0]):  # an image, its label and perhaps its split
        header, lines = ["file", "label", "split"][: len(header)], chain([first], lines)
    if len(set(header)) < len(header) or "" in header:
        what = f"two columns of {path.name} have the same name or none: {', '.join(map(repr, header))}"
        raise DataError(what, where=f"{path}, line 1", fix="give each column a name of its own")
    places = {column: place for place, column in enumerate(header)}
    for line, cells in lines:
        if len(cells) != len(header):
            raise DataError(
                f"a row of {path.name} has {len(cells)} values, and there are {len(header)} columns",
                where=f"{path}, line {line}",
                fix='put values with a comma into quotes: "a, b.jpg",cat',
            )
        yield LabelRow(line, places, map(str.strip, cells))


def _lines_of_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is not empty."""
    try:
        # Spreadsheets write a mark of three bytes first.
        content = io.BytesIO(read_regular(path, MOST_BYTES))
        with io.TextIOWrapper(content, "utf-8-sig", newline="") as text:
            first = next((line for line in text if line.strip()), "")
            # By its first cell, if that is an image: a label may hold more semicolons than there are commas.
            delimiter = max(",;\t", key=lambda mark: (_names_image(first.split(mark)[0]), first.count(mark)))
            text.seek(0)
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            yield from ((reader.line_num, cells) for cells in reader if any(map(str.strip, cells)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error) from error


def _check_columns(path: Path, number: int) -> None:
    if number > MOST_COLUMNS:
        what = f"{path.name} has {number:,} columns, and {MOST_COLUMNS:,} at most are read"
        raise DataError(what, where=f"{path}, line 1", fix=f"keep {NEEDED}")


def _within_bounds(path: Path, rows: Iterator[LabelRow]) -> list[LabelRow]:
    """Return all rows, unless they would take more memory than labels of millions of images do."""
    kept, num_values = [], 0
    for row in rows:
        num_values += len(row)
        if num_values > MOST_VALUES:
            raise DataError(
                f"{path.name} has more than {MOST_VALUES:,} values",
                where=f"{path}, line {row.line}",
                fix=f"keep {NEEDED}, or write Parquet files",
            )
        kept.append(row)
    return kept


def _names_image(cell: str) -> bool:
    return suffix_of(cell.strip().strip('"')) in IMAGE_SUFFIXES | PHOTOGRAPH_SUFFIXES


def _rows_of_jsonl(path: Path) -> Iterator[LabelRow]:
    try:
        lines = read_regular(path, MOST_BYTES).decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    places: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = parse_json(line)
        except ValueError as error:
            raise _unreadable(path, error, line=number) from error
        if not isinstance(values, dict):
            raise DataError(
                f"a line of {path.name} is not a JSON object",
                where=f"{path}, line {number}",
                fix='write {"file_name": "1.jpg", "label": "cat"} on each line',
            )
        texts = {key: _text(value) for key, value in values.items() if not isinstance(value, dict)}
        if not is_text(*texts, *texts.values()):
            raise DataError(
                f"a line of {path.name} holds half of a surrogate pair, which UTF-8 cannot express",
                where=f"{path}, line {number}",
                fix="write the characters themselves, in UTF-8, or both halves",
            )
        if not places:
            places = {column: place for place, column in enumerate(texts)}
            _check_columns(path, len(places))
        yield LabelRow(number, places, (texts.get(column, "") for column in places))


def _text(value: object) -> str:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value).strip()


def _column(path: Path, row: LabelRow, columns: list[str], named: str | None, usual: tuple[str, ...]) -> str:
    """Return the named column, else the one with a usual name; of several for file names the first."""
    what, key = ("file names", "image") if usual is FILE_COLUMNS else ("labels", "label")
    key = f"data.{key}_column"
    by_lower = {column.lower(): column for column in columns}
    if named is not None and named not in columns:
        raise NoColumn(
            f"{path.name} has no column {named!r}{nearest(named, columns)}",
            where=f"recipe key {key}",
            fix=f"one of its columns: {', '.join(columns)}",
        )
    fitting = [named] if named else [by_lower[name] for name in usual if name in by_lower]
    if not fitting or (usual is not FILE_COLUMNS and len(fitting) > 1):
        problem = f"{len(fitting)} columns that may be the {what}" if fitting else f"no column of {what}"
        raise NoColumn(
            f"{path.name} has {problem}",
            where=f"{path}, its columns: {first_few([*row], 8)}",
            fix=f"--set {key}=NAME" + ("" if fitting else f", or call it {usual[0]}"),
        )
    return fitting[0]


def _split_of_row(image: LabelledImage) -> str:
    if image.file.split_column is None:
        return image.file.split
    word = image.row[image.file.split_column]
    if not re.fullmatch(r"[\w.-]+", word):
        raise DataError(
            f"{word!r} is not the name of a split" if word else "a row has no split",
            where=f"{image.label.place}, column {image.file.split_column}",
            fix="write train, validation or test",
        )
    return SPLIT_WORDS.get(word.lower(), word)


class _Places:
    """The files of a folder, found by the names that rows have for them."""

    def __init__(self, root: Path, listed: Files):
        self.root, self.images = str(root), listed.images
        self.known = {*listed.images, *listed.others}

    @cached_property
    def by_name(self) -> dict[str, list[str]]:
        """Files by their names, with and without the ending: many tables hold nothing else."""
        files: dict[str, list[str]] = {}
        for path in self.images:
            name = os.path.basename(path)
            for key in {name, os.path.splitext(name)[0]}:
                files.setdefault(key, []).append(path)
        return files

    def find(self, folder: Path, name: str, *, where: str) -> str | None:
        """Return the path of the file that a row names, None if there is none.

        Raises:
            DataError: it is outside the data set's folder, or its bare name fits several files.
        """
        for spelling in dict.fromkeys((name, name.replace("\\", "/"))):
            path = os.path.normpath(os.path.join(folder, spelling))
            if not path.startswith(self.root + os.sep) or "://" in name or "\0" in name:
                raise DataError(
                    f"image path {name!r} is outside the data set" if name else "a row names no file",
                    where=where,
                    fix=f"name files below {self.root}, relative to the file of labels",
                )
            if path in self.known or os.path.isfile(path):
                return path
        fitting = self.by_name.get(name, [])
        if len(fitting) > 1:
            raise DataError(
                f"{name!r} may be any of {len(fitting)} files",
                where=f"{where}: {first_few([os.path.relpath(path, self.root) for path in fitting], 3)}",
                fix="write their folders too",
            )
        return fitting[0] if fitting else None


def _missing(names: list[str], files: list[LabelFile]) -> DataError:
    count, total = len(names), sum(len(file.rows) for file in files)
    more = "more than " if count > MOST_MISSING else ""
    return DataError(
        f"{more}{min(count, MOST_MISSING):,} of {count_of(total, 'file')} that {files[0].path.name} names "
        f"{'is' if count == 1 else 'are'} missing: {first_few(names, 3)}",
        where=f"{files[0].path}; paths start from {files[0].folder}",
        fix="correct the paths, restore the files, or remove the rows",
    )


def _without_label(images: list[LabelledImage], files: list[LabelFile]) -> DataError:
    first, total = images[0], sum(len(file.rows) for file in files)
    name, have = first.row[first.file.file_column], "has" if len(images) == 1 else "have"
    return DataError(
        f"{len(images):,} of {count_of(total, 'row')} {have} no label, first {name}",
        where=f"{first.label.place}, column {first.file.label_column!r}",
        fix="write the labels, or remove the rows",
    )


def _class_names(labels: LabelValues, rows_of: dict[str, list[int]], file: LabelFile) -> list[str]:
    """Return the labels of train, numbers in their order; other splits may have no more.

    Columns of 0 and 1 keep their order, and a class may have no image. Numbers to predict have no classes.
    """
    if isinstance(labels, Numbers):
        return []
    if len(file.label_columns) > 1:
        return list(file.label_columns)
    classes = {split: labels.names_of(rows) for split, rows in rows_of.items()}
    names = classes.get("train") or set().union(*classes.values())
    for split, names_here in classes.items():
        fix = "correct the labels, or add images of these classes to train"
        check_no_more_classes(
            names_here, names, split=f"split {split}", train="train", where=str(file.path), fix=fix
        )
    if all(map(WHOLE_NUMBER.fullmatch, names)):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _table(
    all_images: list[LabelledImage], rows: list[int], labels: LabelValues, names: list[str]
) -> "datasets.Dataset":
    """Return the images of some rows, their labels, and the columns that the file has besides."""
    import datasets

    images = [all_images[row] for row in rows]
    file = images[0].file
    number_of = {name: number for number, name in enumerate(names)}
    columns: dict[str, list] = {}
    types: dict[str, object] = {}
    match labels:
        case Classes(values):
            columns[file.label_column] = [number_of[values[row]] for row in rows]
            types[file.label_column] = datasets.ClassLabel(names=names)
        case ClassLists(lists):
            columns[file.label_column] = [sorted(number_of[name] for name in lists[row]) for row in rows]
            types[file.label_column] = datasets.List(datasets.ClassLabel(names=names))
        case Numbers(numbers):
            columns[file.label_column] = [numbers[row] for row in rows]
            types[file.label_column] = datasets.Value("float64")
    for column in images[0].row:
        if column in (file.file_column, *file.label_columns, file.label_column):
            continue
        texts = [image.row.get(column, "") for image in images]
        is_number = all(map(WHOLE_NUMBER.fullmatch, texts))
        columns[column] = [int(text) for text in texts] if is_number else texts
        types[column] = datasets.Value("int64" if is_number else "string")
    return table_of([image.path for image in images], columns, types, image_column=file.file_column)


def _folder_note(files: list[LabelFile], root: Path) -> tuple[str, ...]:
    """Note that the folders' own names, which may be classes, play no part."""
    names = [name for name in subfolders(root) if name.lower() not in SPLIT_WORDS]
    count = sum(has_images(root / name) for name in names)
    note = f"labels come from {files[0].path.name}, not from the names of the {count} folders"
    return (note,) if count > 1 else ()


def _unreadable(path: Path, error: Exception, *, line: int | None = None) -> DataError:
    fix = "save it again as CSV in UTF-8"
    return DataError(
        f"{path.name} cannot be read: {reason_of(error)[:120]}",
        where=f"{path}, line {line}" if line else str(path),
        fix=fix if path.suffix.lower() != ".jsonl" else "write one JSON object on each line",
    )
