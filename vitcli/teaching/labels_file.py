"""labels.csv of a folder: each label is on disk before `set` returns, and nothing that was there is lost.

New labels are appended as one write; a change writes the file anew beside itself and renames it. What is
appended is in quotes, so that a line which a power failure has cut off lacks one, and is left out.
"""

import csv
import errno
import io
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vitcli.data.sources.class_folders import loosely
from vitcli.data.sources.label_files import (
    COLUMNS_HELP,
    FILE_COLUMNS,
    LABEL_COLUMNS,
    MOST_BYTES,
    PERHAPS_SPLIT_COLUMNS,
    SPLIT_COLUMNS,
)
from vitcli.errors import DataError, MachineError, VitError, reason_of
from vitcli.io.files import NO_LINK, irregularity, open_regular, read_regular
from vitcli.output.atomic import replace_file
from vitcli.output.text import first_few

COLUMNS = ("file", "label")
MOST_LETTERS = 200  # of the name of a class
CONTROLS = ("Cc", "Cs", "Zl", "Zp")  # categories of Unicode: controls, halves of pairs, ends of lines
Stamp = tuple[int, int, int] | None


class LabelsFile:
    """The labels of a folder by the path of the image, as `vit finetune` reads them.

    A file of the user's keeps its other columns and the order of all; new rows are empty there.

    Raises:
        DataError: the file is not such a table, or names an image twice.
        MachineError: it cannot be read, or is a link or a folder.
    """

    def __init__(self, path: Path):
        self.path, self._header, self._rows = path, list(COLUMNS), dict[str, list[str]]()
        self._at, self._is_whole = (0, 1), True
        if kind := irregularity(path):
            fix = "move it away, or label another folder"
            raise MachineError(
                f"{path.name} is {kind}, and labels are not written to it", where=str(path), fix=fix
            )
        self._stamp = self._stamp_now()
        if self._stamp:
            self._read()

    @property
    def labels(self) -> dict[str, str]:
        """Return the label of each image, in the order of the file."""
        return {name: cells[self._at[1]].strip() for name, cells in self._rows.items()}

    def assume(self, labels: Mapping[str, str]) -> None:
        """Take labels from elsewhere where there is no file yet; the first change writes all of them."""
        self._rows = {name: self._row(name, label) for name, label in labels.items()}

    def set(self, changes: Mapping[str, str | None]) -> None:
        """Give images labels, or with None take them away; they are on disk when this returns.

        Raises:
            MachineError: it cannot be written, or another program has changed it; the file is unchanged.
        """
        labels = self.labels
        changes = {name: label for name, label in changes.items() if label != labels.get(name)}
        if not changes:
            return
        if self._stamp_now() != self._stamp:
            fix = "start vit label again, which reads it anew"
            raise MachineError(f"another program has changed {self.path.name}", where=str(self.path), fix=fix)
        is_new = not any(name in labels for name in changes)
        rows = {name: self._row(name, label) for name, label in changes.items() if label is not None}
        if is_new and self._stamp and self._is_whole:
            self._append(_text(rows.values()).encode())
            self._rows |= rows
        else:
            kept = {name: cells for name, cells in self._rows.items() if name in rows or name not in changes}
            content = _text([self._header, *(kept | rows).values()]).encode()
            replace_file(self.path, lambda file: file.write_bytes(content))
            self._rows, self._is_whole = kept | rows, True
        self._stamp = self._stamp_now()

    def _row(self, name: str, label: str) -> list[str]:
        cells = list(self._rows.get(name) or [""] * len(self._header))
        if name not in self._rows:
            cells[self._at[0]] = name
        cells[self._at[1]] = label
        return cells

    def _append(self, content: bytes) -> None:
        try:
            with open_regular(self.path, os.O_RDWR | os.O_APPEND | NO_LINK) as file:
                num_bytes = os.fstat(file.fileno()).st_size
                try:
                    if file.write(content) != len(content):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(num_bytes)
                    raise
        except OSError as error:
            self._stamp = self._stamp_now()  # unchanged but for its time
            fix = "make room or correct the permissions; labels so far are kept"
            what = f"{self.path.name} was not written: {error.strerror or error}"
            raise MachineError(what, where=str(self.path), fix=fix) from error

    def _stamp_now(self) -> Stamp:
        try:
            state = os.lstat(self.path)
        except FileNotFoundError:
            return None
        return state.st_ino, state.st_size, state.st_mtime_ns

    def _read(self) -> None:
        try:
            text = read_regular(self.path, MOST_BYTES).decode("utf-8-sig")
            records, self._is_whole = _records(text)
        except (UnicodeDecodeError, csv.Error) as error:
            what = f"{self.path.name} cannot be read: {reason_of(error)[:120]}"
            raise DataError(what, where=str(self.path), fix="save it again as CSV in UTF-8") from error
        except OSError as error:
            what = f"{self.path.name} cannot be read: {error.strerror}"
            raise MachineError(what, where=str(self.path), fix="correct its permissions") from error
        if not records:
            return
        self._header, *rows = records
        self._at = self._places([cell.strip().lower() for cell in self._header])
        for number, cells in enumerate(rows, 2):
            name = self._relative(cells[self._at[0]].strip()) if len(cells) == len(self._header) else ""
            if not name or name in self._rows:
                what = f"names {name} twice" if name else f"has {len(cells)} values, not {len(self._header)}"
                where, fix = f"{self.path}, row {number}", "correct that row"
                raise DataError(f"a row of {self.path.name} {what}", where=where, fix=fix)
            self._rows[name] = cells

    def _relative(self, name: str) -> str:
        """Return one spelling of a path; an absolute one starts from the folder of the file, too."""
        is_absolute = os.path.isabs(name)
        return os.path.relpath(name, self.path.absolute().parent) if is_absolute else os.path.normpath(name)

    def _places(self, header: Sequence[str]) -> tuple[int, int]:
        """Return the places of the columns of files and labels."""
        files = [header.index(name) for name in FILE_COLUMNS if name in header]
        labels = [header.index(name) for name in LABEL_COLUMNS if name in header]
        splits = {*SPLIT_COLUMNS, *PERHAPS_SPLIT_COLUMNS} & {*header}
        if files and len(labels) == 1 and not splits and len({*header}) == len(header):
            return files[0], labels[0]
        what = "has no columns of files and labels between commas, to which vit label adds rows"
        fix = f"write {COLUMNS_HELP}; vit finetune reads other tables"
        if splits:
            what, fix = (
                f"has a column {min(splits)}, and a new label is of no split",
                "label the folder of one split",
            )
        where = f"{self.path}, its columns: {first_few(self._header, 8)}"
        raise DataError(f"{self.path.name} {what}", where=where, fix=fix)


