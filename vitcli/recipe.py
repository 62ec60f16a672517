"""Recipes: what a run does, as data with a closed schema, checked whole and never changed afterwards.

Precedence: the base file that a recipe extends, the file, then the command line. There is no fourth place.
A section is a flat table, so a recipe is handled as {"section.key": value} until it is checked.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vitcli.errors import MachineError, VitError, nearest
from vitcli.recipe_mistakes import Mistake, check, report, unknown
from vitcli.recipe_rules import is_superseded
from vitcli.recipe_schema import KEYS, OPTIONAL_SECTIONS, SECTIONS, Recipe, accepts_none
from vitcli.recipe_text import differences, flat, to_toml, toml_text, typed_value

__all__ = [
    "SHORTHANDS",
    "Recipe",
    "available",
    "dataset_aliases",
    "differences",
    "find",
    "find_for_dataset",
    "flat",
    "is_base",
    "load",
    "merge",
    "origins",
    "to_toml",
    "toml_text",
]

SHORTHANDS = MappingProxyType(
    {
        "model.name": "--model",
        "model.ckpt": "--ckpt",
        "data.dataset": "--dataset",
        "data.image_size": "--res",
        "schedule.steps": "--steps",
        "train.batch_size": "--batch-size",
        "optimizer.lr": "--lr",
        "train.seed": "--seed",
        "precision.compute": "--precision",
        "eval.batch_size": "--batch-size",
        "eval.layer": "--layer",
        "fewshot.shots": "--shots",
        "fewshot.seeds": "--seeds",
        "fewshot.l2": "--l2",
        "fewshot.classifier": "--classifier",
    }
)
NO_SHORTHANDS: Mapping[str, Any] = MappingProxyType({})
HERE = Path(__file__).parent
HOMES = (HERE / "recipes", HERE.parent / "recipes")  # inside the wheel; beside the package in a checkout
ALIASES = "datasets.toml"  # lies among the recipes and is none
CLASSES, STUDIES = "classes", "studies"  # folders of class maps and studies, which are no recipes either
DEFAULT = "schema default"


@dataclass(frozen=True)
class Draft:
    """Values by dotted key, where each comes from, and what is wrong so far."""

    values: dict[str, Any]
    sources: dict[str, str]
    mistakes: list[Mistake]

    def lay(self, layer: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        """Put `layer` on top; an inherited key that loses its meaning through it goes."""
        for key in [key for key in self.values if key not in layer and is_superseded(key, layer)]:
            del self.values[key], self.sources[key]
        self.values.update({key: _unset(key, value) for key, value in layer.items()})
        self.sources.update(sources)


def load(
    name_or_path: str,
    overrides: Sequence[str] = (),
    shorthands: Mapping[str, Any] = NO_SHORTHANDS,
    *,
    training: bool = True,
) -> Recipe:
    """Read, merge and check a recipe.

    Args:
        name_or_path: a shipped recipe ("finetune/cifar10"), or a path that ends in .toml.
        overrides: "section.key=value", the value as TOML writes it; bare words are strings, none unsets.
        shorthands: values of options by dotted key, typed or parsed; None means that it was not given.
        training: whether the sections of a training run must be there; evaluation does without them.

    Raises:
        VitError: every mistake of the files and options, in one report.
    """
    draft = merge(name_or_path, overrides, shorthands)
    file = label(find(name_or_path))
    recipe, found = check(draft.values, draft.sources, file=file, training=training)
    if mistakes := draft.mistakes + found:
        raise report(mistakes, f"recipe {name_or_path}")
    return recipe


def merge(
    name_or_path: str, overrides: Sequence[str] = (), shorthands: Mapping[str, Any] = NO_SHORTHANDS
) -> Draft:
    """A recipe's values before the schema has seen them; those of a base, too, which need not be whole."""
    draft = Draft({}, {}, [])
    for path, table in _base_and_file(find(name_or_path)):
        values = _flat_table(table, label(path), draft.mistakes)
        draft.lay(values, dict.fromkeys(values, label(path)))
    draft.lay(*_options(overrides, shorthands, draft.mistakes))
    return draft


def origins(
    name_or_path: str, overrides: Sequence[str] = (), shorthands: Mapping[str, Any] = NO_SHORTHANDS
) -> dict[str, str]:
    """Where each value of a recipe comes from: a file, an option, or the schema's neutral default."""
    sources = merge(name_or_path, overrides, shorthands).sources
    present = {_section(key) for key in sources} | (set(SECTIONS) - set(OPTIONAL_SECTIONS))
    return {key: sources.get(key, DEFAULT) for key in KEYS if _section(key) in present}


@cache
def available() -> tuple[tuple[str, str], ...]:
    """Name and first comment line of every shipped recipe, sorted by name."""
    home = _home()
    names = sorted(
        str(path.relative_to(home).with_suffix("").as_posix())
        for path in home.rglob("*.toml")
        if path.name != ALIASES and path.parent.name not in (CLASSES, STUDIES)
    )
    return tuple((name, _first_line(home / f"{name}.toml")) for name in names)


def is_base(name: str) -> bool:
    """Whether it is there for others to extend alone (some do, it names no data) and need not be whole."""
    return name in _bases()


