"""Recipes: load, merge and check what a run does. A recipe is data with a closed schema, and immutable.

A later layer overrides an earlier one: the base that a file extends, the file, the command line.
Until it is checked, a recipe is handled as {"section.key": value}.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vitcli.errors import VitError
from vitcli.io.credentials import without_credentials
from vitcli.recipe import auto, catalog
from vitcli.recipe.auto import AUTO
from vitcli.recipe.catalog import available, dataset_aliases, find, find_file, label, read_toml
from vitcli.recipe.schema import KEYS, OPTIONAL_SECTIONS, SECTIONS, TRAINING_SECTIONS, Recipe, accepts_none
from vitcli.recipe.sweep import check_with_choices, settled, trials
from vitcli.recipe.toml import differences, flat, nested, to_toml, typed_value
from vitcli.recipe.validation import (
    BELONGS,
    MOST_MISTAKES,
    SEE_SCHEMA,
    USUAL,
    Problem,
    is_overridden,
    report,
    unknown,
)

__all__ = [
    "SHORTHANDS", "Recipe", "available", "catalog", "check_names_ckpt", "dataset_aliases",
    "default_for_dataset", "differences", "find", "find_file", "find_for_dataset", "flat", "label", "load",
    "load_for_dataset", "load_for_inference", "merge", "nested", "origins", "parse_options", "read_toml",
    "settled", "to_toml", "trials",
]  # fmt: skip

# Options that set a recipe key, for messages.
SHORTHANDS = {
    "model.name": "--model", "model.ckpt": "--ckpt",
    "data.dataset": "--dataset", "data.image_size": "--res",
    "data.on_bad_image": "--skip-bad",
    "schedule.steps": "--steps", "schedule.epochs": "--epochs", "optimizer.lr": "--lr",
    "train.batch_size": "--batch-size", "train.seed": "--seed", "train.runs": "--runs",
    "precision.compute": "--precision",
    "eval.batch_size": "--batch-size", "eval.layer": "--layer",
    "fewshot.shots": "--shots", "fewshot.seeds": "--seeds",
    "fewshot.l2": "--l2", "fewshot.classifier": "--classifier",
}  # fmt: skip
NO_SHORTHANDS: Mapping[str, Any] = MappingProxyType({})
DEFAULT = "schema default"
USUAL_SOURCE = "the paper, for that choice"
STEPS, WARMUP = "schedule.steps", "schedule.warmup"


@dataclass(frozen=True)
class Draft:
    """A recipe before validation: values by dotted key, the source of each, mistakes and notes so far."""

    values: dict[str, Any]
    sources: dict[str, str]
    mistakes: list[Problem]
    notes: list[str] = field(default_factory=list)

    def overlay(self, layer: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        """Put `layer` on top, drop inherited keys that it makes meaningless and add those that it needs."""
        for key in [key for key in self.values if key not in layer and is_overridden(key, layer)]:
            del self.values[key], self.sources[key]
        # The word none unsets a key: TOML has no null.
        unset = {key for key, value in layer.items() if value == "none" and accepts_none(key)}
        self.values.update({**layer, **dict.fromkeys(unset)})
        self.sources.update(sources)
        for key, value in USUAL.items():
            choice, needed = BELONGS[key]
            if layer.get(choice) == needed and key not in self.values:
                self.values[key], self.sources[key] = value, USUAL_SOURCE


def load(
    name_or_path: str,
    overrides: Sequence[str] = (),
    shorthands: Mapping[str, Any] = NO_SHORTHANDS,
    *,
    training: bool = True,
) -> Recipe:
    """Read, merge and check a recipe.

    Args:
        name_or_path: a shipped recipe ("finetune/cifar10"), a path that ends in .toml, or "auto".
        overrides: "section.key=value" with a TOML value; bare words are strings, none unsets.
        shorthands: values of options by dotted key, typed or parsed; None means not given.
        training: require the sections of a training run; evaluation does without them.

    Raises:
        VitError: every mistake of the files and options, in one report.
    """
    if name_or_path == AUTO:
        by_size = {size: load(name, overrides, shorthands) for size, name in auto.NAMES.items()}
        return by_size["some"].with_sizes(by_size).with_given(_given(overrides, shorthands))
    draft = merge(name_or_path, overrides, shorthands)
    if not training:
        draft.mistakes.extend(_unused_training_keys(draft))
    # Mistakes of the merge and of the schema come in one report.
    file = label(find(name_or_path))
    recipe, problems = check_with_choices(draft.values, draft.sources, file=file, training=training)
    if recipe is None or draft.mistakes or problems:
        raise report(draft.mistakes + problems, f"recipe {name_or_path}")
    return recipe.with_name(name_or_path).with_notes(*draft.notes)


def load_for_inference(
    name: str | None,
    overrides: Sequence[str],
    shorthands: Mapping[str, Any],
    *,
    default: str = "evaluate/default",
    command: str | None = None,
) -> Recipe:
    """Load the recipe of a command that does not train: `name`, else `default`.

    Args:
        command: name of a command that runs a checkpoint on a data set; the recipe must name both.

    Raises:
        VitError: every mistake of the files and options, in one report.
    """
    recipe = load(name or default, overrides, shorthands, training=False)
    if command:
        check_names_ckpt(recipe, command)
        if recipe.data.dataset is None:
            where = "--dataset (recipe key data.dataset)"
            raise VitError("no data set is named", where=where, fix=_example_of(command))
    given = _given(overrides, shorthands)
    return recipe.with_given({"--recipe": name} | given if name else given)


def _given(overrides: Sequence[str], shorthands: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key as they were given, with one spelling of a path and no credentials."""
    values = {key: value for key, value in shorthands.items() if value is not None}
    pairs = (override.partition("=") for override in overrides)
    values |= {key.strip(): value.strip() for key, _, value in pairs}
    for key, value in values.items():
        values[key] = without_credentials(value) if isinstance(value, str) else value
    return catalog.with_tidy_paths(values)


