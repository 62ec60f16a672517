"""A study file: what is trained, over which grid, and how each run is scored; a closed schema, as a recipe's.

Recipe keys stand in tables called `set`, as in a recipe: set.optimizer.lr = 0.01.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError

from vitcli import recipe
from vitcli.errors import VitError, nearest
from vitcli.output.run_folder import slug
from vitcli.recipe.schema import KEYS, SECTIONS, Count, NonNegativeInt, Positive, Section, key
from vitcli.recipe.toml import toml_value, typed_value
from vitcli.recipe.validation import Problem, as_error, report, unknown

SEE = "docs/study.md has every key with its meaning"
ALL = "all"


def _flat(table: Any) -> Any:
    """{"optimizer": {"lr": 1}} as {"optimizer.lr": 1}; anything else as it is."""
    if not isinstance(table, dict):
        return table
    tables = {name: keys if isinstance(keys, dict) else {"": keys} for name, keys in table.items()}
    return {
        f"{name}.{last}".rstrip("."): value for name, keys in tables.items() for last, value in keys.items()
    }


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _is_text(value: Any) -> str:
    return "text" if isinstance(value, str) else "number"


def _list_of(kind: Any) -> Any:
    return Annotated[tuple[kind, ...], Field(strict=False, min_length=1)]


Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[_list_of(Text), BeforeValidator(_several)]
Keys = Annotated[dict[str, Any], BeforeValidator(_flat)]
CountOrAll = Annotated[
    Annotated[Count, Tag("number")] | Annotated[Literal["all"], Tag("text")], Discriminator(_is_text)
]


class Grid(Section):
    """Every combination is one run; a list that is left out is what the recipe says."""

    models: Texts | None = key("networks as --model takes them; of command finetune, checkpoints", None)
    num_examples: _list_of(CountOrAll) | None = key("sizes of random subsets of the training images", None)
    epochs: _list_of(Positive) | None = key("durations in passes over the training images", None)
    steps: _list_of(Count) | None = key("durations in optimizer steps; these or epochs", None)
    seeds: _list_of(NonNegativeInt) | None = key(
        "of everything drawn, the subset too; gives mean and std", None
    )


class StudyVariant(Section):
    """A network of the study that is more than a name."""

    name: Text = key("what tables and pictures call it")
    family: Texts | None = key("points of one family are joined by a line; several: it is in all", None)
    recipe: Text | None = key("its own recipe; that of the study if left out", None)
    num_examples: _list_of(CountOrAll) | None = key("its own instead of the grid's", None)
    epochs: _list_of(Positive) | None = key("its own instead of the grid's", None)
    steps: _list_of(Count) | None = key("its own instead of the grid's", None)
    set: Keys = key("recipe keys of its runs", {})


class Score(Section):
    """One accuracy for each run."""

    by: Literal["fewshot", "finetune", "eval"] = key(
        "few-shot on its features, fine-tuning, or top-1 on the run's own held-out images"
    )
    dataset: Texts | None = key("to score on; several: their mean", None)
    recipe: Text | None = key("of the scoring; found by the data set if left out", None)
    shots: Count | None = key("fewshot: images a class", None)
    set: Keys = key("recipe keys of the scoring", {})


class Study(Section):
    """A grid of ordinary runs, and an accuracy for each (paper, 4.3, 4.4 and D.2)."""

    command: Literal["pretrain", "finetune"] = key("how a run is made")
    recipe: Text | None = key("of every run that has none of its own", None)
    grid: Grid = Grid()
    variants: Annotated[tuple[StudyVariant, ...], Field(strict=False)] = ()
    set: Keys = key("recipe keys of every run", {})
    score: Score


KINDS: dict[str, type[Section]] = {"grid": Grid, "variants": StudyVariant, "score": Score}


def load(name: str, overrides: Sequence[str] = ()) -> tuple[Study, str]:
    """Read and check a study: a shipped one by its name, or a path that ends in .toml.

    Args:
        overrides: "section.key=value" of recipes, laid over the study's own `set`.

    Returns:
        The study, and its file as people should see it.

    Raises:
        VitError: every mistake of file and options, in one report.
    """
    path = _find(name)
    table, file = recipe.read_toml(path), recipe.label(path)
    mistakes = _lay(table, overrides)
    try:
        study = Study.model_validate(table)
    except ValidationError as refusal:
        # A list with a wrong item is called too short besides.
        told = [one for one in refusal.errors() if one["type"] != "too_short" or not one["input"]]
        mistakes += [_translated(error, file) for error in told]
    else:
        mistakes += _mistakes(study, file)
    if mistakes:
        raise report(mistakes, f"study {name}", see=SEE)
    return study, file


def flat(study: Study) -> dict[str, Any]:
    """Every value that is given, by dotted key; variants go by their names."""
    values = {"command": study.command, "recipe": study.recipe}
    parts: dict[str, Section] = {"grid": study.grid, "score": study.score}
    parts |= {f"variants.{variant.name}": variant for variant in study.variants}
    for part, section in parts.items():
        values |= {f"{part}.{name}": value for name, value in section if name not in ("set", "name")}
        values |= {f"{part}.set.{name}": value for name, value in getattr(section, "set", {}).items()}
    values |= {f"set.{name}": value for name, value in study.set.items()}
    return {name: value for name, value in values.items() if value is not None}


def differences(a: Study, b: Study) -> list[str]:
    """Keys in which two studies differ, as "grid.seeds: [0] against [0, 1]"."""
    left, right = flat(a), flat(b)
    found = [
        f"{name}: {toml_value(left.get(name))} against {toml_value(right.get(name))}"
        for name in dict.fromkeys([*left, *right])
        if toml_value(left.get(name)) != toml_value(right.get(name))
    ]
    names = [[variant.name for variant in study.variants] for study in (a, b)]
    return found or ([f"variants: {names[0]} against {names[1]}"] if names[0] != names[1] else [])


def to_toml(study: Study) -> str:
    """The study as a file; loading it gives the same study."""
    lines = [
        f"{name} = {toml_value(value)}" for name in ("command", "recipe") if (value := getattr(study, name))
    ]
    parts: list[tuple[str, Section]] = [("[grid]", study.grid)]
    parts += [("[[variants]]", variant) for variant in study.variants] + [("[score]", study.score)]
    lines += [f"set.{name} = {toml_value(value)}" for name, value in study.set.items()]
    for head, section in parts:
        given = {name: value for name, value in section if value is not None and name != "set"}
        lines += ["", head, *(f"{name} = {toml_value(value)}" for name, value in given.items())]
        lines += [f"set.{name} = {toml_value(value)}" for name, value in getattr(section, "set", {}).items()]
    return "\n".join(lines) + "\n"


def _find(name: str) -> Path:
    shipped = recipe.studies()
    path = shipped.get(name) or (Path(name) if name.endswith(".toml") else None)
    if path is None or not path.is_file():
        raise VitError(
            f"there is no study {name!r}{nearest(name, shipped)}",
            where="FILE",
            fix=f"one of {', '.join(shipped)}, or the path of a .toml file",
        )
    return path


def _lay(table: dict[str, Any], overrides: Sequence[str]) -> list[Problem]:
    """Put the options on top of the table's `set`, and say what is wrong with them."""
    mistakes, given = [], {}
    for override in overrides:
        name, equals, text = (part.strip() for part in override.partition("="))
        option = f"option --set {override}"
        if not equals:
            mistakes.append(Problem(f"{override!r} sets nothing", "option --set", "write section.key=value"))
        elif name not in KEYS:
            mistakes.append(unknown(name, option))
        elif name in given:
            mistakes.append(Problem(f"{name} is set twice", option, "set it once"))
        else:
            given[name] = typed_value(name, text)
    own = _flat(table.get("set", {}))
    if given and isinstance(own, dict):
        table["set"] = {**own, **given}
    return mistakes


