"""The document model of every table and figure that a command shows: what it says, not how it looks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """One value.

    Attributes:
        text: as a person reads it; in percent where `value` is a share.
        value, std, count: the number itself, its standard deviation, and of how many runs it is the mean.
        note: what is different about it, in small print.
    """

    text: str = ""
    value: float | None = None
    std: float | None = None
    count: int = 1
    is_best: bool = False
    note: str = ""


@dataclass(frozen=True)
class Header:
    """The name of a row or a column, in small print what tells it from others, and a row's run folder."""

    name: str
    detail: str = ""
    folder: Path | None = None


@dataclass(frozen=True)
class Row:
    """A row; `is_total` if it is the mean of others."""

    head: Header
    cells: tuple[Cell, ...]
    is_total: bool = False


@dataclass(frozen=True)
class Table:
    """Rows and columns under a title.

    Attributes:
        key: its name in JSON and CSV.
        caption: what a reader sees in it, in whole sentences.
        corner: what the rows are.
    """

    key: str
    title: str
    caption: str
    corner: str
    columns: tuple[Header, ...]
    lines: tuple[Row, ...]


def fraction_cell(value: float | None, std: float | None = None, *, count: int = 1, note: str = "") -> Cell:
    """A share in percent with two decimals, as mean ± std where there are several runs."""
    if value is None:
        return Cell(note=note)
    spread = "" if std is None else f" ± {100 * std:.2f}"
    return Cell(f"{100 * value:.2f}{spread}", value, std, count, note=note)


def number_cell(value: float | None, form: str = "{:.4g}") -> Cell:
    return Cell() if value is None else Cell(form.format(value), float(value))


def mark_best(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The highest mean marked, and whatever prints the same; nothing where there is nothing to compare."""
    means = [cell.text.partition(" ")[0] for cell in cells if cell.value is not None]
    if len(means) < 2:
        return tuple(cells)
    highest = max(means, key=float)
    return tuple(
        replace(cell, is_best=cell.value is not None and cell.text.partition(" ")[0] == highest)
        for cell in cells
    )


@dataclass(frozen=True)
class PageFigure:
    """A picture under a heading.

    Attributes:
        section: the heading it stands under, with others: that of the table of this key, or one of its own.
        svg: an element for the middle of a page.
        legend: colour and name of each line.
        has_paper: whether it needs white behind it.
        is_wide: whether it needs the whole width of the page.
    """

    section: str
    caption: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()
    has_paper: bool = False
    is_wide: bool = False