def check_names_ckpt(recipe: Recipe, command: str) -> None:
    """Refuse a recipe without a checkpoint, for a command that needs one."""
    if recipe.model.ckpt is None:
        where = "--ckpt (recipe key model.ckpt)"
        raise VitError("no checkpoint is named", where=where, fix=_example_of(command))


def _example_of(command: str) -> str:
    """Return what to type for a command that lacks its checkpoint or its data set."""
    match command:
        case "finetune":
            return "--ckpt FILE, a run folder, timm/NAME or demo; or --ckpt random with --model NAME"
        case "predict" | "datasets preview":
            return "--ckpt RUN, a weights file, timm/NAME or demo"
        case "inspect":
            return "--ckpt RUN, a weights file, timm/NAME or demo; vit inspect without options shows the demo"
    more = " --out FEATURES.safetensors" if command == "embed" else ""
    return f"vit {command} --ckpt RUN --dataset DATA{more}, such as --ckpt demo --dataset demo:pretrain"


def merge(
    name_or_path: str, overrides: Sequence[str] = (), shorthands: Mapping[str, Any] = NO_SHORTHANDS
) -> Draft:
    """Return the values of a recipe before validation. A base may be incomplete."""
    draft = Draft({}, {}, [])
    for path, table in _base_and_file(find(name_or_path)):
        values = _flat_table(table, label(path), draft.mistakes)
        draft.overlay(values, dict.fromkeys(values, label(path)))
    of_file = dict(draft.values)
    draft.overlay(*parse_options(overrides, shorthands, draft.mistakes))
    _shrink_warmup(draft, of_file)
    draft.values.update(catalog.with_tidy_paths(draft.values))
    return draft


def _shrink_warmup(draft: Draft, of_file: Mapping[str, Any]) -> None:
    """Keep the fraction of a warm-up that a recipe gives in steps, where --steps is less than these."""
    values, sources = draft.values, draft.sources
    steps, warmup, steps_of_file = values.get(STEPS), values.get(WARMUP), of_file.get(STEPS)
    if not (isinstance(steps, int) and isinstance(warmup, int) and isinstance(steps_of_file, int)):
        return
    if warmup <= steps or sources[WARMUP].startswith("option ") or not sources[STEPS].startswith("option "):
        return
    fraction = f"{100 * warmup / steps_of_file:.4g}%"
    origin = f"{warmup} of {steps_of_file} in {sources[WARMUP]}"
    draft.notes.append(f"warm-up: {fraction} of the {steps} steps, as {origin}")
    values[WARMUP] = fraction
    sources[WARMUP] += f", as a fraction of the steps by {sources[STEPS]}"


def _unused_training_keys(draft: Draft) -> list[Problem]:
    """Remove training keys that only options set, for a command that does not train; report each."""
    in_files = {_section(key) for key, source in draft.sources.items() if not source.startswith("option ")}
    problems = []
    for key in [key for key in draft.values if _section(key) in set(TRAINING_SECTIONS) - in_files]:
        what = f"{key} is a training option; this command does not train"
        problems.append(Problem(what, draft.sources.pop(key), "leave it out"))
        del draft.values[key]
    return problems