def _mistakes(study: Study, file: str) -> list[Problem]:
    """What the schema lets through and does not hold."""
    tables = {"set": study.set, "score.set": study.score.set}
    tables |= {f"variant {variant.name}, set": variant.set for variant in study.variants}
    found = [
        _no_recipe_key(name, f"{file}, {place}")
        for place, keys in tables.items()
        for name in keys
        if name not in KEYS
    ]
    named = dict.fromkeys([study.recipe, study.score.recipe, *(one.recipe for one in study.variants)])
    for name in filter(None, named):
        try:
            recipe.find(name)
        except VitError as error:
            found.append(Problem(error.message, f"{file}, key recipe", error.fix))
    return found + [Problem(what, f"{file}, {place}", fix) for place, what, fix in contradictions(study)]


def _no_recipe_key(name: str, source: str) -> Problem:
    if name in SECTIONS:
        return Problem(f"{name} is a section of a recipe", source, f"write set.{name}.KEY = VALUE")
    return unknown(name, source)


def _translated(error: Mapping[str, Any], file: str) -> Problem:
    """One refusal of pydantic in the words of a study."""
    words = [part for part in error["loc"] if part not in ("text", "number")]
    kind = KINDS.get(words[0], Study)
    place = _place(words)
    if error["type"] == "extra_forbidden":
        names = list((kind if len(words) > 1 else Study).model_fields)
        what = f"{place} is not a key of a study{nearest(str(words[-1]), names)}"
        return Problem(what, file, f"the keys here are {', '.join(names)}")
    if error["type"] == "missing":
        return Problem(f"{place} is missing", file, SEE)
    if place == "variants":
        return Problem("variants is a list of tables", file, "write [[variants]] above the keys of each")
    if error["type"] in ("model_type", "dict_type"):
        return Problem(
            f"{place} is a table of keys", file, f"write {words[-1]}.KEY = VALUE, or [{words[0]}] above them"
        )
    return as_error(error, place, file)


