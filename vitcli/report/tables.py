"""Tables of data sets by networks, and the short names of data sets and run folders in a report."""

from collections.abc import Sequence
from pathlib import Path

from vitcli.output.document import Cell, Header, Row, Table, fraction_cell, mark_best
from vitcli.output.text import short_names, size_text
from vitcli.report.grouping import NetworkColumn, RowKey, natural, pooled
from vitcli.report.runs import RunCollection


class Names:
    """Short names of data sets, checkpoints and run folders, each unique in the report."""

    def __init__(self, collection: RunCollection):
        summaries = [record.summary for record in (*collection.fewshots, *collection.evaluations)]
        records = (*collection.runs, *collection.fewshots, *collection.evaluations)
        folders = (*records, *collection.vtabs, *collection.vtab_runs)
        self._data = short_names(result.dataset for result in (*collection.runs, *summaries))
        self.ckpts = short_names(run.ckpt for run in collection.runs if run.ckpt)
        self._folders = short_names(str(record.path) for record in folders)

    def data(self, dataset: str) -> str:
        return self._data.get(dataset, dataset) or "unknown"

    def folder(self, path: Path) -> str:
        return self._folders[str(path)]

    def row(self, row: RowKey) -> Header:
        """Return the header of a row: the data set, its split and the rest in small print."""
        dataset, *rest = row
        return Header(self.data(dataset), ", ".join(filter(None, rest)))


def crossed(key: str, title: str, caption: str, columns: Sequence[NetworkColumn], names: Names) -> Table:
    """Return a table with a row per data set and a column per network, the best of a row marked."""
    headers = tuple(column.header for column in columns)
    keys = row_keys(columns)
    rows = tuple(Row(names.row(row), cells) for row, cells in zip(keys, cells_of(columns, keys), strict=True))
    return Table(key, title, caption, Header("data set", kind="text"), headers, rows)


def row_keys(columns: Sequence[NetworkColumn]) -> list[RowKey]:
    """Return the rows of all columns by name, VTAB last as in the paper."""
    rows = {row for column in columns for row in column.cells}
    return sorted(rows, key=lambda row: (row[0] == "VTAB", [natural(part) for part in row]))


def cells_of(columns: Sequence[NetworkColumn], rows: Sequence[RowKey]) -> list[tuple[Cell, ...]]:
    """Return the cells of each row, the best marked; with the number of runs where it differs."""
    has_count = len(_counts(columns)) > 1
    return [mark_best([_cell(column, row, has_count=has_count) for column in columns]) for row in rows]


def of_repeats(columns: Sequence[NetworkColumn], noun: str) -> str:
    """Return the part of a caption that says what the cells are means of; empty for single runs."""
    counts = _counts(columns)
    if counts <= {1}:
        return ""
    number = f"{counts.pop()} " if len(counts) == 1 else ""
    return f", mean ± standard deviation of {number}{noun}"


def _counts(columns: Sequence[NetworkColumn]) -> set[int]:
    return {pooled(cell)[2] for column in columns for cell in column.cells.values()} - {0}


def _cell(column: NetworkColumn, row: RowKey, *, has_count: bool) -> Cell:
    """Return mean and std of the entries in a cell, with a note of how it differs from its column."""
    entries = column.cells.get(row, [])
    if not entries:
        return Cell()
    mean, std, count = pooled(entries)
    if mean is None:
        return Cell(note=entries[0].status)
    sizes = {size_text(entry.resolution) for entry in column.entries if entry.resolution is not None}
    resolution = entries[0].resolution
    notes = [f"{size_text(resolution)} px"] if len(sizes) > 1 and resolution is not None else []
    notes += [f"{count} runs"] if has_count and count > 1 else []
    return fraction_cell(mean, std, count=count, note=", ".join(notes))