@cache
def _bases() -> set[str]:
    tables = {name: read_toml(find(name)) for name, _ in available()}
    extended = {table["extends"] for table in tables.values() if "extends" in table}
    return {name for name in extended & tables.keys() if "dataset" not in tables[name].get("data", {})}


def find(name: str) -> Path:
    """The file of a shipped recipe ("finetune/cifar10"), or of a path that ends in .toml."""
    if name.endswith(".toml"):
        if Path(name).is_file():
            return Path(name)
        raise VitError(
            f"there is no recipe file {name}",
            where="option --recipe, or key extends",
            fix="give the path of a .toml file; the shipped ones go without .toml (vit recipes list)",
        )
    names = [known for known, _ in available()]
    if name in names:
        return _home() / f"{name}.toml"
    raise VitError(
        f"there is no recipe {name!r}{nearest(name, names)}",
        where="option --recipe, or key extends",
        fix="vit recipes list shows the shipped ones; the path of a file must end in .toml",
    )


def find_for_dataset(command: str, dataset: str | None) -> str:
    """Name of the shipped recipe of `command` for a data set: its own, else its alias's, else the default.

    Without a data set it is the demo, where the command has one.
    """
    names = [name for name, _ in available() if name.startswith(f"{command}/")]
    if dataset is None and f"{command}/demo" in names:
        return f"{command}/demo"
    own = [name for name in names if dataset and merge(name).values.get("data.dataset") == dataset]
    shared = dataset_aliases().get(dataset or "", {}).get("recipe", "")
    if len(own) == 1:
        return own[0]
    if not own and shared in names:
        return shared
    if not own and f"{command}/default" in names:
        return f"{command}/default"
    raise VitError(
        f"{len(own) or 'no'} {command} recipes are for data set {dataset!r}",
        where="option --dataset",
        fix=f"name one with --recipe: {', '.join(own) or f'{command}/demo, or another of vit recipes list'}",
    )


def dataset_aliases() -> dict[str, dict[str, Any]]:
    """The data sets that --dataset knows by a short name, with what recipes/datasets.toml says of each."""
    return read_toml(_home() / ALIASES)


def class_maps() -> dict[str, Path]:
    """The files of the shipped class maps by their names, for `vit evaluate --classes`."""
    return {path.stem: path for path in sorted((_home() / CLASSES).glob("*.toml"))}


def studies() -> dict[str, Path]:
    """The files of the shipped studies by their names, for `vit study`."""
    return {path.stem: path for path in sorted((_home() / STUDIES).glob("*.toml"))}


def _home() -> Path:
    return next(home for home in HOMES if (home / ALIASES).is_file())


def label(path: Path) -> str:
    """A file as people should see it: shipped ones as recipes/<name>.toml, wherever they are installed."""
    home = _home()
    return f"recipes/{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else str(path)


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig").partition("\n")[0].lstrip("# ")


def _section(key: str) -> str:
    return key.partition(".")[0]


def _base_and_file(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    table = read_toml(path)
    base = table.pop("extends", None)
    if base is None:
        return [(path, table)]
    beside = path.parent / str(base)
    base_path = beside if beside.suffix == ".toml" and beside.is_file() else find(str(base))
    base_table = read_toml(base_path)
    if "extends" in base_table:
        raise VitError(
            f"the base {base!r} extends another recipe itself",
            where=f"{label(path)}, key extends",
            fix="extend the base's own base, or copy the keys you need",
        )
    return [(base_path, base_table), (path, table)]


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise VitError(
            f"not TOML: {error}", where=str(path), fix="strings stand in quotes; numbers, true and false bare"
        ) from error
    except OSError as error:
        raise MachineError(
            f"{path} cannot be read: {error.strerror}", where=str(path), fix="make it readable"
        ) from error


def _flat_table(table: dict[str, Any], source: str, mistakes: list[Mistake]) -> dict[str, Any]:
    values = {}
    for section, keys in table.items():
        if section in SECTIONS and isinstance(keys, dict):
            values |= {f"{section}.{key}": value for key, value in keys.items()}
        elif section in SECTIONS:
            mistakes.append(Mistake(f"{section} is a section", source, f"write [{section}] above its keys"))
        else:
            mistakes.append(unknown(section, source))
    return values


def _options(
    overrides: Sequence[str], shorthands: Mapping[str, Any], mistakes: list[Mistake]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Everything that the command line sets: values, and the option of each."""
    given = [
        (key, value, f"option {SHORTHANDS.get(key, key)}")
        for key, value in shorthands.items()
        if value is not None
    ]
    for override in overrides:
        key, equals, value = (part.strip() for part in override.partition("="))
        if not equals:
            mistakes.append(Mistake(f"{override!r} sets nothing", "option --set", "write section.key=value"))
        elif key not in KEYS:
            mistakes.append(unknown(key, f"option --set {override}"))
        else:
            given.append((key, value, f"option --set {override}"))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, value, option in given:
        if key in sources:
            mistakes.append(Mistake(f"{key} is set twice", f"{sources[key]} and {option}", "set it once"))
        values[key], sources[key] = typed_value(key, value) if isinstance(value, str) else value, option
    return values, sources


def _unset(key: str, value: Any) -> Any:
    """TOML has no null, so the word none unsets a key that may be unset."""
    return None if value == "none" and accepts_none(key) else value
