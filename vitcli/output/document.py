"""The document model of the tables and figures that commands show, and tables in each format."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from vitcli.output.text import NO_LIMIT, escape_markdown, plain, terminal_width

Kind = Literal["number", "text", "clipped", "file", "id", "command"]
# Columns of a terminal that a folded text or header keeps as long as it can, and at the least.
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

        Where there is no room, texts and the headers of numbers are folded first, then cells such as
        "90.00 ± 0.10" at their spaces; words are broken only after a punctuation mark. Names of rows that
        would be broken stand on lines of their own, above the cells. A table with a title that does not fit
        even so is a card for each row; any other is wider than the terminal: no number is ever cut off.
        Commands to copy stand below the table, each on a line of its own.
        """
        room = width or terminal_width()
        headers = (self.corner, *self.columns)
        shown = [at for at, header in enumerate(headers) if header.kind != "command"]
        lines = [[row.head.line, *(cell.line for cell in row.cells)] for row in self.rows]
        columns = [[headers[at].line, *(line[at] for line in lines)] for at in shown]
        kinds = [headers[at].kind for at in shown]
        # Names in one piece: in the first column, on lines of their own, or on those of cards.
        widths = _column_widths(kinds, columns, room)
        if not self._breaks_names(kinds[0], columns[0], widths, room):
            text = _grid(kinds, columns, widths)
        else:
            widths = _column_widths(kinds[1:], columns[1:], room - GAP)
            is_card = self.title and _total(widths) > room - GAP
            text = self._as_cards(room) if is_card else _grid_below_names(kinds, columns, widths, room)
        return text + self._commands()

    def _breaks_names(self, kind: Kind, names: Sequence[str], widths: Sequence[int], room: int) -> bool:
        """Return whether a name of the first column, such as that of a run, would not stay in one piece."""
        if len(widths) == 1 or not (self.title or kind == "id"):
            return False
        words = (word for name in names for word in name.split())
        return _total(widths) > room or any(_width(word) > widths[0] for word in words)

    def _as_cards(self, room: int) -> str:
        """Return each row as its name and, indented, a line for each cell that is not empty."""
        cards = []
        for row in self.rows:
            card = _folded(row.head.line, room, is_text=True)
            for header, cell in zip(self.columns, row.cells, strict=True):
                if cell.line and header.kind != "command":
                    first, *more = _folded(f"{header.line}: {cell.line}", room - 2, is_text=True)
                    card += [f"  {first}", *(f"    {line}" for line in more)]
            cards.append("".join(f"{line}\n" for line in card))
        return "".join(cards)

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


