"""Tables of data sets by networks: results grouped into cells and columns, and the names of both.

A column is a network from one checkpoint. Results on the same data go to different columns if their recipes
differ, and the column's name says in what. Results that differ only in the seed are repeated runs: their cell
has the mean and standard deviation (paper, Table 2: of three).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

from vitcli.models.variants import VARIANTS
from vitcli.output.document import Cell, Header, Row, Table, fraction_cell, mark_best, number_cell
from vitcli.output.scores import ERRORS, cell_of
from vitcli.output.text import compute_unit, interval_text, natural, short_names, size_text, value_text
from vitcli.recipe.schema import WITHOUT_EFFECT
from vitcli.report.runs import UNKNOWN_IMAGES, AnyRecord, ImageSet, Names

SIZE, SEED = "data.image_size", "train.seed"
UNSET = "unset"
FOLDER = "in"  # separates results whose recipes do not differ
# Differences are searched in this order, then in all other keys, the seed and the folder.
WORDS = {
    SIZE: "{} px",
    "optimizer.lr": "lr {}",
    "schedule.steps": "{} steps",
    "schedule.epochs": "{} epochs",
    "train.batch_size": "batch {}",
    "train.runs": "runs {}",
    "fewshot.classifier": "{}",
    "fewshot.l2": "l2 {}",
    "fewshot.balance": "balance {}",
    "eval.layer": "{}",
}
OF_TABLE = {"data.dataset", "model.ckpt", "model.name", SEED}  # rows, columns and cells are made of these
RowKey = tuple[Any, ...]
Key, Item = TypeVar("Key", bound=Hashable), TypeVar("Item")


@dataclass(frozen=True)
class Entry:
    """One result on its way into a table.

    Attributes:
        row: the data set, its split, further parts of the row's name, and last the ImageSet if it is known.
        recipe: by flat keys.
        seeds, values: of the runs it is the mean of; no values while it is in progress.
        mean, std: of its summary; std with ddof 1, None for one run.
        status: shown in place of a missing number, such as "step 20 of 500".
        num_seen: images scored that had been trained on; the result is then no candidate for the best.
    """

    row: RowKey
    model: str
    ckpt: str | None
    recipe: Mapping[str, Any]
    folder: Path
    seeds: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    mean: float | None = None
    std: float | None = None
    interval: tuple[float, float] | None = None
    resolution: int | list[int] | None = None
    exaflops: float | None = None
    status: str = ""
    num_seen: int = 0

    @property
    def images(self) -> ImageSet:
        return next((part for part in self.row if isinstance(part, ImageSet)), UNKNOWN_IMAGES)


@dataclass(frozen=True)
class NetworkColumn:
    """A network, how it differs from others of its name, and its entries by row."""

    name: str
    detail: str
    cells: Mapping[RowKey, list[Entry]]

    @property
    def header(self) -> Header:
        return Header(self.name, self.detail)

    @property
    def entries(self) -> list[Entry]:
        return [entry for cell in self.cells.values() for entry in cell]


def arrange(entries: Sequence[Entry], *, by_ckpt: bool = False) -> list[NetworkColumn]:
    """Group entries into columns, sorted by name; a cell has one result, or repeated runs of one recipe.

    Args:
        by_ckpt: name a column after its checkpoint, not after the network, which may be that of all columns.
    """
    networks = grouped(entries, lambda entry: (entry.model, entry.ckpt))
    num_ckpts = Counter(model for model, _ in networks)
    ckpt_names = short_names(entry.ckpt for entry in entries if entry.ckpt)
    folders = short_names(str(entry.folder) for entry in entries)
    columns = []
    for (model, ckpt), of_network in networks.items():
        words = [f"from {ckpt_names[ckpt]}" if ckpt else "from fresh weights"]
        origin = words if num_ckpts[model] > 1 else []
        # Unfinished runs split no columns: they join the column of their recipe, or the first.
        finished = [entry for entry in of_network if entry.mean is not None] or of_network
        keys = _distinguishing_keys(finished)
        groups = grouped(finished, partial(_values, keys=keys))
        for entry in of_network:
            if entry not in finished:
                groups.get(_values(entry, keys), next(iter(groups.values()))).append(entry)
        # Name each column after its resolution, if there is one, and the values of the keys that differ.
        for values, members in groups.items():
            sizes = {size_text(entry.resolution) for entry in members if entry.resolution is not None}
            words = [f"{sizes.pop()} px"] if len(sizes) == 1 else []
            named = ((key, folders.get(value, value)) for key, value in zip(keys, values, strict=True))
            words += [word(key, value) for key, value in named if key != SIZE and value != UNSET]
            cells = grouped(members, lambda entry: entry.row)
            name, first = (ckpt_names[ckpt], [model]) if by_ckpt and ckpt else (model, origin)
            columns.append(NetworkColumn(name, ", ".join(first + words), cells))
    return sorted(
        columns,
        key=lambda column: (
            _size_of(column.name),
            natural(column.name, ignore_case=True),
            natural(column.detail, ignore_case=True),
        ),
    )


def pooled(cell: Sequence[Entry]) -> tuple[float | None, float | None, int]:
    """Return mean, standard deviation (ddof 1) and number of a cell's finished runs; None without any."""
    finished = [entry for entry in cell if entry.mean is not None]
    if not finished:
        return None, None, 0
    if len(finished) == 1:
        return finished[0].mean, finished[0].std, max(1, len(finished[0].values))
    values = [value for entry in finished for value in entry.values or (entry.mean,)]
    return mean(values), stdev(values), len(values)


