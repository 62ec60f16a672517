"""`vit datasets`: what has a short name, and which pictures two splits share. Never imports torch."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli import recipe, tables
from vitcli.console import Console
from vitcli.demo import SETS
from vitcli.errors import DataError, VitError, nearest
from vitcli.safe_files import replace_file

if TYPE_CHECKING:  # `datasets` takes a second to load, and only a check needs it
    from vitcli.duplicates import Prints
    from vitcli.split import Split


def list_datasets() -> list[dict[str, Any]]:
    """Every alias: where it comes from, its classes and splits, and its copy in $VIT_DATA if there is one."""
    return [_entry(name, entry) for name, entry in recipe.dataset_aliases().items()]


def show(name: str) -> dict[str, Any]:
    """All that recipes/datasets.toml says of one alias, its copy here, and the recipe that fine-tunes it."""
    aliases = recipe.dataset_aliases()
    if name in SETS:
        about = "drawn by the package itself: shapes and textures, 64 px"
        return {
            "name": name,
            "found": True,
            "recipe": recipe.find_for_dataset("finetune", "demo"),
            "about": about,
        }
    if name not in aliases:
        raise DataError(
            f"no data set is called {name!r}{nearest(name, [*SETS, *aliases])}",
            where="argument NAME",
            fix="vit datasets list; folders and Hub ids need no name, --dataset takes them as they are",
        )
    own = {"recipe": recipe.find_for_dataset("finetune", name)}
    return _entry(name, aliases[name]) | aliases[name] | own


def check(
    dataset: str,
    against: str | None,
    *,
    split: str,
    against_split: str,
    distance: int,
    out: Path | None,
    workers: int | None,
    overwrite: bool,
    quiet: bool,
) -> dict[str, Any]:
    """Pairs of pictures that are the same file, the same pixels, or look the same, one in each split.

    Pictures that cannot be read are named and left out.
    """
    from vitcli.duplicates import Pairs, fingerprints

    if out and out.exists() and not overwrite:
        raise VitError(f"{out} is there already", where="--out", fix="another name, or --overwrite")
    began_at = time.perf_counter()
    here, there = _open_both(dataset, against, split, against_split)
    is_within = here.name == there.name
    console = Console(quiet=quiet)
    prints: list[Prints] = []
    for one in [here] if is_within else [here, there]:
        console.begin(f"looking at {one.name}", len(one))
        prints.append(fingerprints(one, num_threads=workers, progress=console.update))
        console.end()
    pairs = Pairs(here, there, prints[0], prints[-1], distance, within=is_within)
    if out:
        replace_file(out, pairs.write)
    else:
        pairs.count()
    return {
        "command": "datasets check",
        "split": here.name,
        "against": there.name,
        "num_pictures": len(here),
        "num_against": len(there),
        "distance": distance,
        **pairs.result(),
        "unreadable": [place for found in prints for place in found.unreadable],
        "pairs_file": str(out) if out else None,
        "elapsed_s": time.perf_counter() - began_at,
    }


def _open_both(dataset: str, against: str | None, split: str, against_split: str) -> tuple["Split", "Split"]:
    """The split to check, by itself the test split, and the one to check it against, by itself train."""
    from vitcli.data import DataSet
    from vitcli.duplicates import without_labels

    def pictures_of(data: DataSet) -> DataSet:
        if data.tables is not None:  # shards and what is drawn have one kind of labels
            data.tables, data.label_column = without_labels(data.tables, data.image_column), None
        return data

    mine = pictures_of(DataSet(dataset))
    theirs = pictures_of(DataSet(against)) if against and against != dataset else mine
    if against_split == "auto":
        against_split = theirs.default_train_split() or theirs.only_split("--against-split")
    if split == "auto":
        besides = against_split.partition("[")[0] if theirs is mine else None
        split = mine.default_eval_split(besides=besides) or mine.only_split("--split")
    return mine.open(split), theirs.open(against_split)


def _entry(name: str, alias: dict[str, Any]) -> dict[str, Any]:
    shelf = os.environ.get("VIT_DATA")
    copy = Path(shelf, name) if shelf else None
    return {
        "name": name,
        "hub": alias.get("hub"),
        "classes": alias["classes"],
        "train_split": alias.get("train_split"),
        "eval_split": alias.get("eval_split"),
        "found": str(copy) if copy and copy.exists() else None,
        "about": alias["about"],
    }


def render(kind: str, data: dict[str, Any]) -> str:
    """What a function of this file returned, as text for a person; `kind` is the word after it."""
    match kind:
        case "list":
            return _render_list(data["datasets"])
        case "show":
            known = {key: value for key, value in data.items() if value is not None}
            rows = [(key, _in_one_line(value)) for key, value in known.items()]
            if data["found"] is None:
                shelf = f"$VIT_DATA/{data['name']}" + ("" if "VIT_DATA" in os.environ else ", not set")
                rows.append(("copy", f"none in {shelf}"))
            return tables.pairs((name.ljust(15), text) for name, text in rows)
        case "check":
            return _render_check(data)
    raise AssertionError(kind)


def _render_list(entries: list[dict[str, Any]]) -> str:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "classes", "train", "test", "here", "from"):
        table.add_column(column, overflow="fold", justify="right" if column == "classes" else "left")
    for entry in entries:
        splits = [entry[key] or "-" for key in ("train_split", "eval_split")]
        here = "yes" if entry["found"] else "no"
        table.add_row(entry["name"], str(entry["classes"]), *splits, here, entry["hub"] or "$VIT_DATA only")
    return tables.printed(table)


def _render_check(found: dict[str, Any]) -> str:
    num = found["num_pictures"]
    exact, near = found["num_pictures_exact"], found["num_pictures_near"]
    rows = [
        ("checked", f"{num:,} pictures of {found['split']}"),
        ("against", f"{found['num_against']:,} of {found['against']}"),
        ("same", f"{exact:,} pictures ({exact / num:.2%}) are there, in {_exact_pairs(found)}"),
        ("near", f"{near:,} more ({near / num:.2%}) look like one that is, in {found['num_near']:,} pairs"),
        *[("unreadable", place) for place in found["unreadable"][:5]],
        ("left out", f"{len(found['unreadable'])} that cannot be read"),
        ("speed", f"{(num + found['num_against']) / found['elapsed_s']:.0f} images/s"),
        ("written to", found["pairs_file"]),
    ]
    text = tables.pairs(row for row in rows if row[1] and (row[0] != "left out" or found["unreadable"]))
    return f"{text}\n{_table_of_pairs(found)}" if found["pairs"] else text


def _exact_pairs(found: dict[str, Any]) -> str:
    return f"{found['num_same_file']:,} pairs of one file and {found['num_same_pixels']:,} of the same pixels"


def _table_of_pairs(found: dict[str, Any]) -> str:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("the closest", "bits", "picture", "is like"):
        table.add_column(column, overflow="fold", justify="right" if column == "bits" else "left")
    for pair in found["pairs"]:  # the splits are named above the table
        mine = pair["place"].removeprefix(f"{found['split']}, ")
        theirs = pair["against_place"].removeprefix(f"{found['against']}, ")
        places = (tables.plain(mine), tables.plain(theirs))
        table.add_row(pair["kind"], str(pair["distance"]), *places)
    return tables.printed(table)


def _in_one_line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {one}" for key, one in value.items())
    return str(value)