def simple_table(columns: Mapping[str, Kind], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of texts without a title; `columns` maps each header to the kind of its column."""
    corner, *others = (Header(name, kind=kind) for name, kind in columns.items())
    lines = (Row(Header(name), tuple(map(Cell, cells))) for name, *cells in rows)
    return Table("", "", "", corner, tuple(others), tuple(lines))


def _column_widths(kinds: Sequence[Kind], columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the widths of a table's columns: as they are, folded, or as narrow as they can be.

    Args:
        columns: the header and the cells of each.
    """
    natural, folded, least = [], [], []
    for kind, (header, *cells) in zip(kinds, columns, strict=True):
        widest, title = max(map(_width, cells), default=0), _longest_piece([header], is_text=False)
        is_text = kind in ("text", "clipped", "file")
        longest = {
            "text": _longest_piece(cells, is_text=True),
            "id": widest,
            **dict.fromkeys(("clipped", "file"), min(widest, TIGHT_WIDTH)),
        }
        unbroken = longest.get(kind, _longest_piece(cells, is_text=False))
        natural.append(max(widest, _width(header)))
        folded.append(max(max(min(widest, LEAST_WIDTH), unbroken) if is_text else widest, title))
        least.append(max(unbroken, title))
    room -= GAP * (len(kinds) - 1)
    return _narrowed(_narrowed(natural, folded, room), least, room)


def _total(widths: Sequence[int]) -> int:
    """Return the width of a table whose columns have these widths."""
    return sum(widths) + GAP * (len(widths) - 1)


def _grid(kinds: Sequence[Kind], columns: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    """Return the rows of a table as lines of a terminal, cells folded to the widths of their columns."""
    return "".join(
        f"{line}\n"
        for number, row in enumerate(zip(*columns, strict=True))
        for line in _lines_of_row(kinds, row, widths, is_header=number == 0)
    )


def _grid_below_names(
    kinds: Sequence[Kind], columns: Sequence[Sequence[str]], widths: Sequence[int], room: int
) -> str:
    """Return the rows as `_grid` does, each indented below the name that its first column has.

    Args:
        widths: of the other columns.
    """
    lines = []
    for number, (name, *row) in enumerate(zip(*columns, strict=True)):
        lines += _folded(name, room, is_text=True)
        below = _lines_of_row(kinds[1:], row, widths, is_header=number == 0)
        lines += [(" " * GAP + line).rstrip() for line in below]
    return "".join(f"{line}\n" for line in lines)


def _lines_of_row(
    kinds: Sequence[Kind], row: Sequence[str], widths: Sequence[int], *, is_header: bool
) -> list[str]:
    cells = [
        [_clipped(text, width, at_start=kind == "file")]
        if kind in ("clipped", "file")
        else _folded(text, width, is_text=kind == "text")
        for kind, text, width in zip(kinds, row, widths, strict=True)
    ]
    height = max(map(len, cells))
    if is_header:  # headers end where the numbers begin
        cells = [["" for _ in range(height - len(cell))] + cell for cell in cells]
    lines = []
    for at in range(height):
        parts = (cell[at] if at < len(cell) else "" for cell in cells)
        aligned = (
            " " * (width - _width(part)) + part if kind == "number" else part + " " * (width - _width(part))
            for kind, part, width in zip(kinds, parts, widths, strict=True)
        )
        lines.append((" " * GAP).join(aligned).rstrip())
    return lines


def _clipped(text: str, width: int, *, at_start: bool) -> str:
    if _width(text) <= width:
        return text
    while _width(text) > width - 1:
        text = text[1:] if at_start else text[:-1]
    return f"…{text}" if at_start else f"{text}…"


def _folded(text: str, width: int, *, is_text: bool) -> list[str]:
    """Break a text into lines, at spaces; of names also after punctuation, inside a word only at the last."""
    lines, line = [], ""
    for piece in _pieces(text, is_text=is_text):
        if line and _width(line + piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
        while _width(line.rstrip()) > width:  # a piece longer than a line
            fits = next(at for at in range(len(line), 0, -1) if _width(line[:at]) <= width or at == 1)
            lines.append(line[:fits])
            line = line[fits:]
    return [*lines, line.rstrip()]


def _pieces(text: str, *, is_text: bool) -> list[str]:
    """Split a text where a line may end: after spaces, and in names after punctuation inside a word."""
    places = r"(?<=\s)(?=\S)|(?<=[-_/])(?=\w)|(?<=[.:])(?=[^\W\d])" if is_text else r"(?<=\s)(?=\S)"
    return re.split(places, text)


def _width(text: str) -> int:
    """Return the columns of a terminal that a text takes: letters of some scripts take two."""
    from rich.cells import cell_len

    return cell_len(text)


def _longest_piece(texts: Iterable[str], *, is_text: bool) -> int:
    pieces = (_width(piece.rstrip()) for text in texts for piece in _pieces(text, is_text=is_text))
    return min(max(pieces, default=0), LONGEST_PIECE if is_text else NO_LIMIT)


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Take from the widest column until all fit into the room, from none below its least width."""
    widths = list(widths)
    while sum(widths) > room:
        reducible = [at for at, width in enumerate(widths) if width > least[at]]
        if not reducible:
            break
        widths[max(reducible, key=widths.__getitem__)] -= 1
    return widths


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