def origins(
    name_or_path: str, overrides: Sequence[str] = (), shorthands: Mapping[str, Any] = NO_SHORTHANDS
) -> dict[str, str]:
    """Return the source of each value of a recipe: a file, an option, or the schema's default."""
    sources = merge(name_or_path, overrides, shorthands).sources
    present = {_section(key) for key in sources} | (set(SECTIONS) - set(OPTIONAL_SECTIONS))
    return {key: sources.get(key, DEFAULT) for key in KEYS if _section(key) in present}


def find_for_dataset(command: str, dataset: str | None) -> str:
    """Return the name of the shipped recipe of a command for a data set.

    The only recipe of the command for the data set, else that of its alias, else the default; for the demo
    data and without a data set that of the demo.
    """
    names = [name for name, _ in available() if name.startswith(f"{command}/")]
    matching = [name for name in candidates(command, dataset) if name in names]
    alias = dataset_aliases().get(dataset or "", {})
    if len(matching) == 1:
        return matching[0]
    if command == "pretrain" and "pretrain" in alias:
        return alias["pretrain"]
    if not matching and alias.get("recipe", "") in names:
        return alias["recipe"]
    is_demo = dataset is None or dataset.partition(":")[0] == "demo"
    default = f"{command}/demo" if is_demo and f"{command}/demo" in names else f"{command}/default"
    if not matching and default in names:
        return default
    raise VitError(
        f"{len(matching) or 'no'} {command} recipes are for data set {dataset!r}",
        where="option --dataset",
        fix=f"name one with --recipe: {', '.join(matching) or 'vit recipes list'}",
    )


def default_for_dataset(command: str, dataset: str | None) -> str:
    """Return what a training command without --recipe takes: as `find_for_dataset`, or "auto"."""
    name = find_for_dataset(command, dataset)
    return AUTO if name == "finetune/default" else name


def candidates(command: str, dataset: str | None) -> list[str]:
    """Return the shipped recipes of a command that name the data set; those in modern/ pretrain."""
    folders = (f"{command}/", "modern/") if command == "pretrain" else (f"{command}/",)
    names = [name for name, _ in available() if name.startswith(folders)] if dataset else []
    return [name for name in names if merge(name).values.get("data.dataset") == dataset]


def load_for_dataset(
    command: str, dataset: str | None, overrides: Sequence[str], shorthands: Mapping[str, Any]
) -> Recipe:
    """Load the recipe of a training command for a data set; a note names the others that there are for it."""
    name = default_for_dataset(command, dataset)
    others = [other for other in candidates(command, dataset) if other != name]
    note = f"recipe {name}; others for {dataset}, by --recipe: {', '.join(others)}"
    return load(name, overrides, shorthands).with_notes(*([note] if others else []))


def _section(key: str) -> str:
    return key.partition(".")[0]


def _base_and_file(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    table = read_toml(path)
    base = table.pop("extends", None)
    if base is None:
        return [(path, table)]
    sibling = path.parent / str(base)
    base_path = sibling if sibling.suffix == ".toml" and sibling.is_file() else find(str(base))
    base_table = read_toml(base_path)
    if "extends" in base_table:
        raise VitError(
            f"the base {base!r} extends another recipe itself",
            where=f"{label(path)}, key extends",
            fix="extend the base's own base, or copy the keys you need",
        )
    return [(base_path, base_table), (path, table)]


def _flat_table(table: dict[str, Any], source: str, mistakes: list[Problem]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for section, keys in table.items():
        if section in SECTIONS and isinstance(keys, dict):
            values |= {f"{section}.{key}": value for key, value in keys.items()}
        elif section in SECTIONS:
            mistakes.append(Problem(f"{section} is a section", source, f"write [{section}] above its keys"))
        elif len(mistakes) < MOST_MISTAKES:
            mistakes.append(unknown(section, source))
        else:  # only counted
            mistakes.append(Problem(section, source, SEE_SCHEMA))
    return values


def parse_options(
    overrides: Sequence[str], shorthands: Mapping[str, Any], mistakes: list[Problem]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values that the command line sets, and the option of each; `mistakes` grows."""
    given = [(key, value, f"option {SHORTHANDS.get(key, key)}") for key, value in shorthands.items()]
    given = [(key, value, option) for key, value, option in given if value is not None]
    for override in overrides:
        key, equals, value = (part.strip() for part in override.partition("="))
        if not equals:
            mistakes.append(Problem(f"{override!r} sets nothing", "option --set", "write section.key=value"))
        elif key not in KEYS:
            mistakes.append(unknown(key, f"option --set {override}"))
        else:
            given.append((key, value, f"option --set {override}"))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, value, option in given:
        if key in sources:
            mistakes.append(Problem(f"{key} is set twice", f"{sources[key]} and {option}", "set it once"))
        values[key], sources[key] = typed_value(key, value) if isinstance(value, str) else value, option
    return values, sources
