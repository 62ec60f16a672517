"""The document model of the tables and figures that commands show, and tables in each format."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from operator import gt
from pathlib import Path
from textwrap import fill, indent
from typing import Any, Literal
from urllib.parse import quote

from vitcli.output.text import escape_markdown, plain, terminal_width

Kind = Literal["number", "text", "clipped", "file", "id", "command"]
Columns = Mapping[str, Kind]  # the kind of each, by its header
# Columns of a terminal that a folded text keeps as long as it can, and one that is cut off at the least.
LEAST_WIDTH, TIGHT_WIDTH = 18, 8
LONGEST_PIECE = 36  # columns of a word that is not broken
GAP = 2  # columns of a terminal between two columns of a table


@dataclass(frozen=True)
class Cell:
    """One value.

    Attributes:
        text: for a person; in percent where `value` is a fraction.
        value, std, count: the number itself, its standard deviation, and of how many runs it is the mean.
        note: how it differs from the rest of its column, in small print.
    """

    text: str = ""
    value: float | None = None
    std: float | None = None
    count: int = 1
    is_best: bool = False
    note: str = ""

    @property
    def line(self) -> str:
        """The cell in plain text; the best of a row or column has a star."""
        text = self.text + ("*" if self.is_best else "")
        return plain(f"{text} ({self.note})" if self.text and self.note else text or self.note)

    @property
    def markdown(self) -> str:
        """The cell in Markdown; the mean of the best is bold."""
        text, note = escape_markdown(self.text), escape_markdown(self.note)
        mean, plus_minus, std = text.partition(" ± ")
        text = f"**{mean}**{plus_minus}{std}" if self.is_best else text
        return f"{text} ({note})" if text and note else text or note


@dataclass(frozen=True)
class Header:
    """Name of a row or a column.

    Attributes:
        detail: small print that tells it from others of the same name.
        folder: run folder that a row links to.
        kind: content of a column. A number is aligned right and never broken, a text is folded where the
            terminal is too narrow, a clipped one ends there in "…" (another command shows all of it), of a
            file the end remains, by which files differ, an id stays in one piece so that it can be copied, a
            command is copied too, and stands below the table.
    """

    name: str
    detail: str = ""
    folder: Path | None = None
    kind: Kind = "number"

    @property
    def line(self) -> str:
        return plain(f"{self.name}, {self.detail}" if self.detail else self.name)

    def link(self, base: Path | None) -> str:
        """Return a link to the run folder from the folder `base`; empty if there is none.

        Being relative, it survives moving both and can have no other scheme.
        """
        if self.folder is None or base is None:
            return ""
        return f"./{quote(os.path.relpath(self.folder.resolve(), base.resolve()))}"

    def markdown(self, base: Path | None) -> str:
        """The name in Markdown, linked to its folder from the folder `base`."""
        name, link = escape_markdown(self.name), self.link(base)
        name = f"[{name}]({link})" if link else name
        return f"{name}, {escape_markdown(self.detail)}" if self.detail else name


@dataclass(frozen=True)
class Row:
    """A row of a table; `is_total` if it is the mean of others."""

    head: Header
    cells: tuple[Cell, ...]
    is_total: bool = False


@dataclass(frozen=True)
class Table:
    """Rows and columns under a title.

    Attributes:
        key: its name in JSON and CSV.
        caption: what it shows, in whole sentences.
        corner: header of the first column, which has the names of the rows.
        is_at_end: on a page it follows the figures that have no table.
    """

    key: str
    title: str
    caption: str
    corner: Header
    columns: tuple[Header, ...]
    rows: tuple[Row, ...]
    is_at_end: bool = False

    def as_text(self, *, width: int | None = None) -> str:
        """Lay the table out for a terminal of `width` columns (default: the terminal's, no limit in a pipe).

        Where there is no room, texts and the headers of numbers are folded; words are broken only after a
        punctuation mark. Names of rows that would be broken stand on lines of their own, above the cells, of
        which those such as "90.00 ± 0.10" are folded at their spaces. A table with a title that does not fit
        even so is a card for each row; any other is wider than the terminal: no number is ever cut off.
        Commands to copy stand below the table, each on a line of its own.
        """
        room = width or terminal_width()
        kind: Kind = "id" if self.title else self.corner.kind
        names = _Column(kind, self.corner.line, [row.head.line for row in self.rows])
        columns = [
            _Column(header.kind, header.line, [row.cells[at].line for row in self.rows])
            for at, header in enumerate(self.columns)
            if header.kind != "command"
        ]
        stand_above = kind == "id" and columns
        widths = _widths([names, *columns], room, may_fold_all=not stand_above)
        if not stand_above or _total(widths) <= room:
            return "".join(_rows([names, *columns], widths)) + self._commands()
        widths = _widths(columns, room - GAP, may_fold_all=True)
        if self.title and _total(widths) > room - GAP:
            return self._as_cards(room) + self._commands()
        rows = zip((names.header, *names.cells), _rows(columns, widths), strict=True)
        text = "".join(f"{fill(name, room)}\n{indent(row, ' ' * GAP)}" for name, row in rows)
        return text + self._commands()

    def _as_cards(self, room: int) -> str:
        """Return each row as its name and, indented, a line for each cell that is not empty."""
        lines = []
        for row in self.rows:
            lines.append(fill(row.head.line, room))
            for header, cell in zip(self.columns, row.cells, strict=True):
                if cell.line and header.kind != "command":
                    text = f"{header.line}: {cell.line}"
                    lines.append(fill(text, room, initial_indent="  ", subsequent_indent="    "))
        return "".join(f"{line}\n" for line in lines)

    def _commands(self) -> str:
        """Return the cells of columns of commands, below a line that says whose they are and what for."""
        return "".join(
            f"{plain(row.head.name)}, {plain(header.name)}:\n  {cell.line}\n"
            for row in self.rows
            for header, cell in zip(self.columns, row.cells, strict=True)
            if header.kind == "command" and cell.text
        )

    def as_markdown(self, *, base: Path | None = None) -> str:
        """Return the table in Markdown, with links to run folders from the folder `base`."""
        headers = (self.corner, *self.columns)
        rows = [[escape_markdown(header.line) for header in headers]]
        rows += [["---:" if header.kind == "number" else "---" for header in headers]]
        rows += [[row.head.markdown(base), *(cell.markdown for cell in row.cells)] for row in self.rows]
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)

    def without_empty(self) -> "Table":
        """Return the table without the columns in which no row has anything."""
        columns = zip(*(row.cells for row in self.rows), strict=True)
        kept = [any(cell.text or cell.note for cell in cells) for cells in columns]
        rows = (replace(row, cells=tuple(compress(row.cells, kept))) for row in self.rows)
        return replace(self, columns=tuple(compress(self.columns, kept)), rows=tuple(rows))

    def as_csv(self) -> Iterator[tuple]:
        """Yield a record (`CSV_HEADER`) for each cell that is not empty; fractions stay fractions."""
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                if cell.text or cell.note:
                    names = (self.key, row.head.name, row.head.detail, column.name, column.detail)
                    count = cell.count if cell.value is not None else None
                    texts = map(plain, (*names, cell.text or cell.note))
                    yield (*texts, cell.value, cell.std, count, int(cell.is_best))

    def as_json(self) -> dict[str, Any]:
        """Return the table as an object; an empty cell is null."""
        return {
            "table": self.key,
            "title": self.title,
            "caption": self.caption,
            "columns": [{"name": column.name, "detail": column.detail} for column in self.columns],
            "rows": [
                {
                    "name": row.head.name,
                    "detail": row.head.detail,
                    "run_dir": str(row.head.folder) if row.head.folder else None,
                    "cells": [asdict(cell) if cell.text or cell.note else None for cell in row.cells],
                }
                for row in self.rows
            ],
        }


CSV_HEADER = (
    "table", "row", "row_detail", "column", "column_detail", "text", "value", "std", "num_runs", "is_best",
)  # fmt: skip


def simple_table(columns: Columns, rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of texts without a title; `columns` maps each header to the kind of its column."""
    corner, *others = (Header(name, kind=kind) for name, kind in columns.items())
    lines = (Row(Header(name), tuple(map(Cell, cells))) for name, *cells in rows)
    return Table("", "", "", corner, tuple(others), tuple(lines))


@dataclass(frozen=True)
class _Column:
    """A column of a table on a terminal: the texts of its header and of its cells."""

    kind: Kind
    header: str
    cells: Sequence[str]

    @property
    def width(self) -> int:
        return max(map(_width, (self.header, *self.cells)))

    def least_width(self, *, folds_all: bool) -> int:
        """Return the width below which words would be broken, or too much of a text cut off.

        Args:
            folds_all: also means and short texts, which else stay on one line.
        """
        widest = max(map(_width, self.cells), default=0)
        pieces = (piece.rstrip() for text in self.cells for piece in _pieces(self.kind, text))
        longest = min(max(map(_width, pieces), default=0), LONGEST_PIECE)
        if self.kind in ("clipped", "file"):
            least = min(widest, TIGHT_WIDTH)
        elif self.kind == "text":
            least = longest if folds_all else max(longest, min(widest, LEAST_WIDTH))
        else:
            least = longest if folds_all and self.kind == "number" else widest
        return max(least, *map(_width, ["", *self.header.split()]))

    def lines(self, text: str, width: int) -> list[str]:
        """Return a text of the column as lines of its width."""
        if self.kind in ("clipped", "file"):
            lines = [_clipped(text, width, at_start=self.kind == "file")]
        else:
            lines = _folded(self.kind, text, width)
        spaces = (" " * (width - _width(line)) for line in lines)
        return [
            space + line if self.kind == "number" else line + space
            for line, space in zip(lines, spaces, strict=True)
        ]


def _widths(columns: Sequence[_Column], room: int, *, may_fold_all: bool) -> list[int]:
    """Return the widths of the columns of a table: of those that can give way, the widest do, until all fit.

    Args:
        may_fold_all: where nothing else gives room, a mean may stand apart from its deviation.
    """
    room -= GAP * (len(columns) - 1)
    widths = [column.width for column in columns]
    for folds_all in (False, True)[: 1 + may_fold_all]:
        least = [column.least_width(folds_all=folds_all) for column in columns]
        while sum(widths) > room and any(map(gt, widths, least)):
            reducible = [at for at, width in enumerate(widths) if width > least[at]]
            widths[max(reducible, key=widths.__getitem__)] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    """Return the width of a table whose columns have these widths."""
    return sum(widths) + GAP * (len(widths) - 1)


def _rows(columns: Sequence[_Column], widths: Sequence[int]) -> list[str]:
    """Return the lines of the header and of each row on a terminal."""
    rows = []
    for texts in zip(*((column.header, *column.cells) for column in columns), strict=True):
        cells = [column.lines(*cell) for column, *cell in zip(columns, texts, widths, strict=True)]
        height = max(map(len, cells))
        for cell, width in zip(cells, widths, strict=True):
            blank = [" " * width] * (height - len(cell))
            cell[:] = cell + blank if rows else blank + cell  # headers end where the numbers begin
        lines = ((" " * GAP).join(line).rstrip() for line in zip(*cells, strict=True))
        rows.append("".join(f"{line}\n" for line in lines))
    return rows


def _clipped(text: str, width: int, *, at_start: bool) -> str:
    if _width(text) <= width:
        return text
    while _width(text) > width - 1:
        text = text[1:] if at_start else text[:-1]
    return f"…{text}" if at_start else f"{text}…"


def _folded(kind: Kind, text: str, width: int) -> list[str]:
    """Break a text into lines, at spaces; of names also after punctuation, inside a word only at the last."""
    lines, line = [], ""
    for piece in _pieces(kind, text):
        if line and _width(line + piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
        while _width(line.rstrip()) > width:  # a piece longer than a line
            fits = next(at for at in range(len(line), 0, -1) if _width(line[:at]) <= width or at == 1)
            lines.append(line[:fits])
            line = line[fits:]
    return [*lines, line.rstrip()]


def _pieces(kind: Kind, text: str) -> list[str]:
    """Split a text where a line may end: after spaces, and in names after punctuation inside a word."""
    places = r"(?<=\s)(?=\S)|(?<=[-_/])(?=\w)|(?<=[.:])(?=[^\W\d])" if kind == "text" else r"(?<=\s)(?=\S)"
    return re.split(places, text)


def _width(text: str) -> int:
    """Return the columns of a terminal that a text takes: letters of some scripts take two."""
    from rich.cells import cell_len

    return cell_len(text)


def fraction_cell(value: float | None, std: float | None = None, *, count: int = 1, note: str = "") -> Cell:
    """Return a fraction in percent with two decimals, as mean ± std where there are several runs."""
    if value is None:
        return Cell(note=note)
    spread = "" if std is None else f" ± {100 * std:.2f}"
    return Cell(f"{100 * value:.2f}{spread}", value, std, count, note=note)


def number_cell(value: float | None, form: str = "{:.4g}") -> Cell:
    return Cell() if value is None else Cell(form.format(value), float(value))


def mark_best(cells: Sequence[Cell], *, is_smallest: bool = False) -> tuple[Cell, ...]:
    """Mark the highest mean, or the smallest, and all that print the same; none of a single one."""
    means = [None if cell.value is None else cell.text.partition(" ")[0] for cell in cells]
    compared = [mean for mean in means if mean is not None]
    if len(compared) < 2:
        return tuple(cells)
    best = (min if is_smallest else max)(compared, key=float)
    return tuple(replace(cell, is_best=mean == best) for cell, mean in zip(cells, means, strict=True))


@dataclass(frozen=True)
class PageFigure:
    """A figure of an HTML page.

    Attributes:
        section: key of the table whose heading it stands under, or a heading of its own.
        body: an <svg> element, or other HTML, without addresses of anything outside it.
        legend: colour and name of each line.
        has_dots: its lines are points, not curves.
        has_paper: it needs a white background.
        is_wide: it needs the whole width of the page.
    """

    section: str
    caption: str
    body: str
    legend: tuple[tuple[str, str], ...] = ()
    has_dots: bool = False
    has_paper: bool = False
    is_wide: bool = False
