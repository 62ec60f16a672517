"""A table of a report: what it says in rows and columns. How it looks is a matter of the format."""

from collections.abc import Sequence
from pathlib import Path

from vitcli.output.document import Cell, Header, Row, Table, fraction_cell, mark_best
from vitcli.output.text import short_names, size_text
from vitcli.report.grouping import NetworkColumn, RowKey, natural, pooled
from vitcli.report.runs import RunCollection


class Names:
    """What a person calls data sets and run folders; two of one name are told apart by what comes before."""

    def __init__(self, material: RunCollection):
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

    def row(self, row: RowKey) -> Header:
        """The head of a row: the data set; its split and what else there is in small print."""
        dataset, *more = row
        return Header(self.data(dataset), ", ".join(filter(None, more)))


def crossed(key: str, title: str, caption: str, columns: Sequence[NetworkColumn], names: Names) -> Table:
    """Rows of data, columns of networks, the best of a row marked."""
    heads = tuple(Header(column.name, column.detail) for column in columns)
    rows = rows_of(columns)
    cells = cells_of(columns, rows)
    lines = tuple(Row(names.row(row), own) for row, own in zip(rows, cells, strict=True))
    return Table(key, title, caption, Header("data set", kind="text"), heads, lines)


def rows_of(columns: Sequence[NetworkColumn]) -> list[RowKey]:
    """By name, VTAB last as in the paper."""
    found = {row for column in columns for row in column.cells}
    return sorted(found, key=lambda row: (row[0] == "VTAB", [natural(part) for part in row]))


def cells_of(columns: Sequence[NetworkColumn], rows: Sequence[RowKey]) -> list[tuple[Cell, ...]]:
    """The cells of each row, the best marked; each says how many runs it is of where they differ in that."""
    has_count = len(_counts(columns)) > 1
    return [mark_best([_cell(column, row, has_count=has_count) for column in columns]) for row in rows]


def repeated(columns: Sequence[NetworkColumn], what: str) -> str:
    """What a cell is the mean of, for a caption."""
    counts = _counts(columns)
    if counts <= {1}:
        return ""
    number = f"{counts.pop()} " if len(counts) == 1 else ""
    return f", mean ± standard deviation of {number}{what}"


def _counts(columns: Sequence[NetworkColumn]) -> set[int]:
    return {pooled(cell)[2] for column in columns for cell in column.cells.values()} - {0}


def _cell(column: NetworkColumn, row: RowKey, *, has_count: bool) -> Cell:
    """Mean and std of the entries that meet there, and in small print how it differs from its column."""
    entries = column.cells.get(row, [])
    if not entries:
        return Cell()
    mean, std, count = pooled(entries)
    if mean is None:
        return Cell(note=entries[0].told)
    sizes = {size_text(one.resolution) for one in column.entries if one.resolution is not None}
    own = entries[0].resolution
    notes = [f"{size_text(own)} px"] if len(sizes) > 1 and own is not None else []
    notes += [f"{count} runs"] if has_count and count > 1 else []
    return fraction_cell(mean, std, count=count, note=", ".join(notes))
