"""What can be wrong with a recipe, found all at once and said in a recipe's own words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from vitcli.errors import VitError, nearest
from vitcli.recipe.rules import contradictions
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
class Mistake:
    what: str
    where: str
    fix: str


def check(
    values: Mapping[str, Any], sources: Mapping[str, str], *, file: str, training: bool
) -> tuple[Recipe | None, list[Mistake]]:
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
        Mistake(f"section [{name}] is missing", file, "extend or copy a shipped recipe: vit recipes list")
        for name in TRAINING_SECTIONS
        if training and name not in tables
    ]
    for key, what, fix in contradictions(values):
        mistakes.append(Mistake(what, sources.get(key, file), fix))
    try:
        return Recipe.model_validate(tables), mistakes
    except ValidationError as refusal:
        return None, [_translated(error, sources, file) for error in refusal.errors()] + mistakes


def report(mistakes: Sequence[Mistake], file: str, *, see: str = SEE_SCHEMA) -> VitError:
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


def unknown(key: str, source: str) -> Mistake:
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
    return Mistake(what, source, f"{name} is written {' or '.join(elsewhere)}" if elsewhere else fix)


def _translated(error: Mapping[str, Any], sources: Mapping[str, str], file: str) -> Mistake:
    """One refusal of pydantic in the words of a recipe."""
    key = ".".join(map(str, error["loc"][:2]))
    place, source = _place(key, error["loc"]), sources.get(key, file)
    match error["type"]:
        case "extra_forbidden":
            return unknown(key, source)
        case "missing":
            name = place if "." in key else f"section [{key}]"
            return Mistake(f"{name} is missing", source, SEE_SCHEMA)
    return refused(error, place, source)


def refused(error: Mapping[str, Any], place: str, source: str) -> Mistake:
    """A value that is not of its key's kind or range, as pydantic refuses it, in the words of a file."""
    given = error["input"]
    match error["type"]:
        case "literal_error":
            choices = error["ctx"]["expected"]
            close = nearest(str(given), choices.replace("'", "").replace(" or ", ", ").split(", "))
            return Mistake(f"{place} is {toml_value(given)}{close}", source, f"it must be {choices}")
        case "string_pattern_mismatch":  # schedule.warmup is the only key with a pattern
            what = f"{place} is {toml_value(given)}, which is neither steps nor a share of the run"
            return Mistake(what, source, 'write steps without quotes, or a share such as "10%"')
    kind, _, reason = error["type"].partition("_")
    if reason == "type" and kind in KINDS:
        what = f"{place} is {toml_value(given)}, which is not {KINDS[kind]}"
        return Mistake(what, source, _as_kind(kind, given))
    words = error["msg"].replace("Input should", "it must").replace("Tuple should", "the list must")
    words = words.replace(" after validation", "").replace("String should", "it must")
    return Mistake(f"{place} is {toml_value(given)}, out of its range", source, words)


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
