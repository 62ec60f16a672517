"""Which run folders there are, and their files, read with suspicion: one may be cut off or a stranger's."""

import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from vitcli.errors import DataError, VitError
from vitcli.output import run_folder
from vitcli.output.atomic import read_json, unreadable
from vitcli.output.summaries import FileModel

EVALUATION = "evaluation.json"
ARMS, REPEATS = "arms", "runs"  # of a selection folder: they are its own
INNER = {ARMS, REPEATS, "checkpoints", "figures"}
DEEPEST = 5  # folders below the one that is named
MOST_FOLDERS = 5_000  # looked at: more is a home directory, not a folder of runs

Kind = Literal["training", "fewshot", "vtab", "evaluation"]


@dataclass(frozen=True)
class RunLocation:
    """A folder that a report can show."""

    path: Path
    kind: Kind
    is_named: bool  # on the command line, and not met below a folder that is


def find(places: Sequence[str]) -> list[RunLocation]:
    """The folders of runs at and below the named places, each once, in the order of names.

    Raises:
        VitError: a place that is no folder, has nothing to show, or is too large to look through.
        MachineError: a folder that may not be read.
    """
    found: dict[Path, RunLocation] = {}
    for place in places:
        path = Path(place)
        if not path.is_dir():
            what = "is a file" if path.exists() else "is not there"
            raise VitError(f"{place} {what}", where="RUN", fix="name run folders, or a folder of them")
        seen: set[Path] = set()
        here = list(_below(path, path, 0, seen))
        if not here:
            raise VitError(
                f"no run lies in {place} or {DEEPEST} folders below it",
                where=f"RUN {place}",
                fix="name a folder that vit finetune, pretrain, fewshot or evaluate --out has written",
            )
        for one in here:
            found.setdefault(one.path.resolve(), one)
    return list(found.values())


def read(path: Path, shape: type[FileModel]) -> Any:
    """A JSON file of ours.

    Raises:
        DataError: it is damaged, or another program's.
        MachineError: it cannot be read.
    """
    try:
        return shape.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{path.name} is damaged or another program's: {at + ': ' if at else ''}{first['msg']}",
            where=str(path),
            fix="run the command that made the folder again, or leave the folder out",
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def read_recipe(folder: Path) -> dict[str, Any]:
    """The recipe of a run by flat keys, {"optimizer.lr": 0.03}; empty where there is none."""
    path = folder / run_folder.RECIPE
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        fix = "write the recipe anew, or leave the folder out"
        raise DataError(f"recipe.toml is damaged: {error}", where=str(path), fix=fix) from error
    except OSError as error:
        raise unreadable(path, error) from error
    keys = ((name, section) for name, section in sections.items() if isinstance(section, dict))
    return {f"{name}.{key}": value for name, section in keys for key, value in section.items()}


def kind_of(folder: Path) -> Kind | None:
    """What a folder holds; None for nothing of ours."""
    if (folder / EVALUATION).is_file():
        return "evaluation"
    summary = read_json(folder / run_folder.SUMMARY) or {}
    if isinstance(summary.get("tasks"), dict):
        return "vtab"
    if not (folder / run_folder.RECIPE).is_file():
        return None
    command = summary.get("command") or command_of(folder)
    if command == "fewshot":
        return "fewshot"
    is_known = command in ("finetune", "pretrain", None)
    has_begun = any(
        (folder / name).exists() for name in (run_folder.SUMMARY, run_folder.METRICS, run_folder.PLAN)
    )
    return "training" if is_known and has_begun else None


def command_of(folder: Path) -> str | None:
    """The command that made a folder, by environment.json; None where that does not say."""
    words = (read_json(folder / run_folder.ENVIRONMENT) or {}).get("command_line")
    named = (
        [word for word in words if word in ("finetune", "pretrain", "fewshot")] if _is_words(words) else []
    )
    return named[0] if named else None


def _below(folder: Path, top: Path, depth: int, seen: set[Path]) -> Iterator[RunLocation]:
    """Folders of runs, without what belongs to one of them: arms, repeated runs, tasks, checkpoints."""
    if folder.resolve() in seen:  # a link back up, or a second one to the same folder
        return
    seen.add(folder.resolve())
    if len(seen) > MOST_FOLDERS:
        raise VitError(
            f"more than {MOST_FOLDERS:,} folders lie below {top}", where="RUN", fix="name the run folders"
        )
    kind = kind_of(folder)
    if kind:
        yield RunLocation(folder, kind, is_named=depth == 0)
    if depth == DEEPEST or kind in ("vtab", "fewshot"):
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:  # taken away since its name was read, as temporary folders of a live run are
        return
    except OSError as error:
        raise unreadable(folder, error) from error
    for name in names:
        is_evaluations_own = kind == "evaluation" and name.isdigit()
        if not name.startswith(".") and not (kind and name in INNER) and not is_evaluations_own:
            yield from _below(folder / name, top, depth + 1, seen)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
