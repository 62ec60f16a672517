"""Shipped files: recipes, data set aliases, class maps, studies and the rows of the paper's tables."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vitcli.errors import MachineError, VitError, nearest
from vitcli.recipe import toml

HOMES = (Path(__file__).parent / "shipped", Path(__file__).parents[2] / "recipes")  # of a wheel, a checkout
# Files and folders among the recipes that are not recipes.
ALIASES, ROWS = "datasets.toml", "reproduce.toml"
# Keys that take a path or a name, and names that are none of a path.
PATH_KEYS = ("data.dataset", "eval.probe", "model.ckpt")
RESERVED = ("demo", "random", "vtab")
CLASSES, STUDIES = "classes", "studies"
MOST_NAMED = 3  # recipes that have a part of a name


@cache
def available() -> tuple[tuple[str, str], ...]:
    """Return the name and first comment line of every shipped recipe, sorted by name."""
    home = _home()
    recipes = {
        path.relative_to(home).with_suffix("").as_posix(): path.read_text(encoding="utf-8-sig")
        for path in home.rglob("*.toml")
        if path.name not in (ALIASES, ROWS) and path.parent.name not in (CLASSES, STUDIES)
    }
    return tuple((name, text.partition("\n")[0].lstrip("# ")) for name, text in sorted(recipes.items()))


def is_base(name: str) -> bool:
    """Return whether a recipe only serves others as a base: some extend it, and it names no data set."""
    return name in _bases()


@cache
def _bases() -> set[str]:
    tables = {name: read_toml(find(name)) for name, _ in available()}
    extended = {table["extends"] for table in tables.values() if "extends" in table}
    return {name for name in extended & tables.keys() if "dataset" not in tables[name].get("data", {})}


def find(name: str) -> Path:
    """Return the file of a shipped recipe ("finetune/cifar10"), or of a path that ends in .toml."""
    if name.endswith(".toml"):
        if Path(name).is_file():
            return Path(name)
        raise VitError(
            f"there is no recipe file {name}",
            where="the name of a recipe (argument, option --recipe or key extends)",
            fix="give the path of a .toml file; the shipped ones go without .toml (vit recipes list)",
        )
    names = [known for known, _ in available()]
    if name in names:
        return _home() / f"{name}.toml"
    if name == "auto":
        raise VitError(
            "'auto' is not a file: it selects a recipe by images per class",
            where="the name of a recipe",
            fix="vit recipes list finetune- names them; vit finetune --dry-run says which one it takes",
        )
    with_part = [known for known in names if name.lower() in known][:MOST_NAMED]
    rest = "vit recipes list shows the shipped ones; the path of a file must end in .toml"
    raise VitError(
        f"there is no recipe {name!r}{'' if with_part else nearest(name, names)}",
        where="the name of a recipe (argument, option --recipe or key extends)",
        fix=f"{' or '.join(with_part)}; {rest}" if with_part else rest,
    )


def find_file(name: str, shipped: Mapping[str, Path], *, noun: str, where: str) -> Path:
    """Return the file of a shipped study or class map, or a path that ends in .toml."""
    path = shipped.get(name) or (Path(name) if name.endswith(".toml") else None)
    if path is None or not path.is_file():
        raise VitError(
            f"there is no {noun} {name!r}{nearest(name, shipped)}",
            where=where,
            fix=f"one of {', '.join(shipped)}, or the path of a .toml file",
        )
    return path


@cache
def dataset_aliases() -> dict[str, dict[str, Any]]:
    """Return the data set aliases of --dataset, with the entry of each in recipes/datasets.toml."""
    return read_toml(_home() / ALIASES)


def with_tidy_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key with one spelling of each path: photos for photos/ and ./photos."""
    return {key: _tidy(value) if key in PATH_KEYS else value for key, value in values.items()}


def _tidy(name: Any) -> Any:
    """Return the shortest spelling of a path that exists; ./ stays where the rest would be another name."""
    if not isinstance(name, str) or not name or "://" in name or not Path(name).exists():
        return name
    tidy = str(Path(name))
    is_name = tidy.partition(":")[0] in RESERVED or tidy in dataset_aliases()
    return f"./{tidy}" if is_name and "/" in name and name != tidy else tidy


def class_maps() -> dict[str, Path]:
    """Return the files of the shipped class maps by name, for `vit evaluate --classes`."""
    return {path.stem: path for path in sorted((_home() / CLASSES).glob("*.toml"))}


def studies() -> dict[str, Path]:
    """Return the files of the shipped studies by name, for `vit study`."""
    return {path.stem: path for path in sorted((_home() / STUDIES).glob("*.toml"))}


def paper_tables() -> Path:
    """Return the file of the rows that `vit reproduce` knows."""
    return _home() / ROWS


def _home() -> Path:
    return next(home for home in HOMES if (home / ALIASES).is_file())


def label(path: Path) -> str:
    """Return the name of a file for messages: recipes/<name>.toml for a shipped one, else the path."""
    home = _home()
    return f"recipes/{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else str(path)


def _broken_line(text: str, error: ValueError) -> str:
    """Return the line that a TOML error is about, to stand behind the path of the file."""
    lines = text.splitlines()
    number = re.search(r"at line (\d+)", str(error))
    if number is None or int(number[1]) > len(lines):
        return ""
    return f", line {number[1]}: {lines[int(number[1]) - 1].strip()[:100]}"


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file; VitError or MachineError if it cannot be read."""
    text = ""
    try:
        text = toml.read_text(path)
        return toml.parse(text)
    except ValueError as error:
        raise VitError(
            str(error),
            where=f"{path}{_broken_line(text, error)}",
            fix="quote strings; write numbers, true and false without; long lists on several lines",
        ) from error
    except OSError as error:
        raise MachineError(
            f"{path} cannot be read: {error.strerror}", where=str(path), fix="make it readable"
        ) from error
