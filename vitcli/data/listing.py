"""`vit datasets list` and `show`. Loads neither torch nor datasets."""

import os
from typing import Any

from vitcli import recipe
from vitcli.data.aliases import local_copy
from vitcli.data.demo import SETS
from vitcli.data.vtab import GROUPS, VTAB
from vitcli.errors import DataError, nearest
from vitcli.output import text as output_text
from vitcli.output.document import Columns, simple_table

WIDE = 120  # columns of a terminal that has room for the splits in the list


def list_datasets() -> list[dict[str, Any]]:
    """Return every alias with its source, classes and splits, and its copy in $VIT_DATA if there is one."""
    return [_entry(name, entry) for name, entry in recipe.dataset_aliases().items()]


def show(name: str) -> dict[str, Any]:
    """Return one alias of recipes/datasets.toml, its local copy and the recipe that fine-tunes it."""
    aliases = recipe.dataset_aliases()
    if name in SETS:
        about = "drawn by vit itself: shapes and textures, 64 px"
        return {
            "name": name,
            "found": True,
            "recipe": recipe.default_for_dataset("finetune", "demo"),
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
            f"there is no alias {name!r}{nearest(name, [*SETS, *aliases])}",
            where="argument NAME",
            fix="vit datasets list; folders and Hub ids need no name, --dataset takes them as they are",
        )
    recipe_name = recipe.default_for_dataset("finetune", name)
    return _entry(name, aliases[name]) | aliases[name] | {"recipe": recipe_name}


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


def show_as_text(data: dict[str, Any]) -> str:
    """Return the result of `vit datasets show` as text."""
    known = {key: value for key, value in data.items() if value is not None}
    rows = [(key, _in_one_line(value)) for key, value in known.items() if key != "tasks"]
    rows += [(group, ", ".join(tasks)) for group, tasks in data.get("tasks", {}).items()]
    if data["found"] is None:
        shelf = f"$VIT_DATA/{data['name']}" + ("" if "VIT_DATA" in os.environ else ", not set")
        rows.append(("copy", f"none in {shelf}"))
    return output_text.pairs((name.ljust(15), text) for name, text in rows)


def list_as_text(data: dict[str, Any]) -> str:
    """Return the result of `vit datasets list` as text."""
    is_wide = output_text.terminal_width() >= WIDE
    splits = {"train": "train_split", "test": "eval_split"} if is_wide else {}
    columns: Columns = {name: "id" for name in (*splits, "here")}
    rows = []
    for entry in data["datasets"]:
        parts = [entry[key] or "-" for key in splits.values()]
        here = "yes" if entry["found"] else "no"
        rows.append((entry["name"], str(entry["classes"]), *parts, here, entry["hub"] or "$VIT_DATA only"))
    return simple_table({"name": "id", "classes": "number", **columns, "from": "clipped"}, rows).as_text()


def _in_one_line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return str(value)
