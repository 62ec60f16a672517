"""Find run folders and read their files, which may be truncated or untrusted."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitcli.errors import DataError, VitError
from vitcli.output import leases, run_folder
from vitcli.output.atomic import read_json, unreadable
from vitcli.output.run_folder import ARMS, AVERAGED, FOLDS, REPEATS
from vitcli.recipe import toml

EVALUATION = "evaluation.json"
INNER = {ARMS, REPEATS, FOLDS, AVERAGED, "checkpoints", "figures", "passes"}
DEFAULT = "runs"  # where runs are that were given no --out
MAX_DEPTH = 5  # folders below the one that is named
MAX_FOLDERS = 5_000  # more is a home directory, not a folder of runs

Kind = Literal["training", "fewshot", "vtab", "evaluation", "parts"]


@dataclass(frozen=True)
class RunLocation:
    """A folder that a report can show; `is_named` on the command line itself, not below a named one."""

    path: Path
    kind: Kind
    is_named: bool


def find(places: Sequence[str]) -> list[RunLocation]:
    """Find the run folders at and below the named places, each once, in the order of names.

    Raises:
        VitError: a place is not a folder, has no runs, or has too many folders to search.
        MachineError: a folder cannot be read.
    """
    locations: dict[Path, RunLocation] = {}
    for place in places:
        path = Path(place)
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise VitError(f"{place} {what}", where="RUN", fix="name run folders, or a folder of them")
        visited: set[Path] = set()
        below = list(_below(path, path, 0, visited))
        if not below:
            raise VitError(
                f"no run in {place} or up to {MAX_DEPTH} folders below it",
                where=f"RUN {place}",
                fix="name a folder that vit finetune, pretrain, fewshot or evaluate --out has written",
            )
        for location in below:
            locations.setdefault(location.path.resolve(), location)
    return list(locations.values())


def default_places(places: Sequence[str]) -> list[str]:
    """Return the named places, or the folder in which runs are by default.

    Raises:
        VitError: neither a place is named nor is there such a folder.
    """
    if not places and not Path(DEFAULT).is_dir():
        fix = "vit report RUN, an output folder of a command, or a folder of such"
        raise VitError(f"no runs are named, and there is no folder {DEFAULT}/ here", where="RUN", fix=fix)
    return list(places) or [DEFAULT]


def read_recipe(folder: Path) -> dict[str, Any]:
    """Read the recipe of a run by flat keys, {"optimizer.lr": 0.03}; empty if there is none."""
    path = folder / run_folder.RECIPE
    try:
        sections = toml.parse(toml.read_text(path))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        fix = "write the recipe again, or leave the folder out"
        raise DataError(f"recipe.toml is damaged: {error}", where=str(path), fix=fix) from error
    except OSError as error:
        raise unreadable(path, error) from error
    keys = ((name, section) for name, section in sections.items() if isinstance(section, dict))
    return {f"{name}.{key}": value for name, section in keys for key, value in section.items()}


def kind_of(folder: Path) -> Kind | None:
    """Return what a folder holds; None if it is not one of ours."""
    if (folder / EVALUATION).is_file():
        return "evaluation"
    if (folder / run_folder.PARTS).is_file():
        return "parts"
    summary = read_json(folder / run_folder.SUMMARY) or {}
    if isinstance(summary.get("tasks"), dict):
        return "vtab"
    if not (folder / run_folder.RECIPE).is_file():
        return None
    command = summary.get("command") or command_of(folder)
    if command == "fewshot":
        return "fewshot"
    is_known = command in ("finetune", "pretrain", None)
    files = (run_folder.SUMMARY, run_folder.METRICS, run_folder.PLAN, leases.HOME)
    has_begun = any((folder / name).exists() for name in files)
    return "training" if is_known and has_begun else None


def command_of(folder: Path) -> str | None:
    """Return the command that made a folder, from environment.json; None if that does not say."""
    words = (read_json(folder / run_folder.ENVIRONMENT) or {}).get("command_line")
    if not isinstance(words, list):
        return None
    return next((word for word in words if word in ("finetune", "pretrain", "fewshot")), None)


def _below(folder: Path, top: Path, depth: int, visited: set[Path]) -> Iterator[RunLocation]:
    """Yield run folders, but not those inside a run: trials, repeated runs, tasks, checkpoints."""
    if folder.resolve() in visited:  # a link back up, or a second one to the same folder
        return
    visited.add(folder.resolve())
    if len(visited) > MAX_FOLDERS:
        what = f"{top} has more than {MAX_FOLDERS:,} folders below it"
        raise VitError(what, where="RUN", fix="name the run folders")
    kind = kind_of(folder)
    if kind:
        yield RunLocation(folder, kind, is_named=depth == 0)
    if depth == MAX_DEPTH or kind in ("vtab", "fewshot", "parts"):
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:  # deleted since its name was read, as temporary folders of a live run are
        return
    except OSError as error:
        raise unreadable(folder, error) from error
    for name in names:  # folders 1, 2, ... of several evaluations are read with them
        is_evaluations_own = kind == "evaluation" and name.isdigit()
        if not name.startswith(".") and not (kind and name in INNER) and not is_evaluations_own:
            yield from _below(folder / name, top, depth + 1, visited)
