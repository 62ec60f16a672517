"""A table of a report: what it says in rows and columns. How it looks is a matter of the format."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitcli.report_columns import Row, short_names
from vitcli.report_data import Material


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
class Head:
    """The name of a row or a column, in small print what tells it from others, and a row's run folder."""

    name: str
    detail: str = ""
    folder: Path | None = None


@dataclass(frozen=True)
class Line:
    """A row; `is_total` if it is the mean of others."""

    head: Head
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
    columns: tuple[Head, ...]
    lines: tuple[Line, ...]


class Names:
    """What a person calls data sets and run folders; two of one name are told apart by what comes before."""

    def __init__(self, material: Material):
        several = (*material.runs, *material.fewshots, *material.vtabs, *material.scored)
        tasks = [run for vtab in material.vtabs for run in vtab.runs]
        self._data = short_names(
            one.dataset for one in (*material.runs, *material.fewshots, *material.scored)
        )
        known = [one.ckpt for one in material.runs if one.ckpt]
        self._ckpts = short_names(known)
        self._folders = short_names(str(one.path) for one in (*several, *tasks))

    def data(self, dataset: str) -> str:
        return self._data.get(dataset, dataset) or "unknown"

    def ckpt(self, ckpt: str) -> str:
        return self._ckpts[ckpt]

    def folder(self, path: Path) -> str:
        return self._folders[str(path)]

    def row(self, row: Row) -> Head:
        """The head of a row: the data set; its split and what else there is in small print."""
        dataset, *more = row
        return Head(self.data(dataset), ", ".join(filter(None, more)))


def share(value: float | None, std: float | None = None, *, count: int = 1, note: str = "") -> Cell:
    """A share in percent with two decimals, as mean ± std where there are several runs."""
    if value is None:
        return Cell(note=note)
    spread = "" if std is None else f" ± {100 * std:.2f}"
    return Cell(f"{100 * value:.2f}{spread}", value, std, count, note=note)


def number(value: float | None, form: str = "{:.4g}") -> Cell:
    return Cell() if value is None else Cell(form.format(value), float(value))


def best_marked(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The highest mean marked, and whatever prints the same; nothing where there is nothing to compare."""
    means = [cell.text.partition(" ")[0] for cell in cells if cell.value is not None]
    if len(means) < 2:
        return tuple(cells)
    highest = max(means, key=float)
    return tuple(
        replace(cell, is_best=cell.value is not None and cell.text.partition(" ")[0] == highest)
        for cell in cells
    )
