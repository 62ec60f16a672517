"""Tables of data sets by networks, and the short names of data sets and run folders in a report."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vitcli.output.document import Cell, Header, Row, Table, fraction_cell, mark_best, number_cell
from vitcli.output.text import compute_unit, interval_text, natural, short_names, size_text
from vitcli.report.grouping import ImageSet, NetworkColumn, RowKey, pooled
from vitcli.report.runs import RunCollection


class Names:
    """Short names of data sets, checkpoints and run folders, each unique in the report."""

    def __init__(self, collection: RunCollection):
        evaluations = collection.evaluations
        summaries = [record.summary for record in (*collection.fewshots, *evaluations)]
        records = (*collection.runs, *collection.fewshots, *evaluations)
        folders = (*records, *collection.vtabs, *collection.vtab_runs)
        self._data = short_names(result.dataset for result in (*collection.runs, *summaries))
        evaluated = (record.summary.ckpt for record in evaluations)
        ckpts = short_names([*(run.ckpt for run in collection.runs if run.ckpt), *evaluated])
        self.ckpts = _without_ending(ckpts)
        self._folders = short_names(str(record.path) for record in folders)

    def data(self, dataset: str) -> str:
        return self._data.get(dataset, dataset) or "unknown"

    def folder(self, path: Path) -> str:
        return self._folders[str(path)]


def _without_ending(names: dict[str, str]) -> dict[str, str]:
    """Return short names of weights without .safetensors, where no other name reads the same."""
    cut = {name: short.removesuffix(".safetensors") for name, short in names.items()}
    counts = Counter(cut.values())
    return {name: cut[name] if counts[cut[name]] == 1 else short for name, short in names.items()}


def row_headers(rows: Sequence[RowKey]) -> list[Header]:
    """Return the headers of rows: the data set, and in small print its split, the rest and the images.

    Rows that would read the same have the fingerprint of their images, too.
    """
    plain = [_row_header(row, has_fingerprint=False) for row in rows]
    return [
        _row_header(row, has_fingerprint=plain.count(header) > 1)
        for row, header in zip(rows, plain, strict=True)
    ]


def _row_header(row: RowKey, *, has_fingerprint: bool) -> Header:
    dataset, *rest = row
    parts = (
        part.text(has_fingerprint=has_fingerprint) if isinstance(part, ImageSet) else part for part in rest
    )
    return Header(dataset, ", ".join(filter(None, parts)))


def crossed(key: str, title: str, caption: str, columns: Sequence[NetworkColumn]) -> Table:
    """Return a table with a row per data set and a column per network, the best of a row marked."""
    headers = tuple(column.header for column in columns)
    keys = row_keys(columns)
    cells = cells_of(columns, keys)
    rows = tuple(Row(header, line) for header, line in zip(row_headers(keys), cells, strict=True))
    return Table(key, title, caption, Header("data set", kind="text"), headers, rows)


def row_keys(columns: Sequence[NetworkColumn]) -> list[RowKey]:
    """Return the rows of all columns by name, VTAB last as in the paper."""
    rows = {row for column in columns for row in column.cells}
    return sorted(
        rows, key=lambda row: (row[0] == "VTAB", [natural(str(part), ignore_case=True) for part in row])
    )


def cells_of(columns: Sequence[NetworkColumn], rows: Sequence[RowKey]) -> list[tuple[Cell, ...]]:
    """Return the cells of each row, the best marked; with the number of runs where it differs."""
    has_count = len(_counts(columns)) > 1
    return [_best_marked(columns, row, has_count=has_count) for row in rows]


def _best_marked(columns: Sequence[NetworkColumn], row: RowKey, *, has_count: bool) -> tuple[Cell, ...]:
    """Return the cells of a row, the best of those marked that no scored image was trained on before."""
    cells = [_cell(column, row, has_count=has_count) for column in columns]
    is_fair = [not any(entry.num_seen for entry in column.cells.get(row, ())) for column in columns]
    marked = mark_best([cell if fair else Cell() for cell, fair in zip(cells, is_fair, strict=True)])
    return tuple(best if fair else cell for best, cell, fair in zip(marked, cells, is_fair, strict=True))


def of_repeats(columns: Sequence[NetworkColumn], noun: str) -> str:
    """Return the part of a caption that says what the cells are means of; empty for single runs."""
    counts = _counts(columns)
    if counts <= {1}:
        return ""
    number = f"{counts.pop()} " if len(counts) == 1 else ""
    return f", mean ± standard deviation of {number}{noun}"


def compute_column(exaflops: Sequence[float | None], detail: str = "") -> tuple[Header, list[Cell]]:
    """Return header and cells of a column of compute, in the unit that suits its largest value."""
    largest = max((value for value in exaflops if value), default=0.0)
    unit, scale = compute_unit(largest)
    form = "{:,.4g}" if largest * scale < 1e4 else "{:,.0f}"
    cells = [number_cell(None if value is None else value * scale, form) for value in exaflops]
    return Header(unit, detail), cells


def interval_of(
    accuracy: float | None, count: int | None, known: Sequence[float] | None = None
) -> Sequence[float] | None:
    """Return the 95 % interval of an accuracy over so many images, `known` if it is stored with the result.

    Of a mean of runs it is that of one run as accurate. None where accuracy or count is not known.
    """
    if known and len(known) == 2:
        return known
    if accuracy is None or not count:
        return None
    from vitcli.evaluation import statistics  # loads NumPy, which results of this version do not need

    return statistics.interval_of(accuracy, count)


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
    interval = interval_of(mean, entries[0].images.count, entries[0].interval if len(entries) == 1 else None)
    notes = [interval_text(interval)] if interval else []
    notes += [f"{size_text(resolution)} px"] if len(sizes) > 1 and resolution is not None else []
    notes += [f"{count} runs"] if has_count and count > 1 else []
    notes += [f"{most:,} trained on before"] if (most := max(entry.num_seen for entry in entries)) else []
    return fraction_cell(mean, std, count=count, note=", ".join(notes))
