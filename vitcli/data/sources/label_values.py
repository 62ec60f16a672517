"""What the labels of a file are, by the texts of all its rows: a class of each image, several, or a number.

Several are written as cat|dog, as cat;dog, as a JSON list or as a column of 0 and 1 for each class. Texts are
untrusted: a list holds names, a number is finite.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vitcli.data.split import LARGEST_NUMBER
from vitcli.errors import DataError
from vitcli.output.text import count_of, is_text

HOT = {
    **dict.fromkeys(("1", "1.0", "true", "yes"), True),
    **dict.fromkeys(("0", "0.0", "false", "no"), False),
}
SEPARATORS = ("|", ";")
WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")  # "007" is a name: as a number it would be another
DECIMAL_COMMA = re.compile(r"-?\d+,\d+")  # as spreadsheets of half of the world write 1.5
FEW_CLASSES = 20  # up to this many are taken as they are, whatever they look like
MANY_NUMBERS, IMAGES_PER_NUMBER = 1_000, 20  # more numbers with fewer images each are not classes
NUMBERS, NAMES = "numbers", "a name of each image"
NEEDS_NUMBERS = "vit finetune with --set objective.loss=regression predicts numbers"


@dataclass(frozen=True)
class LabelText:
    """The label of an image as it is written, and where."""

    text: str
    place: str


@dataclass(frozen=True)
class Classes:
    """The class of each image of a file."""

    values: list[str]

    def names_of(self, rows: Iterable[int]) -> set[str]:
        """Return the names of the classes that some of the images have."""
        return {self.values[row] for row in rows}


@dataclass(frozen=True)
class ClassLists:
    """The classes of each image of a file, several or none."""

    values: list[tuple[str, ...]]

    def names_of(self, rows: Iterable[int]) -> set[str]:
        """Return the names of the classes that some of the images have."""
        return {name for row in rows for name in self.values[row]}


@dataclass(frozen=True)
class Numbers:
    """The number of each image of a file, which is to be predicted."""

    values: list[float]


LabelValues = Classes | ClassLists | Numbers


def read_labels(labels: Sequence[LabelText], *, numbers: bool, is_one_hot: bool) -> LabelValues:
    """Return the labels that texts stand for.

    Args:
        numbers: whether they are to be predicted as numbers.
        is_one_hot: whether they are the lists of `hot_names`; if each names one class, it is a class each.

    Raises:
        DataError: a text is not a number or a list, names no class or one twice, or they are of two kinds.
    """
    if numbers:
        return Numbers([number_in(label) for label in labels])
    lists = [_json_list(label) for label in labels]
    if any(names is not None for names in lists):
        return _of_lists(lists, labels, is_one_hot=is_one_hot)
    separator = _separator([label.text for label in labels])
    if separator is None:
        return Classes([label.text for label in labels])
    other = SEPARATORS[1 - SEPARATORS.index(separator)]
    of_other = [label for label in labels if other in label.text]
    if of_other:
        of_this = next(label for label in labels if separator in label.text)
        raise _mixed(of_this, of_other[0], f"separated by {separator!r} and by {other!r}")
    return ClassLists([_names([*map(str.strip, label.text.split(separator))], label) for label in labels])


def hot_names(values: Mapping[str, str], columns: Sequence[str], place: str) -> str:
    """Return the names of the columns that hold a 1, as a JSON list.

    Raises:
        DataError: a column holds anything but 0 and 1.
    """
    for column in columns:
        if values[column].lower() not in HOT:
            holds = f"holds {values[column]!r}" if values[column] else "is blank"
            raise DataError(
                f"column {column!r} {holds}, and a column for a class holds 0 or 1",
                where=place,
                fix="write 0 or 1, remove the row, or name other columns in data.label_column",
            )
    return json.dumps([column for column in columns if HOT[values[column].lower()]])


def columns_of_numbers(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> tuple[list[str], bool]:
    """Return the columns of numbers alone, and whether all columns are of 0 and 1.

    Blank cells say nothing, so that they can be refused by name; a full column is preferred to one with some.
    """
    values = {column: {row[column] for row in rows} for column in columns}
    filled = {column: texts - {""} for column, texts in values.items() if texts != {""}}
    of_numbers = [column for column, texts in filled.items() if all(map(is_number, texts))]
    are_hot = len(filled) == len(columns) and all(
        text.lower() in HOT for texts in filled.values() for text in texts
    )
    return [column for column in of_numbers if "" not in values[column]] or of_numbers, are_hot


def offered_numbers(columns: Sequence[str]) -> str:
    """Return what to do where a column of numbers is not there: name one of those that are."""
    if columns:
        return f"one of its columns of numbers: {', '.join(columns)}"
    return "it has no column of numbers: add one, or take other data"


def number_in(label: LabelText) -> float:
    """Return the number that a label is.

    Raises:
        DataError: it is none, not finite, or too large.
    """
    try:
        value = float(label.text)
    except ValueError as error:
        point = label.text.replace(",", ".")
        is_comma = DECIMAL_COMMA.fullmatch(label.text)
        raise DataError(
            f"{label.text!r} is not a number" if label.text else "a row has no number",
            where=label.place,
            fix=f"write {point}, with a point" if is_comma else "write a number, or remove the row",
        ) from error
    if not abs(value) <= LARGEST_NUMBER:
        kind = f"a number of up to {LARGEST_NUMBER:g}" if math.isfinite(value) else "a finite number"
        raise DataError(
            f"{label.text!r} is not {kind}", where=label.place, fix="write a number, or remove the row"
        )
    return value


def check_are_classes(labels: LabelValues, column: str, *, where: str) -> None:
    """Refuse a column of numbers or of names of images, which nobody means as classes.

    Raises:
        DataError: there are almost as many labels as images, decimals, or thousands of numbers.
    """
    if not isinstance(labels, Classes):
        return
    names, total = set(labels.values), len(labels.values)
    kind = kind_of_values(names, total)
    if kind is None:
        return
    what = f"column {column!r} has {len(names):,} values in {count_of(total, 'row')}"
    anyway = f"--set data.label_column={column} takes them as classes"
    raise DataError(
        f"{what}, which look like {kind} and not like classes",
        where=where,
        fix=f"{NEEDS_NUMBERS}; {anyway}" if kind == NUMBERS else f"name the column of the classes; {anyway}",
    )


def kind_of_values(values: Collection[str], num_images: int) -> str | None:
    """Return what the distinct labels of this many images look like, NUMBERS or NAMES; None: like classes."""
    if len(values) <= FEW_CLASSES:
        return None
    are_numbers = all(map(is_number, values))
    are_decimals = are_numbers and not all(map(WHOLE_NUMBER.fullmatch, values))
    is_too_many = len(values) > MANY_NUMBERS and num_images < IMAGES_PER_NUMBER * len(values)
    if are_decimals or (are_numbers and is_too_many) or len(values) > num_images / 2:
        return NUMBERS if are_numbers else NAMES
    return None


def is_number(text: str) -> bool:
    """Return whether a text is a number, infinity, NaN and those with a decimal comma among them."""
    try:
        float(text)
    except ValueError:
        return bool(DECIMAL_COMMA.fullmatch(text))
    return True


def _json_list(label: LabelText) -> list[str] | None:
    """Return the list that a text is in JSON; None if it does not look like one."""
    if not (label.text.startswith("[") and label.text.endswith("]")):
        return None
    try:
        values = json.loads(label.text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"not a JSON list: {label.text[:60]!r}",
            where=label.place,
            fix='write ["cat", "dog"], or cat|dog',
        ) from error
    if all(isinstance(value, str | int) and str(value).strip() and is_text(str(value)) for value in values):
        return [str(value).strip() for value in values]
    raise DataError(
        f"invalid class name in {label.text[:60]!r}",
        where=label.place,
        fix='write names: ["cat", "dog"]; an empty list for an image of no class',
    )


def _of_lists(
    lists: list[list[str] | None], labels: Sequence[LabelText], *, is_one_hot: bool
) -> Classes | ClassLists:
    all_names = [names for names in lists if names is not None]
    if len(all_names) < len(lists):
        a_list = next(label for label, names in zip(labels, lists, strict=True) if names is not None)
        raise _mixed(a_list, labels[lists.index(None)], "a list beside a name")
    if is_one_hot and all(len(names) == 1 for names in all_names):
        return Classes([names[0] for names in all_names])
    if not any(all_names):
        fix = "write the names of the classes of each image"
        raise DataError("no row has a label", where=labels[0].place, fix=fix)
    return ClassLists([_names(names, label) for names, label in zip(all_names, labels, strict=True)])


def _names(names: list[str], label: LabelText) -> tuple[str, ...]:
    if "" in names:
        raise DataError(
            f"a label of {label.text!r} is empty", where=label.place, fix="remove the separator too many"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(
            f"{label.text!r} names the class {twice!r} twice", where=label.place, fix="write it once"
        )
    return tuple(names)


def _separator(texts: Sequence[str]) -> str | None:
    """Return what stands between the labels of an image; None if each text is one label.

    A ";" may be part of a name, as in "tench; Tinca tinca". It separates labels only if some part of a text
    is also part of another.
    """
    if any("|" in text for text in texts):
        return "|"
    distinct = {text for text in texts if text}
    if not any(";" in text for text in distinct):
        return None
    parts = Counter(part for text in distinct for part in {piece.strip() for piece in text.split(";")})
    return ";" if max(parts.values()) > 1 else None


def _mixed(label: LabelText, other: LabelText, what: str) -> DataError:
    return DataError(
        f"the labels are of two kinds, {what}: {label.text[:60]!r} and {other.text[:60]!r}",
        where=f"{label.place}, and {other.place}",
        fix='write the labels of all rows in the same way: cat|dog, cat;dog or ["cat", "dog"]',
    )
