"""Look-up of a data set's files: `$VIT_DATA/<alias>` for an alias, else the path itself, else the Hub.

A module of its own because `vit datasets list`, `vit finetune --dataset vtab` and `vit reproduce --dry-run`
need the answer before `datasets` and torch are loaded; `data/dataset.py` loads both.
"""

import os
from pathlib import Path
from typing import Any

from vitcli.recipe import dataset_aliases


def local_copy(name: str) -> Path | None:
    """Return the file or folder that `--dataset name` opens on this machine, or None if there is none.

    Without VIT_DATA the name of an alias is a path like any other.
    """
    shelf = os.environ.get("VIT_DATA")
    is_shelved = shelf and name in dataset_aliases()
    path = Path(shelf, name) if is_shelved else Path(name).expanduser()
    return path if path.exists() else None


def hub_source(alias: dict[str, Any]) -> str:
    """Return an alias' place on the Hub as `owner/name[:config][@revision]`."""
    config, revision = alias.get("config"), alias.get("revision")
    return alias["hub"] + (f":{config}" if config else "") + (f"@{revision}" if revision else "")
