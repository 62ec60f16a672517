"""`vit datasets`: what has a short name, and which pictures two splits share. Never imports torch."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli import recipe
from vitcli.data.aliases import local_copy
from vitcli.data.demo import SETS
from vitcli.data.vtab import GROUPS, VTAB
from vitcli.errors import DataError, nearest
from vitcli.output import text as output_text
from vitcli.output.atomic import check_out, replace_file
from vitcli.output.document import simple_table
from vitcli.output.progress import Progress

if TYPE_CHECKING:  # `datasets` takes a second to load, and only a check needs it
    from vitcli.data.near_duplicates import Prints
    from vitcli.data.split import Split

WIDE = 120  # columns of a terminal that has room for the splits in the list


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
    if name == VTAB:
        about = "the 19 tasks of VTAB-1k, one after the other: vit finetune --dataset vtab"
        groups = {
            group: [alias for alias, entry in aliases.items() if entry.get(VTAB) == group] for group in GROUPS
        }
        return {"name": name, "found": True, "about": about, "tasks": groups}
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
    from vitcli.data.near_duplicates import Pairs, fingerprints

    if out:
        check_out(out, overwrite=overwrite)
    began_at = time.perf_counter()
    here, there = _open_both(dataset, against, split, against_split)
    is_within = here.name == there.name
    console = Progress(quiet=quiet)
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
        "num_images": len(here),
        "num_against": len(there),
        "distance": distance,
        **pairs.result(),
        "unreadable": [place for found in prints for place in found.unreadable],
        "pairs_file": str(out) if out else None,
        "elapsed_s": time.perf_counter() - began_at,
    }


def _open_both(dataset: str, against: str | None, split: str, against_split: str) -> tuple["Split", "Split"]:
    """The split to check, by itself the test split, and the one to check it against, by itself train."""
    from vitcli.data.dataset import DataSet
    from vitcli.data.near_duplicates import without_labels

    def pictures_of(data: DataSet) -> DataSet:
        if data.tables is not None:  # shards and what is drawn have one kind of labels
            data.tables, data.label_column = without_labels(data.tables, data.image_column), None
        return data

    mine = pictures_of(DataSet(dataset))
    is_one = against is None or _is_same(dataset, against)
    theirs = mine if is_one else pictures_of(DataSet(against))
    is_found = "auto" in (split, against_split)
    if against_split == "auto":
        found = theirs.default_train_split()
        if not found and is_one:
            raise _nothing_to_compare(f"{dataset} has no train split", mine.split_names)
        against_split = found or theirs.only_split("--against-split")
    trained = against_split.partition("[")[0]
    if split == "auto":
        split = mine.default_eval_split(besides=trained if is_one else None)
        if split is None and is_one:
            raise _nothing_to_compare(f"{dataset} has no split to check besides {trained}", mine.split_names)
        split = split or mine.only_split("--split")
    is_whole = trained in (split, against_split)  # of one split two slices may be meant
    if is_one and is_found and split.partition("[")[0] == trained and (is_whole or split == against_split):
        raise _nothing_to_compare(
            f"split {split} of {dataset} would be compared with itself", mine.split_names
        )
    return mine.open(split), theirs.open(against_split)


def _is_same(dataset: str, against: str) -> bool:
    """Whether two names are one data set: a folder has many."""
    both = Path(dataset), Path(against)
    return dataset == against or (both[0].exists() and both[1].exists() and both[0].samefile(both[1]))


def _nothing_to_compare(what: str, names: Sequence[str]) -> DataError:
    """A split is compared with itself only where it is named twice."""
    return DataError(
        what,
        where="--against and --against-split",
        fix=f"--against OTHER_DATA, or --split and --against-split, each one of {', '.join(names)}",
    )


def _entry(name: str, alias: dict[str, Any]) -> dict[str, Any]:
    copy = local_copy(name)
    return {
        "name": name,
        "hub": alias.get("hub"),
        "classes": alias["classes"],
        "train_split": alias.get("train_split"),
        "eval_split": alias.get("eval_split"),
        "found": str(copy) if copy else None,
        "about": alias["about"],
    }


def render(kind: str, data: dict[str, Any]) -> str:
    """What a function of this file returned, as text for a person; `kind` is the word after it."""
    match kind:
        case "list":
            return _render_list(data["datasets"])
        case "show":
            known = {key: value for key, value in data.items() if value is not None}
            rows = [(key, _in_one_line(value)) for key, value in known.items() if key != "tasks"]
            rows += [(group, ", ".join(tasks)) for group, tasks in data.get("tasks", {}).items()]
            if data["found"] is None:
                shelf = f"$VIT_DATA/{data['name']}" + ("" if "VIT_DATA" in os.environ else ", not set")
                rows.append(("copy", f"none in {shelf}"))
            return output_text.pairs((name.ljust(15), text) for name, text in rows)
        case "check":
            return _render_check(data)
    raise AssertionError(kind)


def _render_list(entries: list[dict[str, Any]]) -> str:
    is_wide = output_text.terminal_width() >= WIDE
    splits = {"train": "train_split", "test": "eval_split"} if is_wide else {}
    columns = {"name": "id", "classes": "number", **dict.fromkeys((*splits, "here"), "id"), "from": "clipped"}
    rows = []
    for entry in entries:
        parts = [entry[key] or "-" for key in splits.values()]
        here = "yes" if entry["found"] else "no"
        rows.append((entry["name"], str(entry["classes"]), *parts, here, entry["hub"] or "$VIT_DATA only"))
    return simple_table(columns, rows).as_text()


def _render_check(found: dict[str, Any]) -> str:
    num = found["num_images"]
    exact, near = found["num_images_exact"], found["num_images_near"]
    is_within = found["split"] == found["against"]
    num_seen = num if is_within else num + found["num_against"]
    against = (
        "within itself, each pair once" if is_within else f"{found['num_against']:,} of {found['against']}"
    )
    rows = [
        ("checked", f"{num:,} pictures of {found['split']}"),
        ("against", against),
        ("same", f"{exact:,} pictures ({exact / num:.2%}) are there, in {_exact_pairs(found)}"),
        ("near", f"{near:,} more ({near / num:.2%}) look like one that is, in {found['num_near']:,} pairs"),
        ("unreadable", _unreadable(found["unreadable"])),
        ("speed", f"{num_seen / found['elapsed_s']:.0f} images/s"),
        ("written to", found["pairs_file"]),
    ]
    text = output_text.pairs(row for row in rows if row[1])
    return f"{text}\n{_table_of_pairs(found)}" if found["pairs"] else text


def _unreadable(places: list[str]) -> str | None:
    """How many and the first one, in one line of 80 columns; --json has them all."""
    if not places:
        return None
    text = f"{len(places):,} picture{'s' * (len(places) > 1)}, left out: first "
    file = places[0].partition(": ")[0].rpartition(", ")[2].removeprefix("file ")
    room = 68 - len(text)
    return text + (file if len(file) <= room else f"…{file[1 - room :]}")  # the end is the name of the file


def _exact_pairs(found: dict[str, Any]) -> str:
    return f"{found['num_same_file']:,} pairs of one file and {found['num_same_pixels']:,} of the same pixels"


def _table_of_pairs(found: dict[str, Any]) -> str:
    columns = {"the closest": "text", "bits": "number", "image": "text", "is like": "text"}
    rows = [
        (
            pair["kind"],
            str(pair["distance"]),
            pair["place"].removeprefix(f"{found['split']}, "),  # the splits are named above the table
            pair["against_place"].removeprefix(f"{found['against']}, "),
        )
        for pair in found["pairs"]
    ]
    return simple_table(columns, rows).as_text()


def _in_one_line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {one}" for key, one in value.items())
    return str(value)