def _place(words: Sequence[str | int]) -> str:
    """("variants", 0, "steps", 1) as "variant 1: steps, item 2"."""
    head = ""
    if words[0] == "variants" and len(words) > 1:
        head, words = f"variant {words[1] + 1}: ", words[2:]
    names = ".".join(part for part in words if isinstance(part, str))
    items = [part for part in words if isinstance(part, int)]
    return head + names + (f", item {items[0] + 1}" if items else "")


# the recipe keys that a list of the grid sets, one value for each run
SETS = {
    "num_examples": ("data.num_examples",),
    "epochs": ("schedule.epochs", "schedule.steps"),
    "steps": ("schedule.epochs", "schedule.steps"),
    "seeds": ("train.seed",),
}
OF_THE_SCORING = ("model.ckpt", "data.dataset", "fewshot.shots")
NEEDED = {"fewshot": ("dataset", "shots"), "finetune": ("dataset",), "eval": ()}
NOT_TAKEN = {"fewshot": (), "finetune": ("shots",), "eval": ("dataset", "recipe", "shots", "set")}


def network_key(command: str) -> str:
    """The recipe key that grid.models sets."""
    return {"pretrain": "model.name", "finetune": "model.ckpt"}[command]


def contradictions(study: Any) -> Iterator[tuple[str, str, str]]:
    """Everything that does not hold in a checked `Study`: where, what is wrong, what works."""
    grid = study.grid
    if bool(grid.models) == bool(study.variants):
        what = "names its networks twice" if grid.models else "names no network"
        yield "grid.models", f"the study {what}", "give either grid.models or [[variants]]"
    for place, part in {"grid": grid, **{f"variant {one.name}": one for one in study.variants}}.items():
        if part.epochs and part.steps:
            yield place, "epochs and steps are both given", "give one of them"
        for name, values in part:
            if isinstance(values, tuple) and len(set(values)) < len(values):
                yield f"{place}, {name}", f"{name} names a value twice: {list(values)}", "name each once"
    yield from _names(study)
    yield from _set_twice(study)
    yield from _scoring(study.score)


def folder_name(name: str) -> str:
    """Return the name of a study, variant or data set as part of a folder's name."""
    return slug(name).strip("-.") or "-"


def _names(study: Any) -> Iterator[tuple[str, str, str]]:
    seen: dict[str, str] = {}
    for name in [one.name for one in study.variants] or study.grid.models or ():
        if folder_name(name).lower() in seen:
            other = seen[folder_name(name).lower()]
            yield "variants", f"{name!r} and {other!r} would share a folder", "give them names of their own"
        seen[folder_name(name).lower()] = name
    if not study.recipe:
        for one in study.variants:
            if not one.recipe:
                yield f"variant {one.name}", "there is no recipe for it", "name one, here or for the study"
        if study.grid.models:
            yield "recipe", "there is no recipe to train by", "name one: recipe = 'pretrain/demo'"


def _set_twice(study: Any) -> Iterator[tuple[str, str, str]]:
    by_grid = {name for name in SETS if getattr(study.grid, name)}
    by_grid |= {name for one in study.variants for name in SETS if getattr(one, name, None)}
    taken = {key: name for name in by_grid for key in SETS[name]}
    if study.grid.models:
        taken[network_key(study.command)] = "models"
    tables = {"set": study.set, **{f"variant {one.name}, set": one.set for one in study.variants}}
    for place, keys in tables.items():
        for name in keys:
            if name in taken:
                yield place, f"{name} is set here and by the grid's {taken[name]}", "leave one of the two out"


def _scoring(score: Any) -> Iterator[tuple[str, str, str]]:
    for name in NEEDED[score.by]:
        if not getattr(score, name):
            yield "score", f"score.{name} is missing", f'score.by = "{score.by}" needs it'
    for name in NOT_TAKEN[score.by]:
        if getattr(score, name):
            yield "score", f"score.{name} means nothing to score.by = {score.by!r}", "leave it out"
    for name in score.set:
        if name in OF_THE_SCORING:
            yield "score.set", f"{name} is what the study sets for each run", "leave it out"
