"""Group results into the cells and columns of a table, and name the columns.

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
from typing import Any, NamedTuple, TypeVar

from vitcli.models.variants import VARIANTS
from vitcli.output.document import Header
from vitcli.output.text import count_of, natural, short_names, size_text, value_text
from vitcli.recipe.schema import WITHOUT_EFFECT

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
    "train.runs": "{} runs",
    "fewshot.classifier": "{}",
    "fewshot.l2": "l2 {}",
    "fewshot.balance": "balance {}",
    "eval.layer": "{}",
}
OF_TABLE = {"data.dataset", "model.ckpt", "model.name", SEED}  # rows, columns and cells are made of these
RowKey = tuple[Any, ...]
Key, Item = TypeVar("Key", bound=Hashable), TypeVar("Item")


class ImageSet(NamedTuple):
    """The images that a result was scored on; as a part of a row, results on different ones stay apart.

    Attributes:
        count: number of images; None if the result does not say.
        fingerprint: of the data; None if the result does not say.
    """

    count: int | None
    fingerprint: str | None = None

    def text(self, *, has_fingerprint: bool = False) -> str:
        count = "" if self.count is None else count_of(self.count, "image")
        mark = self.fingerprint[:6] if self.fingerprint else "unknown"
        return f"{count} (set {mark})" if has_fingerprint else count


UNKNOWN_IMAGES = ImageSet(None)


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