def _records(text: str) -> tuple[list[list[str]], bool]:
    """Return the lines but for one of ours that is cut off, and whether the last one has an end."""
    lines = io.StringIO(text, newline="").readlines()
    has_end = any(map(str.strip, lines)) and lines[-1].endswith(("\n", "\r"))  # else no header yet
    try:
        records = _filled(lines)
        is_cut = (
            bool(records)
            and not has_end
            and (len(records[-1]) < len(records[0]) or lines[-1] == _text([records[-1][:-1]])[:-1] + ",")
        )
        if not is_cut:
            return records, has_end
    except csv.Error:
        if has_end:
            raise
    return _filled(lines[:-1]), False


def _filled(lines: Sequence[str]) -> list[list[str]]:
    return [cells for cells in csv.reader(lines, strict=True) if any(map(str.strip, cells))]


def _text(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def class_named(typed: str, known: Sequence[str]) -> str:
    """Return the class that a person means: a known one in spite of case, blanks and accents, or a new one.

    Raises:
        VitError: the name is empty or too long, or would be read as something else.
    """
    name = " ".join(unicodedata.normalize("NFC", typed[: 10 * MOST_LETTERS]).split())
    if name in known:
        return name
    if problem := problem_of(name):
        raise VitError(f"no class can be called that: {problem}", where="name of a class", fix="type another")
    return next((other for other in known if loosely(other) == loosely(name)), name)


def problem_of(name: str) -> str | None:
    """Return why no class of labels.csv can have this name; None if one can."""
    if not name:
        return "the name is empty"
    if len(name) > MOST_LETTERS:
        return f"it has more than {MOST_LETTERS} letters"
    if any(unicodedata.category(letter) in CONTROLS for letter in name):
        return "it holds a control character"
    is_list = name.startswith("[") and name.endswith("]")
    return "|, ; and [] stand for several labels" if {*"|;"} & {*name} or is_list else None
