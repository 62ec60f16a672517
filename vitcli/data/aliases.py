"""Look-up of a data set's files: `$VIT_DATA/<alias>` for an alias, else the path itself, else the Hub.

A module of its own because `vit datasets list`, `vit finetune --dataset vtab` and `vit reproduce --dry-run`
need the answer before `datasets` and torch are loaded; `data/dataset.py` loads both.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitcli.errors import DataError, nearest, nearest_path
from vitcli.recipe import dataset_aliases

DEMO_SETS = ("demo", "demo:pretrain")
LAYOUTS = (
    "a folder of class folders (with or without train/ val/ test/), of images with labels.csv, of Parquet or "
    "Arrow files, or of save_to_disk"
)


def local_copy(name: str) -> Path | None:
    """Return the file or folder that `--dataset name` opens on this machine, or None if there is none.

    Without VIT_DATA the name of an alias is a path like any other.
    """
    shelf = os.environ.get("VIT_DATA")
    path = Path(shelf, name) if shelf and name in dataset_aliases() else Path(name).expanduser()
    return path if path.exists() else None


def check_name(name: str) -> None:
    """Refuse a data set that is neither here nor, by its name, on the Hub.

    Raises:
        DataError: there is no such path, alias or Hub id.
    """
    alias = dataset_aliases().get(name)
    if name in DEMO_SETS or local_copy(name) or (alias and "hub" in alias):
        return
    if alias:
        raise DataError(
            f"{name} is not on the Hub and needs a local copy",
            where=f"$VIT_DATA/{name}" + ("" if os.environ.get("VIT_DATA") else ", and VIT_DATA is not set"),
            fix=f"put {LAYOUTS} there",
        )
    starts = (".", "/", "~", "vtab/")  # of paths, and of aliases; the Hub is not asked for these
    if name.startswith(starts) or name.endswith(("/", ".tar")) or name.count("/") != 1:
        hint = nearest_path(name) or nearest(name, [*DEMO_SETS, *dataset_aliases()])
        raise DataError(
            f"there is no data set {name!r}{hint}",
            where="--dataset (recipe key data.dataset)",
            fix=f"{LAYOUTS}; an alias such as oxford_pets; a Hub id owner/name; or demo",
        )


def hub_source(alias: Mapping[str, Any]) -> str:
    """Return an alias' place on the Hub as `owner/name[:config][@revision]`."""
    config, revision = alias.get("config"), alias.get("revision")
    return alias["hub"] + (f":{config}" if config else "") + (f"@{revision}" if revision else "")
