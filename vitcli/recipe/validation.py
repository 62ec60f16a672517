"""What can be wrong with a recipe, found all at once and said in a recipe's own words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from vitcli.errors import VitError, nearest
from vitcli.recipe.schema import KEYS, SECTIONS, TRAINING_SECTIONS, Recipe
from vitcli.recipe.toml import toml_value

SEE_SCHEMA = "vit recipes schema lists every key with its meaning"
KINDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "string": "a string",
    "tuple": "a list",
}


@dataclass(frozen=True)
class Problem:
    what: str
    where: str
    fix: str


def check(
    values: Mapping[str, Any], sources: Mapping[str, str], *, file: str, training: bool
) -> tuple[Recipe | None, list[Problem]]:
    """The recipe, if it can be built, and everything that the schema says against it.

    Args:
        values: by dotted key.
        sources: the file or option of each value.
        file: named for what is missing.
        training: whether the sections of a training run must be there.
    """
    tables: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    training = training or bool(tables.keys() & set(TRAINING_SECTIONS))
    mistakes = [
        Problem(f"section [{name}] is missing", file, "extend or copy a shipped recipe: vit recipes list")
        for name in TRAINING_SECTIONS
        if training and name not in tables
    ]
    for key, what, fix in contradictions(values):
        mistakes.append(Problem(what, sources.get(key, file), fix))
    try:
        return Recipe.model_validate(tables), mistakes
    except ValidationError as refusal:
        return None, [_translated(error, sources, file) for error in refusal.errors()] + mistakes


def report(mistakes: Sequence[Problem], file: str, *, see: str = SEE_SCHEMA) -> VitError:
    """One error for all mistakes; a single one is said plainly.

    Args:
        file: what they are in: "recipe finetune/cifar10".
        see: where every key is explained.
    """
    if len(mistakes) == 1:
        return VitError(mistakes[0].what, where=mistakes[0].where, fix=mistakes[0].fix)
    lines = [f"    {m.what}\n      where: {m.where}\n      fix:   {m.fix}" for m in mistakes]
    places = dict.fromkeys(m.where for m in mistakes)
    return VitError(
        "\n".join([f"{len(mistakes)} mistakes in {file}", *lines]),
        where=", ".join(places) if len(places) < 3 else f"{len(places)} files and options, named above",
        fix=see,
    )


def unknown(key: str, source: str) -> Problem:
    """A section or key that the schema lacks, with the nearest name that it has."""
    section, dot, name = key.rpartition(".")
    elsewhere = [known for known in KEYS if known.endswith(f".{name}")]
    if section in SECTIONS:
        names = list(SECTIONS[section].model_fields)
        what = f"{key} is not a key of a recipe{nearest(name, names) or nearest(key, KEYS)}"
        fix = f"the keys of [{section}] are {', '.join(names)}"
    else:
        kind = "key" if dot else "section"
        what = f"{key} is not a {kind} of a recipe{nearest(section or name, SECTIONS)}"
        fix = f"the sections are {', '.join(SECTIONS)}"
    return Problem(what, source, f"{name} is written {' or '.join(elsewhere)}" if elsewhere else fix)


def _translated(error: Mapping[str, Any], sources: Mapping[str, str], file: str) -> Problem:
    """One refusal of pydantic in the words of a recipe."""
    key = ".".join(map(str, error["loc"][:2]))
    place, source = _place(key, error["loc"]), sources.get(key, file)
    match error["type"]:
        case "extra_forbidden":
            return unknown(key, source)
        case "missing":
            name = place if "." in key else f"section [{key}]"
            return Problem(f"{name} is missing", source, SEE_SCHEMA)
    return as_error(error, place, source)


def as_error(error: Mapping[str, Any], place: str, source: str) -> Problem:
    """A value that is not of its key's kind or range, as pydantic refuses it, in the words of a file."""
    given = error["input"]
    match error["type"]:
        case "literal_error":
            choices = error["ctx"]["expected"]
            close = nearest(str(given), choices.replace("'", "").replace(" or ", ", ").split(", "))
            return Problem(f"{place} is {toml_value(given)}{close}", source, f"it must be {choices}")
        case "string_pattern_mismatch":  # schedule.warmup is the only key with a pattern
            what = f"{place} is {toml_value(given)}, which is neither steps nor a share of the run"
            return Problem(what, source, 'write steps without quotes, or a share such as "10%"')
    kind, _, reason = error["type"].partition("_")
    if reason == "type" and kind in KINDS:
        what = f"{place} is {toml_value(given)}, which is not {KINDS[kind]}"
        return Problem(what, source, _as_kind(kind, given))
    words = error["msg"].replace("Input should", "it must").replace("Tuple should", "the list must")
    words = words.replace(" after validation", "").replace("String should", "it must")
    return Problem(f"{place} is {toml_value(given)}, out of its range", source, words)