def word(key: str, value: str) -> str:
    """Return a recipe key and its value as a person writes them: "lr 0.03", "384 px", "momentum 0.9"."""
    return WORDS.get(key, f"{key.rpartition('.')[2]} {{}}").replace("{}", value)


def _size_of(model: str) -> int:
    """Return the position of a model among the paper's, smaller ones first; others come last."""
    known = [name.casefold() for name in VARIANTS]
    return known.index(model.casefold()) if model.casefold() in known else len(known)


def _distinguishing_keys(entries: Sequence[Entry]) -> list[str]:
    """Return the fewest recipe keys, in order, that leave no cell with results of different recipes."""
    known = sorted(
        {key for entry in entries for key in entry.recipe} - set(WORDS) - OF_TABLE - WITHOUT_EFFECT
    )
    order = [*WORDS, *known, SEED, FOLDER]
    keys: list[str] = []
    while clashes := _clashes(entries, keys):
        differing = (
            key
            for key in order
            if key not in keys and any(len({_value(entry, key) for entry in cell}) > 1 for cell in clashes)
        )
        keys.append(next(differing))  # folders always differ
    return keys


def _clashes(entries: Sequence[Entry], keys: Sequence[str]) -> list[list[Entry]]:
    """Return the cells whose results are not repeated runs of one recipe."""
    cells = grouped(entries, lambda entry: (entry.row, _values(entry, keys)))
    return [cell for cell in cells.values() if len(cell) > 1 and not _are_repeats(cell)]


def _are_repeats(cell: Sequence[Entry]) -> bool:
    seeds = [seed for entry in cell for seed in entry.seeds]
    is_seeded = all(entry.seeds for entry in cell)
    ignored = {SEED, *WITHOUT_EFFECT}
    recipes = {
        tuple((key, _value(entry, key)) for key in sorted({*entry.recipe} - ignored)) for entry in cell
    }
    return is_seeded and len(set(seeds)) == len(seeds) and len(recipes) == 1


def grouped(items: Iterable[Item], key_of: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by key, keys and items in the order in which they come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key_of(item), []).append(item)
    return groups


def _values(entry: Entry, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(_value(entry, key) for key in keys)


def _value(entry: Entry, key: str) -> str:
    """Return the value of a key as a person writes it; the values of a sweep are separated by slashes."""
    if key == FOLDER:
        return str(entry.folder)
    value = entry.recipe.get(key, UNSET)
    if key == SIZE and entry.resolution is not None:
        return size_text(entry.resolution)
    each = value if isinstance(value, list) else [value]
    return "/".join(map(value_text, each))


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
    """Return the 95 % interval of an accuracy over this many images, `known` if it is stored with the result.

    Of a mean of runs it is that of one run as accurate. None where accuracy or count is not known.
    """
    if known and len(known) == 2:
        return known
    if accuracy is None or not count:
        return None
    from vitcli.evaluation import intervals  # loads NumPy, which stored intervals do not need

    return intervals.interval_of(accuracy, count)


def interval_note(accuracy: float | None, count: int | None, known: Sequence[float] | None = None) -> str:
    """Return the interval of `interval_of` as text; empty where it is not known."""
    interval = interval_of(accuracy, count, known)
    return interval_text(interval) if interval else ""


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
    known = entries[0].interval if len(entries) == 1 else None
    notes = [interval_note(mean, entries[0].images.count, known)]
    notes += [f"{size_text(resolution)} px"] if len(sizes) > 1 and resolution is not None else []
    notes += [f"{count} runs"] if has_count and count > 1 else []
    notes += [f"{most:,} trained on before"] if (most := max(entry.num_seen for entry in entries)) else []
    return fraction_cell(mean, std, count=count, note=", ".join(filter(None, notes)))


def best_of_their_images(records: Sequence[AnyRecord], names: Names, key: str) -> set[Path]:
    """Return the folders of results that no other of the same images surpasses in a score.

    The best error is the smallest. A result is not a candidate if its start was trained on the images.
    """
    fair = [record for record in records if not getattr(record.summary, "num_held_out_seen", 0)]

    def scored_on(record: AnyRecord) -> tuple:
        summary = record.summary
        return (summary.target or summary.command, names.data(record.dataset), summary.split, record.images)

    best = set()
    for group in grouped(fair, scored_on).values():
        cells = mark_best([cell_of(record.summary, key) for record in group], is_smallest=key in ERRORS)
        best |= {record.path for record, cell in zip(group, cells, strict=True) if cell.is_best}
    return best