def _place(key: str, location: Sequence[str | int]) -> str:
    """The key, and which item of its list: "optimizer.lr, item 2"."""
    items = [part for part in location[2:] if isinstance(part, int)]
    return f"{key}, item {items[0] + 1}" if items else key


def _as_kind(kind: str, given: Any) -> str:
    """How to write a value of the right kind, where the wrong one tells what was meant."""
    if isinstance(given, str):
        if kind == "bool" and given.lower() in ("true", "false"):
            return f"write {given.lower()}, without quotes"
        try:
            number = int(given) if kind == "int" else float(given)
        except ValueError:
            return f"write {KINDS[kind]}"
        return f"write {toml_value(number)}, without quotes"
    if kind == "int" and isinstance(given, float) and given.is_integer():
        return f"write {int(given)}"
    if kind == "string" and not isinstance(given, list | dict):
        return f'write "{toml_value(given)}", with quotes'
    return f"write {KINDS[kind]}"


# keys that have a meaning only with one choice of another key, and are needed with it
BELONGS = {
    "data.crop_area": ("data.train_crop", "inception"),
    "data.crop_aspect": ("data.train_crop", "inception"),
    "data.resize": ("data.train_crop", "random"),
    "data.eval_crop_fraction": ("data.eval_resize", "short_side"),
    "objective.patch_target": ("objective.loss", "masked_patch"),
    "objective.corrupted": ("objective.loss", "masked_patch"),
    "objective.masked": ("objective.loss", "masked_patch"),
    "objective.replaced": ("objective.loss", "masked_patch"),
    "optimizer.momentum": ("optimizer.name", "sgd"),
    "optimizer.betas": ("optimizer.name", "adam"),
    "optimizer.eps": ("optimizer.name", "adam"),
}
# a second choice with which a key may be given, and is not needed
ALSO_WITH = {"data.eval_crop_fraction": ["square"]}
# keys of which no run can choose a value, and why
FIXED_IN_A_CHOICE = {
    **dict.fromkeys(("data.dataset", "data.train_split", "data.num_examples"), "what is learnt from"),
    **dict.fromkeys(("data.eval_split", "data.dev_fraction"), "what is chosen by"),
    **dict.fromkeys(("data.image_column", "data.label_column", "data.num_classes"), "what is learnt"),
    **dict.fromkeys(("train.seed", "train.runs"), "a repetition and no choice"),
}
ALTERNATIVES = {"schedule.steps": "schedule.epochs", "schedule.epochs": "schedule.steps"}


def is_overridden(key: str, layer: dict[str, Any]) -> bool:
    """Whether an inherited key loses its meaning through a choice that `layer` makes."""
    choice, needed = BELONGS.get(key, (None, None))
    return ALTERNATIVES.get(key) in layer or (choice in layer and layer[choice] != needed)


def contradictions(values: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What does not hold between keys, whatever else is wrong: key, what is wrong, what works.

    Values may still be of any type: those that are not what they should be are reported elsewhere.
    """
    found = []
    for name, (choice, needed) in BELONGS.items():
        is_given, chosen = values.get(name) is not None, values.get(choice)
        if is_given and choice in values and chosen != needed and chosen not in ALSO_WITH.get(name, []):
            what = f"{name} is for {choice} = {needed!r}, which is {values[choice]!r} here"
            found.append((name, what, f"leave it out, or set {choice} to {needed!r}"))
        elif not is_given and chosen == needed:
            found.append((choice, f"{name} is missing", f"{choice} = {needed!r} needs it"))
    given = [name for name in ALTERNATIVES if values.get(name) is not None]
    if len(given) != 1 and any(name.startswith("schedule.") for name in values):
        what = "schedule.steps and schedule.epochs are both given" if given else "the duration is missing"
        found.append(("schedule.steps", what, "give exactly one of schedule.steps and schedule.epochs"))
    return found + _contradictory_numbers(values)


def _contradictory_numbers(values: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = []
    for name in ("data.crop_area", "data.crop_aspect"):
        match values.get(name):
            case [int() | float() as low, int() | float() as high] if low > high:
                found.append((name, f"{name} is [{low}, {high}]", "write [least, largest]"))
    match values.get("data.std"):
        case list() as stds if any(isinstance(std, int | float) and std <= 0 for std in stds):
            found.append(("data.std", f"data.std is {stds}", "pixels are divided by it: above 0"))
    size, resize = values.get("data.image_size"), values.get("data.resize")
    side = max(size, default=0) if isinstance(size, list) and _all_int(size) else size
    if isinstance(side, int) and isinstance(resize, int) and resize < side:
        what = f"data.resize is {resize}, smaller than data.image_size, {size}"
        found.append(("data.resize", what, f"set data.resize to {side} or more"))
    return found


def _all_int(values: list[Any]) -> bool:
    return all(isinstance(value, int) for value in values)
